"""What people have in their hands, as Arrow: tables, record batches, pandas frames, rows of dicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from m4cast.overlay.errors import LocalProtocolError


def table_of(rows: Any) -> pa.Table:
    """A table of the same rows. Rows of dicts may lack keys: these are null."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    # By name, so that pandas is not needed where nobody has it.
    if any(f"{base.__module__}.{base.__name__}" == "pandas.core.frame.DataFrame" for base in type(rows).__mro__):
        with _values_of_the_caller("a frame that does not make a table"):
            return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Mapping):
        raise LocalProtocolError("one dict: give a list of rows, [row], or pyarrow.table(columns)")
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
        raise LocalProtocolError("rows must have columns: these are empty dicts")
    columns = {name: _column(rows, name) for name in names}
    with _values_of_the_caller("rows that do not make a table"):
        return pa.table(columns)


def batch_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of dicts under columns that are given. They may lack keys, and have no others."""
    names = set(schema.names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise LocalProtocolError(f"a row must be a dict, not {type(row).__name__}")
        if not names.issuperset(row):
            odd = next(name for name in row if name not in names)
            raise LocalProtocolError(f"a row has column {odd!r}, which the first rows had not: give a schema")
    return pa.RecordBatch.from_arrays([_column(rows, field.name, field.type) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, object]], name: str, kind: pa.DataType | None = None) -> pa.Array:
    with _values_of_the_caller(f"a row does not fit column {name!r}"):
        return pa.array([row.get(name) for row in rows], kind)


@contextmanager
def _values_of_the_caller(problem: str) -> Iterator[None]:
    """Whatever fails in it is the caller's mistake: errors are Arrow's, Python's own (a number that is too large, text
    that is not Unicode), or of the values' methods."""
    try:
        yield
    except Exception as error:
        raise LocalProtocolError(f"{problem}: {error}") from error


def batches_of(table: pa.Table, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The table in record batches of about this size, never more than twice, unless one row is larger."""
    for chunk in table.to_batches():
        yield from _split(chunk, batch_bytes)


def _split(rows: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    if rows.num_rows <= 1 or rows.nbytes <= batch_bytes:
        if rows.num_rows:
            yield rows
        return
    pieces = -(-rows.nbytes // batch_bytes)
    size = max(rows.num_rows // pieces, 1)
    for at in range(0, rows.num_rows, size):
        piece = rows.slice(at, size)
        if piece.num_rows > 1 and piece.nbytes > 2 * batch_bytes:  # rows of very unequal size
            yield from _split(piece, batch_bytes)
        else:
            yield piece
