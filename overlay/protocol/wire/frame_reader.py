"""The frame reader: cuts what comes on a connection into messages, however the bytes are split or merged.

What comes in large pieces is read straight into the frame's own buffer, so a large payload is copied at most once.
"""

from collections.abc import Callable

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.protocol.wire.frame import FRAME_BYTES_MIN, KIND_BATCH, LENGTH, Buffer, decode_at
from m4cast.overlay.protocol.wire.routed import decode_routed
from m4cast.overlay.protocol.wire.selective import WireFrame

DIRECT_BYTES_MIN = 64 * 1024
"""Less than this of a frame is read with what follows it: one read may then bring many small frames."""


class FrameReader:
    """Cuts what comes on a connection into messages, however the bytes are split or merged.

    Of a frame that has only begun it keeps what came, in a buffer of the frame's own size, never more than
    `frame_bytes_max` (length prefix included), and it refuses a longer one when it sees the length. What is missing of
    it can be read straight into that buffer: `space`, then `filled`. The first frame can be held to less
    (`HELLO_FRAME_BYTES_MAX`): a stranger has only a hello to say. After an error the connection is of no use, nor is
    the reader. `allocate` gives the buffers; what is in them before does not matter.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        channel: int = 0,
        first_frame_bytes_max: int | None = None,
        allocate: Callable[[int], memoryview] = lambda size: memoryview(bytearray(size)),
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._allowed_bytes = frame_bytes_max if first_frame_bytes_max is None else first_frame_bytes_max
        self._channel = channel
        self._allocate = allocate
        self._prefix = b""
        """A length that has only begun."""
        self._begun: memoryview | None = None
        self._filled = 0
        self._failed = False

    def feed(self, data: bytes | memoryview) -> list[WireFrame]:
        """The messages that these bytes complete. If one is malformed, those before it in `data` are lost with it."""
        if self._failed:
            raise LocalProtocolError("this reader has met a malformed frame and cannot be used any more")
        self._failed = True
        messages: list[WireFrame] = []
        if self._prefix:
            data = self._prefix + data
            self._prefix = b""
        offset = 0
        if self._begun is not None:
            offset = min(len(data), len(self._begun) - self._filled)
            self._begun[self._filled : self._filled + offset] = data[:offset]
            messages += self._advance(offset)
        while len(data) - offset >= LENGTH.size:
            end = offset + self._frame_bytes(data, offset)
            if end > len(data):
                self._begun = self._allocate(end - offset)
                self._filled = len(data) - offset
                self._begun[: self._filled] = data[offset:]
                offset = len(data)
                break
            messages.append(self._decode(data, offset, end))
            offset = end
        if offset < len(data):
            self._prefix = bytes(data[offset:])
        self._failed = False
        return messages

    def space(self) -> memoryview | None:
        """Return the buffer for the rest of a frame that has begun; None if none has begun, or if little of it is
        missing."""
        if self._begun is None or len(self._begun) - self._filled < DIRECT_BYTES_MIN:
            return None
        return self._begun[self._filled :]

    def filled(self, size: int) -> list[WireFrame]:
        """Note that so many bytes were read into `space`; returns the message, if they complete it."""
        self._failed = True
        messages = self._advance(size)
        self._failed = False
        return messages

    def _advance(self, size: int) -> list[WireFrame]:
        assert self._begun is not None
        self._filled += size
        if self._filled < len(self._begun):
            return []
        frame, self._begun = self._begun, None
        return [self._decode(frame.toreadonly(), 0, len(frame), stays=True)]

    def _decode(self, data: Buffer, start: int, end: int, *, stays: bool = False) -> WireFrame:
        self._allowed_bytes = self._frame_bytes_max
        if data[start + LENGTH.size] > KIND_BATCH:
            return decode_routed(memoryview(data)[start:end], self._channel)
        return decode_at(data, start, end, self._channel, stays=stays)

    def _frame_bytes(self, data: Buffer, offset: int) -> int:
        frame_bytes: int = LENGTH.size + LENGTH.unpack_from(data, offset)[0]
        if not FRAME_BYTES_MIN <= frame_bytes <= self._allowed_bytes:
            allowed = f"{FRAME_BYTES_MIN} to {self._allowed_bytes}"
            raise RemoteProtocolError(f"a frame of {frame_bytes} bytes begins, {allowed} are allowed")
        return frame_bytes
