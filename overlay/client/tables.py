"""Rows as Arrow, from what users have: tables, record batches, pandas DataFrames, dicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from m4cast.overlay.errors import LocalProtocolError


def table_of(rows: Any) -> pa.Table:
    """The rows as a table. Dicts may lack keys: those values are null."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    # By name, so that pandas is not needed where nobody has it.
    if any(f"{base.__module__}.{base.__name__}" == "pandas.core.frame.DataFrame" for base in type(rows).__mro__):
        with _values_of_the_caller("the DataFrame cannot be converted to a table"):
            return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Mapping):
        raise LocalProtocolError("rows is a single dict: give a list of rows, [row], or pyarrow.table(columns)")
    if isinstance(rows, Iterable) and not isinstance(rows, str | bytes):
        return _table_of_dicts(list(rows))
    raise LocalProtocolError(
        f"rows must be a pyarrow Table or RecordBatch, a pandas DataFrame or dicts, not {type(rows).__name__}"
    )


def _table_of_dicts(rows: list[Any]) -> pa.Table:
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise LocalProtocolError(f"row {at} must be a dict, not {type(row).__name__}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    if rows and not names:
        raise LocalProtocolError("rows are empty dicts: give each at least one column")
    columns = {name: _column(rows, name) for name in names}
    with _values_of_the_caller("the rows cannot be converted to a table"):
        return pa.table(columns)


def batch_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """Dicts as a record batch of this schema. They may lack keys, but have no others."""
    names = set(schema.names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise LocalProtocolError(f"a row must be a dict, not {type(row).__name__}")
        if not names.issuperset(row):
            odd = next(name for name in row if name not in names)
            raise LocalProtocolError(f"a row has column {odd!r}, which the first rows did not have: give a schema")
    return pa.RecordBatch.from_arrays([_column(rows, field.name, field.type) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, object]], name: str, kind: pa.DataType | None = None) -> pa.Array:
    with _values_of_the_caller(f"a row does not fit column {name!r}"):
        return pa.array([row.get(name) for row in rows], kind)


@contextmanager
def _values_of_the_caller(problem: str) -> Iterator[None]:
    """Any error inside is the caller's mistake: Arrow's, Python's own (a number that is too large, text that is not
    Unicode), or raised by methods of the values."""
    try:
        yield
    except Exception as error:
        raise LocalProtocolError(f"{problem}: {error}") from error


def batches_of(table: pa.Table, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The table in record batches of about this size, at most twice as large, unless a single row is larger."""
    for chunk in table.to_batches():
        yield from _split(chunk, batch_bytes)


def _split(rows: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    if rows.num_rows <= 1 or rows.nbytes <= batch_bytes:
        if rows.num_rows:
            yield rows
        return
    pieces = -(-rows.nbytes // batch_bytes)
    size = max(rows.num_rows // pieces, 1)
    size -= size % 8 if size > 8 else 0  # whole bytes of bitmaps: nothing is shifted, and no bit of other rows is sent
    for at in range(0, rows.num_rows, size):
        piece = rows.slice(at, size)
        if piece.num_rows > 1 and piece.nbytes > 2 * batch_bytes:  # rows differ much in size
            yield from _split(piece, batch_bytes)
        else:
            yield piece


def sql_text(text: str) -> str:
    """The text as a literal of a filter."""
    return "'" + text.replace("'", "''") + "'"
