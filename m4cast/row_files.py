"""Rows of files and pipes, block by block: memory stays bounded, however long the input is.

    for block in blocks_of(file, "jsonl", Types()):
        channel.publish("orders", block.table())

jsonl and csv are read in blocks of whole lines: `BLOCK_BYTES`, or less when the input ends, or pauses while lines are
there. A block is read whole or not at all, and an error names the line, counted from 1 in the input.

Types of jsonl and csv are guessed from the first block that has values in a column, and hold for all that follow.
`Types.learn` puts those of a topic in their place. Text in JSON is text: what looks like a time is not made one. A list
or an object that is empty everywhere has no type yet, and is null; so is a member of an object that is null everywhere.

parquet and arrow files have their types. They are read batch by batch, from a temporary file if they come by a pipe,
since their ends have to be read first.
"""

import io
import re
import select
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from pyarrow import types

from m4cast.overlay.errors import M4castError
from m4cast.schemas.json_types import settled, timeless

FORMATS = ("jsonl", "csv", "parquet", "arrow")
BLOCK_BYTES = 4 << 20
"""Of jsonl and csv. Higher: types are guessed from more rows; more memory, about ten times as much. Guess."""
LINE_BYTES_MAX = 16 << 20
"""A longer line is an error. As much as a batch may have, unless the channel says otherwise."""
READ_BYTES = 256 << 10
PAUSE_S = 1.0
"""Lines that are there do not wait for more for longer than this. Guess."""
BATCH_ROWS = 65_536
"""Of parquet."""
_LINE = re.compile(rb"[^\n]*\n|[^\n]+\Z")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Block(Protocol):
    """Some rows of the input."""

    @property
    def until(self) -> str:
        """Where it ends, as people find it in the input; empty if there is no such word."""

    def table(self) -> pa.Table:
        """Its rows. May be called again, when other types were learned."""


class Types:
    """What is known of the columns' types so far."""

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType] = {}

    def learn(self, schema: pa.Schema) -> None:
        """These count from now on."""
        self._known.update({field.name: field.type for field in schema if not types.is_null(field.type)})

    def of(self, name: str) -> pa.DataType | None:
        return self._known.get(name)

    def schema(self) -> pa.Schema:
        return pa.schema(list(self._known.items()))


def blocks_of(file: Path, kind: str, known: Types) -> Iterator[Block]:
    """The input in blocks. `-` is standard input. Errors are `M4castError`, with the name of the file."""
    trouble = f"{file}: is not {kind}"
    with ExitStack() as stack:
        try:
            source = _opened(file, stack)
            match kind:
                case "jsonl":
                    yield from _blocks(JsonLines(known), source, trouble)
                case "csv":
                    yield from _blocks(CsvRecords(known), source, trouble)
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
    shutil.copyfileobj(source, copy, READ_BYTES)
    copy.seek(0)
    return copy


class ReadRows:
    """Rows that are Arrow's already."""

    until = ""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def table(self) -> pa.Table:
        return pa.Table.from_batches([self._rows])


# ---- lines


class LineFormat(ABC):
    """How lines become rows."""

    @abstractmethod
    def cut(self, text: bytearray) -> int:
        """Where the last whole record of it ends; 0 when there is none."""

    @abstractmethod
    def records(self, text: bytes) -> list[bytes]:
        """The records that it is made of, with their ends; empty ones too."""

    @abstractmethod
    def begins(self, text: bytes, line: int) -> int:
        """How many bytes at the beginning of this text, which begins at this line, are no rows."""

    @abstractmethod
    def read(self, text: bytes) -> pa.Table:
        """The rows of some records, by the types that are known. `ArrowException` or `ValueError`: they are none."""

    @abstractmethod
    def settle(self, rows: pa.Table) -> None:
        """Their types count from now on."""


class Lines:
    """A block of lines."""

    def __init__(self, how: LineFormat, text: bytes, line: int, trouble: str) -> None:
        self._how = how
        self._text = text
        self._line = line
        """Number of its first line."""
        self._trouble = trouble
        last = line + text.count(b"\n") - text.endswith(b"\n")
        self.until = f"line {last}"

    def table(self) -> pa.Table:
        try:
            rows = self._how.read(self._text)
        except (pa.ArrowException, ValueError) as error:
            raise self._named(error) from None
        self._how.settle(rows)
        return rows

    def _named(self, error: Exception) -> M4castError:
        """With the first line that is wrong: the one that ends the shortest beginning that cannot be read."""
        records = self._how.records(self._text)
        good, bad = 0, len(records)
        while bad - good > 1:
            half = (good + bad) // 2
            try:
                self._how.read(b"".join(records[:half]))
                good = half
            except (pa.ArrowException, ValueError) as sooner:
                bad, error = half, sooner
        line = self._line + b"".join(records[: bad - 1]).count(b"\n")
        said = re.sub(r" in row \d+|Row #\d+: ", "", str(error))  # counted in this block
        return M4castError(f"{self._trouble}: line {line}: {said}")


def _blocks(how: LineFormat, source: Any, trouble: str) -> Iterator[Lines]:
    line = 1
    for text in _pieces(how, source, trouble):
        try:
            begin = how.begins(text, line)
        except ValueError as error:
            raise M4castError(f"{trouble}: line {line}: {error}") from None
        line += text.count(b"\n", 0, begin)
        if text[begin:].strip():
            yield Lines(how, text[begin:], line, trouble)
        line += text.count(b"\n", begin)


def _pieces(how: LineFormat, source: Any, trouble: str) -> Iterator[bytes]:
    """Whole records, as many as a block has, or as are there when the input pauses; at its end what is left."""
    held = bytearray()
    line = 1
    while True:
        is_paused = bool(held) and not _comes(source)
        if not is_paused:
            read = source.read(READ_BYTES)
            if read == b"":
                break
            held += read or b""
            if len(held) < BLOCK_BYTES:
                continue
        end = how.cut(held)
        if not end and len(held) > LINE_BYTES_MAX:
            end = held.rfind(b"\n") + 1  # quotes that do not end; what is wrong shows when it is read
            if not end:
                raise M4castError(f"{trouble}: line {line}: is longer than {LINE_BYTES_MAX:,} bytes")
        if end:
            yield bytes(held[:end])
            line += held.count(b"\n", 0, end)
            del held[:end]
    if held:
        yield bytes(held)


def _comes(source: Any) -> bool:
    """Whether more comes soon, or the end does."""
    try:
        return bool(select.select([source], [], [], PAUSE_S)[0])
    except (OSError, ValueError, io.UnsupportedOperation):  # nothing that could be waited for: it is all there
        return True


# ---- JSON


class JsonLines(LineFormat):
    """One object a line."""

    def __init__(self, known: Types) -> None:
        self._known = known
        self._seen: set[str] = set()
        """Columns that the input has; of others that are known, rows do not carry nulls."""

    def cut(self, text: bytearray) -> int:
        return text.rfind(b"\n") + 1

    def records(self, text: bytes) -> list[bytes]:
        return _LINE.findall(text)

    def begins(self, text: bytes, line: int) -> int:
        return len(_BYTE_ORDER_MARK) if line == 1 and text.startswith(_BYTE_ORDER_MARK) else 0

    def read(self, text: bytes) -> pa.Table:
        objects = 0
        for line in text.split(b"\n"):
            stripped = line.strip()
            if stripped:
                objects += 1
                if stripped[:1] != b"{" or stripped[-1:] != b"}":
                    raise ValueError("not a JSON object: jsonl has one a line")
        read_as = [(field.name, _read_as(field.type)) for field in self._known.schema()]
        explicit = pa.schema([(name, type_) for name, type_ in read_as if type_ is not None])
        rows = _read_json(text, explicit)
        guessed = [field for field in rows.schema if field.name not in explicit.names]
        as_text = [pa.field(field.name, timeless(field.type)) for field in guessed]
        if as_text != guessed:
            rows = _read_json(text, pa.schema([*explicit, *as_text]))
        if rows.num_rows != objects:
            raise ValueError("more than one JSON object: jsonl has one a line")
        if objects and not rows.num_columns:
            raise ValueError("an object without members: a row has columns")
        for field in explicit:
            found = rows.schema.field(field.name).type
            if found != field.type and settled(found) != field.type:
                raise ValueError(f"column {field.name!r} is {field.type} so far, and here it is {found}")
        rows.validate(full=True)  # text that is not UTF-8
        return self._settled(rows)

    def _settled(self, rows: pa.Table) -> pa.Table:
        columns: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            known = self._known.of(name)
            if known is not None:
                if name in self._seen or column.null_count < len(column):
                    columns[name] = column.cast(known) if column.type != known else column
            elif (type_ := settled(column.type)) is None:
                columns[name] = pa.chunked_array([pa.nulls(len(column))])
            else:
                columns[name] = column.cast(type_) if column.type != type_ else column
        if not columns and rows.num_columns:  # nulls alone
            name = rows.column_names[0]
            columns[name] = rows.column(name)
        return pa.table(columns)

    def settle(self, rows: pa.Table) -> None:
        self._seen.update(rows.column_names)
        self._known.learn(rows.schema)


def _read_json(text: bytes, explicit: pa.Schema) -> pa.Table:
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16))
    parse = pyarrow.json.ParseOptions(explicit_schema=explicit)
    return pyarrow.json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)


def _read_as(known: pa.DataType) -> pa.DataType | None:
    """What Arrow's reader of JSON is to make of a column before it is cast to its type: dates are text there. None for
    types that it does not know."""
    if types.is_date(known):
        return pa.string()
    if types.is_list(known):
        element = _read_as(known.value_type)
        return None if element is None else pa.list_(pa.field(known.value_field.name, element))
    if types.is_struct(known):
        parts = [(field.name, _read_as(field.type)) for field in known]
        return None if any(part is None for _, part in parts) else pa.struct(parts)
    return known if any(is_it(known) for is_it in _READ_AS_THEY_ARE) else None


_READ_AS_THEY_ARE = (
    types.is_boolean,
    types.is_integer,
    types.is_float32,
    types.is_float64,
    types.is_decimal,
    types.is_string,
    types.is_binary,
    types.is_timestamp,
)


# ---- CSV


class CsvRecords(LineFormat):
    """A line of names, then one record a line; in quotes a value may have line ends."""

    def __init__(self, known: Types) -> None:
        self._known = known
        self._names = b""

    def cut(self, text: bytearray) -> int:
        return _whole_records(text)

    def records(self, text: bytes) -> list[bytes]:
        found: list[bytes] = []
        is_open = False
        for line in _LINE.findall(text):
            if is_open:
                found[-1] += line
            else:
                found.append(line)
            is_open ^= line.count(b'"') % 2 == 1
        return found

    def begins(self, text: bytes, line: int) -> int:
        """The names, and what is empty before them."""
        if self._names:
            return 0
        begin = 0
        for record in self.records(text):
            begin += len(record)
            if record.strip():
                if b"\r" in record.rstrip(b"\r\n"):
                    raise ValueError("a line that ends with CR alone: end lines with LF, or CR and LF")
                self._names = record if record.endswith(b"\n") else record + b"\n"
                break
        return begin

    def read(self, text: bytes) -> pa.Table:
        read = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(self._names) + len(text) + 1)
        convert = pyarrow.csv.ConvertOptions(column_types=self._known.schema())
        parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
        source = pa.BufferReader(self._names + text)
        try:
            return pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
        except pa.ArrowException as error:
            raise ValueError(re.sub(r"In CSV column #(\d+): ", self._named, str(error))) from error

    def _named(self, found: re.Match[str]) -> str:
        names = pyarrow.csv.read_csv(pa.BufferReader(self._names)).column_names
        return f"column {names[int(found[1])]!r}: "

    def settle(self, rows: pa.Table) -> None:
        self._known.learn(rows.schema)


def _whole_records(text: bytearray) -> int:
    """A line end in quotes ends no record: it is one after an odd number of quotes."""
    end = text.rfind(b"\n") + 1
    if text.count(b'"', 0, end) % 2 == 0:
        return end
    whole = at = quotes = 0
    for line in text[:end].splitlines(keepends=True):
        at += len(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0 and line.endswith(b"\n"):
            whole = at
    return whole
