"""Fitting: columns of decoded records to the columns that the topic has, since a column keeps its type.

Values are cast where nothing is lost; a record with one that is not becomes a problem of its own. A column that the
topic has not got yet is added. Fields of nested records are columns' types, too: one that the topic's has not got
does not fit.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.bridge.codecs import Decoded, Problem
from m4cast.schemas.json_types import settled

RESERVED = ("_topic", "_origin", "_sequence", "_published_at", "_channel", "_delivered_at", "_hops", "_node")
OWN = ("_key", "_headers", "_kafka")
"""Columns that the bridge adds."""


def fit(decoded: Decoded, known: pa.Schema) -> tuple[list[int], pa.Table]:
    """Which records are left, and their rows, under the known columns and new ones. Problems are added to `decoded`."""
    columns = {field.name: field for field in known}
    for _, rows in decoded.pieces:
        for field in rows.schema:
            if field.name not in columns and (type_ := settled(field.type)) is not None:
                columns[field.name] = pa.field(field.name, type_)
    schema = pa.schema(list(columns.values()))
    records: list[int] = []
    tables: list[pa.Table] = []
    for piece in decoded.pieces:
        kept, rows = _fit_piece(piece.records, piece.rows, schema, decoded.problems)
        records.extend(kept)
        tables.append(rows)
    if not tables:
        return [], schema.empty_table()
    rows = pa.concat_tables(tables)
    met = {name for piece in decoded.pieces for name in piece.rows.column_names}
    return records, rows.select([name for name in schema.names if name in met])


def _fit_piece(
    records: Sequence[int], rows: pa.Table, schema: pa.Schema, problems: dict[int, Problem]
) -> tuple[Sequence[int], pa.Table]:
    bad: dict[int, Problem] = {}
    for name in rows.column_names:
        if name in RESERVED or name in OWN or name.startswith("_m4cast"):
            problem = Problem("reserved-column", f"column {name!r} is the channel's: use another name")
            bad.update((at, problem) for at, value in enumerate(rows[name]) if value.is_valid and at not in bad)
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at >= 0 and rows.schema.field(at).type != field.type:
            _find_unfit(rows.column(at), field, bad)
    if bad:
        good = [at for at in range(len(records)) if at not in bad]
        problems.update((records[at], problem) for at, problem in bad.items())
        records, rows = [records[at] for at in good], rows.take(pa.array(good, pa.int64()))
    arrays = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        else:
            column = rows.column(at)
            arrays.append(column if column.type == field.type else _cast(column, field.type))
    return records, pa.table(arrays, schema=schema)


def _find_unfit(column: pa.ChunkedArray, field: pa.Field, bad: dict[int, Problem]) -> None:
    try:
        _cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        for at in range(len(column)):
            if at in bad:
                continue
            try:
                _cast(column.slice(at, 1), field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                detail = f"column {field.name!r} is {field.type} in the topic, and a value of it is {column.type}"
                bad[at] = Problem("schema-conflict", detail)


def _cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), type_)])
    if not _holds(type_, column.type):
        raise pa.ArrowInvalid(f"{column.type} has what {type_} has not")
    return column.cast(type_)


def _holds(wider: pa.DataType, type_: pa.DataType) -> bool:
    """Whether a cast means the same value: no field dropped that says something, no text made of numbers or numbers of
    text."""
    if types.is_struct(type_) and types.is_struct(wider):
        return all(
            _holds(wider.field(field.name).type, field.type)
            if wider.get_field_index(field.name) >= 0
            else settled(field.type) is None
            for field in type_
        )
    if types.is_list(type_) and types.is_list(wider):
        return _holds(wider.value_type, type_.value_type)
    if types.is_map(type_) and types.is_map(wider):
        return _holds(wider.item_type, type_.item_type)
    if wider == type_ or types.is_null(type_):
        return True
    number = types.is_integer, types.is_floating, types.is_decimal
    if any(is_such(type_) for is_such in number):
        return any(is_such(wider) for is_such in number)
    return bool(types.is_timestamp(type_) and types.is_timestamp(wider))
