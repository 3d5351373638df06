"""Text input in blocks of whole lines: up to `BLOCK_BYTES`, or less when the input ends or pauses.

A block is read completely or not at all. An error names the line, counted from 1 in the whole input.
"""

import io
import re
import select
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from m4cast.overlay.errors import M4castError

BLOCK_BYTES = 4 << 20
"""Size of a block. Higher: types are guessed from more rows; more memory, about ten times as much. Guess."""
LINE_BYTES_MAX = 16 << 20
"""A longer line is an error. The default limit of a channel's batches."""
READ_BYTES = 256 << 10
PAUSE_S = 1.0
"""Complete lines wait at most this long for more. Guess."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE = re.compile(rb"[^\n]*\n|[^\n]+\Z")


class LineFormat(ABC):
    """A text format: how it is cut into records and read as rows."""

    @abstractmethod
    def cut(self, text: bytearray) -> int:
        """The end of the last complete record in the text; 0 if there is none."""

    @abstractmethod
    def records(self, text: bytes) -> list[bytes]:
        """The records of the text, with their line ends, including empty ones."""

    @abstractmethod
    def begins(self, text: bytes, line: int) -> int:
        """The number of bytes at the start of this text, which begins at this line, that are not rows."""

    @abstractmethod
    def read(self, text: bytes) -> pa.Table:
        """The rows of some records, using the known types. `ArrowException` or `ValueError` if they are invalid."""

    @abstractmethod
    def settle(self, rows: pa.Table) -> None:
        """Use the types of these rows from now on."""


class LineBlock:
    """A block of lines."""

    def __init__(self, how: LineFormat, text: bytes, line: int, trouble: str, unit: str) -> None:
        """`unit`: what a line is called in messages."""
        self._how = how
        self._unit = unit
        self._text = text
        self._line = line
        """The number of its first line."""
        self._trouble = trouble
        last = line + text.count(b"\n") - text.endswith(b"\n")
        self.until = f"{unit} {last}"

    def table(self) -> pa.Table:
        try:
            rows = self._how.read(self._text)
        except (pa.ArrowException, ValueError) as error:
            raise self._named(error) from None
        self._how.settle(rows)
        return rows

    def _named(self, error: Exception) -> M4castError:
        """The error with the first bad line, found by bisection: the last line of the shortest invalid prefix."""
        records = self._how.records(self._text)
        good, bad = 0, len(records)
        while bad - good > 1:
            half = (good + bad) // 2
            try:
                self._how.read(b"".join(records[:half]))
                good = half
            except (pa.ArrowException, ValueError) as sooner:
                bad, error = half, sooner
        try:
            self._how.read(records[bad - 1])
        except (pa.ArrowException, ValueError) as alone:  # a single record may have a more precise error
            error = alone
        line = self._line + b"".join(records[: bad - 1]).count(b"\n")
        detail = re.sub(r" in row \d+|Row #\d+: ", "", str(error))  # row numbers are relative to this block
        return M4castError(f"{self._trouble}: {self._unit} {line}: {detail}")


def line_blocks(how: LineFormat, source: Any, trouble: str, unit: str = "line") -> Iterator[LineBlock]:
    line = 1
    for text in _pieces(how, source, trouble, unit):
        try:
            begin = how.begins(text, line)
        except ValueError as error:
            raise M4castError(f"{trouble}: {unit} {line}: {error}") from None
        line += text.count(b"\n", 0, begin)
        if text[begin:].strip():
            yield LineBlock(how, text[begin:], line, trouble, unit)
        line += text.count(b"\n", begin)


def _pieces(how: LineFormat, source: Any, trouble: str, unit: str) -> Iterator[bytes]:
    """Complete records: a block's worth, or what has arrived when the input pauses; at the end, the rest."""
    held = bytearray()
    line = 1
    while True:
        is_paused = bool(held) and not _is_ready(source)
        if not is_paused:
            read = source.read(READ_BYTES)
            if read == b"":
                break
            held += read or b""
            if len(held) < BLOCK_BYTES:
                continue
        end = how.cut(held)
        if not end and len(held) > LINE_BYTES_MAX:
            end = held.rfind(b"\n") + 1  # unbalanced quotes; the error shows when the block is read
            if not end:
                raise M4castError(f"{trouble}: {unit} {line}: is longer than the limit of {LINE_BYTES_MAX:,} bytes")
        if end:
            yield bytes(held[:end])
            line += held.count(b"\n", 0, end)
            del held[:end]
    if held:
        yield bytes(held)


def _is_ready(source: Any) -> bool:
    """True if more input, or its end, arrives within the pause."""
    try:
        return bool(select.select([source], [], [], PAUSE_S)[0])
    except (OSError, ValueError, io.UnsupportedOperation):  # cannot be polled: everything is available
        return True
