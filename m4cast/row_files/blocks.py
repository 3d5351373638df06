"""Rows of files and pipes, block by block, so that memory stays bounded however long the input is.

    for block in blocks_of(file, "jsonl", ColumnTypes()):
        channel.publish("orders", block.table())

jsonl and csv are read in blocks of whole lines (see `lines`). JSON may also be one array of objects, whose elements are
read as lines; errors then name the number of the element.

Types of jsonl and csv are inferred from the first block that has values in a column and apply to all that follow;
`ColumnTypes.learn` replaces them with those of a topic. A number that would change under its type is an error (see
`schemas/casts.py`). Strings in JSON stay strings, even if they look like times. A list or an object that is always
empty has no type yet and is null, and so is a member of an object that is always null.

parquet and arrow files define their types. They are read batch by batch, after being copied to a temporary file if they
come from a pipe, because their footers have to be read first.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet

from m4cast.overlay.errors import M4castError
from m4cast.row_files import lines
from m4cast.row_files.column_types import ColumnTypes
from m4cast.row_files.csv_records import CsvRecords
from m4cast.row_files.json_lines import JsonLines, json_blocks
from m4cast.row_files.lines import line_blocks

FORMATS = ("jsonl", "json", "csv", "parquet", "arrow")
"""jsonl and json are the same: lines or an array, depending on how the input begins."""
BATCH_ROWS = 65_536
"""Size of a block of parquet."""


class Block(Protocol):
    """Part of the rows of the input."""

    @property
    def until(self) -> str:
        """The place in the input at which it ends, for people; empty if the input has no name."""

    def table(self) -> pa.Table:
        """Its rows. Can be called again after other types have been learned."""


def blocks_of(
    file: Path, kind: str, known: ColumnTypes, columns: Sequence[str] = (), *, has_header: bool = True
) -> Iterator[Block]:
    """The input in blocks. `-` is standard input. Errors are `M4castError` and name the file.

    `columns`: use only these, in this order; all by default. They are the names of a csv without a header."""
    blocks = _all_blocks(file, kind, known, () if has_header else columns)
    if not columns or not has_header:
        return blocks
    return (SelectedColumns(block, columns, str(file), may_lack=kind in ("json", "jsonl")) for block in blocks)


class SelectedColumns:
    """Selected columns of a block. JSON rows may lack some of them, but not all."""

    def __init__(self, block: Block, columns: Sequence[str], file: str, *, may_lack: bool) -> None:
        self._block = block
        self._columns = columns
        self._file = file
        self._may_lack = may_lack
        self.until = block.until

    def table(self) -> pa.Table:
        rows = self._block.table()
        found = [name for name in self._columns if name in rows.column_names]
        if not found or not (self._may_lack or len(found) == len(self._columns)):
            missing = next(name for name in self._columns if name not in found)
            names = ", ".join(repr(name) for name in rows.column_names)
            raise M4castError(f"{self._file}: there is no column {missing!r}: the columns are {names}")
        return rows.select(found)


def _all_blocks(file: Path, kind: str, known: ColumnTypes, names: Sequence[str]) -> Iterator[Block]:
    """`names`: the columns of a csv without a header."""
    trouble = f"{file}: is not {kind}"
    with ExitStack() as stack:
        try:
            source = _opened(file, stack)
            match kind:
                case "jsonl" | "json":
                    yield from json_blocks(JsonLines(known), source, trouble)
                case "csv":
                    yield from line_blocks(CsvRecords(known, names), source, trouble)
                case "parquet":
                    parquet = stack.enter_context(pyarrow.parquet.ParquetFile(_seekable(source, stack)))
                    yield from map(ArrowBlock, parquet.iter_batches(BATCH_ROWS))
                case _:
                    arrow = stack.enter_context(pa.ipc.open_file(_seekable(source, stack)))
                    yield from (ArrowBlock(arrow.get_batch(at)) for at in range(arrow.num_record_batches))
        except OSError as error:
            raise M4castError(f"{file}: cannot be read as {kind}: {error.strerror or error}") from error
        except pa.ArrowException as error:
            raise M4castError(f"{trouble}: {error}") from error


def _opened(file: Path, stack: ExitStack) -> Any:
    """Open the input unbuffered, so that it can be polled and read as it arrives."""
    if str(file) == "-":
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return stack.enter_context(file.open("rb", buffering=0))


def _seekable(source: IO[bytes], stack: ExitStack) -> IO[bytes]:
    if source.seekable():
        return source
    copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(source, copy, lines.READ_BYTES)
    copy.seek(0)
    return copy


class ArrowBlock:
    """A batch that is read as Arrow."""

    until = ""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def table(self) -> pa.Table:
        return pa.Table.from_batches([self._rows])
