"""What is in a store's file: the tables and how their keys and values are written.

    meta        "format", "identity", "counters": what the store is, whose it is, and where its numbers stand;
                "up": for how long nodes have run on it; "retention-clock": the time by which ages were last measured;
                "published " and own stream: when its last batch was published, if that is kept no more;
                after a rollback also parts of former commits that have not come back whole yet
    streams     origin and topic -> stream number and holdings (low, next, checksum, bytes, batches), owner
    names       stream number -> origin and topic
    log         stream number, first sequence -> entry: a prefix of fixed width, then the body of the batch
    payloads    payload number -> payload that is not in its entry
    skips       stream number, first sequence -> last sequence, reason, on whose word
    deliveries  arrival number -> stream number, range, times, hops, how, sender, incarnation, facts of batch or skip
    publishers  key -> position, ranges, identity, owner, last use
    stage       stage id -> topic, rows, schema, payload number
    schemas     schema id -> bytes (outside retention)
    roster      node id, incarnation -> its last word about itself, from when to when it was heard of, and why it ended
    topics      topic -> its retention, where it was set while the node ran
    readers     name -> frontier, lease, what was cut

Streams have small numbers, so that keys stay short. Numbers in keys are big-endian: LMDB orders by bytes.

A payload longer than `INLINE_BYTES_MAX`, and every staged one, has a place of its own in `payloads`, and its entry
keeps the head of the body and the payload's number. That is what lets a commit number staged payload without writing
it again: the number goes from the stage to the log. It also saves a copy of every large payload that is received, and
keeps the log's own tree small, so that retention reads little. Payloads are numbered as they come: the table is
filled at its end and emptied near its beginning.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId
from m4cast.overlay.protocol.effects import FormerPart, PublisherState, Range, Staged
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason, StoredPayload
from m4cast.overlay.protocol.wire.frame import (
    body_checksums,
    body_schema_id,
    decode_body,
    decode_parts,
    encode_head,
    payload_checksum,
)
from m4cast.overlay.protocol.wire.messages import RosterEntry

if TYPE_CHECKING:
    WriteTxn = lmdb.Transaction[bytes]
    ReadTxn = lmdb.Transaction[memoryview]
    Txn = WriteTxn | ReadTxn
    Database = lmdb._Database
else:  # classes of an extension module, which know nothing of types
    WriteTxn = ReadTxn = Txn = lmdb.Transaction
    Database = object

FORMAT_VERSION = 4
"""Raised when an older program could not read the file, or would damage it."""
FORMAT_VERSION_MIN = 3
"""The oldest that can be read. A store of that version becomes one of the present version when a node opens it; what
it holds is written anew when it changes, so both ways to write streams and publishers have to be known.

3: streams have no owner, publishers neither owner nor last use."""
INLINE_BYTES_MAX = 16_384
"""Payloads up to this size are in their log entry: one tree to update instead of two. Guess."""
DATA_FILE = "data.mdb"

FORMAT = b"format"
IDENTITY = b"identity"
COUNTERS = b"counters"
FORMER_PART = b"former-part/"
"""Prefix of keys in `meta`: they are few and short-lived, and a store that never was rolled back has none."""
UP = b"up"
PUBLISHED = b"published "
"""Before the key of an own stream that retention emptied: when its last batch was published. The next one is not
published before."""
RETENTION_CLOCK = b"retention-clock"
"""The time by which retention last measured ages."""

_STREAM = struct.Struct("<I5Q")
_NUMBER = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")
_PLACE = struct.Struct(">IQ")
_ENTRY = struct.Struct("<QQIIQB")
_SKIP = struct.Struct("<QB16s")
_DELIVERY = struct.Struct("<IQQQQBBQ?16sQIQB")
_PUBLISHER = struct.Struct("<H16sQ")
_PUBLISHER_USE = struct.Struct("<QH")
_HAS_USE = 0x8000
"""Set in the length of a position when owner and last use are there, as they are from version 4 on."""
_RANGE = struct.Struct("<IQQ")
_STAGED = struct.Struct("<IQIQQ")
_COUNTERS = struct.Struct("<4Q")
_TIME = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Tables:
    """The named databases of an environment, by the names above."""

    meta: Database
    streams: Database
    names: Database
    log: Database
    payloads: Database
    skips: Database
    deliveries: Database
    publishers: Database
    stage: Database
    schemas: Database
    roster: Database
    topics: Database
    readers: Database


TABLE_NAMES = tuple(Tables.__dataclass_fields__)


def open_tables(env: lmdb.Environment, txn: WriteTxn | None = None) -> Tables:
    """Make the tables in this transaction, or find those that there are."""
    return Tables(*(env.open_db(name.encode(), txn=txn, create=txn is not None) for name in TABLE_NAMES))


# ---- what a store knows about itself


@dataclass(frozen=True, slots=True)
class Identity:
    node_id: NodeId
    incarnation: int
    former_ids: tuple[NodeId, ...]

    def to_bytes(self) -> bytes:
        former = [node_id.hex() for node_id in self.former_ids]
        return to_json({"node_id": self.node_id.hex(), "incarnation": self.incarnation, "former_ids": former})


def identity_of(value: bytes | memoryview) -> Identity:
    fields = of_json(value)
    former_ids = tuple(NodeId(bytes.fromhex(former)) for former in fields["former_ids"])
    return Identity(NodeId(bytes.fromhex(fields["node_id"])), fields["incarnation"], former_ids)


@dataclass(slots=True)
class Counters:
    """Where the numbers stand: of own batches the last one, of all others the next to give."""

    origin_batch: int = 0
    stream: int = 1
    delivery: int = 1
    payload: int = 1

    def to_bytes(self) -> bytes:
        return _COUNTERS.pack(self.origin_batch, self.stream, self.delivery, self.payload)


def counters_of(value: bytes | memoryview) -> Counters:
    return Counters(*_COUNTERS.unpack(value))


def time_value(at_ms: int) -> bytes:
    return _TIME.pack(at_ms)


def time_of(value: bytes | memoryview) -> int:
    at_ms: int = _TIME.unpack(value)[0]
    return at_ms


# ---- streams


@dataclass(slots=True)
class StreamRecord:
    """What the store has of one stream. `log_bytes` and `batches` are those of the log, not of skips."""

    number: int
    low: int = 1
    next: int = 1
    last_checksum: int = 0
    log_bytes: int = 0
    batches: int = 0
    owner: str = ""

    def to_bytes(self) -> bytes:
        fields = _STREAM.pack(self.number, self.low, self.next, self.last_checksum, self.log_bytes, self.batches)
        return fields + self.owner.encode() if self.owner else fields


def held_of(value: bytes | memoryview) -> StreamRecord:
    held = StreamRecord(*_STREAM.unpack_from(value))
    if len(value) > _STREAM.size:
        held.owner = str(value[_STREAM.size :], "utf-8")
    return held


def stream_key(stream: StreamId) -> bytes:
    return stream.origin + stream.topic.encode()


def stream_of(key: bytes | memoryview) -> StreamId:
    return StreamId(NodeId(bytes(key[:NODE_ID_BYTES])), str(key[NODE_ID_BYTES:], "utf-8"))


def number_key(number: int) -> bytes:
    return _NUMBER.pack(number)


def sequence_key(number: int) -> bytes:
    """Of tables that are in the order in which things came: payloads, deliveries; and of schemas."""
    return _SEQUENCE.pack(number)


def number_of(key: bytes | memoryview) -> int:
    return int.from_bytes(key, "big")


def place_key(stream_number: int, first_sequence: int) -> bytes:
    return _PLACE.pack(stream_number, first_sequence)


def place_of(key: bytes | memoryview) -> tuple[int, int]:
    stream_number, first_sequence = _PLACE.unpack(key)
    return stream_number, first_sequence


# ---- log entries


class Entry(NamedTuple):
    """The prefix of a log entry: all that retention needs, and how the batch came here, without opening the body."""

    published_at_ms: int
    payload_number: int
    """0 when the payload is in the entry."""
    payload_bytes: int
    row_count: int
    received_at_ms: int
    hops: int


ENTRY_BYTES = _ENTRY.size


def entry_value(batch: Batch, payload_number: int, received_at_ms: int, hops: int) -> bytes:
    """What the log keeps of a batch whose payload is in the entry (number 0) or has a place of its own."""
    prefix = _ENTRY.pack(
        batch.published_at_ms, payload_number, len(batch.payload), batch.row_count, received_at_ms, hops
    )
    head = encode_head(batch)
    return prefix + head if payload_number else b"".join((prefix, head, batch.content))


def entry_of(value: bytes | memoryview) -> Entry:
    return Entry._make(_ENTRY.unpack_from(value))


def schema_id_of(value: bytes | memoryview) -> int:
    """Of an entry's batch, without opening the rest of it."""
    return body_schema_id(value, ENTRY_BYTES)


def checksums_of(value: bytes | memoryview) -> tuple[int, int]:
    """Of an entry's batch and of the batch before it, as they are written there: the batch may be damaged."""
    return body_checksums(value, ENTRY_BYTES)


def kept_bytes(entry: Entry, value: bytes | memoryview) -> int:
    """Bytes of the batch's body, wherever its payload is."""
    return len(value) - ENTRY_BYTES + (entry.payload_bytes if entry.payload_number else 0)


def batch_of(value: memoryview, payload: memoryview | None) -> Batch:
    """The batch of an entry, copied out and checked; `RemoteProtocolError` when it is not what was written."""
    body = value[ENTRY_BYTES:]
    return decode_body(body) if payload is None else decode_parts(body, bytes(payload))


# ---- the other tables


def skip_value(skip: Skip) -> bytes:
    return _SKIP.pack(skip.last_sequence, skip.reason, skip.by)


def skip_of(stream: StreamId, first_sequence: int, value: bytes | memoryview) -> Skip:
    last_sequence, reason, by = _SKIP.unpack(value)
    return Skip(stream, first_sequence, last_sequence, SkipReason(reason), NodeId(by))


def delivery_value(delivery: Delivery, stream_number: int, incarnation: int, what: Batch | Skip | None) -> bytes:
    """`what` is what the record is about."""
    facts = (0, 0, 0, 0)
    if isinstance(what, Batch):
        facts = (what.origin_batch, len(what.payload), what.checksum, 0)
    elif what is not None:
        facts = (0, 0, 0, 1 + what.reason)
    _, first, last, published_at_ms, received_at_ms, hops, how, sender = delivery
    return _DELIVERY.pack(
        stream_number,
        first,
        last,
        published_at_ms,
        received_at_ms,
        hops,
        how,
        incarnation,
        sender is not None,
        sender or b"",
        *facts,
    )


class DeliveryFields(NamedTuple):
    stream_number: int
    first_sequence: int
    last_sequence: int
    published_at_ms: int
    received_at_ms: int
    hops: int
    how: int
    incarnation: int
    has_sender: bool
    sender: bytes
    origin_batch: int
    payload_bytes: int
    checksum: int
    skipped: int
    """0 for a batch, else 1 more than the reason."""

    @property
    def reason(self) -> SkipReason | None:
        return SkipReason(self.skipped - 1) if self.skipped else None

    def delivery(self, stream: StreamId) -> Delivery:
        return Delivery(
            stream,
            self.first_sequence,
            self.last_sequence,
            self.published_at_ms,
            self.received_at_ms,
            self.hops,
            How(self.how),
            NodeId(self.sender) if self.has_sender else None,
        )


def delivery_of(value: bytes | memoryview) -> DeliveryFields:
    return DeliveryFields._make(_DELIVERY.unpack(value))


def publisher_value(state: PublisherState, numbers: list[int]) -> bytes:
    """`numbers`: those of the streams of `state.ranges`."""
    position, owner = state.position.encode(), state.owner.encode()
    ranges = (
        _RANGE.pack(number, rows.first_sequence, rows.next_sequence)
        for number, rows in zip(numbers, state.ranges, strict=True)
    )
    # An unknown origin is empty, a known one is never zero.
    fields = _PUBLISHER.pack(_HAS_USE | len(position), state.origin, state.origin_batch)
    return b"".join((fields, _PUBLISHER_USE.pack(state.used_ms, len(owner)), position, owner, *ranges))


class PublisherValues:
    """Reads the values of publishers. There may be many: what several of them have in common is in memory once."""

    def __init__(self, stream_of_number: Callable[[int], StreamId]) -> None:
        self._stream = stream_of_number
        self._origins = {bytes(NODE_ID_BYTES): NodeId(b"")}
        self._owners = {b"": ""}

    def state_of(self, value: bytes | memoryview) -> PublisherState:
        position_bytes, origin, origin_batch = _PUBLISHER.unpack_from(value)
        at = _PUBLISHER.size
        used_ms = owner_bytes = 0
        if position_bytes & _HAS_USE:
            position_bytes -= _HAS_USE
            used_ms, owner_bytes = _PUBLISHER_USE.unpack_from(value, at)
            at += _PUBLISHER_USE.size
        owner_at = at + position_bytes
        ranges_at = owner_at + owner_bytes
        owner = bytes(value[owner_at:ranges_at])
        return PublisherState(
            str(value[at:owner_at], "utf-8"),
            tuple([Range(self._stream(number), *rows) for number, *rows in _RANGE.iter_unpack(value[ranges_at:])]),
            self._origins.get(origin) or self._origins.setdefault(origin, NodeId(origin)),
            origin_batch,
            self._owners.get(owner) or self._owners.setdefault(owner, owner.decode()),
            used_ms,
        )


def up_value(up_ms: int) -> bytes:
    return _SEQUENCE.pack(up_ms)


def former_commit_key(origin: NodeId, first_batch: int) -> bytes:
    """What the keys of all parts of one former commit begin with."""
    return FORMER_PART + origin + _SEQUENCE.pack(first_batch)


def former_part_key(part: FormerPart) -> bytes:
    return former_commit_key(part.origin, part.first_batch) + _NUMBER.pack(part.part)


def former_part_value(part: FormerPart) -> bytes:
    rows = part.rows
    return to_json([part.key, part.position, rows.stream.topic, rows.first_sequence, rows.next_sequence])


def former_part_of(key: bytes | memoryview, value: bytes | memoryview) -> FormerPart:
    at = len(FORMER_PART)
    origin = NodeId(bytes(key[at : at + NODE_ID_BYTES]))
    first_batch = number_of(key[at + NODE_ID_BYTES : -_NUMBER.size])
    publisher, position, topic, first, next_sequence = of_json(value)
    rows = Range(StreamId(origin, topic), first, next_sequence)
    return FormerPart(origin, first_batch, number_of(key[-_NUMBER.size :]), publisher, position, rows)


class StageEntry(NamedTuple):
    """What is staged under an id, apart from its payload."""

    row_count: int
    schema_id: int
    payload_bytes: int
    payload_number: int
    payload_checksum: int
    topic: str

    def staged(self) -> Staged:
        payload = StoredPayload(self.payload_bytes, self.payload_checksum)
        return Staged(self.topic, self.row_count, self.schema_id, payload)

    def is_of(self, batch: Batch) -> bool:
        """The batch is this payload, numbered."""
        numbered = Staged(batch.stream.topic, batch.row_count, batch.schema_id, batch.payload)
        return numbered == self.staged()


def stage_value(staged: Staged, payload_number: int) -> bytes:
    checksum = payload_checksum(staged.payload, staged.checksum)
    fields = _STAGED.pack(staged.row_count, staged.schema_id, len(staged.payload), payload_number, checksum)
    return fields + staged.topic.encode()


def stage_of(value: bytes | memoryview) -> StageEntry:
    rows, schema_id, size, number, checksum = _STAGED.unpack_from(value)
    return StageEntry(rows, schema_id, size, number, checksum, str(value[_STAGED.size :], "utf-8"))


class RosterSpan(NamedTuple):
    """One incarnation of a node, as it was heard of here. TimeIndex are this node's; `to_ms` is None while it lasts."""

    entry: RosterEntry
    from_ms: int
    to_ms: int | None = None
    reason: str | None = None
    """Why it is over: left, restarted."""

    def to_bytes(self) -> bytes:
        fields = self.entry._asdict()
        fields["node_id"] = self.entry.node_id.hex()
        fields["neighbours"] = [neighbour.hex() for neighbour in self.entry.neighbours]
        return to_json({"entry": fields, "from_ms": self.from_ms, "to_ms": self.to_ms, "reason": self.reason})


def membership_key(node_id: NodeId, incarnation: int) -> bytes:
    return node_id + _SEQUENCE.pack(incarnation)


def membership_of(value: bytes | memoryview) -> RosterSpan:
    written = of_json(value)
    fields = written.pop("entry")
    fields["node_id"] = NodeId(bytes.fromhex(fields["node_id"]))
    fields["neighbours"] = tuple(NodeId(bytes.fromhex(neighbour)) for neighbour in fields["neighbours"])
    return RosterSpan(RosterEntry(**fields), **written)


def to_json(fields: Any) -> bytes:
    """For what is written seldom: a person can read it, and a field can be added."""
    return json.dumps(fields, separators=(",", ":")).encode()


def of_json(value: bytes | memoryview) -> Any:
    return json.loads(bytes(value))
