"""The store's facts about itself, under fixed keys.

format               version and channel
identity             the node's id, its incarnation and its former ids
counters             the last own batch, and the next number of a stream, a delivery and a payload
up                   for how long nodes have run on this store
retention-clock      the time by which retention last measured ages
"published " stream  when the last batch of an own stream was published, if retention has removed it
"former-part/" ...   see `former_parts`
"summarised/" topic  see `summarised`
interest             the version of what this node wants; see `interest`
"registration/" id   what is wanted; see `interest`
"interest-span/" no  what is and was wanted, from when to when; see `interest`
"client-row/" key    a client that is attached; see `interest`
"client-state/" key  its profiles and positions; see `interest`
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import StoredRecord, UpTimeRecord
from m4cast.overlay.store.table import RecordTable, StoreTable, Tables, Txn, WriteTxn, number_of, of_json, to_json
from m4cast.overlay.store.tables.streams import stream_key

META = StoreTable("meta")

FORMAT = b"format"
IDENTITY = b"identity"
COUNTERS = b"counters"
RETENTION_CLOCK = b"retention-clock"
_UP_KEY = b"up"
_PUBLISHED = b"published "

_COUNTERS = struct.Struct("<4Q")
_TIME = struct.Struct("<Q")
_UP = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Format:
    """The version of the file, and the channel that the store belongs to."""

    version: int
    channel_type: str
    channel_instance: str

    def to_bytes(self) -> bytes:
        fields = {"version": self.version, "channel_type": self.channel_type, "channel_instance": self.channel_instance}
        return to_json(fields)


def format_of(value: bytes | memoryview) -> Format:
    """`ValueError`, `KeyError` or `TypeError` if this is not what a store writes."""
    fields = of_json(value)
    return Format(fields["version"], fields["channel_type"], fields["channel_instance"])


@dataclass(frozen=True, slots=True)
class Identity:
    node_id: NodeId
    incarnation: int
    former_ids: tuple[NodeId, ...]
    """Ids that the node gave up after a rollback of its store."""

    def to_bytes(self) -> bytes:
        former = [node_id.hex() for node_id in self.former_ids]
        return to_json({"node_id": self.node_id.hex(), "incarnation": self.incarnation, "former_ids": former})


def identity_of(value: bytes | memoryview) -> Identity:
    fields = of_json(value)
    former_ids = tuple(NodeId(bytes.fromhex(former)) for former in fields["former_ids"])
    return Identity(NodeId(bytes.fromhex(fields["node_id"])), fields["incarnation"], former_ids)


@dataclass(slots=True)
class Counters:
    """The number of the last own batch, and the next number of everything else."""

    origin_batch: int = 0
    stream: int = 1
    delivery: int = 1
    payload: int = 1

    def to_bytes(self) -> bytes:
        return _COUNTERS.pack(self.origin_batch, self.stream, self.delivery, self.payload)


def counters_of(value: bytes | memoryview) -> Counters:
    return Counters(*_COUNTERS.unpack(value))


def up_value(up_ms: int) -> bytes:
    return _UP.pack(up_ms)


def _write_up(
    record: StoredRecord[str, int], number_of_stream: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    assert record.content is not None, "the time that nodes have run is never removed"
    txn.put(_UP_KEY, up_value(record.content), db=tables[META])


def _read_up(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, int]:
    value = txn.get(_UP_KEY, db=tables[META])
    return {} if value is None else {"": number_of(value)}


UP_TIME_RECORDS = RecordTable(UpTimeRecord, _write_up, _read_up)


def read_fact(key: bytes, tables: Tables, txn: Txn) -> bytes | memoryview:
    """The value of a key that every store has from its first transaction on."""
    value = txn.get(key, db=tables[META])
    assert value is not None, f"the store has no {key.decode()}"
    return value


def facts_under(prefix: bytes, tables: Tables, txn: Txn, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """The rest of each key with this prefix, in the order of bytes, and its value; only those after `after`."""
    first = prefix + (after or b"")
    with txn.cursor(tables[META]) as cursor:
        is_there = cursor.set_range(first)
        if is_there and after is not None and bytes(cursor.key()) == first:
            is_there = cursor.next()
        while is_there and bytes(cursor.key()[: len(prefix)]) == prefix:
            yield bytes(cursor.key()[len(prefix) :]), bytes(cursor.value())
            is_there = cursor.next()


def read_retention_clock(tables: Tables, txn: Txn) -> int | None:
    return _read_time(RETENTION_CLOCK, tables, txn)


def write_retention_clock(at_ms: int, tables: Tables, txn: WriteTxn) -> None:
    txn.put(RETENTION_CLOCK, _TIME.pack(at_ms), db=tables[META])


def read_published_ms(stream: StreamId, tables: Tables, txn: Txn) -> int | None:
    return _read_time(_PUBLISHED + stream_key(stream), tables, txn)


def write_published_ms(stream: StreamId, at_ms: int, tables: Tables, txn: WriteTxn) -> None:
    """Keep the time of an own stream's last batch, which retention removes: no later row may be published before."""
    txn.put(_PUBLISHED + stream_key(stream), _TIME.pack(at_ms), db=tables[META])


def _read_time(key: bytes, tables: Tables, txn: Txn) -> int | None:
    value = txn.get(key, db=tables[META])
    if value is None:
        return None
    at_ms: int = _TIME.unpack(value)[0]
    return at_ms
