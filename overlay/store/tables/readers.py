"""Named readers: what each still wants, until when it holds that back, and what it lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, of_json, to_json

READERS = StoreTable("readers")

CUTS_MAX = 256
"""Streams for which a reader's record lists what was cut; the oldest are dropped beyond it."""


class Cut(NamedTuple):
    """Rows `first_sequence .. next_sequence - 1` that a reader had not read when they were removed."""

    stream: StreamId
    first_sequence: int
    next_sequence: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    frontier: dict[StreamId, int]
    topics: frozenset[str]
    lease_until_ms: int
    cuts: tuple[Cut, ...] = ()
    profiles: Mapping[str, str] = field(default_factory=dict)
    """The condition, in canonical form, by which it reads rows of each topic, as far as it is known."""

    def holds(self, stream: StreamId) -> int | None:
        """The first sequence that this reader still wants of the stream; None if it does not want the stream."""
        wanted = self.frontier.get(stream)
        return 1 if wanted is None and stream.topic in self.topics else wanted

    def lacks(self, cut: Cut) -> bool:
        wanted = self.holds(cut.stream)
        return wanted is not None and wanted < cut.next_sequence

    def cut(self, stream: StreamId, next_sequence: int, at_ms: int) -> "Reader":
        wanted = self.holds(stream)
        assert wanted is not None and wanted < next_sequence
        earlier = [cut for cut in self.cuts if cut.stream == stream and cut.next_sequence >= wanted]
        first = min([wanted, *(cut.first_sequence for cut in earlier)])
        others = [cut for cut in self.cuts if cut not in earlier]
        cuts = (*others, Cut(stream, first, next_sequence, at_ms))[-CUTS_MAX:]
        return replace(self, frontier={**self.frontier, stream: next_sequence}, cuts=cuts)

    def to_bytes(self) -> bytes:
        return to_json(
            {
                "lease_until_ms": self.lease_until_ms,
                "topics": sorted(self.topics),
                "frontier": [[s.origin.hex(), s.topic, next_] for s, next_ in self.frontier.items()],
                "cuts": [[c.stream.origin.hex(), c.stream.topic, *c[1:]] for c in self.cuts],
                **({"profiles": dict(self.profiles)} if self.profiles else {}),
            }
        )


def reader_of(name: str, value: bytes | memoryview) -> Reader:
    fields = of_json(value)
    return Reader(
        name=name,
        frontier={_stream(origin, topic): next_ for origin, topic, next_ in fields["frontier"]},
        topics=frozenset(fields["topics"]),
        lease_until_ms=fields["lease_until_ms"],
        cuts=tuple(Cut(_stream(origin, topic), *numbers) for origin, topic, *numbers in fields["cuts"]),
        profiles=fields.get("profiles", {}),
    )


def write_reader(reader: Reader, tables: Tables, txn: WriteTxn) -> None:
    txn.put(reader.name.encode(), reader.to_bytes(), db=tables[READERS])


def remove_reader(name: str, tables: Tables, txn: WriteTxn) -> bool:
    """True if there was one of this name."""
    return txn.delete(name.encode(), db=tables[READERS])


def read_readers(tables: Tables, txn: Txn) -> dict[str, Reader]:
    return {(name := str(key, "utf-8")): reader_of(name, value) for key, value in txn.cursor(tables[READERS])}


def _stream(origin: str, topic: str) -> StreamId:
    return StreamId(NodeId(bytes.fromhex(origin)), topic)
