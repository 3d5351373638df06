"""What goes into the machine of selective topics and what comes out of it, beside routed frames.

The composer feeds it what happens (a frame, a durable append, a change of somebody's interest) and performs its outputs
in order. Its storage contract is that of `protocol/effects.py`: appends become durable in the order they were asked
for, and when one fails, all later ones fail.
"""

from typing import NamedTuple, Protocol

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import RolledBack, StoredRecord, Trace
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, Skip
from m4cast.overlay.protocol.wire.selective import ProfileText, RoutedFrame
from m4cast.overlay.value import value

KEEPS_TOPIC = "_keeps"
"""Registrations of keepers: `origin = '<id in hex>'`."""


class AnnouncedItem(Protocol):
    """A registration as another node announces it."""

    @property
    def topic(self) -> int: ...
    @property
    def profile(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def text(self) -> str: ...


class ItemKey(Protocol):
    """What an announced item is found by."""

    @property
    def topic(self) -> int: ...
    @property
    def profile(self) -> int: ...


@value
class Want:
    """A registration of this node."""

    id: str
    topic: str
    profile: ProfileText | None
    """None: every row."""
    since_ms: int
    """On the wall clock."""
    earliest: bool = False
    keeps: NodeId | None = None
    """Every selective stream of this origin, whatever its topic."""


@value
class StoredWant:
    """A registration and the version of this node's entry with which it joined."""

    want: Want
    join: int


class BeginKey(NamedTuple):
    want: str
    stream: StreamId


@value
class SelectiveSettings:
    cover_ms: int = 1_000
    """How soon after a stream moved its destinations are told that nothing else was for them. Lower: more messages."""
    clock_skew_ms: int = 60_000
    """How far clocks may differ. Higher: a new registration begins with more rows from before it."""
    pull_timeout_ms: int = 2_000
    pull_bytes: int = 262_144
    undurable_bytes_max: int = 8_388_608


@value
class SelectiveRecovered:
    """What the store knew when it was opened."""

    incarnation: int
    version: int
    """`ts` of this node's entry."""
    wants: dict[str, StoredWant]
    begins: dict[BeginKey, int]
    marks: dict[StreamId, tuple[tuple[int, int], ...]]
    own: dict[str, tuple[int, int]]
    """Topic -> next sequence and last checksum of this node's own selective streams."""


# ---- outputs


@value
class InsertBatch:
    """Write the batch into its selective stream, at its place. If rows are there already, neither batch nor delivery is
    written."""

    batch: Batch
    delivery: Delivery


@value
class NoteSkip:
    """Rows of a selective stream that were wanted and that nobody keeps any longer."""

    skip: Skip


@value
class MarksRecord(StoredRecord[StreamId, tuple[tuple[int, int], ...]]):
    """The marks of a stream."""


@value
class BeginRecord(StoredRecord[BeginKey, int]):
    """Where a registration begins in a stream."""


@value
class WantRecord(StoredRecord[str, StoredWant]):
    """A registration with its join, by its id."""


SelectiveWrite = InsertBatch | NoteSkip | MarksRecord | BeginRecord | WantRecord


@value
class SelectiveAppend:
    """One transaction."""

    token: int
    writes: tuple[SelectiveWrite, ...]


@value
class ReadSelected:
    """Read the batches that the log has in `first_sequence .. next_sequence - 1`, until about `bytes_max`."""

    token: int
    stream: StreamId
    first_sequence: int
    next_sequence: int
    bytes_max: int


@value
class FindTimes:
    """Find, for each time, the first batch in the log that was published then or later."""

    token: int
    stream: StreamId
    times_ms: tuple[int, ...]


@value
class KeepWish:
    """Register or give up keeping this origin's selective streams."""

    origin: NodeId
    keep: bool


SelectiveOutput = RoutedFrame | SelectiveAppend | ReadSelected | FindTimes | KeepWish | RolledBack | Trace


# ---- inputs


@value
class SelectedRead:
    """What a `ReadSelected` found."""

    token: int
    batches: tuple[Batch, ...]
    read_next: int
    """Up to here the log was read."""
    low: int
    """The end of the last batch that retention removed, or of the last skip: below it rows may be lacking that were
    wanted here. 1: there is neither."""
    checksum_before: int
    """Of the batch that ends at the asked first sequence; 0: it is not in the log."""


@value
class TimesFound:
    token: int
    sequences: tuple[int, ...]
    """0: no batch is that late."""


def keep_id(origin: NodeId) -> str:
    return f"_keep/{origin.hex()}"


def keep_text(origin: NodeId) -> str:
    return f"origin = '{origin.hex()}'"


def kept_origin(text: str) -> NodeId | None:
    """The origin that a keeper's registration names."""
    try:
        origin = NodeId(bytes.fromhex(text.removeprefix("origin = '").removesuffix("'")))
    except ValueError:
        return None
    return origin if text == keep_text(origin) else None
