"""Places of a simulated channel of selective topics: their disks, their registrations, and the rows they publish."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.summary import summarise
from m4cast.overlay.protocol.effects import (
    BeginKey,
    BeginRecord,
    InsertBatch,
    MarksRecord,
    NoteSkip,
    ReadSelected,
    SelectedRead,
    StoredWant,
    Want,
    WantRecord,
)
from m4cast.overlay.protocol.selective.contract import SelectiveWrite, keep_text
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.selective.wants import covers_profile
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Extension, Skip
from m4cast.overlay.protocol.wire.selective import spread_extension

VALUES = "ABCD"
PROFILES = (
    None,
    "`country` = 'A'",
    "`country` = 'B'",
    "`country` IN ('A', 'B')",
    "`country` = 'C'",
    "`country` >= 'C'",
)
"""Some of these cover others."""
WANTED: dict[str | None, str] = dict(zip(PROFILES, ("ABCD", "A", "B", "AB", "C", "CD"), strict=True))


class SimItem(NamedTuple):
    """An announced registration."""

    topic_hash: int
    profile_hash: int
    epoch: int
    language: str
    version: int
    text: str


class SimKey(NamedTuple):
    topic_hash: int
    profile_hash: int


class SimEntry(NamedTuple):
    """A node's interest entry: its version, and the announced items by key."""

    version: int
    items: dict[SimKey, SimItem]


@dataclass(slots=True)
class SelectiveContent:
    """The durable content of a place."""

    ids: tuple[NodeId, ...]
    entry: SimEntry = field(default_factory=lambda: SimEntry(0, {}))
    epochs: int = 0
    wants: dict[str, StoredWant] = field(default_factory=dict)
    begins: dict[BeginKey, int] = field(default_factory=dict)
    marks: dict[StreamId, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    logs: dict[StreamId, dict[int, Batch]] = field(default_factory=dict)
    lows: dict[StreamId, int] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)

    @property
    def node_id(self) -> NodeId:
        return self.ids[0]


class OwnEntry(NamedTuple):
    """A write: the node's own interest entry."""

    entry: SimEntry
    epochs: int


Written = SelectiveWrite | OwnEntry | Batch


@dataclass(slots=True)
class SelectivePlace:
    name: str
    content: SelectiveContent
    clock_ms: int = 0
    machine: Selective | None = None
    timers: Timers = field(default_factory=Timers)
    life: int = 0
    tokens: int = 0
    waiting: list[tuple[int, tuple[Written, ...]]] = field(default_factory=list)
    present: dict[NodeId, None] = field(default_factory=dict)
    held: dict[NodeId, SimEntry] = field(default_factory=dict)
    """The interest view: entries of other nodes, also of absent ones."""
    wished: dict[str, float] = field(default_factory=dict)
    """Registration -> when its client asked for it."""
    asked: dict[str, Want] = field(default_factory=dict)
    """Registration -> as its client asked for it."""
    dead: bool = False

    @property
    def up(self) -> bool:
        return self.machine is not None


@lru_cache(maxsize=1_024)
def batch_extensions(values: str, keepers: int) -> tuple[Extension, ...]:
    rows = pa.record_batch({"country": list(values)})
    summary = summary_bytes.encode(summarise(rows, [("country",)]))
    return (Extension(SUMMARY_EXTENSION, False, summary), spread_extension(keepers))


def values_of(batch: Batch) -> str:
    return bytes(batch.content).decode()


def does_match(want: Want, batch: Batch) -> bool:
    if want.keeps is not None:
        return batch.stream.origin == want.keeps
    text = want.profile.text if want.profile is not None else None
    return want.topic == batch.stream.topic and any(value in WANTED.get(text, "") for value in values_of(batch))


def reaches(want: Want, batch: Batch) -> bool:
    """True if the registration begins at this batch or earlier, whenever the batch was published."""
    if want.positions is not None:
        return batch.first_sequence >= want.positions.get(batch.stream.origin, 1)
    return want.earliest or (want.from_ms is not None and batch.published_at_ms >= want.from_ms)


def is_due(want: Want, batch: Batch, at_ms: int, since_ms: float) -> bool:
    """True if the registration, which was answered at `since_ms`, begins at the batch or before."""
    return reaches(want, batch) or (at_ms > since_ms and want.positions is None)


def apply_write(content: SelectiveContent, write: Written) -> None:
    """Make a write durable."""
    match write:
        case OwnEntry(entry, epochs):
            content.entry, content.epochs = entry, epochs
        case Batch():
            content.logs.setdefault(write.stream, {})[write.first_sequence] = write
        case InsertBatch(batch, _):
            log = content.logs.setdefault(batch.stream, {})
            if batch.first_sequence not in log:
                log[batch.first_sequence] = batch
        case NoteSkip(skip):
            content.skips.append(skip)
        case MarksRecord(stream_id, runs):
            assert runs is not None
            content.marks[stream_id] = runs
        case BeginRecord(key, begin):
            _put(content.begins, key, begin)
        case WantRecord(name, stored):
            _put(content.wants, name, stored)


K = TypeVar("K")
V = TypeVar("V")


def _put(rows: dict[K, V], key: K, content: V | None) -> None:
    if content is None:
        rows.pop(key, None)
    else:
        rows[key] = content


def announced(wants: dict[str, StoredWant], before: SimEntry, epoch: int, added: set[str]) -> dict[SimKey, SimItem]:
    """The items of an entry: maximal registrations only. What stayed keeps its epoch."""
    items: dict[SimKey, SimItem] = {}
    for name, stored in wants.items():
        want = stored.want
        wider = [
            other.want
            for each, other in wants.items()
            if each != name
            and (other.want.topic, other.want.keeps) == (want.topic, want.keeps)
            and covers_profile(other.want, want.profile)
        ]
        if wider:
            continue
        text = keep_text(want.keeps) if want.keeps is not None else want.profile.text if want.profile else ""
        key = SimKey(xxh3_64_intdigest(want.topic.encode()), xxh3_64_intdigest(text.encode()) if text else 0)
        known = before.items.get(key)
        if known is not None and name not in added:
            items[key] = known
        else:
            items[key] = SimItem(*key, epoch, "sql", 1, text)
    return items


def selected(output: ReadSelected, log: dict[int, Batch], low: int) -> SelectedRead:
    batches: list[Batch] = []
    size, read_next = 0, output.next_sequence
    before = [batch.checksum for batch in log.values() if batch.next_sequence == output.first_sequence]
    for first in sorted(log):
        batch = log[first]
        if batch.next_sequence <= output.first_sequence or first >= output.next_sequence:
            continue
        if batches and size + len(batch.payload) > output.bytes_max:
            read_next = first
            break
        batches.append(batch)
        size += len(batch.payload)
    return SelectedRead(output.token, tuple(batches), read_next, low, before[0] if before else 0)
