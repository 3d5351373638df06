"""Selective topics: what is settled of their streams, what this node wants of them, and how they spread.

marks        stream number -> runs of (position, version)
wants        registration -> the registration, its join, and the node id that it joined under
begins       stream number, registration -> first sequence
descriptors  topic -> keepers, routed columns, version
spreads      topic -> keepers that the batches of this node's own stream name
"""

import struct
from collections.abc import Callable
from dataclasses import replace

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    BeginKey,
    BeginRecord,
    DescriptorRecord,
    MarksRecord,
    SpreadRecord,
    StoredRecord,
    StoredWant,
    TopicDescriptor,
    Want,
    WantRecord,
)
from m4cast.overlay.protocol.wire.selective import ProfileText
from m4cast.overlay.store.table import (
    NUMBER_BYTES,
    RecordTable,
    Tables,
    Txn,
    WriteTxn,
    number_key,
    number_of,
    of_json,
    sequence_key,
    to_json,
)
from m4cast.overlay.store.tables.interest import begin_fields, positions_of
from m4cast.overlay.store.tables.meta import (
    FORMAT,
    IDENTITY,
    META,
    facts_under,
    format_of,
    identity_of,
    read_fact,
)

MARKS, WANT, BEGIN, DESCRIPTOR, SPREAD = b"marks/", b"want/", b"begin/", b"descriptor/", b"spread/"

SELECTIVE_FORMAT = 5
"""The format version of a store that has selective streams."""
_RUN = struct.Struct("<QQ")
Runs = tuple[tuple[int, int], ...]


def raise_format(tables: Tables, txn: WriteTxn) -> None:
    """A program of before would take selective streams for damaged ones: from now on it refuses the store."""
    form = format_of(read_fact(FORMAT, tables, txn))
    if form.version < SELECTIVE_FORMAT:
        txn.put(FORMAT, replace(form, version=SELECTIVE_FORMAT).to_bytes(), db=tables[META])


def _write_marks(
    record: StoredRecord[StreamId, Runs], number: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    assert record.content is not None, "marks are never removed"
    raise_format(tables, txn)
    value = b"".join(_RUN.pack(*run) for run in record.content)
    txn.put(MARKS + number_key(number(record.key)), value, db=tables[META])


def _read_marks(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[StreamId, Runs]:
    return {
        names[number_of(key)]: tuple((start, version) for start, version in _RUN.iter_unpack(bytes(value)))
        for key, value in facts_under(MARKS, tables, txn)
    }


def is_marked(number: int, tables: Tables, txn: Txn) -> bool:
    """True if the stream with this number is selective and belongs to another node."""
    return txn.get(MARKS + number_key(number), db=tables[META]) is not None


def _write_want(
    record: StoredRecord[str, StoredWant], number: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    if record.content is None:
        txn.delete(WANT + record.key.encode(), db=tables[META])
        return
    want, join = record.content.want, record.content.join
    fields = {
        "topic": want.topic,
        "profile": want.profile,
        "since_ms": want.since_ms,
        "earliest": want.earliest,
        "keeps": None if want.keeps is None else want.keeps.hex(),
        "join": join,
        "node": identity_of(read_fact(IDENTITY, tables, txn)).node_id.hex(),
        **begin_fields(want),
    }
    txn.put(WANT + record.key.encode(), to_json(fields), db=tables[META])


def _read_wants(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, StoredWant]:
    """One that joined under a former id has no join any longer (0): under a new id all join anew."""
    me = identity_of(read_fact(IDENTITY, tables, txn)).node_id.hex()
    wants: dict[str, StoredWant] = {}
    for key, value in facts_under(WANT, tables, txn):
        fields = of_json(value)
        name = str(key, "utf-8")
        want = Want(
            id=name,
            topic=fields["topic"],
            profile=None if fields["profile"] is None else ProfileText(*fields["profile"]),
            since_ms=fields["since_ms"],
            earliest=fields["earliest"],
            keeps=None if fields["keeps"] is None else NodeId(bytes.fromhex(fields["keeps"])),
            from_ms=fields.get("from_ms"),
            positions=positions_of(fields),
        )
        wants[name] = StoredWant(want, fields["join"] if fields["node"] == me else 0)
    return wants


def _write_begin(
    record: StoredRecord[BeginKey, int], number: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key = BEGIN + number_key(number(record.key.stream)) + record.key.want.encode()
    if record.content is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, sequence_key(record.content), db=tables[META])


def _read_begins(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[BeginKey, int]:
    return {
        BeginKey(str(key[NUMBER_BYTES:], "utf-8"), names[number_of(key[:NUMBER_BYTES])]): number_of(value)
        for key, value in facts_under(BEGIN, tables, txn)
    }


def _write_descriptor(
    record: StoredRecord[str, TopicDescriptor], number: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    made = record.content
    assert made is not None, "a descriptor is replaced, never removed"
    fields = {"keepers": made.keepers, "route_by": made.route_by, "counter": made.counter, "node": made.node_id.hex()}
    txn.put(DESCRIPTOR + record.key.encode(), to_json(fields), db=tables[META])


def _read_descriptors(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, TopicDescriptor]:
    found: dict[str, TopicDescriptor] = {}
    for key, value in facts_under(DESCRIPTOR, tables, txn):
        topic, fields = str(key, "utf-8"), of_json(value)
        node_id = NodeId(bytes.fromhex(fields["node"]))
        found[topic] = TopicDescriptor(topic, fields["keepers"], tuple(fields["route_by"]), fields["counter"], node_id)
    return found


def _write_spread(
    record: StoredRecord[str, int], number: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    assert record.content is not None, "the spread of a stream is fixed"
    raise_format(tables, txn)
    txn.put(SPREAD + record.key.encode(), number_key(record.content), db=tables[META])


def _read_spreads(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, int]:
    return {str(key, "utf-8"): number_of(value) for key, value in facts_under(SPREAD, tables, txn)}


MARKS_RECORDS = RecordTable(MarksRecord, _write_marks, _read_marks)
WANT_RECORDS = RecordTable(WantRecord, _write_want, _read_wants)
BEGIN_RECORDS = RecordTable(BeginRecord, _write_begin, _read_begins)
DESCRIPTOR_RECORDS = RecordTable(DescriptorRecord, _write_descriptor, _read_descriptors)
SPREAD_RECORDS = RecordTable(SpreadRecord, _write_spread, _read_spreads)
