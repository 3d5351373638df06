"""`m4cast node` of a version that is not there yet: it speaks one more protocol version than this one, and puts an
extension that nobody knows into every control frame and every batch. Run with the words of `m4cast node`."""

import struct
from dataclasses import replace
from typing import Any

from xxhash import xxh3_64_intdigest

from m4cast.cli.nodes.node import node
from m4cast.overlay.net import network
from m4cast.overlay.protocol import calls
from m4cast.overlay.protocol.publishing import publishing
from m4cast.overlay.protocol.wire.batch import Batch, Extension
from m4cast.overlay.protocol.wire.frame import encode, seal
from m4cast.overlay.protocol.wire.messages import PROTOCOL_VERSION_MAX

EXTENSION = Extension(0x7F01, False, b"of a later version")
_WRITTEN = struct.pack("<HH", EXTENSION.type, len(EXTENSION.value)) + EXTENSION.value
_LENGTH, _HEADER_BYTES, _CHECKSUM_BYTES = struct.Struct("<I"), 9, 8
_EXTENSIONS_AT = _HEADER_BYTES + 11


def encode_newer(message: Any, channel: int = 0) -> bytes:
    """The layout of docs/PROTOCOL.md: the list of extensions ends the body, and is under its checksum."""
    frame = bytearray(encode(message, channel) + _WRITTEN)
    written = int.from_bytes(frame[_EXTENSIONS_AT : _EXTENSIONS_AT + 2], "little") + len(_WRITTEN)
    frame[_EXTENSIONS_AT : _EXTENSIONS_AT + 2] = written.to_bytes(2, "little")
    _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
    body = frame[_HEADER_BYTES + _CHECKSUM_BYTES :]
    frame[_HEADER_BYTES : _HEADER_BYTES + _CHECKSUM_BYTES] = xxh3_64_intdigest(body).to_bytes(8, "little")
    return bytes(frame)


def seal_newer(batch: Batch, hashed: int | None = None) -> Batch:
    return seal(replace(batch, extensions=(EXTENSION,)), hashed)


if __name__ == "__main__":
    calls.PROTOCOL_VERSION_MAX = PROTOCOL_VERSION_MAX + 1  # type: ignore[attr-defined]
    network.encode = encode_newer  # type: ignore[attr-defined]
    publishing.seal = seal_newer  # type: ignore[attr-defined]
    node()
