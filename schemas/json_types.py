"""Types that Arrow guesses from JSON, as far as they can be relied on.

Text is text: what looks like a time is not made one. A member that is null everywhere, and a list or an object that is
empty everywhere, has no type yet; it is left out until it has one, and what is beside it stays.
"""

import pyarrow as pa
from pyarrow import types


def timeless(guessed: pa.DataType) -> pa.DataType:
    """The same, with text where Arrow took text for a time."""
    if types.is_timestamp(guessed):
        return pa.string()
    if types.is_list(guessed):
        return pa.list_(pa.field("element", timeless(guessed.value_type)))
    if types.is_struct(guessed):
        return pa.struct([(field.name, timeless(field.type)) for field in guessed])
    return guessed


def settled(guessed: pa.DataType) -> pa.DataType | None:
    """The same, without parts that have no type yet; None if nothing is left. A column can be cast to it."""
    if types.is_null(guessed):
        return None
    if types.is_list(guessed):
        element = settled(guessed.value_type)
        return None if element is None else pa.list_(pa.field(guessed.value_field.name, element))
    if types.is_struct(guessed):
        parts = [(field.name, part) for field in guessed if (part := settled(field.type)) is not None]
        return pa.struct(parts) if parts else None
    return guessed
