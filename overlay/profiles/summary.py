"""Summaries: what a batch's routed columns hold, in at most 8 KB, so that most batches need not be opened.

Of each column: least and greatest value, how many nulls, and all distinct values if they are few. `may_match` is false
only if no row of the batch can satisfy the condition; any doubt is a match: a column that is not summarised, a range
that is not known, a version that is newer.

Rules that keep it so:
- NaN is marked and takes no part in least and greatest.
- Long texts are cut to `TEXT_BYTES_MAX`. A cut least value is still a lower bound; a cut greatest one is marked and
  stands for every text that begins with it.
- What does not fit into `ENCODED_BYTES_MAX` is left out: first sets of values, then whole columns.
- A column that the batch lacks is null in every row, and is summarised as that.

Encoding, version 1: version, rows, number of columns; per column the names of its path, kind, flags, nulls, then least
and greatest, then the values. Numbers are LEB128, texts are preceded by their length in bytes.
"""

import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.profiles.boxes import Box, Constraint, Span, boxes_of, constraint_of
from m4cast.overlay.profiles.condition import AllOf, Always, AnyOf, Column, Condition, Kind, Never
from m4cast.overlay.profiles.evaluation import column_of, kind_of, unit_of
from m4cast.overlay.profiles.literals import FLOAT_NAN, Value, float_value, number_of
from m4cast.overlay.profiles.patterns import after_prefix, lowered_text
from m4cast.overlay.value import value

VERSION = 1
ENCODED_BYTES_MAX = 8_192
"""Of a summary: it travels with every batch. Decided."""
VALUES_MAX = 32
"""Distinct values that are listed. More: fewer false matches, more bytes. Guess."""
TEXT_BYTES_MAX = 64
"""Of a text in a summary. Longer: fewer false matches among texts with long common beginnings. Guess."""
COLUMNS_MAX = 64
"""Of a summary. Each costs 10-40 us per batch of 10,000 rows. Guess."""
_SAMPLE_ROWS = 256
_KINDS = tuple(Kind)
_HAS_RANGE, _HAS_VALUES, _HAS_NAN, _IS_LEAST_CUT, _IS_GREATEST_CUT = 1, 2, 4, 8, 16
_DIGITS_MAX = 100


@value
class ColumnSummary:
    """One column of a batch. Without a kind it is null in every row; without `least` its range is not known."""

    kind: Kind | None
    null_count: int
    least: Value | None = None
    greatest: Value | None = None
    values: frozenset[Value] | None = None
    """All distinct values but null and NaN."""
    has_nan: bool = False
    is_least_cut: bool = False
    is_greatest_cut: bool = False


@value
class Summary:
    """The routed columns of a batch, by path."""

    rows: int
    columns: Mapping[tuple[str, ...], ColumnSummary]


# ---- making


def summarise(batch: pa.RecordBatch, paths: Iterable[tuple[str, ...]]) -> Summary:
    """The summary of these columns. Cost: per column 10-40 us at 10,000 rows (`tests/bench/profiles.py`)."""
    chosen = list(dict.fromkeys(paths))[:COLUMNS_MAX]
    return Summary(batch.num_rows, {path: _column_summary(column_of(batch, path), batch.num_rows) for path in chosen})


def _column_summary(array: pa.Array | None, rows: int) -> ColumnSummary:
    if array is None or array.null_count == rows:
        return ColumnSummary(None, rows)
    kind, nulls = kind_of(array.type), array.null_count
    if kind is Kind.OTHER:
        return ColumnSummary(kind, nulls)
    has_nan = False
    if kind is Kind.FLOAT:
        if array.null_count:
            array = array.drop_null()
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        missing = np.isnan(numbers)
        has_nan = bool(missing.any())
        array = pa.array(numbers[~missing] if has_nan else numbers)
        if not len(array):
            return ColumnSummary(kind, nulls, values=frozenset(), has_nan=True)
    ends = pc.min_max(array)
    unit = Fraction(1) if kind in (Kind.BOOLEAN, Kind.FLOAT, Kind.TEXT, Kind.BYTES) else unit_of(array.type)
    least, is_least_cut = _cut(_plain_value(ends["min"], kind, unit, floor))
    greatest, is_greatest_cut = _cut(_plain_value(ends["max"], kind, unit, ceil))
    return ColumnSummary(
        kind=kind,
        null_count=nulls,
        least=least,
        greatest=greatest,
        values=_few_values(array, kind, unit),
        has_nan=has_nan,
        is_least_cut=is_least_cut,
        is_greatest_cut=is_greatest_cut,
    )


def _few_values(array: pa.Array, kind: Kind, unit: Fraction) -> frozenset[Value] | None:
    if unit.denominator > 1 and kind in (Kind.MOMENT, Kind.CLOCK):
        return None  # finer than what values are counted in
    if len(pc.unique(array.slice(0, _SAMPLE_ROWS))) > VALUES_MAX + 1:
        return None
    distinct = pc.unique(array)
    if len(distinct) > VALUES_MAX + 1:
        return None
    found = frozenset(_plain_value(each, kind, unit, floor) for each in distinct.drop_null())
    if len(found) > VALUES_MAX or any(isinstance(each, str | bytes) and _cut(each)[1] for each in found):
        return None
    return found


def _plain_value(scalar: pa.Scalar, kind: Kind, unit: Fraction, rounded: "type[int] | object") -> Value:
    """The value as filters compare it; a moment finer than a microsecond is rounded outwards."""
    if kind is Kind.FLOAT:
        return float_value(scalar.as_py())
    if kind in (Kind.MOMENT, Kind.CLOCK):
        exact = scalar.value * unit
        return floor(exact) if rounded is floor else ceil(exact)
    content: Value = scalar.as_py()
    if isinstance(content, Decimal):
        whole = content.to_integral_value()
        return int(whole) if whole == content else content
    return content


def _cut(content: Value) -> tuple[Value, bool]:
    """A text of at most so many bytes, and whether it was cut."""
    encoded = content.encode() if isinstance(content, str) else content
    if not isinstance(encoded, bytes) or len(encoded) <= TEXT_BYTES_MAX:
        return content, False
    cut = encoded[:TEXT_BYTES_MAX]
    return cut.decode(errors="ignore") if isinstance(content, str) else cut, True


# ---- asking


def may_match(condition: Condition, summary: Summary) -> bool:
    """Whether a row of the batch may satisfy the condition: false only if certainly none does."""
    if not summary.rows:
        return False
    boxes = boxes_of(condition)
    if boxes is None:
        return _may_tree_match(condition, summary)
    return any(may_box_match(box, summary) for box in boxes)


def _may_tree_match(condition: Condition, summary: Summary) -> bool:
    match condition:
        case AllOf(parts):
            return all(_may_tree_match(part, summary) for part in parts)
        case AnyOf(parts):
            return any(_may_tree_match(part, summary) for part in parts)
        case Always():
            return True
        case Never():
            return False
        case _:
            return _may_column_match(condition.column, constraint_of(condition), summary)


def may_box_match(box: Box, summary: Summary) -> bool:
    """Whether a row may be in the box."""
    return all(_may_column_match(column, constraint, summary) for column, constraint in box.items())


def _may_column_match(column: Column, constraint: Constraint, summary: Summary) -> bool:
    known = summary.columns.get(column.path)
    if known is None or (constraint.is_null and known.null_count):
        return True
    if known.kind is None:
        return False
    span = constraint.spans.get(known.kind)
    if span is None:
        return False
    if column.is_lowered:
        if known.kind is not Kind.TEXT or known.values is None:
            return True
        return any(span.accepts(lowered_text(str(each))) for each in known.values)
    return _may_span_match(span, known)


def _may_span_match(span: Span, known: ColumnSummary) -> bool:
    if known.has_nan and span.accepts(FLOAT_NAN):
        return True
    if known.values is not None:
        return any(map(span.accepts, known.values))
    if known.least is None or known.greatest is None:
        return True
    greatest: Value | None = known.greatest
    if known.is_greatest_cut:
        assert isinstance(greatest, str | bytes)
        greatest = after_prefix(greatest)
    return span.overlaps(known.least, greatest)


# ---- bytes


def encode(summary: Summary) -> bytes:
    """The summary in at most `ENCODED_BYTES_MAX` bytes; what does not fit is left out, which means doubt."""
    columns = {path: _encoded_column(path, column) for path, column in summary.columns.items()}
    head = bytes([VERSION]) + _number(summary.rows)
    room = ENCODED_BYTES_MAX - len(head) - len(_number(len(columns)))
    by_size = sorted(columns, key=lambda path: len(columns[path]), reverse=True)
    for path in by_size:
        if sum(map(len, columns.values())) <= room:
            break
        columns[path] = _encoded_column(path, summary.columns[path], with_values=False)
    for path in by_size:
        if sum(map(len, columns.values())) <= room:
            break
        del columns[path]
    return head + _number(len(columns)) + b"".join(columns.values())


def _encoded_column(path: tuple[str, ...], column: ColumnSummary, *, with_values: bool = True) -> bytes:
    values = column.values if with_values else None
    has_range = column.least is not None and column.greatest is not None
    flags = (
        _HAS_RANGE * has_range
        | _HAS_VALUES * (values is not None)
        | _HAS_NAN * column.has_nan
        | _IS_LEAST_CUT * column.is_least_cut
        | _IS_GREATEST_CUT * column.is_greatest_cut
    )
    kind = 0 if column.kind is None else 1 + _KINDS.index(column.kind)
    pieces = [_number(len(path)), *(_sized(name.encode()) for name in path)]
    pieces += [bytes([kind, flags]), _number(column.null_count)]
    if column.kind is not None:
        if column.least is not None and column.greatest is not None:
            pieces += [_sized(_value_bytes(column.least)), _sized(_value_bytes(column.greatest))]
        if values is not None:
            pieces += [_number(len(values)), *sorted(_sized(_value_bytes(each)) for each in values)]
    return b"".join(pieces)


def decode(content: bytes) -> Summary | None:
    """The summary in these bytes, None if a newer node wrote it: then nothing is known, and everything may match.

    `RemoteProtocolError` says what is wrong with bytes that no node writes.
    """
    if len(content) > ENCODED_BYTES_MAX:
        raise RemoteProtocolError(f"a summary of {len(content)} bytes: at most {ENCODED_BYTES_MAX} are allowed")
    reader = _Bytes(content)
    version = reader.byte()
    if version > VERSION:
        return None
    if not version:
        raise RemoteProtocolError("a summary of version 0: versions begin with 1")
    rows = reader.number()
    columns: dict[tuple[str, ...], ColumnSummary] = {}
    count = reader.number()
    if count > COLUMNS_MAX:
        raise RemoteProtocolError(f"a summary of {count} columns: at most {COLUMNS_MAX} are allowed")
    for _ in range(count):
        path = tuple(reader.text() for _ in range(reader.few("names of a path")))
        if not path or path in columns:
            raise RemoteProtocolError(f"a summary has column {'.'.join(path)!r} twice, or without a name")
        columns[path] = _decoded_column(reader, rows)
    if reader.rest():
        raise RemoteProtocolError(f"a summary has {reader.rest()} bytes after its end")
    return Summary(rows, columns)


def _decoded_column(reader: "_Bytes", rows: int) -> ColumnSummary:
    code, flags, nulls = reader.byte(), reader.byte(), reader.number()
    if code > len(_KINDS) or flags > 31 or nulls > rows:
        raise RemoteProtocolError(f"a summary has a column of kind {code}, flags {flags}, {nulls} nulls in {rows} rows")
    if not code:
        if flags or nulls != rows:
            raise RemoteProtocolError(f"a summary has a column of nulls with flags {flags} and {nulls} of {rows} rows")
        return ColumnSummary(None, nulls)
    kind = _KINDS[code - 1]
    least = greatest = values = None
    if flags & _HAS_RANGE:
        least, greatest = reader.value(kind), reader.value(kind)
        if least > greatest:  # type: ignore[operator]
            raise RemoteProtocolError(f"a summary has the range from {least!r} to {greatest!r}")
    if flags & _HAS_VALUES:
        values = frozenset(reader.value(kind) for _ in range(reader.few("values")))
    is_cut = flags & (_IS_LEAST_CUT | _IS_GREATEST_CUT)
    if (is_cut and (kind not in (Kind.TEXT, Kind.BYTES) or least is None)) or (
        flags & _HAS_NAN and kind is not Kind.FLOAT
    ):
        raise RemoteProtocolError(f"a summary has a column of kind {kind} with flags {flags}")
    return ColumnSummary(
        kind=kind,
        null_count=nulls,
        least=least,
        greatest=greatest,
        values=values,
        has_nan=bool(flags & _HAS_NAN),
        is_least_cut=bool(flags & _IS_LEAST_CUT),
        is_greatest_cut=bool(flags & _IS_GREATEST_CUT),
    )


class _Bytes:
    """Reads bytes from left to right; whatever is missing or out of bounds is the sender's mistake."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def rest(self) -> int:
        return len(self._content) - self._at

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        if count > self.rest():
            raise RemoteProtocolError(f"a summary ends at byte {len(self._content)}, in the middle of a value")
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self) -> int:
        found = shift = 0
        while True:
            byte = self.byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found
            if shift > 56:
                raise RemoteProtocolError("a summary has a number of more than 56 bits")

    def few(self, what: str) -> int:
        count = self.number()
        if count > COLUMNS_MAX:
            raise RemoteProtocolError(f"a summary has {count} {what}: at most {COLUMNS_MAX} are allowed")
        return count

    def text(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("a summary has a text that is not UTF-8") from None

    def value(self, kind: Kind) -> Value:
        content = self.take(self.number())
        found = _value_of(kind, content)
        if found is None:
            raise RemoteProtocolError(f"a summary has a value of kind {kind} that cannot be read: {content[:40].hex()}")
        return found


def _value_bytes(content: Value) -> bytes:
    match content:
        case bool():
            return bytes([content])
        case str():
            return content.encode()
        case bytes():
            return content
        case tuple():
            return struct.pack(">d", content[1])
        case _:
            return str(content).encode()


def _value_of(kind: Kind, content: bytes) -> Value | None:
    if kind is Kind.BYTES:
        return content
    if kind is Kind.BOOLEAN:
        return {b"\0": False, b"\1": True}.get(content)
    if kind is Kind.FLOAT:
        return float_value(*struct.unpack(">d", content)) if len(content) == 8 else None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if kind is Kind.TEXT:
        return text
    if len(text) > _DIGITS_MAX:
        return None
    found = number_of(text)
    return found if kind is Kind.EXACT or isinstance(found, int) else None


def _sized(content: bytes) -> bytes:
    return _number(len(content)) + content


def _number(count: int) -> bytes:
    found = bytearray()
    while count > 0x7F:
        found.append(count & 0x7F | 0x80)
        count >>= 7
    found.append(count)
    return bytes(found)
