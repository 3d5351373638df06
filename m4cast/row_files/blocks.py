"""Rows of files and pipes, block by block: memory stays bounded, however long the input is.

    for block in blocks_of(file, "jsonl", ColumnTypes()):
        channel.publish("orders", block.table())

jsonl and csv are read in blocks of whole lines: `BLOCK_BYTES`, or less when the input ends, or pauses while lines are
there. A block is read whole or not at all, and an error names the line, counted from 1 in the input. JSON may also be
one array of objects, whose elements are then read as lines, and named in errors by their number.

ColumnTypes of jsonl and csv are guessed from the first block that has values in a column, and hold for all that follow.
`ColumnTypes.learn` puts those of a topic in their place. A number that would change under its type is an error, as
`schemas/casts.py` has it. Text in JSON is text: what looks like a time is not made one. A list
or an object that is empty everywhere has no type yet, and is null; so is a member of an object that is null everywhere.

parquet and arrow files have their types. They are read batch by batch, from a temporary file if they come by a pipe,
since their ends have to be read first.
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
"""jsonl and json are the same: lines, or an array, by what it begins with."""
BATCH_ROWS = 65_536
"""Of parquet."""


class Block(Protocol):
    """Some rows of the input."""

    @property
    def until(self) -> str:
        """Where it ends, as people find it in the input; empty if there is no such word."""

    def table(self) -> pa.Table:
        """Its rows. May be called again, when other types were learned."""


def blocks_of(
    file: Path, kind: str, known: ColumnTypes, columns: Sequence[str] = (), *, has_header: bool = True
) -> Iterator[Block]:
    """The input in blocks. `-` is standard input. Errors are `M4castError`, with the name of the file.

    `columns`: those alone, in this order; without, all. A csv without a header has these."""
    blocks = _all_blocks(file, kind, known, () if has_header else columns)
    if not columns or not has_header:
        return blocks
    return (Chosen(block, columns, str(file), may_lack=kind in ("json", "jsonl")) for block in blocks)


class Chosen:
    """Some columns of a block. Rows of JSON may lack some of them, but not all."""

    def __init__(self, block: Block, columns: Sequence[str], file: str, *, may_lack: bool) -> None:
        self._block = block
        self._columns = columns
        self._file = file
        self._may_lack = may_lack
        self.until = block.until

    def table(self) -> pa.Table:
        rows = self._block.table()
        there = [name for name in self._columns if name in rows.column_names]
        if not there or not (self._may_lack or len(there) == len(self._columns)):
            missing = next(name for name in self._columns if name not in there)
            names = ", ".join(repr(name) for name in rows.column_names)
            raise M4castError(f"{self._file}: no column {missing!r}: there are {names}")
        return rows.select(there)


def _all_blocks(file: Path, kind: str, known: ColumnTypes, names: Sequence[str]) -> Iterator[Block]:
    """`names`: of a csv that has none."""
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
                    yield from map(ReadRows, parquet.iter_batches(BATCH_ROWS))
                case _:
                    arrow = stack.enter_context(pa.ipc.open_file(_seekable(source, stack)))
                    yield from (ReadRows(arrow.get_batch(at)) for at in range(arrow.num_record_batches))
        except OSError as error:
            raise M4castError(f"{file}: cannot be read as {kind}: {error}") from error
        except pa.ArrowException as error:
            raise M4castError(f"{trouble}: {error}") from error


def _opened(file: Path, stack: ExitStack) -> Any:
    """Unbuffered, so that what is there can be waited for and taken as it is."""
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


class ReadRows:
    """Rows that are Arrow's already."""

    until = ""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def table(self) -> pa.Table:
        return pa.Table.from_batches([self._rows])
