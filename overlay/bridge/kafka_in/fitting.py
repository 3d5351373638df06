"""Fitting: casts the columns of decoded records to those of the topic, since a column never changes its type.

Values are cast if the cast is exact (`schemas/casts.py` has the rule); a record with a value that would change becomes
a problem. A column that the topic lacks is added, with a type common to all records here or, if there is none, that of
the first record. The fields of a nested record are part of its column's type: a field that the topic lacks does not
fit.
"""

from collections.abc import Sequence

import pyarrow as pa

from m4cast.overlay.bridge.codecs.codec import Decoded, Piece, Problem
from m4cast.overlay.bridge.records import is_reserved
from m4cast.schemas.casts import kindred_cast
from m4cast.schemas.json_types import makes_decimals, settled, united

MORE_DIGITS = "a number has more digits than a double can hold: declare the column as a decimal in the setting columns"
_NOT_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def fit(decoded: Decoded, known: pa.Schema) -> tuple[list[int], pa.Table]:
    """The indexes of the records that fit, and their rows with known and new columns. Adds problems to `decoded`."""
    columns = {field.name: field for field in known}
    met = dict.fromkeys(name for piece in decoded.pieces for name in piece.rows.column_names if not is_reserved(name))
    for name in met:
        if name not in columns and (type_ := _type_of_new(name, decoded.pieces)) is not None:
            columns[name] = pa.field(name, type_)
    schema = pa.schema(list(columns.values()))
    records: list[int] = []
    tables: list[pa.Table] = []
    for piece in decoded.pieces:
        kept, rows = _fit_piece(piece, schema, decoded.problems)
        records.extend(kept)
        tables.append(rows)
    if not tables:
        return [], schema.empty_table()
    return records, pa.concat_tables(tables).select([name for name in schema.names if name in met])


def _type_of_new(name: str, pieces: Sequence[Piece]) -> pa.DataType | None:
    """One faulty record splits the others into pieces: their common type must not depend on that."""
    found = [piece.rows[name].combine_chunks() for piece in pieces if name in piece.rows.column_names]
    typed = [column for column in found if settled(column.type) is not None]
    if not typed:
        return None
    type_ = typed[0].type
    alike = [typed[0]]
    for column in typed[1:]:
        if (wider := united(type_, column.type)) is not None:
            type_ = wider
            alike.append(column)
    return settled(type_ if all(_fits(each, type_) for each in alike) else typed[0].type)


def _fits(column: pa.Array, type_: pa.DataType) -> bool:
    try:
        kindred_cast(column, type_)
    except _NOT_CAST:
        return False
    return True


def _fit_piece(piece: Piece, schema: pa.Schema, problems: dict[int, Problem]) -> tuple[Sequence[int], pa.Table]:
    records, rows = piece.records, piece.rows
    bad: dict[int, Problem] = {}
    for name in filter(is_reserved, rows.column_names):
        problem = Problem("reserved-column", f"column {name!r} is reserved by the channel: rename it")
        bad.update((at, problem) for at, value in enumerate(rows[name]) if value.is_valid and at not in bad)
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at >= 0 and rows.schema.field(at).type != field.type:
            if makes_decimals(rows.schema.field(at).type, field.type):
                problem = Problem("schema-conflict", f"column {field.name!r}: {MORE_DIGITS}")
                bad.update((each, problem) for each in piece.rounded.get(field.name, ()) if each not in bad)
            _find_unfit(rows.column(at).combine_chunks(), field, 0, bad)
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
            arrays.append(column if column.type == field.type else kindred_cast(column.combine_chunks(), field.type))
    return records, pa.table(arrays, schema=schema)


def _find_unfit(column: pa.Array, field: pa.Field, first: int, bad: dict[int, Problem]) -> None:
    """Searches by halves, since most values fit. `first` is the index of the column's first row."""
    try:
        kindred_cast(column, field.type)
    except _NOT_CAST as error:
        half = len(column) // 2
        if half:
            _find_unfit(column.slice(0, half), field, first, bad)
            _find_unfit(column.slice(half), field, first + half, bad)
        elif first not in bad:
            detail = f"column {field.name!r} is {field.type} in the topic, and a value cannot be cast to it exactly"
            bad[first] = Problem("schema-conflict", f"{detail}: {error}")
