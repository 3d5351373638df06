"""Streams: what the store holds of each, by origin and topic; and the streams by their numbers.

A number is given once and never changes its stream.
"""

import struct
from dataclasses import dataclass

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId
from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, number_key, number_of

STREAMS = StoreTable("streams")
NAMES = StoreTable("names")

_STREAM = struct.Struct("<I5Q")


@dataclass(slots=True)
class StreamRecord:
    """The record of one stream in the store. `log_bytes` and `batches` count the log, without skips."""

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


def record_of(value: bytes | memoryview) -> StreamRecord:
    record = StreamRecord(*_STREAM.unpack_from(value))
    if len(value) > _STREAM.size:
        record.owner = str(value[_STREAM.size :], "utf-8")
    return record


def stream_key(stream: StreamId) -> bytes:
    return stream.origin + stream.topic.encode()


def stream_of(key: bytes | memoryview) -> StreamId:
    return StreamId(NodeId(bytes(key[:NODE_ID_BYTES])), str(key[NODE_ID_BYTES:], "utf-8"))


def read_stream(stream: StreamId, tables: Tables, txn: Txn) -> StreamRecord | None:
    value = txn.get(stream_key(stream), db=tables[STREAMS])
    return None if value is None else record_of(value)


def read_streams(tables: Tables, txn: Txn) -> dict[StreamId, StreamRecord]:
    return {stream_of(key): record_of(value) for key, value in txn.cursor(tables[STREAMS])}


def write_name(number: int, stream: StreamId, tables: Tables, txn: WriteTxn) -> None:
    txn.put(number_key(number), stream_key(stream), db=tables[NAMES])


def read_name(number: int, tables: Tables, txn: Txn) -> StreamId:
    key = txn.get(number_key(number), db=tables[NAMES])
    assert key is not None, f"stream {number} has no name"
    return stream_of(key)


def read_names(tables: Tables, txn: Txn) -> dict[int, StreamId]:
    return {number_of(key): stream_of(name) for key, name in txn.cursor(tables[NAMES])}
