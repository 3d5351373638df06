"""Rows as JSON text: times as ISO 8601, bytes as base64, decimals and durations as text, NaN and infinity as null."""

import base64
import datetime
import json
import math
from typing import Any


def json_of(row: Any) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:
        return json.dumps(_finite(row), default=json_value)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():  # a map is a list of pairs
            return [_finite(each) for each in value]
        case _:
            return value


def json_value(value: object) -> str:
    """The text of a value that JSON has no type for."""
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return base64.b64encode(value).decode()
        case _:  # a decimal or a duration
            return str(value)


_ENCODER = json.JSONEncoder(default=json_value, allow_nan=False)
"""`json.dumps` would make one for each call."""
