"""JSON input: one object per line, or one array of objects, whose elements are then read as lines."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.errors import M4castError
from m4cast.row_files import lines
from m4cast.row_files.column_types import ColumnTypes
from m4cast.row_files.lines import BYTE_ORDER_MARK, LINE, LineBlock, LineFormat, line_blocks
from m4cast.schemas.casts import exact_cast, kindred_cast
from m4cast.schemas.json_types import read_objects, settled

_STRUCTURE = re.compile(rb'\\.|["\\[\]{},\r\n]', re.DOTALL)
"""The characters that can determine where an element of an array ends: an escaped character, or one of these."""


def json_blocks(how: "JsonLines", source: Any, trouble: str) -> Iterator[LineBlock]:
    """Blocks of lines, or of array elements turned into lines, depending on how the input begins."""
    begin = b""
    while (
        len(begin) <= lines.LINE_BYTES_MAX
        and not begin.removeprefix(BYTE_ORDER_MARK).strip()
        and (read := source.read(lines.READ_BYTES)) != b""
    ):
        begin += read or b""
    unmarked = begin.removeprefix(BYTE_ORDER_MARK)
    if unmarked.lstrip()[:1] == b"[":
        yield from line_blocks(how, ArrayLines(unmarked, source, trouble), trouble, "element")
    else:
        yield from line_blocks(how, Begun(begin, source), trouble)


class Begun:
    """An input whose beginning has already been read."""

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
    """An array as one line per element: line ends inside it become spaces, commas between elements become line ends.

    It tracks only brackets, commas and strings; an error inside an element shows when the element is read."""

    def __init__(self, begin: bytes, source: Any, trouble: str) -> None:
        super().__init__(begin, source)
        self._trouble = trouble
        self._element = 1
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        """The next character is escaped: the last one read was a backslash."""
        self._is_object = False
        """The current element has begun with a brace."""
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
        """Handle one structural character, which is replaced in place if it ends an element or a line."""
        byte = text[at : at + 1]
        if self._in_string:
            self._in_string = byte != b'"'
        elif byte in b"\r\n":
            text[at] = ord(" ")
        elif self._has_ended:
            raise self._wrong("unexpected text after the array")
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
            raise self._wrong("not a JSON object: every row must be one")
        text[at] = ord("\n")
        self._element += 1
        self._is_object = False

    def _wrong(self, detail: str) -> M4castError:
        return M4castError(f"{self._trouble}: element {self._element}: {detail}")


class JsonLines(LineFormat):
    """One object per line."""

    def __init__(self, known: ColumnTypes) -> None:
        self._known = known
        self._seen: set[str] = set()
        """Columns that occur in the input. Rows do not carry nulls for other known columns."""

    def cut(self, text: bytearray) -> int:
        return text.rfind(b"\n") + 1

    def records(self, text: bytes) -> list[bytes]:
        return LINE.findall(text)

    def begins(self, text: bytes, line: int) -> int:
        return len(BYTE_ORDER_MARK) if line == 1 and text.startswith(BYTE_ORDER_MARK) else 0

    def read(self, text: bytes) -> pa.Table:
        objects = [stripped for line in text.split(b"\n") if (stripped := line.strip())]
        if any(each[:1] != b"{" or each[-1:] != b"}" for each in objects):
            raise ValueError("not a JSON object: jsonl has one per line")
        read_as = [(field.name, _read_as(field.type)) for field in self._known.schema()]
        explicit = pa.schema([(name, type_) for name, type_ in read_as if type_ is not None])
        try:
            rows, _ = read_objects(objects, explicit)  # decimals have explicit types
        except pa.ArrowInvalid as error:
            raise _with_column(objects, explicit, error) from None
        if objects and not rows.num_columns:
            raise ValueError("an object without members: a row needs at least one column")
        for field in explicit:
            found = rows.schema.field(field.name).type
            if found != field.type and settled(found) != field.type:
                raise ValueError(f"column {field.name!r} is {field.type} so far, but here it is {found}")
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
        if not columns and rows.num_columns:  # only nulls
            name = rows.column_names[0]
            columns[name] = rows.column(name)
        return pa.table(columns)

    def settle(self, rows: pa.Table) -> None:
        self._seen.update(rows.column_names)
        self._known.learn(rows.schema)


def _with_column(objects: list[bytes], explicit: pa.Schema, error: Exception) -> Exception:
    """The error, with the column whose known type a single object does not fit: Arrow does not name it."""
    is_unnamed = len(objects) == 1 and "Failed to convert" in str(error)
    for field in explicit if is_unnamed else ():
        try:
            read_objects(objects, pa.schema([field]))
        except pa.ArrowInvalid as own:
            if str(own) == str(error):
                return ValueError(f"{error}; column {field.name!r} is {field.type} so far")
    return error


def _as_known(name: str, column: pa.ChunkedArray, known: pa.DataType) -> pa.Array:
    """Cast a column to its known type: dates from text, numbers only if their value does not change."""
    try:
        if _has_dates(known):
            return exact_cast(column.combine_chunks(), known)
        return kindred_cast(column.combine_chunks(), known)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {name!r} is {known} so far: {error}") from None


def _has_dates(type_: pa.DataType) -> bool:
    return types.is_date(type_) or any(_has_dates(type_.field(at).type) for at in range(type_.num_fields))


def _read_as(known: pa.DataType) -> pa.DataType | None:
    """The type in which Arrow's JSON reader should read a column before it is cast: dates are read as text. None for
    types that the reader does not know, and for floating-point types, because it would round."""
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
