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
    """How lines become rows."""

    @abstractmethod
    def cut(self, text: bytearray) -> int:
        """Where the last whole record of it ends; 0 when there is none."""

    @abstractmethod
    def records(self, text: bytes) -> list[bytes]:
        """The records that it is made of, with their ends; empty ones too."""

    @abstractmethod
    def begins(self, text: bytes, line: int) -> int:
        """How many bytes at the beginning of this text, which begins at this line, are no rows."""

    @abstractmethod
    def read(self, text: bytes) -> pa.Table:
        """The rows of some records, by the types that are known. `ArrowException` or `ValueError`: they are none."""

    @abstractmethod
    def settle(self, rows: pa.Table) -> None:
        """Their types count from now on."""


class LineBlock:
    """A block of lines."""

    def __init__(self, how: LineFormat, text: bytes, line: int, trouble: str, unit: str) -> None:
        """`unit`: what its lines are called, counted in the input."""
        self._how = how
        self._unit = unit
        self._text = text
        self._line = line
        """Number of its first line."""
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
        """With the first line that is wrong: the one that ends the shortest beginning that cannot be read."""
        records = self._how.records(self._text)
        good, bad = 0, len(records)
        while bad - good > 1:
            half = (good + bad) // 2
            try:
                self._how.read(b"".join(records[:half]))
                good = half
            except (pa.ArrowException, ValueError) as sooner:
                bad, error = half, sooner
        line = self._line + b"".join(records[: bad - 1]).count(b"\n")
        said = re.sub(r" in row \d+|Row #\d+: ", "", str(error))  # counted in this block
        return M4castError(f"{self._trouble}: {self._unit} {line}: {said}")


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
    """Whole records, as many as a block has, or as are there when the input pauses; at its end what is left."""
    held = bytearray()
    line = 1
    while True:
        is_paused = bool(held) and not _comes(source)
        if not is_paused:
            read = source.read(READ_BYTES)
            if read == b"":
                break
            held += read or b""
            if len(held) < BLOCK_BYTES:
                continue
        end = how.cut(held)
        if not end and len(held) > LINE_BYTES_MAX:
            end = held.rfind(b"\n") + 1  # quotes that do not end; what is wrong shows when it is read
            if not end:
                raise M4castError(f"{trouble}: {unit} {line}: is longer than {LINE_BYTES_MAX:,} bytes")
        if end:
            yield bytes(held[:end])
            line += held.count(b"\n", 0, end)
            del held[:end]
    if held:
        yield bytes(held)


def _comes(source: Any) -> bool:
    """Whether more comes soon, or the end does."""
    try:
        return bool(select.select([source], [], [], PAUSE_S)[0])
    except (OSError, ValueError, io.UnsupportedOperation):  # nothing that could be waited for: it is all there
        return True
