"""Rows as an answer: JSON lines, CSV or an Arrow stream, piece by piece, as the client accepts them."""

import io
from itertools import repeat
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
from pyarrow import types

from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.web.quick_json import json_bytes
from m4cast.overlay.door.web.routes import ARROW, CSV, JSON_LINES, ROW_TEXTS
from m4cast.schemas.json_text import json_of, json_value

_SYNONYMS = {"application/jsonl": JSON_LINES, "application/json-lines": JSON_LINES, "*/*": JSON_LINES, "text/*": CSV}
_SYNONYMS |= {"application/*": JSON_LINES, "application/json": JSON_LINES}


class RowText(Protocol):
    """Writes the rows of one answer."""

    content_type: str

    def begin(self) -> bytes: ...
    def piece(self, rows: pa.RecordBatch) -> bytes: ...
    def end(self) -> bytes: ...


def text_of(accept: str, schema: pa.Schema) -> RowText:
    """Choose by the header `Accept`: the first of its types that the door has, preferred ones (`q`) first."""
    match accepted(accept):
        case "text/csv":
            return CsvText(schema)
        case "application/vnd.apache.arrow.stream":
            return ArrowStreamText(schema)
        case _:
            return JsonLinesText()


def accepted(accept: str) -> str:
    weighed: list[tuple[float, int, str]] = []
    for at, part in enumerate(accept.split(",") if accept.strip() else ["*/*"]):
        name, *parameters = (each.strip() for each in part.split(";"))
        kind = _SYNONYMS.get(name.lower(), name.lower())
        if kind in ROW_TEXTS:
            weighed.append((-_weight(parameters), at, kind))
    if not weighed or min(weighed)[0] == 0:
        raise bad_request(f"Accept is {accept[:200]!r}: must have one of {', '.join(ROW_TEXTS)}")
    return min(weighed)[2]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def dicts_of(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows for `json_of`. Cost: less than 1 us for a row of six columns. `to_pylist` of the batch takes 5 us, most
    of it for times, and for a check of every value that only maps need."""
    if not rows.num_columns:
        return [{} for _ in range(rows.num_rows)]
    names = rows.schema.names
    values = zip(*map(_values, rows.columns), strict=True)
    return list(map(dict, map(zip, repeat(names), values)))


def _values(column: pa.Array) -> list[Any]:
    if types.is_timestamp(column.type):
        return _times(column)
    listed: list[Any] = column.to_pylist(**({"maps_as_pydicts": "strict"} if types.is_nested(column.type) else {}))
    return listed


def _times(column: pa.Array) -> list[str | None]:
    """Times as text. Rows of a batch often share one: each is written once."""
    written: dict[int | None, str | None] = {None: None}
    numbers = column.view(pa.int64()).to_pylist()
    for number in set(numbers) - {None}:
        written[number] = json_value(pa.scalar(number, column.type).as_py())
    return [written[number] for number in numbers]


class JsonLinesText:
    content_type = JSON_LINES

    def begin(self) -> bytes:
        return b""

    def piece(self, rows: pa.RecordBatch) -> bytes:
        return b"".join(b"%b\n" % json_bytes(row) for row in dicts_of(rows))

    def end(self) -> bytes:
        return b""


class CsvText:
    """Nested columns are JSON text, bytes are base64: CSV has neither."""

    content_type = "text/csv; charset=utf-8; header=present"

    def __init__(self, schema: pa.Schema) -> None:
        self._flat = pa.schema([(field.name, _flat_type(field.type)) for field in schema])

    def begin(self) -> bytes:
        sink = io.BytesIO()
        with pyarrow.csv.CSVWriter(sink, self._flat):
            pass
        return sink.getvalue()

    def piece(self, rows: pa.RecordBatch) -> bytes:
        columns = [
            column if column.type == field.type else pa.array([_flat_text(value) for value in column], pa.string())
            for column, field in zip(rows.columns, self._flat, strict=True)
        ]
        sink = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False)
        pyarrow.csv.write_csv(pa.record_batch(columns, schema=self._flat), sink, options)
        return sink.getvalue()

    def end(self) -> bytes:
        return b""


def _flat_type(type_: pa.DataType) -> pa.DataType:
    is_written = (
        types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_string(type_)
        or types.is_date(type_)
        or types.is_timestamp(type_)
    )
    return type_ if is_written else pa.string()


def _flat_text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    plain = value.as_py(maps_as_pydicts="strict") if types.is_nested(value.type) else value.as_py()
    written = json_of(plain)
    return written[1:-1] if written.startswith('"') else written


class ArrowStreamText:
    content_type = ARROW

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema)

    def begin(self) -> bytes:
        return self._sink.taken()

    def piece(self, rows: pa.RecordBatch) -> bytes:
        self._writer.write_batch(rows)
        return self._sink.taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.taken()


class _Sink:
    """A file of which what was written is taken away."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(self._written[-1])

    def flush(self) -> None: ...
    def close(self) -> None: ...
    def writable(self) -> bool:
        return True

    def taken(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)
