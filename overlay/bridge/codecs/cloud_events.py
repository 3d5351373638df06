"""CloudEvents 1.0 in Kafka, binary and structured, as rows with the columns of `schemas/avro/event.avsc`.

Binary: attributes are headers `ce_NAME`, the header `content-type` is `datacontenttype`, the value is the data.
Structured: the value is a JSON object with attributes and data, and `content-type` is `application/cloudevents+json`.
Both modes are read; the configured one is written.

Extension attributes are stored in the column `extensions` in the canonical text form of CloudEvents, so numbers and
booleans are written back as text. `time` is stored in UTC with microseconds. A row that is not an event (it lacks `id`,
`source` or `type`) is wrapped in one: the data is the row as JSON, the id names the row. An event without a `sequence`
gets the sequence of its row, padded to 20 digits so that it sorts as text.
"""

import base64
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from m4cast.overlay.bridge.codecs.codec import (
    ODD,
    Decoded,
    Encoded,
    Header,
    Problem,
    Record,
    RowSource,
    add_rows,
    encode_rows,
)
from m4cast.overlay.bridge.codecs.json_values import pylist, write_json_object
from m4cast.schemas.arrow_types import EVENT
from m4cast.schemas.cloud_events import STRUCTURED, STRUCTURED_JSON, TEXTS, event_of, event_of_json, is_json

Mode = Literal["binary", "structured"]

PREFIX = "ce_"
CONTENT_TYPE = "content-type"
SEQUENCE_DIGITS = 20
ROW_TYPE = "m4cast.row"


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
            raise ValueError(f"a structured event must be {STRUCTURED_JSON}, not {content_type}")
        return event_of_json(record.value)
    if not headers:
        raise ValueError(
            f"not a CloudEvent, with no header {PREFIX}... and no content-type {STRUCTURED_JSON}: "
            "choose another format for this topic"
        )
    attributes: dict[str, Any] = {name.removeprefix(PREFIX): value for name, value in headers.items()}
    return event_of({**attributes, "datacontenttype": content_type}, record.value)


def _completed(row: Mapping[str, Any], source: RowSource, at: int) -> dict[str, Any]:
    """The row as an event: the row itself if it is one, else an event that wraps it."""
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
    """The attributes as text, without the data."""
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
        if is_json(content_type):
            return {"data": json.loads(data)}
        if content_type is not None and content_type.startswith("text/"):
            return {"data": data.decode()}
    except ValueError:
        pass  # the data does not match its content type: keep it as bytes
    return {"data_base64": base64.b64encode(data).decode()}
