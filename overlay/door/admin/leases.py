"""Reader leases: under a name, a client holds rows back from retention at this node."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial

from m4cast.overlay.door.fields import Fields, Frontier, frontier_json, shown
from m4cast.overlay.door.node_handle import NodeHandle, until_written
from m4cast.overlay.door.publish.restoring import RESTORED
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import parse_filter
from m4cast.overlay.door.selected.backlog import covered, profile_of, rows_here
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile
from m4cast.overlay.store.store import Reader, Store

LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 24 * 3_600_000
READER_BYTES_MAX = 200
OWN_READERS = {"_clients": "its clients", RESTORED: "rows that were put back"}


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    reader: str
    frontier: Frontier
    topics: tuple[str, ...]
    ttl_ms: int
    profile: Profile | None = None
    """The rows of these topics that it reads; None: every row, or not known."""

    def all_topics(self) -> tuple[str, ...]:
        return tuple({*self.topics, *(stream.topic for stream in self.frontier)})


def parse_lease(fields: Fields) -> LeaseRequest:
    frontier = fields.frontier("frontier") or {}
    topics = fields.topics() if fields.names_topics() else fields.frontier_topics("frontier")
    if not topics:
        raise bad_request("the lease would hold no rows: name topics, or streams in frontier")
    ttl_ms = fields.whole("ttl_ms", LEASE_MS_MIN, LEASE_MS_MAX)
    if ttl_ms is None:
        raise bad_request("ttl_ms is missing: set it to how long the lease lasts unless it is renewed")
    return LeaseRequest(parse_reader(fields), frontier, topics, ttl_ms, parse_filter(fields))


def parse_reader(fields: Fields) -> str:
    name = fields.text("reader", "")
    if not 1 <= len(name.encode(errors="replace")) <= READER_BYTES_MAX or not name.isprintable():
        raise bad_request(f"reader must be printable text of 1 to {READER_BYTES_MAX} bytes, not {shown(name)}")
    own = name.partition("/")[0]
    if own in OWN_READERS:
        raise bad_request(f"reader {name!r} is the node's own, for {OWN_READERS[own]}: choose another name")
    return name


class Readers:
    """Any thread may use it. Each call waits for the store."""

    def __init__(self, store: Store, node: NodeHandle, timeout_s: float) -> None:
        self._store = store
        self._node = node
        self._timeout_s = timeout_s

    def lease(self, lease: LeaseRequest, profiles: Mapping[str, str]) -> dict[str, object]:
        """`profiles`: by topic, the condition of the rows that it reads."""
        now_ms = self._node.clock_ms()
        expires_at_ms = now_ms + lease.ttl_ms
        asked = self._store.set_reader(
            lease.reader, lease.frontier, expires_at_ms, lease.topics, now_ms=now_ms, profiles=profiles
        )
        reader = until_written(asked, self._timeout_s)
        if reader is None:
            raise Refusal("too-many", "this node has as many readers as it allows, and none has expired: release some")
        if reader.cuts:
            raise _cut(reader)
        lows = self._store.lows(lease.frontier)
        missing = {stream: low for stream, low in lows.items() if lease.frontier[stream] < low}
        return {"expires_at_ms": expires_at_ms, "missing": frontier_json(missing)}

    def release(self, name: str) -> dict[str, object]:
        return {"released": until_written(self._store.drop_reader(name), self._timeout_s)}

    def topics_of(self, name: str) -> tuple[str, ...]:
        """The topics of a reader, if it is known: whoever changes it must have the right to read them."""
        reader = self._store.readers().get(name)
        return () if reader is None else tuple(sorted(reader.topics))

    def all(self, may_read: Callable[[str], bool]) -> list[dict[str, object]]:
        """The readers all of whose topics may be read."""
        now_ms = self._node.clock_ms()
        streams = self._store.streams()
        selective = frozenset(self._node.look(lambda node: tuple(node.selection.descriptors), self._timeout_s))
        return [
            {
                "reader": reader.name,
                "expires_at_ms": reader.lease_until_ms,
                "live": reader.lease_until_ms > now_ms,
                "topics": sorted(reader.topics),
                "frontier": frontier_json(reader.frontier),
                "rows_behind": self._rows_behind(reader, streams, selective),
                "cuts": [
                    {
                        "topic": cut.stream.topic,
                        "origin": cut.stream.origin.hex(),
                        "first": cut.first_sequence,
                        "next": cut.next_sequence,
                    }
                    for cut in reader.cuts
                ],
            }
            for reader in self._store.readers().values()
            if all(may_read(topic) for topic in reader.topics)
        ]

    def _rows_behind(
        self, reader: Reader, streams: Mapping[StreamId, tuple[int, int]], selective: Container[str]
    ) -> int:
        """Rows that this node retains and the reader has not read. Of selective topics, those of batches that may have
        a row for the reader, up to where its registration is covered."""
        behind = 0
        ends: dict[str, Mapping[StreamId, int]] = {}
        for stream, (low, until) in streams.items():
            wanted = reader.holds(stream)
            if wanted is None:
                continue
            first = max(wanted, low)
            if stream.topic not in selective:
                behind += max(until - first, 0)
                continue
            topic, profile = stream.topic, profile_of(reader, stream.topic)
            if topic not in ends:
                ends[topic] = self._node.look(partial(covered, topic, profile, reader), self._timeout_s)
            behind += rows_here(self._store, stream, first, ends[topic].get(stream, until), profile)
        return behind


def _cut(reader: Reader) -> Refusal:
    first = reader.cuts[0]
    more = f", and rows of {len(reader.cuts) - 1} more streams" if len(reader.cuts) > 1 else ""
    detail = (
        f"reader {reader.name!r} fell too far behind: rows {first.first_sequence} to {first.next_sequence - 1} of "
        f"topic {first.stream.topic!r}, origin {first.stream.origin.hex()}{more} were removed. Continue after them "
        f"(from {first.next_sequence}), or release the reader"
    )
    return Refusal("reader-cut", detail)
