"""Payloads: canonical schemas, the encoding of rows, and what a reader gets.

A payload is two Arrow IPC messages: the schema, then one record batch; together a valid IPC stream. It is encoded once,
when it is published, and never again. `schema_id` is the XXH3-64 of the first message's bytes, so whoever has seen the
id before skips them and decodes the batch with the known schema.

The schema in each payload costs 130 bytes for one column and about 50 for each further one, plus 40 for its name and
flags: little compared with 10,000 rows. Small record batches are coalesced before they are encoded (`coalescing`).

Types are canonical, so that all readers see the same ones: no large or view types, no dictionaries, run-ends or
extensions, timestamps and durations in microseconds (zoned ones in UTC), every column nullable, no metadata. A type
that is not in `_canonical` is refused: what cannot be read back must not be published.
"""

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types

from m4cast.overlay import heap
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import folded, table_rows
from m4cast.overlay.ids import NODE_ID_BYTES, NodeId
from m4cast.overlay.protocol.wire.batch import Batch, Payload

SYSTEM_FIELDS = (
    pa.field("_topic", pa.string()),
    pa.field("_origin", pa.string()),
    pa.field("_sequence", pa.int64()),
    pa.field("_published_at", pa.timestamp("us", "UTC")),
)
ARRIVAL_FIELDS = (
    *SYSTEM_FIELDS[2:],
    pa.field("_delivered_at", pa.timestamp("us", "UTC")),
    pa.field("_hops", pa.int32()),
)
"""The columns that differ between the rows of a filtered record batch, which may be of several batches."""
RESERVED = frozenset({*(field.name for field in SYSTEM_FIELDS), "_channel", "_delivered_at", "_hops", "_node"})
RAW = pa.schema(
    [
        ("payload", pa.binary()),
        ("first_sequence", pa.int64()),
        ("last_sequence", pa.int64()),
        ("checksum", pa.string()),
    ]
)
"""A batch as it was published."""
MEANT = {
    "_key": pa.binary(),
    "_headers": pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    ),
    **table_rows.TYPES,
}
"""Columns of the payload that have these types for all readers."""
COLUMNS_MAX = 2_000
FIELDS_MAX = 10_000
"""Columns and all members of nested ones. Each adds about 80 bytes to every message of a reader."""
DEPTH_MAX = 32
"""The deepest nesting of types. Flight itself stops at about 120."""
BATCH_ROWS_MAX = 1 << 20
"""Rows of one batch. Bytes do not limit them: nulls have none, but whoever decodes the batch may have to write them
out. Guess."""
PIECE_ROWS_MAX = 65_536
"""Rows that a reader gets at a time. Lower: more messages; higher: more memory per reader. Guess."""
PIECE_BYTES_MAX = 3 << 20
"""Bytes of these rows, unless a single one is larger. A gRPC message has at most 4 MiB unless its client asks for more,
and the heads of 10,000 columns take up to 0.8 MiB of that. Higher: more memory per reader; lower: more messages."""
REPEATED_ROWS = 16_384
"""Rows of a cached array of one name; 64 of them are cached, about 0.5 MB each."""
WRITTEN_BYTES_MIN = 512 << 10
"""Below this size a second copy costs less than the writer that avoids it. Measured."""
_CONTINUATION = b"\xff\xff\xff\xff"


# ---- schemas


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The canonical form of a schema; refused if there is none."""
    if not 1 <= len(schema) <= COLUMNS_MAX:
        raise Refusal("bad-schema", f"the batch has {len(schema)} columns: publish 1 to {COLUMNS_MAX}")
    has_table_columns = False
    try:
        names = schema.names
        for name in names:
            has_table_columns = has_table_columns or name in table_rows.TYPES
            if is_reserved(name):
                detail = f"column {name!r} has a name that the channel reserves: rename or drop it"
                raise Refusal("reserved-column", detail)
        if len(set(names)) < len(names):
            raise Refusal("bad-schema", f"column {_twice(names)!r} occurs twice: rename one")
        canonical = pa.schema([pa.field(field.name, _meant(field)) for field in schema])
    except UnicodeDecodeError:  # Arrow does not look at names before somebody wants them
        raise Refusal("bad-schema", "the name of a column or of a member is not UTF-8: rename it") from None
    if has_table_columns:
        table_rows.refuse_partial(canonical)
    refuse_wide(canonical, "a batch")
    return canonical


def refuse_wide(schema: pa.Schema, what: str) -> None:
    """Each column and member adds to every message that has it."""
    if len(schema) > COLUMNS_MAX:
        raise Refusal("bad-schema", f"{what} has {len(schema)} columns: at most {COLUMNS_MAX} are allowed")
    count = sum([_field_count(type_) if type_.num_fields else 1 for type_ in schema.types])
    if count > FIELDS_MAX:
        raise Refusal(
            "bad-schema", f"{what} has {count} columns and members of nested columns: at most {FIELDS_MAX} are allowed"
        )


def _field_count(type_: pa.DataType) -> int:
    return 1 + sum(_field_count(type_.field(at).type) for at in range(type_.num_fields))


def is_reserved(name: str) -> bool:
    """True if no column of a payload may have this name. In any case: Spark does not distinguish capital letters from
    small ones."""
    folded = name.casefold()
    return folded in RESERVED or folded.startswith("_m4cast") or (folded in MEANT and name != folded)


def _meant(field: pa.Field) -> pa.DataType:
    """The canonical type of a column. Columns with a meaning have one type, whoever publishes them."""
    canonical = _canonical(field.type, field.name, 0)
    meant = MEANT.get(field.name)
    if meant is None:
        return canonical
    entry = canonical.value_type if types.is_list(canonical) else None
    is_named = entry is None or not types.is_struct(entry) or entry.names == ["key", "value"]
    try:
        pa.nulls(0, canonical).cast(meant if is_named else pa.null())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        detail = f"column {field.name!r} has type {field.type}, but must be {meant}: cast it, or rename the column"
        raise Refusal("bad-schema", detail) from None
    return meant


def _canonical(type_: pa.DataType, column: str, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise Refusal("bad-schema", f"column {column!r} is nested deeper than {DEPTH_MAX}: flatten it")
    if type_.id in folded.PLAIN:
        return type_

    def inner(member: pa.DataType) -> pa.DataType:
        return _canonical(member, column, depth + 1)

    if isinstance(type_, pa.BaseExtensionType):
        return inner(type_.storage_type)
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        return inner(type_.value_type)
    if types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.binary()
    if types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if types.is_duration(type_):
        return pa.duration("us")
    if types.is_map(type_):
        return pa.map_(inner(type_.key_type), inner(type_.item_type))
    if types.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", inner(type_.value_type)), type_.list_size)
    if types.is_list(type_) or types.is_large_list(type_) or folded.is_list_view(type_):
        return pa.list_(pa.field("element", inner(type_.value_type)))
    if types.is_struct(type_):
        _refuse_twins(type_.names, column)
        return pa.struct([pa.field(field.name, inner(field.type)) for field in type_])
    raise Refusal(
        "bad-schema", f"column {column!r} has type {type_}, which cannot be published: cast it to another one"
    )


def unreadable(schema: pa.Schema) -> str | None:
    """The reason why rows of this schema cannot be read; None if they can. A node of an older version may have
    published them."""
    for field in schema:
        if _has_no_arrays(field.type):
            return f"column {field.name!r} has type {field.type}"
    return None


def _has_no_arrays(type_: pa.DataType) -> bool:
    """True if it is, or contains, a type of which pyarrow cannot make arrays."""
    if isinstance(type_, pa.BaseExtensionType):
        return _has_no_arrays(type_.storage_type)
    if types.is_dictionary(type_):
        return _has_no_arrays(type_.value_type)
    if type_.num_fields:
        return any(_has_no_arrays(type_.field(at).type) for at in range(type_.num_fields))
    return type_.id in (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)


def _refuse_twins(names: list[str], column: str) -> None:
    """Duplicate members could be transferred, but no reader can make a row of them."""
    if len(set(names)) < len(names):
        raise Refusal("bad-schema", f"column {column!r} has two members called {_twice(names)!r}: rename one")


def _twice(names: list[str]) -> str:
    ((name, _),) = Counter(names).most_common(1)
    return name


def schema_bytes(schema: pa.Schema) -> bytes:
    """The first message of a payload."""
    written: bytes = schema.serialize().to_pybytes()
    return written


def fingerprint(schema: bytes) -> int:
    return xxhash.xxh3_64_intdigest(schema)


def merged(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """All columns, in the order in which they occur. Each schema has a label, for the refusal of a column with two
    types. A column without a type (all null) takes the type that it has elsewhere."""
    fields: dict[str, tuple[str, pa.Field]] = {}
    for whose, schema in schemas:
        for field in schema:
            known = fields.get(field.name)
            if known is None or types.is_null(known[1].type):
                fields[field.name] = (whose, field)
            elif not types.is_null(field.type) and field.type != known[1].type:
                detail = (
                    f"column {field.name!r} is {known[1].type} {known[0]} and {field.type} {whose}: a column keeps its "
                    "type; cast it, or use another name or topic"
                )
                raise Refusal("schema-conflict", detail)
    return pa.schema([field for _, field in fields.values()])


def covers(schema: pa.Schema, other: pa.Schema) -> bool:
    """True if rows of `other` fit into `schema` without losing a column or a type."""
    for field in other:
        at = schema.get_field_index(field.name)
        if at < 0 or not (types.is_null(field.type) or schema.field(at).type == field.type):
            return False
    return True


# ---- publishing


def expands(schema: pa.Schema) -> bool:
    """True if rows of this schema may become larger, without a limit, when they are made canonical: any number of rows
    may refer to one text of a dictionary or view. Or whether they have to be assembled anew."""
    return any(folded.expands(type_) for type_ in schema.types)


def canonical_rows(rows: pa.RecordBatch, schema: pa.Schema, bytes_max: int = sys.maxsize) -> pa.RecordBatch:
    """The rows under their canonical schema. Offsets and text are untrusted: all are validated before any is used. Rows
    that would exceed `bytes_max` are refused before they are made.

    Cost: validation reads offsets and text once; rows that are canonical already are not copied.
    """
    try:
        rows.validate(full=True)
        if rows.schema.equals(schema, check_metadata=True):
            return rows
        if expands(rows.schema):
            plain = pa.schema([(field.name, _canonical(field.type, field.name, 0)) for field in rows.schema])
            rows = folded.unfolded_rows(rows, plain, bytes_max)
            if (size := sum(map(folded.plain_bytes, rows.columns))) > bytes_max:
                raise folded.LargerError(size)
        return rows.cast(schema)
    except folded.LargerError as larger:
        size = larger.size
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad_rows(error) from error
    raise too_large(rows.num_rows, size, bytes_max)  # here, so that the error does not keep intermediate arrays alive


def checked(rows: pa.RecordBatch, *, full: bool = False) -> pa.RecordBatch:
    """Rows that somebody sent, refused if their offsets lead outside of their buffers: Arrow follows them unseen, even
    to compute `nbytes`. Full: every offset, and text, as what looks at each value needs."""
    try:
        rows.validate(full=full)
    except pa.ArrowInvalid as error:
        raise _bad_rows(error) from error
    return rows


def _bad_rows(error: Exception) -> Refusal:
    detail = f"rows cannot be published as they are: {error}"
    if any(f"to {kind}[us" in detail for kind in ("timestamp", "duration")):
        detail += ". Times have microseconds: round them first"
    return Refusal("bad-rows", detail)


def too_large(rows: int, size: int, bytes_max: int) -> Refusal:
    detail = f"a record batch of {rows} rows has {size} bytes, more than {bytes_max}: send fewer rows in each"
    return Refusal("too-large", detail)


def canonical_rows_together(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The same for several small record batches of one schema, as one. Each is validated before it is copied. (Those
    that may become larger are canonical already.)"""
    if len(batches) == 1:
        return canonical_rows(batches[0], schema)
    try:
        for rows in batches:
            rows.validate(full=True)
        together = pa.concat_batches(batches)
        return together if together.schema.equals(schema, check_metadata=True) else together.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad_rows(error) from error


def encode(schema: bytes, rows: pa.RecordBatch) -> Payload:
    """The schema's message and the rows', in one buffer. Many rows are copied only once."""
    if rows.nbytes < WRITTEN_BYTES_MIN:
        return b"".join((schema, rows.serialize()))
    memory = heap.unset(len(schema) + pa.ipc.get_record_batch_size(rows))
    pa.ipc.new_stream(pa.FixedSizeBufferWriter(pa.py_buffer(memory)), rows.schema).write_batch(rows)
    assert memory[: len(schema)] == schema, "the rows have another schema"
    return memory.toreadonly()


# ---- reading


def split(payload: Payload) -> tuple[bytes, int]:
    """The schema message of a payload, and where the record batch begins."""
    if payload[:4] != _CONTINUATION or len(payload) < 8:
        raise ValueError("it does not begin with an Arrow schema")
    end = 8 + int.from_bytes(payload[4:8], "little")
    return bytes(payload[:end]), end


def schema_of(payload: Payload, schema_id: int) -> tuple[bytes, pa.Schema]:
    """The schema in a payload; `ValueError` if there is none, or if it is not the one that the core names."""
    written, _ = split(payload)
    if fingerprint(written) != schema_id:
        raise ValueError("its schema is not the one that its core names")
    return written, pa.ipc.read_schema(pa.py_buffer(written))


def decode(batch: Batch, schema: pa.Schema, *, to_cut: bool) -> pa.RecordBatch:
    """The rows of a batch, without a copy. `ValueError` (of Arrow or ours) if they are not what the core says. If they
    are to be cut, everything is validated: a slice uses offsets in the middle."""
    _, at = split(batch.content)
    rows = pa.ipc.read_record_batch(pa.py_buffer(batch.content).slice(at), schema)
    if rows.num_rows != batch.row_count:
        raise ValueError(f"it has {rows.num_rows} rows, its core says {batch.row_count}")
    rows.validate(full=to_cut)
    return rows


def rows_at_once(seen: pa.Schema) -> int:
    """Return the number of rows of a batch that are built for a reader at a time. Some cost nothing in a batch and a
    lot here: rows of nulls, and columns that the batch lacks."""
    row_bytes = sum(folded.row_bytes(type_) for type_ in seen.types)
    return max(1, min(PIECE_ROWS_MAX, PIECE_BYTES_MAX // max(row_bytes, 1)))


def seen_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that readers see: the payload's columns, then the channel's."""
    return pa.schema([*schema, *SYSTEM_FIELDS])


def cut_rows(batch: Batch, rows: pa.RecordBatch, first: int, next_sequence: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows `first .. next_sequence - 1` of the batch under this schema; columns that the batch lacks are null."""
    if (first, next_sequence) != (batch.first_sequence, batch.next_sequence):
        rows = rows.slice(first - batch.first_sequence, next_sequence - first)
    if rows.schema.equals(schema):
        return rows
    return _widened(rows, schema)


def _widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at >= 0 and rows.schema.field(at).type == field.type:
            columns.append(rows.column(at))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.record_batch(columns, schema=schema)


def seen_rows(batch: Batch, rows: pa.RecordBatch, first: int, seen: pa.Schema) -> pa.RecordBatch:
    """Rows that were cut from the batch at `first`, with the channel's columns."""
    count = rows.num_rows
    columns = [
        *rows.columns,
        repeated(batch.stream.topic, count),
        repeated(origin_text(batch.stream.origin), count),
        pa.arange(first, first + count),
        pa.repeat(pa.scalar(batch.published_at_ms * 1000, SYSTEM_FIELDS[3].type), count),
    ]
    return pa.record_batch(columns, schema=seen)


def found_rows(rows: pa.RecordBatch, columns: pa.Schema, added: Iterable[pa.Array], seen: pa.Schema) -> pa.RecordBatch:
    """Rows of any batches under these columns, with further columns."""
    if not rows.schema.equals(columns):
        rows = _widened(rows, columns)
    return pa.record_batch([*rows.columns, *added], schema=seen)


def repeatable(numbers: Any, count: int) -> pa.Array:
    """An array of numpy's with so many numbers, or with one that all rows have."""
    return pa.array(numbers if len(numbers) == count else np.full(count, numbers[0]))


def moments(at_ms: Any, count: int) -> pa.Array:
    """The same for times in milliseconds, as the channel's columns have them."""
    return repeatable(at_ms * 1000, count).view(SYSTEM_FIELDS[3].type)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(0, type_) for type_ in schema.types], schema=schema)


def added_bytes(seen: pa.Schema, topics: Iterable[str]) -> int:
    """Return the maximum number of bytes that a row of an answer has in addition to those in its batch: nulls for
    columns that the batch lacks, and the channel's columns."""
    topic_bytes = max((len(topic.encode()) for topic in topics), default=0)
    return sum(folded.row_bytes(type_) for type_ in seen.types) + topic_bytes + 2 * NODE_ID_BYTES


def fitting(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first of these rows, as many as fit into one message, or nearly; at least one. Nothing is copied."""
    size: int = rows.nbytes
    if size <= PIECE_BYTES_MAX:
        return rows
    piece = rows.slice(0, max(rows.num_rows * PIECE_BYTES_MAX // size, 1))  # if all have the same size
    if PIECE_BYTES_MAX // 2 < piece.nbytes <= PIECE_BYTES_MAX:
        return piece
    count = bisect_right(range(1, rows.num_rows), PIECE_BYTES_MAX, key=lambda count: rows.slice(0, count).nbytes)
    return rows.slice(0, max(count, 1))


def raw_row(batch: Batch) -> pa.RecordBatch:
    columns = ([batch.content], [batch.first_sequence], [batch.last_sequence], [checksum_text(batch.checksum)])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW, strict=True)]
    return pa.record_batch(arrays, schema=RAW)


def repeated(text: str, count: int) -> pa.Array:
    """The same text in every row: built once and sliced, since readers use the same few names all the time."""
    if count > REPEATED_ROWS:
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _long_repeated(text).slice(0, count)


@lru_cache(maxsize=64)
def _long_repeated(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), REPEATED_ROWS)


def origin_text(origin: NodeId) -> str:
    return origin.hex()


def checksum_text(checksum: int) -> str:
    return f"{checksum:016x}"
