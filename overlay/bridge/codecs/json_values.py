"""Rows as JSON objects and back."""

import base64
import datetime
import decimal
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from m4cast.schemas.json_types import Rounded, read_objects


def read_json_objects(values: list[bytes], explicit: pa.Schema) -> tuple[pa.Table, Rounded]:
    """One row for each value, which must be exactly one object."""
    for value in values:
        # Each object must begin and end within its own value: two broken values could otherwise read as two objects.
        if value[:1] != b"{" or value[-1:] != b"}":
            stripped = value.strip()
            if stripped[:1] != b"{" or stripped[-1:] != b"}":
                raise ValueError("not a JSON object")
    return read_objects(values, explicit)


def write_json_object(row: Mapping[str, Any]) -> bytes:
    """The row as a JSON object. Raises ValueError for NaN and infinity, which JSON does not have."""
    written = json.dumps(
        _without_nulls(row), default=_json_value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    return written.encode()


def _without_nulls(value: Any) -> Any:
    """An absent member reads as null, as an absent column does on a channel."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value


def _json_value(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal() | datetime.timedelta():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def pylist(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict")
    return listed
