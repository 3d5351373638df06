"""Routed frames: batches and control messages on their way to several nodes (PROTOCOL.md, 18.2).

    header        as of every frame, with kind 2 (batch) or 3 (control)
    destinations  u64 checksum, 16 bytes speaker, u16 count, then for each: 16 bytes id, u64 first, u64 version
    body          that of a batch or of a control message

The list is made anew by each relay and has a checksum of its own, which goes on over the checksum of the body: a list
belongs to one body. A flipped bit in a statement would be a silent loss.

Guarantees
8. Whatever the bytes are, `decode_routed` returns a frame within all limits or raises `RemoteProtocolError`. What it
   returns encodes to the same bytes again, but for extensions of control messages.
"""

import struct
from itertools import pairwise

from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.batch import Batch, How, Payload
from m4cast.overlay.protocol.wire.control import (
    LONG_MAX,
    ROUTED_AVRO_BYTES_MAX,
    routed_from_avro,
    to_avro,
    usual_bytes,
)
from m4cast.overlay.protocol.wire.frame import (
    EXTENSIONS_BYTES_MAX,
    Buffer,
    decode_body,
    encode_head,
    split_extensions,
)
from m4cast.overlay.protocol.wire.selective import (
    KEEPERS_MAX,
    SELECTIVE,
    SPREAD_EXTENSION,
    Destination,
    RoutedFrame,
    RoutedMessage,
)

KIND_ROUTED_BATCH = 2
KIND_ROUTED_CONTROL = 3
DESTINATIONS_MAX = 1_024
"""The maximum number of destinations of one frame."""

_HEADER = struct.Struct("<IBHBB")
_LIST = struct.Struct("<Q16sH")
_DESTINATION = struct.Struct("<16sQQ")
_CONTROL = struct.Struct("<QBHH")
_LENGTH_BYTES = 4
_CHECKSUM_BYTES = 8
_HOWS = (How.PUBLISHED, How.PUSHED, How.PULLED)

LIST_BYTES_MAX = _LIST.size + DESTINATIONS_MAX * _DESTINATION.size
"""A routed frame is at most this much longer than one of kind 0 or 1 with the same body."""
ROUTED_CONTROL_BYTES_MAX = _HEADER.size + LIST_BYTES_MAX + _CONTROL.size + ROUTED_AVRO_BYTES_MAX + EXTENSIONS_BYTES_MAX


def encode_routed(frame: RoutedFrame, channel: int = 0) -> bytes:
    """The whole frame. `LocalProtocolError` if it exceeds a limit, or if its batch has not been sealed."""
    return b"".join(routed_parts(frame, channel))


def routed_parts(frame: RoutedFrame, channel: int = 0) -> tuple[Payload, ...]:
    """The frame in pieces, of which the last of a batch is the payload itself."""
    if fault := _destinations_fault(frame.destinations, frame.content):
        raise LocalProtocolError(f"a routed frame cannot be sent: {fault}")
    if isinstance(frame.content, Batch):
        if fault := _spread_fault(frame.content):
            raise LocalProtocolError(f"a routed batch cannot be sent: {fault}")
        kind, how = KIND_ROUTED_BATCH, int(frame.how)
        body: tuple[Payload, ...] = (encode_head(frame.content), frame.content.content)
    else:
        number, avro = to_avro(frame.content)
        rest = _CONTROL.pack(0, KIND_ROUTED_CONTROL, number, 0)[_CHECKSUM_BYTES:] + avro
        kind, how = KIND_ROUTED_CONTROL, 0
        body = (xxh3_64_intdigest(rest).to_bytes(_CHECKSUM_BYTES, "little") + rest,)
    listed = _LIST.pack(0, frame.speaker, len(frame.destinations))[_CHECKSUM_BYTES:]
    listed += b"".join(_DESTINATION.pack(*destination) for destination in frame.destinations)
    checksum = xxh3_64_intdigest(listed + body[0][:_CHECKSUM_BYTES]).to_bytes(_CHECKSUM_BYTES, "little")
    size = _HEADER.size - _LENGTH_BYTES + _CHECKSUM_BYTES + len(listed) + sum(map(len, body))
    return (_HEADER.pack(size, kind, channel, frame.hops, how) + checksum + listed, *body)


def routed_bytes(frame: RoutedFrame) -> int:
    """Bytes of the frame: exact for a batch, about right for a control message. Encodes nothing."""
    size = _HEADER.size + _LIST.size + len(frame.destinations) * _DESTINATION.size
    if isinstance(frame.content, Batch):
        return size + len(encode_head(frame.content)) + len(frame.content.payload)
    return size + _CONTROL.size + usual_bytes(frame.content)


def decode_routed(data: Buffer, link_channel: int = 0) -> RoutedFrame:
    """The routed frame in these bytes, which are one whole frame."""
    if len(data) < _HEADER.size + _LIST.size + _DESTINATION.size + _CONTROL.size:
        raise RemoteProtocolError(f"a routed frame has {len(data)} bytes, too few for a destination and a body")
    length, kind, channel, hops, how = _HEADER.unpack_from(data, 0)
    if length != len(data) - _LENGTH_BYTES:
        raise RemoteProtocolError(f"a frame says that it has {length} bytes, but has {len(data) - _LENGTH_BYTES}")
    if channel != link_channel:
        raise RemoteProtocolError(f"a frame is for channel {channel}, this link carries {link_channel}")
    checksum, speaker, count = _LIST.unpack_from(data, _HEADER.size)
    body_at = _HEADER.size + _LIST.size + count * _DESTINATION.size
    if not 1 <= count <= DESTINATIONS_MAX or body_at + _CONTROL.size > len(data):
        raise RemoteProtocolError(f"a routed frame of {len(data)} bytes with {count} destinations")
    listed = bytes(data[_HEADER.size + _CHECKSUM_BYTES : body_at + _CHECKSUM_BYTES])
    if xxh3_64_intdigest(listed) != checksum:
        raise RemoteProtocolError(f"a list of destinations has another checksum than {checksum:#x}")
    destinations = tuple(
        Destination(NodeId(node_id), first, version)
        for node_id, first, version in _DESTINATION.iter_unpack(listed[_LIST.size - _CHECKSUM_BYTES : -_CHECKSUM_BYTES])
    )
    content = _read_content(kind, how, data[body_at:])
    if fault := _destinations_fault(destinations, content):
        raise RemoteProtocolError(f"a routed frame is malformed: {fault}")
    return RoutedFrame(NodeId(speaker), destinations, content, hops, _HOWS[how])


def _read_content(kind: int, how: int, body: Buffer) -> Batch | RoutedMessage:
    if kind == KIND_ROUTED_BATCH and how < len(_HOWS):
        batch = decode_body(body, understood=(SPREAD_EXTENSION,))
        if fault := _spread_fault(batch):
            raise RemoteProtocolError(f"a routed batch is malformed: {fault}")
        return batch
    if kind == KIND_ROUTED_CONTROL and how == 0:
        return _read_control(body)
    raise RemoteProtocolError(f"a routed frame of kind {kind} with how {how}")


def _read_control(body: Buffer) -> RoutedMessage:
    checksum, kind, number, extensions_bytes = _CONTROL.unpack_from(body, 0)
    found = xxh3_64_intdigest(memoryview(body)[_CHECKSUM_BYTES:])
    extensions_at = len(body) - extensions_bytes
    if found != checksum or kind != KIND_ROUTED_CONTROL or extensions_at < _CONTROL.size:
        raise RemoteProtocolError(f"a routed control message of kind {kind} with checksum {checksum:#x}")
    split_extensions(body, extensions_at, len(body))
    return routed_from_avro(number, bytes(body[_CONTROL.size : extensions_at]))


def _destinations_fault(destinations: tuple[Destination, ...], content: Batch | RoutedMessage) -> str | None:
    if not 1 <= len(destinations) <= DESTINATIONS_MAX:
        return f"it has {len(destinations)} destinations, not 1 to {DESTINATIONS_MAX}"
    ids = [destination.node_id for destination in destinations]
    if any(later <= earlier for earlier, later in pairwise(ids)):
        return "its destinations are not in the order of their ids, each once"
    least, greatest = (1, content.first_sequence) if isinstance(content, Batch) else (0, 0)
    if not all(least <= first <= greatest and 0 <= version <= LONG_MAX for _, first, version in destinations):
        return f"a destination's first is not {least} to {greatest}, or its version not 0 to {LONG_MAX}"
    return None


def _spread_fault(batch: Batch) -> str | None:
    found = [extension for extension in batch.extensions if extension.type == SPREAD_EXTENSION]
    if len(found) != 1 or not found[0].must_understand:
        return f"it has {len(found)} extensions that say how it spreads, not one that must be understood"
    content = found[0].value
    if len(content) != 2 or content[0] != SELECTIVE or content[1] > KEEPERS_MAX:
        return f"its spread is {content.hex()!r}, not {SELECTIVE:02x} and at most {KEEPERS_MAX} keepers"
    return None
