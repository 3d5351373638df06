"""The inputs and outputs of the machine of selective topics, besides routed frames.

The composer feeds it what happens (a frame, a durable append, a change of somebody's interest) and performs its outputs
in order. Its storage contract is that of `protocol/effects.py`, where its reads, writes and records are defined.
"""

from dataclasses import field
from typing import Protocol

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    BeginKey,
    BeginRecord,
    FindTimes,
    InsertBatch,
    MarksRecord,
    NoteSkip,
    ReadSelected,
    RolledBack,
    StoredWant,
    Trace,
    WantRecord,
)
from m4cast.overlay.protocol.wire.selective import RoutedFrame
from m4cast.overlay.value import value

KEEPS_TOPIC = "_keeps"
"""Registrations of keepers: `origin = '<id in hex>'`."""


class AnnouncedItem(Protocol):
    """A registration as another node announces it."""

    @property
    def topic_hash(self) -> int: ...
    @property
    def profile_hash(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def text(self) -> str: ...


class ItemKey(Protocol):
    """The key of an announced item."""

    @property
    def topic_hash(self) -> int: ...
    @property
    def profile_hash(self) -> int: ...


@value
class SelectiveSettings:
    cover_ms: int = 1_000
    """The delay after which the destinations of a stream that advanced are told that nothing else was for them. Lower:
    more messages."""
    clock_skew_ms: int = 60_000
    """The time by which clocks may differ. Higher: a new registration begins with more rows from before it."""
    pull_timeout_ms: int = 2_000
    pull_bytes: int = 262_144
    undurable_bytes_max: int = 8_388_608


@value
class SelectiveRecovered:
    """The state that the store had when it was opened."""

    incarnation: int
    version: int
    """`ts` of this node's entry."""
    wants: dict[str, StoredWant]
    begins: dict[BeginKey, int]
    marks: dict[StreamId, tuple[tuple[int, int], ...]]
    own: dict[str, tuple[int, int]]
    """Topic -> next sequence and last checksum of this node's own selective streams."""
    lost: dict[StreamId, int] = field(default_factory=dict)
    """The end of the last skip `lost` of each stream that has one."""


SelectiveWrite = InsertBatch | NoteSkip | MarksRecord | BeginRecord | WantRecord


@value
class KeepWish:
    """Register or give up keeping this origin's selective streams."""

    origin: NodeId
    keep: bool


SelectiveOutput = RoutedFrame | Append | ReadSelected | FindTimes | KeepWish | RolledBack | Trace


def keep_id(origin: NodeId) -> str:
    return f"_keep/{origin.hex()}"


def keep_text(origin: NodeId) -> str:
    return f"`origin` = '{origin.hex()}'"


def kept_origin(text: str) -> NodeId | None:
    """The origin that a keeper's registration names."""
    try:
        origin = NodeId(bytes.fromhex(text.removeprefix("`origin` = '").removesuffix("'")))
    except ValueError:
        return None
    return origin if text == keep_text(origin) else None
