"""Summaries as bytes: an optional extension of a batch, at most 8 KB.

Version 1: version, rows, number of columns; per column the names of its path, kind, flags, nulls, then least and
greatest, then the values; at the end a checksum. Numbers are LEB128, texts are preceded by their length in bytes; exact
numbers and times are decimal text, floats eight bytes, big-endian. `docs/PROTOCOL.md`, section 11, has the layout.

The checksum is not that of the batch, which covers the payload too: a summary is used without reading the payload, and
a bit that flipped on a disk would hide rows.

What does not fit is left out: first sets of values, then whole columns, the largest first. Whoever reads a summary with
less in it only matches more.
"""

import struct

from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.profiles.condition import Kind
from m4cast.overlay.profiles.literals import Value, float_value, number_of
from m4cast.overlay.profiles.summary import COLUMNS_MAX, ColumnSummary, Summary

VERSION = 1
ENCODED_BYTES_MAX = 8_192
"""Limit on the size of a summary, which travels with every batch. Decided."""
_CHECKSUM = struct.Struct("<Q")
_KINDS = tuple(Kind)
_HAS_RANGE, _HAS_VALUES, _HAS_NAN, _IS_LEAST_CUT, _IS_GREATEST_CUT = 1, 2, 4, 8, 16
_DIGITS_MAX = 100
_PLAIN_DIGITS_MAX = 19
"""Most digits of a number that is read without a regular expression."""
_SMALL_NUMBERS = [bytes([count]) for count in range(0x80)]


def encode(summary: Summary) -> bytes:
    """The summary in at most `ENCODED_BYTES_MAX` bytes; what does not fit is left out, which means doubt."""
    columns = {path: _encoded_column(path, column) for path, column in summary.columns.items()}
    head = bytes([VERSION]) + _number(summary.rows)
    room = ENCODED_BYTES_MAX - len(head) - len(_number(len(columns))) - _CHECKSUM.size
    by_size = sorted(columns, key=lambda path: len(columns[path]), reverse=True)
    for path in by_size:
        if sum(map(len, columns.values())) <= room:
            break
        columns[path] = _encoded_column(path, summary.columns[path], with_values=False)
    for path in by_size:
        if sum(map(len, columns.values())) <= room:
            break
        del columns[path]
    content = b"".join((head, _number(len(columns)), *columns.values()))
    return content + _CHECKSUM.pack(xxh3_64_intdigest(content))


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
    version = content[0] if content else 0
    if version > VERSION:
        return None
    if not version:
        raise RemoteProtocolError("a summary of version 0, or of no bytes: versions begin with 1")
    described = content[: -_CHECKSUM.size]
    if _CHECKSUM.pack(xxh3_64_intdigest(described)) != content[-_CHECKSUM.size :]:
        raise RemoteProtocolError(f"a summary of {len(content)} bytes does not have its checksum")
    reader = _Bytes(described)
    reader.byte()
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
        if self._at < len(self._content) and (small := self._content[self._at]) < 0x80:  # nearly all of them
            self._at += 1
            return small
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
    if len(content) <= _PLAIN_DIGITS_MAX and content.isdigit():
        return int(content)
    found = number_of(text)
    return found if kind is Kind.EXACT or isinstance(found, int) else None


def _sized(content: bytes) -> bytes:
    return _number(len(content)) + content


def _number(count: int) -> bytes:
    if count < len(_SMALL_NUMBERS):
        return _SMALL_NUMBERS[count]
    found = bytearray()
    while count > 0x7F:
        found.append(count & 0x7F | 0x80)
        count >>= 7
    found.append(count)
    return bytes(found)
