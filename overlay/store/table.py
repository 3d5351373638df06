"""A table of a store's file, and what the codecs of all tables share: keys of numbers, JSON, LMDB's transactions.

Numbers in keys are big-endian, because LMDB orders keys by their bytes.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import lmdb

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import StoredRecord

if TYPE_CHECKING:
    WriteTxn = lmdb.Transaction[bytes]
    ReadTxn = lmdb.Transaction[memoryview]
    Txn = WriteTxn | ReadTxn
    Database = lmdb._Database
else:  # At run time these classes of an extension module take no type arguments.
    WriteTxn = ReadTxn = Txn = lmdb.Transaction
    Database = object

FORMAT_VERSION_MIN = 3
"""The oldest format version that can be read. A node that opens such a store turns it into one of the present version.
A record is rewritten only when it changes, so the codecs read both forms.

Version 3 has no owners of streams, and neither owner nor last use of publishers."""

K = TypeVar("K")
V = TypeVar("V")

_NUMBER = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")
_PLACE = struct.Struct(">IQ")
NUMBER_BYTES = _NUMBER.size


class StoreTable(NamedTuple):
    """A named database of the environment."""

    name: str
    since: int = FORMAT_VERSION_MIN
    """The format version that introduced it. An older store gets the table when a node opens it."""


class Tables(dict[StoreTable, Database]):
    """The open tables of an environment."""


@dataclass(frozen=True, slots=True)
class RecordTable(Generic[K, V]):
    """Reads and writes records of one kind. The store keeps them for the node without using them."""

    kind: type[StoredRecord[K, V]]
    write: Callable[[StoredRecord[K, V], Callable[[StreamId], int], Tables, WriteTxn], None]
    """Is given a function that numbers streams."""
    read: Callable[[dict[int, StreamId], Tables, Txn], dict[K, V]]
    """Is given the streams by their numbers."""


def number_key(number: int) -> bytes:
    """The key of a stream number."""
    return _NUMBER.pack(number)


def sequence_key(number: int) -> bytes:
    """The key of an arrival number, a payload number or a schema id."""
    return _SEQUENCE.pack(number)


def number_of(key: bytes | memoryview) -> int:
    return int.from_bytes(key, "big")


def place_key(stream_number: int, first_sequence: int) -> bytes:
    """The key of what begins at this sequence of a stream: a log entry or a skip."""
    return _PLACE.pack(stream_number, first_sequence)


def place_of(key: bytes | memoryview) -> tuple[int, int]:
    stream_number, first_sequence = _PLACE.unpack(key)
    return stream_number, first_sequence


def to_json(fields: Any) -> bytes:
    """JSON, for records that are written seldom: a person can read them, and a field can be added."""
    return json.dumps(fields, separators=(",", ":")).encode()


def of_json(value: bytes | memoryview) -> Any:
    return json.loads(bytes(value))
