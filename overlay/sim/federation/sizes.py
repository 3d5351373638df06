"""Bytes of what nodes of a federation send each other, as a plain encoding would have them: ids and texts with their
lengths, small numbers in one byte, lists with their counts. Real frames add their heads."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum

from m4cast.overlay.profiles.profile import Profile

LENGTH_BYTES = 2


def size_bytes(each: object) -> int:
    """The bytes of a message, or of any value in it."""
    if isinstance(each, Profile):
        return LENGTH_BYTES + len(each.written.encode())
    if isinstance(each, bytes):
        return 1 + len(each)
    if isinstance(each, str):
        return LENGTH_BYTES + len(each.encode())
    if each is None or isinstance(each, bool | IntEnum):
        return 1
    if isinstance(each, int):
        return max(1, (each.bit_length() + 6) // 7)
    if isinstance(each, Mapping):
        return LENGTH_BYTES + sum(size_bytes(key) + size_bytes(value) for key, value in each.items())
    if isinstance(each, tuple | list | frozenset):
        is_named = hasattr(each, "_fields")
        return (0 if is_named else 1) + sum(map(size_bytes, each))
    if is_dataclass(each) and not isinstance(each, type):
        return sum(size_bytes(getattr(each, field.name)) for field in fields(each))
    raise TypeError(f"{type(each).__name__} is in no message")
