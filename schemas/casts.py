"""Exact casts: a cast that would change a value is refused.

    exact_cast(pa.array([1.25]), pa.decimal128(10, 2))   ->  [1.25]
    exact_cast(pa.array([1.239]), pa.decimal128(10, 2))  ->  ArrowInvalid

Arrow refuses casts that overflow, but not those that round, and it accepts any number as a time or a Boolean. One set
of rules applies wherever values are cast on behalf of a user (the Kafka bridge, the Spark connector, files):

- A binary fraction equals another if their values are equal: 0.5 fits into a `float`, 0.1 does not.
- Digits (text, decimals, numbers in JSON) equal a binary fraction if that, written with as many digits, is the same:
  0.1 fits into a `double`, 9007199254740993 does not. Integers of 64 bits have to be equal.
- A binary fraction is cast to a decimal by its shortest digits, and only if all of them fit. One beyond 2^53 is cast to
  decimals and integers only if its shortest digits are its value.
- Numbers are neither times nor Booleans. Times keep every digit.
- A field of a struct may be dropped if it is null in every row.

Cost: a cast and one back. Columns that have the type already are not copied.
"""

import math
from decimal import Context, Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

DIGITS_SAFE = 15
"""A double represents every number of this many digits, unless its exponent is extreme."""
WHOLE_MAX = {pa.float64(): 1 << 53, pa.float32(): 1 << 24}
"""The number up to which a binary fraction represents every integer."""
_EXPONENT_MAX = 10**18 - 1


def exact_cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values in another type. `ArrowInvalid` or `ArrowNotImplementedError` if one of them would change."""
    return _cast(column, type_, is_kin_only=False)


def kindred_cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same, but only from numbers to numbers, and from times to times, both with a zone or both without."""
    return _cast(column, type_, is_kin_only=True)


def _cast(column: pa.Array, type_: pa.DataType, *, is_kin_only: bool) -> pa.Array:
    before = column.type
    if before.equals(type_):
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    if types.is_struct(before) and types.is_struct(type_):
        return _cast_struct(column, type_, is_kin_only=is_kin_only)
    if _is_list(before) and _is_list(type_):
        elements = _cast(column.flatten(), type_.value_type, is_kin_only=is_kin_only)
        of_lists = pa.list_(type_.value_field)
        lists = pa.ListArray.from_arrays(_offsets(column), elements, type=of_lists, mask=column.is_null())
        return lists.cast(type_)
    if types.is_map(before) and types.is_map(type_):
        return _cast_map(column, type_, is_kin_only=is_kin_only)
    if is_kin_only and not _is_kin(before, type_):
        raise pa.ArrowInvalid(f"{before} cannot be cast to {type_}: they are of different kinds")
    return _cast_plain(column, type_)


def _cast_struct(column: pa.Array, type_: pa.DataType, *, is_kin_only: bool) -> pa.Array:
    parts = dict(zip(column.type.names, column.flatten(), strict=True))
    for name, part in parts.items():
        if type_.get_field_index(name) < 0 and not _is_void(part):
            raise pa.ArrowInvalid(f"field {name!r} has values, but {type_} has no such field")
    fields = [
        _cast(parts.get(field.name, pa.nulls(len(column))), field.type, is_kin_only=is_kin_only) for field in type_
    ]
    return pa.StructArray.from_arrays(fields, fields=list(type_), mask=column.is_null())


def _cast_map(column: pa.Array, type_: pa.DataType, *, is_kin_only: bool) -> pa.Array:
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys, items = column.values.slice(first, last - first).flatten()
    return pa.MapArray.from_arrays(
        pc.subtract(column.offsets, first),
        _cast(keys, type_.key_type, is_kin_only=is_kin_only),
        _cast(items, type_.item_type, is_kin_only=is_kin_only),
        type=type_,
        mask=column.is_null(),
    )


def _cast_plain(column: pa.Array, type_: pa.DataType) -> pa.Array:
    before = column.type
    # Arrow's own casts from and to decimals may be off by the last digit, or demand a larger precision.
    to_decimal = types.is_decimal(type_) and (types.is_integer(before) or types.is_floating(before))
    through_digits = to_decimal or (types.is_decimal(before) and types.is_floating(type_))
    # Arrow refuses all integers beyond 2^53 for doubles, even those that a double represents.
    is_safe = not (types.is_integer(before) and types.is_floating(type_))
    cast = (_digits(column) if through_digits else column).cast(type_, safe=is_safe)
    if not _is_same(column, cast):
        raise pa.ArrowInvalid(f"a value of {before} would change in {type_}")
    return cast


def _offsets(column: pa.Array) -> pa.Array:
    """The beginning of each list among all elements, and the end of the last one."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def _is_void(column: pa.Array) -> bool:
    """True if it has no values: only nulls, and lists and structs of these."""
    if types.is_struct(column.type):
        return all(map(_is_void, column.flatten()))
    if _is_list(column.type):
        return _is_void(column.flatten())
    return bool(column.null_count == len(column))


def says_same(written: Decimal, value: float) -> bool:
    """True if a double equals these digits: written with as many digits, it is the same number. Integers of 64 bits
    have to be equal exactly, since they may be identifiers."""
    digits = written.as_tuple()
    if not isinstance(digits.exponent, int):  # not a number: NaN, infinity
        return True
    significant = len("".join(map(str, digits.digits)).strip("0"))
    if not significant or not math.isfinite(value):
        return value == 0 and not significant
    if digits.exponent == 0 and abs(written) < 1 << 63:
        return written == Decimal(value)
    return _of_digits(significant).create_decimal_from_float(value) == written


def _of_digits(count: int) -> Context:
    return Context(prec=count, Emax=_EXPONENT_MAX, Emin=-_EXPONENT_MAX)


def number(text: str) -> Decimal:
    """The number that the digits represent. `ValueError` if they are not a number."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:100]!r} is not a number, or its exponent is too large") from None


def _is_kin(before: pa.DataType, after: pa.DataType) -> bool:
    if types.is_timestamp(before) and types.is_timestamp(after):
        return (before.tz is None) == (after.tz is None)
    return _is_number(before) and _is_number(after)


def _is_list(type_: pa.DataType) -> bool:
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def _is_number(type_: pa.DataType) -> bool:
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def _digits(column: pa.Array) -> pa.Array:
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    return column.cast(pa.string())


def _is_same(column: pa.Array, cast: pa.Array) -> bool:
    """True if Arrow's cast of plain values has changed nothing."""
    before, after = column.type, cast.type
    if types.is_nested(before) != types.is_nested(after):
        return False
    if types.is_string(before) or types.is_decimal(before):
        return _is_same_digits(column, cast)
    if _is_number(before) and (types.is_temporal(after) or types.is_boolean(after)):
        return False
    if types.is_floating(before) and types.is_decimal(after):
        return _is_same_digits(_digits(column), cast) and _are_large_same(column, cast)
    if types.is_floating(before) and types.is_integer(after) and not _are_large_same(column, cast):
        return False
    return _comes_back(column, cast)


def _is_same_digits(column: pa.Array, cast: pa.Array) -> bool:
    """True if text and decimals keep their digits. Arrow parses digits exactly, except into binary fractions and far
    after the point."""
    after = cast.type
    texts = column.cast(pa.string())
    is_doubtful = pc.or_(
        pc.match_substring(texts, "e", ignore_case=True), pc.greater(pc.binary_length(texts), DIGITS_SAFE)
    )
    doubtful = map(number, texts.filter(is_doubtful).to_pylist())
    if types.is_floating(after):
        doubles = texts.cast(pa.float64())
        return all(map(says_same, doubtful, doubles.filter(is_doubtful).to_pylist())) and _comes_back(doubles, cast)
    if types.is_decimal(after):
        return bool(list(doubtful) == cast.filter(is_doubtful).to_pylist())
    return bool(types.is_string(column.type) or not (types.is_temporal(after) or types.is_boolean(after)))


def _are_large_same(column: pa.Array, cast: pa.Array) -> bool:
    """True if large values are the same in both forms: beyond 2^53 a binary fraction is an integer with more digits
    than its shortest form, and both have to agree."""
    doubles = column.cast(pa.float64())
    is_large = pc.greater(pc.abs(doubles), WHOLE_MAX.get(column.type, 0))
    pairs = zip(doubles.filter(is_large).to_pylist(), cast.filter(is_large).to_pylist(), strict=True)
    return all(Decimal(repr(double)) == Decimal(double) == value for double, value in pairs)


def _comes_back(column: pa.Array, cast: pa.Array) -> bool:
    try:
        back = cast.cast(column.type, safe=not (types.is_integer(cast.type) and types.is_floating(column.type)))
    except pa.ArrowNotImplementedError:
        return True  # there is no cast back; Arrow's cast refuses what does not fit
    except pa.ArrowInvalid:
        return False
    if types.is_floating(column.type):  # one NaN does not equal another
        column, back = (pc.if_else(pc.is_nan(each), None, each) for each in (column, back))
    return bool(column.equals(back))
