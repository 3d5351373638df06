"""Evaluation: which rows of a record batch satisfy a condition, exactly.

`BatchTerms` belongs to one batch. It converts each column once and evaluates each distinct term once, however many
profiles share it; AND stops as soon as no row is left. A term gives the rows where it is TRUE, so nulls need no third
value (see `condition`).

A literal is fitted to the column, never the column to the literal: a bound of 4.5 on integers becomes 4 or 5, a moment
becomes days on a date column. So no value is rounded or overflows, and a pass is one comparison of a primitive array.

What Spark's ANSI mode reports as an error - a text against a column of numbers that is no number, LIKE on a number -
is no match here, and `errors` counts the rows.

Cost: per distinct term about 2 ns a row for numbers, 5-10 ns for short texts, 40-50 ns for a search in 60 bytes
(`tests/bench/profiles.py`).
"""

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from m4cast.overlay.profiles.condition import (
    AllOf,
    Always,
    AnyOf,
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Kind,
    Like,
    Literal,
    Never,
    OneOf,
    Operator,
    Term,
    Words,
)
from m4cast.overlay.profiles.literals import FLOAT_NAN, Value, as_ratio, readings
from m4cast.overlay.profiles.moments import DAY_US
from m4cast.overlay.profiles.patterns import Mask, decoded, like_mask, lowered, shape_of, true_rows, words_mask

_UNIT_US = {"s": Fraction(1_000_000), "ms": Fraction(1_000), "us": Fraction(1), "ns": Fraction(1, 1_000)}
_COMPARED: dict[Operator, Any] = {
    "=": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARROW_COMPARED: dict[Operator, Any] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


_PLAIN_TYPES: dict[Kind, list[pa.DataType]] = {
    Kind.BOOLEAN: [pa.bool_()],
    Kind.EXACT: [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.decimal128(1), pa.decimal256(1)),
    ],
    Kind.FLOAT: [pa.float16(), pa.float32(), pa.float64()],
    Kind.TEXT: [pa.string()],
    Kind.BYTES: [pa.binary()],
    Kind.MOMENT: [pa.date32(), pa.date64(), pa.timestamp("us")],
    Kind.CLOCK: [pa.time32("ms"), pa.time64("us")],
}
"""A type for each that can be computed with as it is, whatever its parameters are."""
_OTHER_TYPES: dict[Kind, list[pa.DataType]] = {
    Kind.EXACT: [pa.decimal32(1), pa.decimal64(1)],
    Kind.TEXT: [pa.large_string(), pa.string_view()],
    Kind.BYTES: [pa.large_binary(), pa.binary_view(), pa.binary(1)],
}
_PLAIN = frozenset(type_.id for listed in _PLAIN_TYPES.values() for type_ in listed)
_KINDS: dict[int, Kind] = {
    type_.id: kind for known in (_PLAIN_TYPES, _OTHER_TYPES) for kind, listed in known.items() for type_ in listed
}
"""Kinds by the numbers of types: asking for each of twenty types in turn takes as long as comparing 1,000 rows."""


def mask(condition: Condition, batch: pa.RecordBatch) -> Mask:
    """The rows of the batch for which the condition is TRUE."""
    return BatchTerms(batch).mask(condition)


class BatchTerms:
    """The terms of one batch, each evaluated once. The masks that it returns must not be changed."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[ColumnRef, ColumnValues | None] = {}
        self._masks: dict[Term, Mask] = {}
        self.errors = 0
        """Rows that a term could not be compared with, summed over the terms evaluated so far."""

    @cached_property
    def _every(self) -> Mask:
        return np.ones(self._batch.num_rows, dtype=bool)

    @cached_property
    def _none(self) -> Mask:
        return np.zeros(self._batch.num_rows, dtype=bool)

    def mask(self, condition: Condition) -> Mask:
        """The rows for which the condition is TRUE."""
        match condition:
            case AllOf(parts):
                found = self.mask(parts[0])
                for part in parts[1:]:
                    if not found.any():
                        break
                    found = found & self.mask(part)
                return found
            case AnyOf(parts):
                found = self.mask(parts[0])
                for part in parts[1:]:
                    found = found | self.mask(part)
                return found
            case Always():
                return self._every
            case Never():
                return self._none
            case _:
                known = self._masks.get(condition)
                if known is None:
                    known = self._masks[condition] = self._term(condition)
                return known

    def _term(self, term: Term) -> Mask:
        values = self.values(term.column)
        if values is None:
            return self._every if isinstance(term, IsNull) and not term.is_negated else self._none
        match term:
            case IsNull(_, is_negated):
                return values.valid() if is_negated else ~values.valid()
            case Compare(_, operator, literal):
                reading = readings(literal).get(values.kind)
                found = None if reading is None else values.compared(operator, reading)
            case OneOf(_, literals, is_negated):
                found = self._one_of(values, literals, is_negated)
            case Like(_, pattern, is_negated):
                found = values.like(pattern, is_negated)
            case Words(_, words, is_any, is_negated):
                found = values.words(words, is_any, is_negated)
            case _:
                assert_never(term)
        if found is None:
            self.errors += len(values.array) - values.array.null_count
            return self._none
        return found

    def _one_of(self, values: "ColumnValues", literals: tuple[Literal, ...], is_negated: bool) -> Mask | None:
        known = [reading for literal in literals if (reading := readings(literal).get(values.kind)) is not None]
        if is_negated:
            return ~values.one_of(known) & values.valid() if len(known) == len(literals) else None
        found = values.one_of(known)
        if len(known) < len(literals):
            self.errors += int(np.count_nonzero(values.valid() & ~found))
        return found

    def values(self, column: ColumnRef) -> "ColumnValues | None":
        """The column's values; None if it is absent or has only nulls."""
        if column not in self._columns:
            array = column_of(self._batch, column.path)
            if array is None or types.is_null(array.type):
                self._columns[column] = None
            elif column.is_lowered and kind_of(array.type) is Kind.TEXT:
                self._columns[column] = ColumnValues(lowered(array))
            else:
                # Lower case of what is no text is compared with nothing.
                self._columns[column] = ColumnValues(array, Kind.OTHER if column.is_lowered else None)
        return self._columns[column]


def column_of(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array | None:
    """A column, or a member of a struct, as an array of a plain type; None if the batch lacks it."""
    at = batch.schema.get_field_index(path[0])
    if at < 0:
        return None
    array = _plain(batch.column(at))
    for name in path[1:]:
        if not types.is_struct(array.type) or (at := array.type.get_field_index(name)) < 0:
            return None
        array = _plain(pc.struct_field(array, [at]))
    return array


def _plain(array: pa.Array) -> pa.Array:
    """The array without encodings and in a type that can be computed with."""
    if array.type.id in _PLAIN:
        return array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if types.is_decimal32(array.type) or types.is_decimal64(array.type):
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if types.is_string_view(array.type) or types.is_large_string(array.type):
        return array.cast(pa.string())
    if types.is_binary_view(array.type) or types.is_large_binary(array.type) or types.is_fixed_size_binary(array.type):
        return array.cast(pa.binary())
    return array


def kind_of(type_: pa.DataType) -> Kind:
    """The kind by which values of a column of this type are compared."""
    return _KINDS.get(type_.id, Kind.OTHER)


class ColumnValues:
    """One column of a batch, ready to be compared."""

    def __init__(self, array: pa.Array, kind: Kind | None = None) -> None:
        self.array = array
        self.kind = kind or kind_of(array.type)
        self._valid: Mask | None = None
        self._numbers: npt.NDArray[Any] | None = None

    def valid(self) -> Mask:
        if self._valid is None:
            self._valid = true_rows(self.array.is_valid())
        return self._valid

    def like(self, pattern: str, is_negated: bool) -> Mask | None:
        """The rows where LIKE is TRUE, None if the column has no text to look into."""
        if self.kind not in (Kind.TEXT, Kind.BYTES):
            return None
        found = like_mask(self.array, pattern)
        is_decoded = shape_of(pattern).search == "general"
        return ~found & (self._readable() if is_decoded else self.valid()) if is_negated else found

    def words(self, words: tuple[str, ...], is_any: bool, is_negated: bool) -> Mask | None:
        """The rows where the words are found (or not), None if the column has no text to look into."""
        if self.kind not in (Kind.TEXT, Kind.BYTES):
            return None
        found = words_mask(self.array, words, is_any=is_any)
        return ~found & self._readable() if is_negated else found

    def _readable(self) -> Mask:
        return true_rows(decoded(self.array).is_valid())

    def compared(self, operator: Operator, reading: Value) -> Mask:
        """The rows where `value operator reading` is TRUE."""
        if self.kind is Kind.FLOAT:
            assert isinstance(reading, tuple)
            return self._float_compared(operator, reading)
        if self.kind in (Kind.TEXT, Kind.BYTES):
            return true_rows(_ARROW_COMPARED[operator](self.array, pa.scalar(reading, self.array.type)))
        if self.kind is Kind.BOOLEAN:
            return self._checked(_COMPARED[operator](self.numbers(), reading))
        assert isinstance(reading, int) or not isinstance(reading, tuple | str | bytes)
        bound = fitted(self.array.type, operator, reading)
        if isinstance(bound, bool):
            return self.valid() if bound else np.zeros(len(self.array), dtype=bool)
        return self._checked(self._whole_compared(*bound))

    def one_of(self, known: Iterable[Value]) -> Mask:
        """The rows whose value is among these."""
        if self.kind in (Kind.TEXT, Kind.BYTES):
            return true_rows(pc.is_in(self.array, value_set=pa.array(list(known), self.array.type), skip_nulls=True))
        found = np.zeros(len(self.array), dtype=bool)
        if self.kind in (Kind.BOOLEAN, Kind.OTHER):
            for reading in known:
                found |= self.compared("=", reading)
            return found
        if self.kind is Kind.FLOAT:
            return self._one_of_floats([reading for reading in known if isinstance(reading, tuple)])
        fits = [fitted(self.array.type, "=", reading) for reading in known]
        wholes = [fit[1] for fit in fits if not isinstance(fit, bool)]
        if not wholes:
            return found
        if types.is_decimal(self.array.type):
            stored = self._stored()
            known_set = pa.array(map(Decimal, wholes), stored.type)
            return true_rows(pc.is_in(stored, value_set=known_set, skip_nulls=True))
        numbers = self.numbers()
        return self._checked(np.isin(numbers, np.array(wholes, dtype=numbers.dtype)))

    def _one_of_floats(self, known: list[tuple[bool, float]]) -> Mask:
        numbers = self.numbers().astype(np.float64, copy=False)
        found = np.isin(numbers, [each for is_nan, each in known if not is_nan])
        return self._checked(found | np.isnan(numbers) if FLOAT_NAN in known else found)

    def numbers(self) -> npt.NDArray[Any]:
        """The values as a primitive array, with anything at all in the rows that are null."""
        if self._numbers is None:
            array = self.array
            if types.is_date32(array.type) or types.is_time32(array.type):
                array = array.view(pa.int32())
            elif types.is_temporal(array.type):
                array = array.view(pa.int64())
            if array.null_count:
                array = array.fill_null(False if types.is_boolean(array.type) else pa.scalar(0, array.type))
            self._numbers = array.to_numpy(zero_copy_only=False)
        return self._numbers

    def _checked(self, found: Mask) -> Mask:
        return found & self.valid() if self.array.null_count else found

    def _float_compared(self, operator: Operator, reading: tuple[bool, float]) -> Mask:
        numbers = self.numbers().astype(np.float64, copy=False)
        if reading == FLOAT_NAN:
            is_nan = np.isnan(numbers)
            among = {"=": is_nan, ">=": is_nan, "!=": ~is_nan, "<": ~is_nan, "<=": np.ones_like(is_nan)}
            return self._checked(among.get(operator, np.zeros_like(is_nan)))
        found = _COMPARED[operator](numbers, reading[1])
        if operator in (">", ">="):
            found |= np.isnan(numbers)
        return self._checked(found)

    def _whole_compared(self, operator: Operator, bound: int) -> Mask:
        if not types.is_decimal(self.array.type):
            found: Mask = _COMPARED[operator](self.numbers(), bound)
            return found
        stored = self._stored()
        return true_rows(_ARROW_COMPARED[operator](stored, pa.scalar(Decimal(bound), stored.type)))

    def _stored(self) -> pa.Array:
        """Decimals as the whole numbers that are stored. (Arrow does not compare decimals of negative scale.)"""
        make = pa.decimal256 if types.is_decimal256(self.array.type) else pa.decimal128
        return self.array.view(make(self.array.type.precision, 0))


@lru_cache(maxsize=4_096)  # fractions take longer than comparing a thousand rows
def fitted(type_: pa.DataType, operator: Operator, reading: Any) -> tuple[Operator, int] | bool:
    """The comparison in whole units of a column of numbers or times, or whether it is TRUE for all values or none."""
    exact = as_ratio(reading)
    if exact is None:
        return operator in ("!=", "<", "<=") if reading > 0 else operator in ("!=", ">", ">=")
    least, greatest, unit = _units(type_)
    exact /= unit
    bound = math.floor(exact)
    if bound != exact:  # between two values of the column
        if operator in ("=", "!="):
            return operator == "!="
        operator = "<=" if operator in ("<", "<=") else ">"
    if bound < least:
        return operator in ("!=", ">", ">=")
    if bound > greatest:
        return operator in ("!=", "<", "<=")
    return operator, bound


def _units(type_: pa.DataType) -> tuple[int, int, Fraction]:
    """The least and the greatest whole number that the type stores, and what one of them stands for."""
    if types.is_decimal(type_):
        most = 10**type_.precision - 1
        return -most, most, unit_of(type_)
    bits = type_.bit_width
    if types.is_unsigned_integer(type_):
        return 0, (1 << bits) - 1, unit_of(type_)
    return -(1 << bits - 1), (1 << bits - 1) - 1, unit_of(type_)


def unit_of(type_: pa.DataType) -> Fraction:
    """The value of a stored 1, as a number or in microseconds."""
    if types.is_decimal(type_):
        return Fraction(1, 10**type_.scale) if type_.scale >= 0 else Fraction(10**-type_.scale)
    if types.is_integer(type_):
        return Fraction(1)
    if types.is_date(type_):
        return _UNIT_US["ms"] if types.is_date64(type_) else Fraction(DAY_US)
    return _UNIT_US[type_.unit]
