"""CloudEvents 1.0 in Kafka, binary and structured, as rows with the columns of `schemas/avro/event.avsc`.

Binary: attributes are headers `ce_NAME`, `content-type` is `datacontenttype`, the value is the data. Structured: the
value is a JSON object with all of it, `content-type` is `application/cloudevents+json`. Both are read, whichever is
configured; that one is written.

Attributes that CloudEvents does not name go to `extensions` in their canonical text, as its type system has them:
numbers and truth values come out as text. `time` is kept to the microsecond, in UTC. Rows that are no events (without
`id`, `source` and `type`) are written as such: the data is the row as JSON, the id names the row. An event without a
`sequence` gets that of its row, in 20 digits, so that it compares as text.
"""

import base64
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from m4cast.overlay.bridge.codecs import (
    ODD,
    Decoded,
    Encoded,
    Header,
    Problem,
    Record,
    RowSource,
    add_rows,
    encode_rows,
    pylist,
    write_json_object,
)
from m4cast.schemas.arrow_types import EVENT

Mode = Literal["binary", "structured"]

PREFIX = "ce_"
CONTENT_TYPE = "content-type"
STRUCTURED = "application/cloudevents"
STRUCTURED_JSON = "application/cloudevents+json"
REQUIRED = ("id", "source", "specversion", "type")
TEXTS = tuple(name for name in EVENT.names if name not in ("time", "extensions", "data"))
SEQUENCE_DIGITS = 20
ROW_TYPE = "m4cast.row"
_NAME = re.compile("[a-z0-9]{1,100}")
_FINE = re.compile(r"(\.\d{6})\d+")


class CloudEventsCodec:
    consumed_headers: tuple[str, ...] = (PREFIX, CONTENT_TYPE)

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    # ---- Kafka to rows

    def decode(self, records: Sequence[Record]) -> Decoded:
        decoded = Decoded()
        run: list[int] = []
        events: list[dict[str, Any]] = []
        for at, record in enumerate(records):
            try:
                events.append(_event_of(record))
                run.append(at)
            except ODD as error:
                decoded.problems[at] = Problem("not-an-event", str(error))
        if run:
            add_rows(decoded, run, events, lambda some: (pa.Table.from_pylist(some, schema=EVENT), {}), "not-an-event")
        return decoded

    # ---- rows to Kafka

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return encode_rows(self._encode, rows, source, target)

    def _encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        values: list[bytes | Problem | None] = []
        headers: list[list[Header]] = []
        for at, row in enumerate(pylist(rows)):
            event = _completed(row, source, at)
            if self._mode == "binary":
                values.append(event.pop("data", None))
                headers.append(_headers(event))
            else:
                values.append(_structured(event))
                headers.append([(CONTENT_TYPE, f"{STRUCTURED_JSON}; charset=UTF-8".encode())])
        return Encoded(values, headers)


def _event_of(record: Record) -> dict[str, Any]:
    headers: dict[str, str] = {}
    for name, value in record.headers:
        if value is not None and (name == CONTENT_TYPE or name.startswith(PREFIX)):
            headers[name] = value.decode()
    content_type = headers.pop(CONTENT_TYPE, None)
    if content_type is not None and content_type.startswith(STRUCTURED):
        if content_type.partition(";")[0].strip() != STRUCTURED_JSON:
            raise ValueError(f"structured events are read as {STRUCTURED_JSON}, not {content_type}")
        return _event_of_json(record.value)
    if not headers:
        raise ValueError(f"neither headers {PREFIX}... nor a content-type {STRUCTURED_JSON}")
    attributes: dict[str, Any] = {name.removeprefix(PREFIX): value for name, value in headers.items()}
    return _event({**attributes, "datacontenttype": content_type}, record.value)


def _event_of_json(value: bytes | None) -> dict[str, Any]:
    members = json.loads(value or b"")
    if not isinstance(members, dict):
        raise ValueError("a structured event is a JSON object")
    data: bytes | None = None
    if "data_base64" in members:
        data = base64.b64decode(members.pop("data_base64"), validate=True)
    elif members.get("data") is not None:
        # Data that is JSON stands there as such; of other types, it is text.
        data = _data_bytes(members["data"], members.get("datacontenttype"))
    members.pop("data", None)
    return _event(members, data)


def _data_bytes(data: object, content_type: str | None) -> bytes:
    if isinstance(data, str) and not _is_json(content_type):
        return data.encode()
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _is_json(content_type: str | None) -> bool:
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    return media_type.endswith(("/json", "+json"))


def _event(attributes: Mapping[str, Any], data: bytes | None) -> dict[str, Any]:
    event: dict[str, Any] = {"data": data}
    extensions: dict[str, str] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an attribute: small letters and digits")
        if name == "time":
            event["time"] = _time(value)
        elif name in TEXTS:
            event[name] = _text(value)
        else:
            extensions[name] = _text(value)
    missing = [name for name in REQUIRED if not event.get(name)]
    if missing:
        raise ValueError(f"without {', '.join(missing)}")
    if not event["specversion"].startswith("1."):
        raise ValueError(f"specversion {event['specversion']!r}: 1.0 is read")
    return {**event, "extensions": extensions or None}


def _text(value: object) -> str:
    """The canonical text of CloudEvents' types."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case _:
            raise ValueError(f"an attribute is text, a whole number or a truth value, not {value!r}")


def _time(value: object) -> datetime.datetime:
    if not isinstance(value, str):
        raise ValueError(f"time is RFC 3339 text, not {value!r}")
    read = datetime.datetime.fromisoformat(_FINE.sub(r"\1", value))
    if read.tzinfo is None:
        raise ValueError(f"time {value!r} has no zone")
    return read.astimezone(datetime.UTC)


def _completed(row: Mapping[str, Any], source: RowSource, at: int) -> dict[str, Any]:
    """The row as an event: itself, if it is one."""
    sequence = f"{source.sequences[at]:0{SEQUENCE_DIGITS}d}"
    if all(isinstance(row.get(name), str) for name in ("id", "source", "type")):
        event = {name: value for name, value in row.items() if value is not None}
        if isinstance(event.get("data"), str):
            event["data"] = event["data"].encode()
        return {**event, "specversion": event.get("specversion", "1.0"), "sequence": event.get("sequence", sequence)}
    return {
        "id": f"{source.origin}/{source.topic}/{source.sequences[at]}",
        "source": f"m4cast:{source.topic}",
        "specversion": "1.0",
        "type": ROW_TYPE,
        "time": source.published_at[at].as_py(),
        "datacontenttype": "application/json",
        "sequence": sequence,
        "data": write_json_object(row),
    }


def _attributes(event: Mapping[str, Any]) -> dict[str, str]:
    """As text, without the data."""
    named = {name: event[name] for name in TEXTS if event.get(name) is not None}
    if event.get("time") is not None:
        named["time"] = event["time"].astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    return {**named, **(event.get("extensions") or {})}


def _headers(event: Mapping[str, Any]) -> list[Header]:
    attributes = _attributes(event)
    content_type = attributes.pop("datacontenttype", None)
    headers: list[Header] = [(PREFIX + name, value.encode()) for name, value in attributes.items()]
    return headers if content_type is None else [*headers, (CONTENT_TYPE, content_type.encode())]


def _structured(event: Mapping[str, Any]) -> bytes:
    members: dict[str, Any] = dict(_attributes(event))
    data = event.get("data")
    if data is not None:
        members.update(_data_member(data, event.get("datacontenttype")))
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def _data_member(data: bytes, content_type: str | None) -> dict[str, Any]:
    try:
        if _is_json(content_type):
            return {"data": json.loads(data)}
        if content_type is not None and content_type.startswith("text/"):
            return {"data": data.decode()}
    except ValueError:
        pass  # not what it says it is: as bytes, so that nothing is lost
    return {"data_base64": base64.b64encode(data).decode()}
