"""Rows of files and pipes, block by block: memory stays bounded, however long the input is.

    for block in blocks_of(file, "jsonl", Types()):
        channel.publish("orders", block.table())

jsonl and csv are read in blocks of whole lines: `BLOCK_BYTES`, or less when the input ends, or pauses while lines are
there. A block is read whole or not at all, and an error names the line, counted from 1 in the input. JSON may also be
one array of objects, whose elements are then read as lines, and named in errors by their number.

Types of jsonl and csv are guessed from the first block that has values in a column, and hold for all that follow.
`Types.learn` puts those of a topic in their place. A number that would change under its type is an error, as
`schemas/casts.py` has it. Text in JSON is text: what looks like a time is not made one. A list
or an object that is empty everywhere has no type yet, and is null; so is a member of an object that is null everywhere.

parquet and arrow files have their types. They are read batch by batch, from a temporary file if they come by a pipe,
since their ends have to be read first.
"""

import csv
import io
import re
import select
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types

from m4cast.overlay.errors import M4castError
from m4cast.schemas.casts import exact_cast, kindred_cast
from m4cast.schemas.json_types import is_doubtful, read_objects, settled

FORMATS = ("jsonl", "json", "csv", "parquet", "arrow")
"""jsonl and json are the same: lines, or an array, by what it begins with."""
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
_STRUCTURE = re.compile(rb'\\.|["\\[\]{},\r\n]', re.DOTALL)
"""What may matter for where an element of an array ends: an escaped character, or one of these."""


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


def blocks_of(
    file: Path, kind: str, known: Types, columns: Sequence[str] = (), *, has_header: bool = True
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


def _all_blocks(file: Path, kind: str, known: Types, names: Sequence[str]) -> Iterator[Block]:
    """`names`: of a csv that has none."""
    trouble = f"{file}: is not {kind}"
    with ExitStack() as stack:
        try:
            source = _opened(file, stack)
            match kind:
                case "jsonl" | "json":
                    yield from _json_blocks(JsonLines(known), source, trouble)
                case "csv":
                    yield from _blocks(CsvRecords(known, names), source, trouble)
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

    def __init__(self, how: LineFormat, text: bytes, line: int, trouble: str, unit: str) -> None:
        """`unit`: what its lines are called, counted in the input."""
        self._how = how
        self._unit = unit
        self._text = text
        self._line = line
        """Number of its first line."""
        self._trouble = trouble
        last = line + text.count(b"\n") - text.endswith(b"\n")
        self.until = f"{unit} {last}"

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
        return M4castError(f"{self._trouble}: {self._unit} {line}: {said}")


def _blocks(how: LineFormat, source: Any, trouble: str, unit: str = "line") -> Iterator[Lines]:
    line = 1
    for text in _pieces(how, source, trouble, unit):
        try:
            begin = how.begins(text, line)
        except ValueError as error:
            raise M4castError(f"{trouble}: {unit} {line}: {error}") from None
        line += text.count(b"\n", 0, begin)
        if text[begin:].strip():
            yield Lines(how, text[begin:], line, trouble, unit)
        line += text.count(b"\n", begin)


def _pieces(how: LineFormat, source: Any, trouble: str, unit: str) -> Iterator[bytes]:
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
                raise M4castError(f"{trouble}: {unit} {line}: is longer than {LINE_BYTES_MAX:,} bytes")
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


def _json_blocks(how: "JsonLines", source: Any, trouble: str) -> Iterator[Lines]:
    """Lines, or the elements of an array as lines, by what the input begins with."""
    begin = b""
    while (
        len(begin) <= LINE_BYTES_MAX
        and not begin.removeprefix(_BYTE_ORDER_MARK).strip()
        and (read := source.read(READ_BYTES)) != b""
    ):
        begin += read or b""
    if begin.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] == b"[":
        yield from _blocks(how, ArrayLines(begin.removeprefix(_BYTE_ORDER_MARK), source, trouble), trouble, "element")
    else:
        yield from _blocks(how, Begun(begin, source), trouble)


class Begun:
    """An input of which the beginning was read already."""

    def __init__(self, begin: bytes, source: Any) -> None:
        self._begin = begin
        self._source = source

    def read(self, size: int) -> bytes | None:
        begin, self._begin = self._begin, b""
        read: bytes | None = begin or self._source.read(size)
        return read

    def fileno(self) -> int:
        number: int = self._source.fileno()
        return number


class ArrayLines(Begun):
    """An array as one line for each element: line ends in it become spaces, the commas between elements line ends.

    It looks only at brackets, commas and where strings end; what is wrong inside an element shows when it is read."""

    def __init__(self, begin: bytes, source: Any, trouble: str) -> None:
        super().__init__(begin, source)
        self._trouble = trouble
        self._element = 1
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        """The first character of what is read next is: a backslash was the last one before."""
        self._is_object = False
        """The element has begun, with a brace."""
        self._has_ended = False

    def read(self, size: int) -> bytes | None:
        read = super().read(size)
        if read == b"" and not self._has_ended:
            raise self._wrong("the array does not end: ']' is missing")
        if not read:
            return read
        text = bytearray(read)
        begin, self._is_escaped = int(self._is_escaped), False
        for found in _STRUCTURE.finditer(read, begin):
            if found[0][:1] != b"\\":
                self._meet(text, found.start())
            elif len(found[0]) == 1:
                self._is_escaped = True
        return bytes(text)

    def _meet(self, text: bytearray, at: int) -> None:
        """One character that may matter: changed where it is, if it ends an element or a line."""
        byte = text[at : at + 1]
        if self._in_string:
            self._in_string = byte != b'"'
        elif byte in b"\r\n":
            text[at] = ord(" ")
        elif self._has_ended:
            raise self._wrong("there is more after the array")
        elif byte == b'"':
            self._in_string = True
        elif byte in b"[{":
            self._is_object = self._is_object or (self._depth == 1 and byte == b"{")
            self._depth += 1
            if self._depth == 1:
                text[at] = ord(" ")
        elif byte in b"]}":
            self._depth -= 1
            self._has_ended = self._depth == 0
            if self._has_ended:
                self._end_element(text, at, is_last=True)
        elif self._depth == 1:
            self._end_element(text, at)

    def _end_element(self, text: bytearray, at: int, *, is_last: bool = False) -> None:
        is_empty_array = is_last and self._element == 1
        if not self._is_object and not (is_empty_array and not bytes(text[:at]).strip(b"[ \t\r\n")):
            raise self._wrong("not a JSON object: a row is one")
        text[at] = ord("\n")
        self._element += 1
        self._is_object = False

    def _wrong(self, said: str) -> M4castError:
        return M4castError(f"{self._trouble}: element {self._element}: {said}")


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
        objects = [stripped for line in text.split(b"\n") if (stripped := line.strip())]
        if any(each[:1] != b"{" or each[-1:] != b"}" for each in objects):
            raise ValueError("not a JSON object: jsonl has one a line")
        read_as = [(field.name, _read_as(field.type)) for field in self._known.schema()]
        explicit = pa.schema([(name, type_) for name, type_ in read_as if type_ is not None])
        rows, _ = read_objects(objects, explicit)  # decimals are explicit
        if objects and not rows.num_columns:
            raise ValueError("an object without members: a row has columns")
        for field in explicit:
            found = rows.schema.field(field.name).type
            if found != field.type and settled(found) != field.type:
                raise ValueError(f"column {field.name!r} is {field.type} so far, and here it is {found}")
        return self._settled(rows)

    def _settled(self, rows: pa.Table) -> pa.Table:
        columns: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            known = self._known.of(name)
            if known is not None:
                if name in self._seen or column.null_count < len(column):
                    columns[name] = _as_known(name, column, known) if column.type != known else column
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


def _as_known(name: str, column: pa.ChunkedArray, known: pa.DataType) -> pa.Array:
    """Dates were read as text; numbers are cast if they stay what they are."""
    try:
        if _has_dates(known):
            return exact_cast(column.combine_chunks(), known)
        return kindred_cast(column.combine_chunks(), known)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {name!r} is {known} so far: {error}") from None


def _has_dates(type_: pa.DataType) -> bool:
    return types.is_date(type_) or any(_has_dates(type_.field(at).type) for at in range(type_.num_fields))


def _read_as(known: pa.DataType) -> pa.DataType | None:
    """What Arrow's reader of JSON is to make of a column before it is cast to its type: dates are text there. None for
    types that it does not know, and for floating ones, into which it would round."""
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
    types.is_decimal,
    types.is_string,
    types.is_binary,
    types.is_timestamp,
)


# ---- CSV


class CsvRecords(LineFormat):
    """A line of names, then one record a line; in quotes a value may have line ends."""

    def __init__(self, known: Types, names: Sequence[str] = ()) -> None:
        """`names`: if the input has none."""
        self._known = known
        self._names = _csv_line(names) if names else b""

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
            rows = pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
        except pa.ArrowException as error:
            raise ValueError(re.sub(r"In CSV column #(\d+): ", self._named, str(error))) from error
        floating = [field for field in rows.schema if types.is_floating(field.type)]
        if floating and (is_doubtful(text) or any(not types.is_float64(field.type) for field in floating)):
            # Arrow rounds what it reads: what the text says is compared with it.
            names = [field.name for field in floating]
            convert = pyarrow.csv.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
            )
            source.seek(0)
            said = pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
            for field in floating:
                self._refuse_changed(said[field.name].combine_chunks(), field)
        return rows

    def _refuse_changed(self, texts: pa.Array, field: pa.Field) -> None:
        try:
            exact_cast(pc.utf8_trim_whitespace(texts), field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"column {field.name!r}: {error}") from None

    def _named(self, found: re.Match[str]) -> str:
        names = pyarrow.csv.read_csv(pa.BufferReader(self._names)).column_names
        return f"column {names[int(found[1])]!r}: "

    def settle(self, rows: pa.Table) -> None:
        self._known.learn(rows.schema)


def _csv_line(values: Sequence[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue().encode()


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
