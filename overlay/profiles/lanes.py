"""Lanes: columns as arrays of 64-bit integers in the order of their values, for matching many profiles at once.

Numbers, times and booleans of at most 64 bits have a lane: whole ones as they are stored, doubles by their bits (NaN
last, as in Spark), unsigned 64-bit integers shifted. In a lane every interval is closed and every comparison exact, so
one kind of array serves all types. Texts and bytes have no lane; they are looked up by value.
"""

import struct
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from m4cast.overlay.profiles.boxes import Span
from m4cast.overlay.profiles.condition import Kind, Operator
from m4cast.overlay.profiles.evaluation import ColumnValues, fitted, kind_of
from m4cast.overlay.profiles.literals import FLOAT_NAN, Value
from m4cast.overlay.profiles.patterns import Mask, true_rows

Lane = npt.NDArray[np.int64]
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
_SIGN = np.int64(LEAST)
_DECIMAL64_DIGITS = 18
Words64 = npt.NDArray[np.uint64]
SHORT_BYTES_MAX = 40
"""Longest text that is looked up by its bytes; a UUID fits. Each eight bytes cost 10-30 ns a row. Measured."""
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_MIX = np.uint64(
    0x9E3779B97F4A7C15
)  # an odd number of many bits; whoever makes hashes collide makes look-ups slow only
DENSE_MIN, DENSE_FACTOR = 65_536, 8
"""Numbers that reach over at most so many, plus so many times their count, are found by a table: 2 ns against 50-110.
Eight bytes each. Measured."""


def has_lane(type_: pa.DataType) -> bool:
    """True if values of this type fit into a lane."""
    if types.is_decimal(type_):
        return bool(type_.precision <= _DECIMAL64_DIGITS)
    return kind_of(type_) in (Kind.BOOLEAN, Kind.EXACT, Kind.FLOAT, Kind.MOMENT, Kind.CLOCK)


def lane_of(values: ColumnValues) -> Lane:
    """The column as a lane; rows that are null hold anything."""
    type_ = values.array.type
    if values.kind is Kind.FLOAT:
        return _float_lane(values.numbers())
    if types.is_uint64(type_):
        return values.numbers().view(np.int64) ^ _SIGN
    if types.is_decimal(type_):
        array = values.array.cast(pa.decimal128(38, type_.scale))
        words = np.frombuffer(array.buffers()[1], np.int64)
        return words.reshape(-1, 2)[array.offset : array.offset + len(array), 0]
    return values.numbers().astype(np.int64, copy=False)


def _float_lane(numbers: npt.NDArray[Any]) -> Lane:
    doubles = numbers.astype(np.float64, copy=False) + 0.0  # -0.0 becomes 0.0
    bits = doubles.view(np.int64)
    lane = np.where(bits < 0, _SIGN - bits, bits)
    lane[np.isnan(doubles)] = GREATEST
    return lane


def point_in(type_: pa.DataType, each: Value) -> int | None:
    """Return the place of a value in the lane of this type; None if no column of the type holds it."""
    if isinstance(each, tuple):
        return _float_point(each)
    if isinstance(each, bool):
        return int(each)
    fit = fitted(type_, "=", each)
    return None if isinstance(fit, bool) else fit[1] + _shift(type_)


def interval_in(type_: pa.DataType, span: Span) -> tuple[int, int]:
    """The span's interval in the lane of this type, closed at both ends; empty if the first is greater."""
    if kind_of(type_) is Kind.FLOAT:
        low = LEAST if span.low is None else _float_point(span.low) + span.is_low_open
        high = GREATEST if span.high is None else _float_point(span.high) - span.is_high_open
        return low, high
    if types.is_boolean(type_):
        return int(span.low is True), int(span.high is not False)
    low, high = LEAST, GREATEST
    for operator, end in _ends(span):
        fit = fitted(type_, operator, end)
        if isinstance(fit, bool):
            if not fit:
                return GREATEST, LEAST
            continue
        bound = fit[1] + _shift(type_)
        match fit[0]:
            case ">":
                low = bound + 1
            case ">=":
                low = bound
            case "<":
                high = bound - 1
            case _:
                high = bound
    return (low, high) if LEAST <= low <= GREATEST and LEAST <= high <= GREATEST else (GREATEST, LEAST)


def _ends(span: Span) -> list[tuple[Operator, Value]]:
    found: list[tuple[Operator, Value]] = []
    if span.low is not None:
        found.append((">" if span.is_low_open else ">=", span.low))
    if span.high is not None:
        found.append(("<" if span.is_high_open else "<=", span.high))
    return found


def _float_point(each: Any) -> int:
    if each == FLOAT_NAN:
        return GREATEST
    (bits,) = struct.unpack(">q", struct.pack(">d", each[1]))
    return int(bits) if bits >= 0 else LEAST - bits


def _shift(type_: pa.DataType) -> int:
    return LEAST if types.is_uint64(type_) else 0


class Codes:
    """The distinct values of one column that profiles ask for, numbered from 0; -1 stands for all others."""

    def __init__(self, is_lane: bool) -> None:
        self.is_lane = is_lane
        self.known: dict[Hashable, int] = {}
        self._places: Places | None = None
        self._short: ShortTexts | None = None

    def code(self, each: Hashable) -> int:
        """The number of a value, a new one if it has none. Not once rows have been looked up."""
        assert self._places is None and self._short is None
        return self.known.setdefault(each, len(self.known))

    def points(self) -> Lane:
        """The values with a lane, by number."""
        return np.fromiter(self.known, np.int64, len(self.known))

    def of_lane(self, lane: Lane) -> Lane:
        """The numbers of all rows of a lane."""
        if self._places is None:
            self._places = Places(self.points())
        return self._places.of(lane)

    def of_texts(self, texts: "Texts") -> Lane:
        """The numbers of all rows of a column of texts or bytes. Cost: a search per row if all known ones are short,
        else a hash look-up per distinct value."""
        if self._short is None:
            self._short = ShortTexts(self.known)
        if self._short.is_usable:
            return self._short.of(texts)
        get = self.known.get
        uniques, indices = texts.encoded()
        codes = np.fromiter((get(each, -1) for each in uniques), np.int64, len(uniques))
        return np.append(codes, -1)[indices]


class Places:
    """Return the place of each of some distinct numbers among them: by a table if they lie close together, else by
    search."""

    def __init__(self, numbers: Lane) -> None:
        self._least = int(numbers.min()) if len(numbers) else 0
        reach = int(numbers.max()) - self._least + 1 if len(numbers) else 0
        self._table: Lane | None = None
        if reach <= DENSE_MIN + DENSE_FACTOR * len(numbers):
            self._table = np.full(reach + 1, -1)
            self._table[numbers - self._least] = np.arange(len(numbers))
        else:
            self._order = np.argsort(numbers)
            self._sorted = numbers[self._order]

    def of(self, wanted: Lane) -> Lane:
        """The place of each wanted number, -1 for one that is not there."""
        if self._table is not None:
            last = len(self._table) - 1  # holds -1
            greatest = self._least + last - 1
            inside = (wanted >= self._least) & (wanted <= greatest)
            near: Lane = np.where(inside, wanted, greatest + 1)
            return self._table[near - self._least]
        at = np.searchsorted(self._sorted, wanted)
        at[at == len(self._sorted)] = 0
        found: Lane = np.where(self._sorted[at] == wanted, self._order[at], -1)
        return found


class Texts:
    """A column of texts or bytes, taken apart once for all that look values up in it."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._encoded: tuple[list[Any], Lane] | None = None
        self._words: list[Words64] = []
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        self._starts = offsets[:-1].astype(np.int64) - offsets[0]
        self._reach = slice(int(offsets[0]), int(offsets[-1]))
        self.lengths = np.diff(offsets).astype(np.int64)
        self.valid: Mask | None = true_rows(array.is_valid()) if array.null_count else None
        self._bytes = np.zeros(0, np.uint64)

    def encoded(self) -> tuple[list[Any], Lane]:
        """The distinct texts, and which of them each row has; one more than there are stands for null."""
        if self._encoded is None:
            encoded = pc.dictionary_encode(self._array)
            uniques, indices = encoded.dictionary.to_pylist(), encoded.indices
            if indices.null_count:
                indices = indices.fill_null(len(uniques))
            self._encoded = uniques, indices.to_numpy(zero_copy_only=False)
        return self._encoded

    def words(self, count: int) -> list[Words64]:
        """The first bytes of each text, eight at a time; zeros where it has none."""
        while len(self._words) < count:
            self._words.append(self._word(8 * len(self._words)))
        return self._words[:count]

    def _word(self, begin: int) -> Words64:
        if not len(self._bytes):
            content = self._array.buffers()[2]
            padded = b"" if content is None else memoryview(content)[self._reach].tobytes()
            padded += bytes(SHORT_BYTES_MAX + 8)
            # Every byte of the texts as the first of eight.
            self._bytes = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        left = np.clip(self.lengths - begin, 0, 8)
        found: Words64 = self._bytes[self._starts + begin * (left > 0)] & _FIRST_BYTES[left]
        return found


class ShortTexts:
    """Known texts of at most `SHORT_BYTES_MAX` bytes, found by a hash of their bytes and then compared."""

    def __init__(self, known: Mapping[Hashable, int]) -> None:
        texts = pa.array([each.encode() if isinstance(each, str) else each for each in known], pa.binary())
        column = Texts(texts)
        self.is_usable = not len(texts) or int(column.lengths.max()) <= SHORT_BYTES_MAX
        if self.is_usable:
            self._count = -(-int(column.lengths.max(initial=0)) // 8)
            self._lengths = column.lengths
            self._words = column.words(self._count)
            hashes = _hashed(column, self._count)
            self._order = np.argsort(hashes)
            self._sorted = hashes[self._order]
            self.is_usable = len(np.unique(hashes)) == len(hashes)

    def of(self, texts: Texts) -> Lane:
        """The place of each text among the known ones, -1 for one that is not there."""
        if not len(self._sorted):
            return np.full(len(texts.lengths), -1)
        at = np.searchsorted(self._sorted, _hashed(texts, self._count))
        at[at == len(self._sorted)] = 0
        place = self._order[at]
        is_same = self._lengths[place] == texts.lengths
        for mine, theirs in zip(self._words, texts.words(self._count), strict=True):
            is_same &= mine[place] == theirs
        if texts.valid is not None:
            is_same &= texts.valid
        return np.where(is_same, place, -1)


def _hashed(texts: Texts, count: int) -> Words64:
    mixed = texts.lengths.astype(np.uint64)
    for word in texts.words(count):
        mixed = (mixed ^ word) * _MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
