"""CloudEvents 1.0 as rows with the columns of `schemas/avro/event.avsc`: what all of their bindings share.

Extension attributes are stored in the column `extensions` in the canonical text form of CloudEvents. `time` is stored
in UTC with microseconds. Whatever is no event is a `ValueError` that says why.
"""

import base64
import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from m4cast.schemas.arrow_types import EVENT

STRUCTURED = "application/cloudevents"
STRUCTURED_JSON = "application/cloudevents+json"
REQUIRED = ("id", "source", "specversion", "type")
TEXTS = tuple(name for name in EVENT.names if name not in ("time", "extensions", "data"))
_NAME = re.compile("[a-z0-9]{1,100}")
_FINE = re.compile(r"(\.\d{6})\d+")


def event_of_json(value: bytes | None) -> dict[str, Any]:
    """Read a structured event, a JSON object with attributes and data."""
    return event_of_members(json.loads(value or b""))


def event_of_members(members: object) -> dict[str, Any]:
    if not isinstance(members, dict):
        raise ValueError("a structured event must be a JSON object")
    members = dict(members)
    data: bytes | None = None
    if "data_base64" in members:
        data = base64.b64decode(members.pop("data_base64"), validate=True)
    elif members.get("data") is not None:
        # JSON data is embedded as it is; data of other types is text.
        data = _data_bytes(members["data"], members.get("datacontenttype"))
    members.pop("data", None)
    return event_of(members, data)


def _data_bytes(data: object, content_type: str | None) -> bytes:
    if isinstance(data, str) and not is_json(content_type):
        return data.encode()
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def is_json(content_type: str | None) -> bool:
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    return media_type.endswith(("/json", "+json"))


def event_of(attributes: Mapping[str, Any], data: bytes | None) -> dict[str, Any]:
    event: dict[str, Any] = {"data": data}
    extensions: dict[str, str] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not an attribute name: only lower-case letters and digits are allowed")
        if name == "time":
            event["time"] = _time(value)
        elif name in TEXTS:
            event[name] = _text(value)
        else:
            extensions[name] = _text(value)
    missing = [name for name in REQUIRED if not event.get(name)]
    if missing:
        raise ValueError(f"required attributes are missing: {', '.join(missing)}")
    if not event["specversion"].startswith("1."):
        raise ValueError(f"specversion {event['specversion']!r} is not supported: only 1.x is")
    return {**event, "extensions": extensions or None}


def _text(value: object) -> str:
    """The value in the canonical text form of CloudEvents."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case _:
            raise ValueError(f"an attribute must be text, an integer or a boolean, not {value!r}")


def _time(value: object) -> datetime.datetime:
    if not isinstance(value, str):
        raise ValueError(f"time must be RFC 3339 text, not {value!r}")
    read = datetime.datetime.fromisoformat(_FINE.sub(r"\1", value))
    if read.tzinfo is None:
        raise ValueError(f"time {value!r} has no time zone")
    return read.astimezone(datetime.UTC)
