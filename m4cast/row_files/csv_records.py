"""CSV input: a line of column names, then one record per line."""

import csv
import io
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import types

from m4cast.row_files.column_types import ColumnTypes
from m4cast.row_files.lines import LINE, LineFormat
from m4cast.schemas.casts import exact_cast
from m4cast.schemas.json_types import is_doubtful


class CsvRecords(LineFormat):
    """A line of names, then one record per line; a quoted value may contain line ends."""

    def __init__(self, known: ColumnTypes, names: Sequence[str] = ()) -> None:
        """`names`: the columns, if the input has no header."""
        self._known = known
        self._names = _csv_line(names) if names else b""

    def cut(self, text: bytearray) -> int:
        return _whole_records(text)

    def records(self, text: bytes) -> list[bytes]:
        found: list[bytes] = []
        is_open = False
        for line in LINE.findall(text):
            if is_open:
                found[-1] += line
            else:
                found.append(line)
            is_open ^= line.count(b'"') % 2 == 1
        return found

    def begins(self, text: bytes, line: int) -> int:
        """The header and any empty lines before it."""
        if self._names:
            return 0
        begin = 0
        for record in self.records(text):
            begin += len(record)
            if record.strip():
                if b"\r" in record.rstrip(b"\r\n"):
                    raise ValueError("a line that ends with CR alone: end lines with LF or CR LF")
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
            # Arrow rounds what it reads, so the values are compared with the text.
            names = [field.name for field in floating]
            convert = pyarrow.csv.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
            )
            source.seek(0)
            texts = pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
            for field in floating:
                self._refuse_changed(texts[field.name].combine_chunks(), field)
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
    """Return the end of the last complete record. A line end after an odd number of quotes is inside a value."""
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
