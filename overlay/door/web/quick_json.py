"""Quick JSON: rows are read and written by orjson, several times as fast as by Python's own library.

It reads less than that library does, so what it refuses is left to others, who say what is wrong with it: NaN, half a
surrogate pair, numbers that no double holds, deep nesting. It accepts two things that they would not take as they are:
a name that is written twice, whose last value it gives, and integers beyond 64 bits, which become doubles. `members_of`
and `rows_of_text` look for the first; whoever takes doubles from their rows looks for the second (`gathering`).
"""

from typing import Any

import orjson

from m4cast.overlay.door.fields import names_are_unique
from m4cast.schemas.json_text import json_of as any_json_of
from m4cast.schemas.json_text import json_value

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


def json_of(value: Any) -> str:
    """Rows as JSON text, with the values of `schemas.json_text`."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    try:
        return orjson.dumps(value, json_value, _OPTIONS)
    except TypeError:  # names that are not text, as maps have
        return any_json_of(value).encode()


def members_of(text: str) -> dict[str, Any] | None:
    """An object whose members are rows and plain values; None if it is something else, or is to be looked at closely:
    then `fields.object_of` reads it, or says why it cannot."""
    try:
        members = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(members, dict) or float in map(type, members.values()):
        return None
    return members if names_are_unique(members, text) else None


def rows_of_text(text: bytes) -> list[Any] | None:
    """An object, or a list of objects, as a list; None if it is to be looked at closely."""
    try:
        read = orjson.loads(text)
    except ValueError:
        return None
    rows = read if isinstance(read, list) else [read]
    return rows if {dict}.issuperset(map(type, rows)) and sum(map(len, rows)) == text.count(b":") else None
