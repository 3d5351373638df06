"""JSON objects as rows, read by Arrow, with checks where Arrow would change a value.

Arrow infers types from many objects at once. Text stays text here, even if it looks like a time. A member that is null
everywhere, and a list or an object that is empty everywhere, has no type yet. It is left out until it has one; its
siblings stay.

Numbers keep the value that is written (see `casts`), or the objects are refused: a column with one fraction is a column
of doubles, and integers beyond 2^53 would change in it. A caller with several objects then reads them one by one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json
from pyarrow import types

from m4cast.schemas.casts import number, says_same

WHOLE_MAX = 1 << 63
"""Integers below this are read exactly, if there is no fraction in their column."""
DEPTH_MAX = 32
"""Limit on the nesting of columns, as at the door. The object itself is one level more."""
_FOLDED = bytes.maketrans(b"123456789.E+", b"0000000000e-")
_DOUBTFUL = (b"0" * 16, b"0e000", b"0e-000", b"NaN", b"Infinity")
"""Signs, in folded text, of numbers that a double may not represent: it does represent any 15 digits, if their exponent
has fewer than three. The last two are not JSON, but Arrow accepts them."""


Rounded = dict[str, set[int]]
"""The rows, by column, whose numbers are not written with the shortest digits of their double: they are equal as
doubles, but not as decimals."""


def read_objects(objects: Sequence[bytes], explicit: pa.Schema) -> tuple[pa.Table, Rounded]:
    """One row for each object. `explicit`: types of columns that are not inferred; no floating ones, into which Arrow
    would round. `ValueError` or `ArrowException`: an object cannot be a row, or not together with the others.

    Cost: Arrow's reader, and a pass over all bytes if there are fractions; Python parses objects with long numbers.
    """
    joined = b"\n".join(objects)
    _refuse_deep(objects, joined)
    rows = _read(joined, explicit)
    inferred = [field for field in rows.schema if field.name not in explicit.names]
    as_text = [pa.field(field.name, timeless(field.type)) for field in inferred]
    if as_text != inferred:
        rows = _read(joined, pa.schema([*explicit, *as_text]))
    if rows.num_rows != len(objects):
        raise ValueError("more than one JSON object")
    rows.validate(full=True)  # text that is not UTF-8
    if any(map(_has_fractions, rows.schema.types)) and is_doubtful(joined):
        return rows, _check_numbers(objects, rows)
    return rows, {}


def _read(text: bytes, explicit: pa.Schema) -> pa.Table:
    read = arrow_json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16))
    parse = arrow_json.ParseOptions(explicit_schema=explicit)
    return arrow_json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)


# ---- numbers


def _has_fractions(type_: pa.DataType) -> bool:
    is_one = types.is_floating(type_) or types.is_decimal(type_)
    return is_one or any(_has_fractions(type_.field(at).type) for at in range(type_.num_fields))


def is_doubtful(text: bytes) -> bool:
    """True if there may be a number that a double does not represent exactly."""
    folded = text.translate(_FOLDED)
    return any(each in folded for each in _DOUBTFUL)


def _check_numbers(objects: Sequence[bytes], rows: pa.Table) -> Rounded:
    """`ValueError` if a number would change, or would not if its object were read separately."""
    rounded: Rounded = {}
    doubtful = [at for at, each in enumerate(objects) if is_doubtful(each)]
    for at, row in zip(doubtful, rows.take(pa.array(doubtful, pa.int64())).to_pylist(), strict=True):
        said = json.loads(objects[at].decode(), parse_float=number, parse_constant=_refuse_constant, strict=False)
        for name, value in row.items():
            for written, read in _numbers(said.get(name), value):
                if not (says_same(Decimal(written), read) if isinstance(read, float) else written == read):
                    raise ValueError(f"the number {_shown(written)} would become {read}")
                if isinstance(read, float) and Decimal(repr(read)) != written:
                    if isinstance(written, int) and abs(written) < WHOLE_MAX and len(objects) > 1:
                        raise ValueError(f"the number {_shown(written)} is an integer, others in its column are not")
                    rounded.setdefault(name, set()).add(at)
    return rounded


def _shown(written: int | Decimal) -> str:
    text = str(written)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _refuse_constant(name: str) -> Decimal:
    raise ValueError(f"{name} is not JSON")


def _numbers(said: Any, read: Any) -> Iterator[tuple[int | Decimal, float | Decimal]]:
    """The fractions that Arrow read, each with what was written. Arrow reads everything else exactly."""
    match read:
        case float() | Decimal():
            yield number(said) if isinstance(said, str) else said, read  # a decimal may be written as text
        case dict():
            for name, each in read.items():
                if each is not None:
                    yield from _numbers(said[name], each)
        case list():
            for one, other in zip(said, read, strict=True):
                yield from _numbers(one, other)


# ---- depth

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"{}[]")
_NOT_OPENING = bytes(each for each in range(256) if each not in b"{[")


def _refuse_deep(objects: Sequence[bytes], joined: bytes) -> None:
    """Before Arrow reads it: its reader recurses for each bracket, and some thousands of them crash the process.

    Cost: one pass over all bytes if the objects are flat; else one over each object, and a closer check of each that
    has as many brackets, nested or not."""
    brackets_max = DEPTH_MAX + 1
    if len(joined.translate(None, _NOT_OPENING)) < len(objects) + brackets_max:  # each object has one itself
        return
    for each in objects:
        if len(each.translate(None, _NOT_OPENING)) > brackets_max and _is_deeper(each, brackets_max):
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}, or its brackets do not match")


def _is_deeper(value: bytes, brackets_max: int) -> bool:
    """Each round removes the innermost brackets. One that is not closed always remains."""
    left = _STRING.sub(b"", value).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(brackets_max):
        left = left.replace(b"{}", b"")
        if not left:
            return False
    return True


# ---- inferred types


def timeless(inferred: pa.DataType) -> pa.DataType:
    """The same, with text where Arrow inferred a time."""
    if types.is_timestamp(inferred):
        return pa.string()
    if types.is_list(inferred):
        return pa.list_(pa.field("element", timeless(inferred.value_type)))
    if types.is_struct(inferred):
        return pa.struct([(field.name, timeless(field.type)) for field in inferred])
    return inferred


def settled(inferred: pa.DataType) -> pa.DataType | None:
    """The same without parts that have no type yet; None if nothing is left. A column can be cast to it."""
    if types.is_null(inferred):
        return None
    if types.is_list(inferred):
        element = settled(inferred.value_type)
        return None if element is None else pa.list_(pa.field(inferred.value_field.name, element))
    if types.is_struct(inferred):
        parts = [(field.name, part) for field in inferred if (part := settled(field.type)) is not None]
        return pa.struct(parts) if parts else None
    return inferred


def makes_decimals(inferred: pa.DataType, known: pa.DataType) -> bool:
    """True if doubles become decimals when a column is cast."""
    if types.is_struct(inferred) and types.is_struct(known):
        shared = [field for field in inferred if known.get_field_index(field.name) >= 0]
        return any(makes_decimals(field.type, known.field(field.name).type) for field in shared)
    if types.is_list(inferred) and types.is_list(known):
        return makes_decimals(inferred.value_type, known.value_type)
    return bool(types.is_floating(inferred) and types.is_decimal(known))


def united(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that Arrow would infer from the objects of both; None if there is none."""
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            type_ = field.type if known is None else united(known, field.type)
            if type_ is None:
                return None
            fields[field.name] = type_
        return pa.struct(list(fields.items()))
    if types.is_list(one) and types.is_list(other):
        element = united(one.value_type, other.value_type)
        return None if element is None else pa.list_(pa.field(one.value_field.name, element))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return None
