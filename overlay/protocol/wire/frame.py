"""Frames: how messages and batches travel between two nodes.

A frame is a length, a hop part that is made anew for every link, and a body that is not (all little-endian):

    header   u32 length of what follows, u8 kind, hop part (u16 channel of this link, u8 hops, u8 how)
    batch    u64 checksum, rest of the core, extensions, payload
    control  u64 checksum, u8 kind, u16 message number, u16 extensions length, Avro bytes, extensions

The body of a batch is contiguous and immutable: its checksum is made by the origin (`seal`), kept in every store and
checked by every receiver. It covers the head and the payload's own checksum, so that payload which was hashed when it
was staged is numbered without being read. A forwarder puts a new header before the same bytes; a store keeps them as
they are. Fixed-width fields come first, so that one `unpack_from` reads them.

Control messages carry a checksum too, although they live for one hop: TCP alone lets one in 65,536 damaged segments
pass, and a flipped bit in an `AckStmt` would be a false word about somebody's disk. It costs 8 bytes and 0.1 us. It
is no protection against malice; that is what TLS is for. The kind is in the header and again under the checksum, so
that a damaged header cannot make one kind pass for the other.

Extensions are typed additions: u16 type (the highest bit says that it must be understood), u16 length, value. Unknown
optional ones are kept in batches, being under the checksum, and skipped in control messages. The known ones, a
heartbeat's clock, a beacon's version and a batch's summary, are optional.

Guarantees
8. Whatever the bytes are, `decode` and `FrameReader` return messages within all limits or raise `RemoteProtocolError`.
   What they return encodes to the same bytes again (but for extensions of control messages). Encoding something that
   a peer would refuse is a `LocalProtocolError`.

Cost: per batch about 2 us to encode, 6 us to decode, and a copy of a payload that comes with others in one read; see
`control` for the rest.
Encoding does not hash: a batch is sealed once.
"""

import struct
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from xxhash import xxh3_64, xxh3_64_intdigest

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import NODE_ID_BYTES, TOPIC_BYTES_MAX, NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFacts, BatchFrame, Extension, How, Payload, StoredPayload
from m4cast.overlay.protocol.wire.control import (
    AVRO_BYTES_MAX,
    INT_MAX,
    LONG_MAX,
    avro_bytes_max,
    from_avro,
    to_avro,
    usual_bytes,
)
from m4cast.overlay.protocol.wire.messages import BeaconStmt, Heartbeat, Hello, Message
from m4cast.overlay.protocol.wire.selective import SPREAD_EXTENSION

Buffer = bytes | bytearray | memoryview

PUBLISHER_BYTES_MAX = 200
POSITION_BYTES_MAX = 1_000
EXTENSIONS_MAX = 16
EXTENSION_TYPE_MAX = 0x7FFF
CLOCK_EXTENSION = 1
"""The extension of a heartbeat with the time on the sender's clock, in milliseconds since 1970."""
VERSION_EXTENSION = 1
"""The extension of a beacon with the latest protocol version of the node that it is about."""
EXTENSIONS_BYTES_MAX = 0xFFFF
"""The maximum size of all extensions of one frame together, each with the 4 bytes before its value."""
HOPS_MAX = 255

KIND_CONTROL = 0
KIND_BATCH = 1

LENGTH = struct.Struct("<I")
_HEADER = struct.Struct("<IBHBB")
_CONTROL = struct.Struct("<QBHH")
_CORE = struct.Struct("<QBBHHHIIII16s7Q")
_CHECKSUM_BYTES = 8
_EXTENSION = struct.Struct("<HH")
_CLOCK = struct.Struct("<Q")
_VERSION = struct.Struct("<H")
_MUST_UNDERSTAND = 0x8000
_HOWS = (How.PUBLISHED, How.PUSHED, How.PULLED)
"""The values of `how` that a frame may have."""

BATCH_OVERHEAD_BYTES = _HEADER.size + _CORE.size + TOPIC_BYTES_MAX + PUBLISHER_BYTES_MAX + POSITION_BYTES_MAX
"""A batch's frame is at most this much longer than its payload and extensions."""
FRAME_BYTES_MIN = _HEADER.size + _CONTROL.size
HELLO_FRAME_BYTES_MAX = FRAME_BYTES_MIN + avro_bytes_max(Hello) + EXTENSIONS_BYTES_MAX
CONTROL_FRAME_BYTES_MAX = FRAME_BYTES_MIN + AVRO_BYTES_MAX + EXTENSIONS_BYTES_MAX
"""A connection must allow frames of this size, even if its batches are smaller."""


# ---- out


def seal(batch: Batch, hashed: int | None = None) -> Batch:
    """The batch with its checksum. Hashes the payload in place, unless that was done when it was made or staged."""
    head = _head(batch)[_CHECKSUM_BYTES:]
    checksum = _batch_checksum(head, payload_checksum(batch.payload, hashed))
    sealed = Batch(  # `replace` takes seven times as long
        batch.stream,
        batch.incarnation,
        batch.first_sequence,
        batch.row_count,
        batch.origin_batch,
        batch.schema_id,
        batch.published_at_ms,
        batch.publisher,
        batch.position,
        batch.part,
        batch.parts,
        batch.previous_checksum,
        batch.payload,
        batch.extensions,
        checksum,
    )
    return _keep_head(sealed, checksum.to_bytes(_CHECKSUM_BYTES, "little") + head)


def payload_checksum(payload: Payload | StoredPayload, hashed: int | None = None) -> int:
    """`hashed`: what it is, for all who know it already."""
    if hashed is not None:
        return hashed
    return payload.checksum if isinstance(payload, StoredPayload) else xxh3_64_intdigest(payload)


def encode(message: Message | BatchFrame, channel: int = 0) -> bytes:
    """The whole frame. `LocalProtocolError` if it exceeds a limit, or if its batch has not been sealed."""
    if isinstance(message, BatchFrame):
        return b"".join(encode_parts(message, channel))
    number, avro = to_avro(message)
    extensions = b""
    if isinstance(message, Heartbeat) and message.clock_ms:
        extensions = _join_extensions((Extension(CLOCK_EXTENSION, False, _CLOCK.pack(message.clock_ms)),))
    elif isinstance(message, BeaconStmt) and message.version:
        extensions = _join_extensions((Extension(VERSION_EXTENSION, False, _VERSION.pack(message.version)),))
    core = _CONTROL.pack(0, KIND_CONTROL, number, len(extensions))[_CHECKSUM_BYTES:]
    body = b"".join((core, avro, extensions))
    header = _header(_CHECKSUM_BYTES + len(body), KIND_CONTROL, channel, 0, 0)
    return b"".join((header, xxh3_64_intdigest(body).to_bytes(_CHECKSUM_BYTES, "little"), body))


def encode_parts(frame: BatchFrame, channel: int = 0) -> tuple[bytes, Payload]:
    """The frame in two pieces, of which the second is the payload itself: for writers that take several buffers."""
    head, payload = _sealed_head(frame.batch), frame.batch.content
    return _header(len(head) + len(payload), KIND_BATCH, channel, frame.hops, frame.how) + head, payload


def encode_head(batch: Batch) -> bytes:
    """All of a body but the payload, for stores that keep the two apart. Does not need the payload's bytes."""
    return _sealed_head(batch)


def wire_bytes(message: Message | BatchFrame) -> int:
    """Bytes of the message's frame: exact for a batch, about right for a control message. Encodes nothing."""
    if not isinstance(message, BatchFrame):
        return _HEADER.size + _CONTROL.size + usual_bytes(message)
    batch = message.batch
    names = _text_bytes(batch.stream.topic) + _text_bytes(batch.publisher) + _text_bytes(batch.position)
    extensions = sum(_EXTENSION.size + len(extension.value) for extension in batch.extensions)
    return _HEADER.size + _CORE.size + names + extensions + len(batch.payload)


def _header(body_bytes: int, kind: int, channel: int, hops: int, how: int) -> bytes:
    try:
        return _HEADER.pack(_HEADER.size - LENGTH.size + body_bytes, kind, channel, hops, how)
    except struct.error as error:
        detail = f"body of {body_bytes} bytes, channel {channel}, hops {hops}, how {how}"
        raise LocalProtocolError(f"no frame can be made of a {detail}: {error}") from error


def _sealed_head(batch: Batch) -> bytes:
    if batch.checksum == 0:
        raise LocalProtocolError(f"{_name(batch)} cannot be sent: it is not sealed")
    return batch.head or _head(batch)


def _keep_head(batch: Batch, head: bytes) -> Batch:
    object.__setattr__(batch, "head", head)
    return batch


def _head(batch: Batch) -> bytes:
    """Core and extensions: all of a batch's body but the payload."""
    try:
        topic = batch.stream.topic.encode()
        publisher = batch.publisher.encode()
        position = batch.position.encode()
        extensions = _join_extensions(batch.extensions) if batch.extensions else b""
        fault = _names_fault(len(topic), len(publisher), len(position)) or _numbers_fault(batch)
        if fault:
            raise LocalProtocolError(f"{_name(batch)} cannot be sent: {fault}")
        core = _CORE.pack(
            batch.checksum,
            KIND_BATCH,
            len(topic),
            len(publisher),
            len(position),
            len(extensions),
            len(batch.payload),
            batch.row_count,
            batch.part,
            batch.parts,
            batch.stream.origin,
            _topic(topic)[1],
            batch.incarnation,
            batch.first_sequence,
            batch.origin_batch,
            batch.schema_id,
            batch.published_at_ms,
            batch.previous_checksum,
        )
    except (struct.error, UnicodeError) as error:
        raise LocalProtocolError(f"{_name(batch)} cannot be sent: {error}") from error
    return b"".join((core, topic, publisher, position, extensions))


def _join_extensions(extensions: Iterable[Extension]) -> bytes:
    parts: list[bytes] = []
    for type_, must_understand, value in extensions:
        if not 0 <= type_ <= EXTENSION_TYPE_MAX:
            raise LocalProtocolError(f"an extension's type is {type_}, not 0 to {EXTENSION_TYPE_MAX}")
        parts += (_EXTENSION.pack(type_ | (_MUST_UNDERSTAND if must_understand else 0), len(value)), value)
    if len(parts) > 2 * EXTENSIONS_MAX:
        raise LocalProtocolError(f"{len(parts) // 2} extensions, at most {EXTENSIONS_MAX} are allowed")
    return b"".join(parts)


# ---- in


def decode(frame_bytes: Buffer, channel: int = 0) -> Message | BatchFrame:
    """The message in this one whole frame."""
    return decode_at(frame_bytes, 0, len(frame_bytes), channel)


def decode_body(body: Buffer, understood: tuple[int, ...] = ()) -> Batch:
    """The batch in these bytes: the body of a frame, or what a store has kept. `understood`: must-understand extensions
    that are allowed here."""
    return _read_batch(body, 0, len(body), understood=understood)


def decode_parts(head: Buffer, payload: Payload, understood: tuple[int, ...] = ()) -> Batch:
    """The batch whose body is in two pieces, of which the second is the payload itself, which is not copied."""
    return _read_batch(head, 0, len(head), payload, understood=understood)


def body_schema_id(body: Buffer, start: int) -> int:
    """The schema id of the batch whose body begins at `start`, unchecked: for whoever looks before reading."""
    schema_id: int = _CORE.unpack_from(body, start)[15]
    return schema_id


def body_checksums(body: Buffer, start: int) -> tuple[int, int]:
    """The batch's own checksum and that of the batch before it, as they are written in the body, unchecked."""
    core = _CORE.unpack_from(body, start)
    return core[0], core[17]


def body_facts(body: Buffer, start: int) -> BatchFacts | None:
    """The facts of the batch whose body begins at `start`, unchecked; None if they cannot be read. Touches nothing
    behind the extensions."""
    core = _CORE.unpack_from(body, start)
    topic_bytes, publisher_bytes, position_bytes, extensions_bytes = core[2:6]
    publisher_at = start + _CORE.size + topic_bytes
    position_at = publisher_at + publisher_bytes
    extensions_at = position_at + position_bytes
    try:
        return BatchFacts(
            incarnation=core[12],
            schema_id=core[15],
            publisher=str(body[publisher_at:position_at], "utf-8"),
            position=str(body[position_at:extensions_at], "utf-8"),
            part=core[8],
            parts=core[9],
            previous_checksum=core[17],
            extensions=bytes(body[extensions_at : extensions_at + extensions_bytes]),
        )
    except UnicodeError:
        return None


def body_extension(body: Buffer, start: int, wanted: int) -> bytes | None:
    """The value of the extension of this type in the batch whose body begins at `start`, unchecked; None if the batch
    has none, or several, or if its extensions cannot be read. Touches nothing behind the extensions."""
    _, _, topic_bytes, publisher_bytes, position_bytes, extensions_bytes, *_ = _CORE.unpack_from(body, start)
    if not extensions_bytes:
        return None
    at = start + _CORE.size + topic_bytes + publisher_bytes + position_bytes
    try:
        extensions = split_extensions(body, at, min(at + extensions_bytes, len(body)), (SPREAD_EXTENSION,))
    except RemoteProtocolError:
        return None
    values = [value for type_, _, value in extensions if type_ == wanted]
    return values[0] if len(values) == 1 else None


def decode_at(data: Buffer, start: int, end: int, link_channel: int, *, stays: bool = False) -> Message | BatchFrame:
    """`stays`: the data are this frame's alone, and a payload may be a view of them."""
    if end - start < FRAME_BYTES_MIN:
        raise RemoteProtocolError(f"a frame has {end - start} bytes, at least {FRAME_BYTES_MIN} are needed")
    length, kind, channel, hops, how = _HEADER.unpack_from(data, start)
    if length != end - start - LENGTH.size:
        raise RemoteProtocolError(f"a frame says that it has {length} bytes, but has {end - start - LENGTH.size}")
    if channel != link_channel:
        raise RemoteProtocolError(f"a frame is for channel {channel}, this link carries {link_channel}")
    if kind == KIND_BATCH and how < len(_HOWS):
        return BatchFrame(_read_batch(data, start + _HEADER.size, end, stays=stays), hops, _HOWS[how])
    if kind == KIND_CONTROL and hops == how == 0:
        return _read_control(data, start + _HEADER.size, end)
    raise RemoteProtocolError(f"a frame of kind {kind} with hops {hops} and how {how}")


def _read_control(data: Buffer, start: int, end: int) -> Message:
    checksum, kind, number, extensions_bytes = _CONTROL.unpack_from(data, start)
    _check(xxh3_64_intdigest(memoryview(data)[start + _CHECKSUM_BYTES : end]), checksum)
    avro_at, extensions_at = start + _CONTROL.size, end - extensions_bytes
    if kind != KIND_CONTROL or extensions_at < avro_at:
        raise RemoteProtocolError(f"a control frame of kind {kind} with {extensions_bytes} bytes of extensions")
    extensions = split_extensions(data, extensions_at, end)
    message = from_avro(number, bytes(data[avro_at:extensions_at]))
    if extensions and isinstance(message, Heartbeat):
        return _with_clock(message, extensions)
    if extensions and isinstance(message, BeaconStmt):
        return _with_version(message, extensions)
    return message


def _with_version(beacon: BeaconStmt, extensions: tuple[Extension, ...]) -> BeaconStmt:
    for type_, _, value in extensions:
        if type_ == VERSION_EXTENSION:
            if len(value) != _VERSION.size:
                raise RemoteProtocolError(f"a beacon's protocol version is {value.hex()!r}, not {_VERSION.size} bytes")
            return replace(beacon, version=_VERSION.unpack(value)[0])
    return beacon


def _with_clock(heartbeat: Heartbeat, extensions: tuple[Extension, ...]) -> Heartbeat:
    for type_, _, value in extensions:
        if type_ == CLOCK_EXTENSION:
            if len(value) != _CLOCK.size or (clock_ms := _CLOCK.unpack(value)[0]) > LONG_MAX:
                raise RemoteProtocolError(f"a heartbeat's clock is {value.hex()!r}, not 8 bytes of at most {LONG_MAX}")
            return replace(heartbeat, clock_ms=clock_ms)
    return heartbeat


def _read_batch(
    data: Buffer,
    start: int,
    end: int,
    payload: Payload | None = None,
    *,
    stays: bool = False,
    understood: tuple[int, ...] = (),
) -> Batch:
    if end - start < _CORE.size:
        raise RemoteProtocolError(f"a batch has {end - start} bytes, its core alone {_CORE.size}")
    (
        checksum,
        kind,
        topic_bytes,
        publisher_bytes,
        position_bytes,
        extensions_bytes,
        payload_bytes,
        row_count,
        part,
        parts,
        origin,
        topic_hash,
        incarnation,
        first_sequence,
        origin_batch,
        schema_id,
        published_at_ms,
        previous_checksum,
    ) = _CORE.unpack_from(data, start)
    topic_at = start + _CORE.size
    publisher_at = topic_at + topic_bytes
    position_at = publisher_at + publisher_bytes
    extensions_at = position_at + position_bytes
    payload_at = extensions_at + extensions_bytes
    fits = payload_at + payload_bytes == end if payload is None else (payload_at, payload_bytes) == (end, len(payload))
    if kind != KIND_BATCH or not fits:
        raise RemoteProtocolError(f"a batch of kind {kind} whose lengths do not add up to its {end - start} bytes")
    content = memoryview(data)[payload_at:end] if payload is None else payload
    head = memoryview(data)[start + _CHECKSUM_BYTES : payload_at]
    _check(_batch_checksum(head, xxh3_64_intdigest(content)), checksum)
    if fault := _names_fault(topic_bytes, publisher_bytes, position_bytes):
        raise RemoteProtocolError(f"a batch is malformed: {fault}")
    try:
        topic, expected_hash = _topic(bytes(data[topic_at:publisher_at]))
        publisher = str(data[publisher_at:position_at], "utf-8")
        position = str(data[position_at:extensions_at], "utf-8")
    except UnicodeError as error:
        raise RemoteProtocolError(f"a batch is malformed: {error}") from error
    batch = Batch(
        StreamId(NodeId(origin), topic),
        incarnation,
        first_sequence,
        row_count,
        origin_batch,
        schema_id,
        published_at_ms,
        publisher,
        position,
        part,
        parts,
        previous_checksum,
        content if stays else bytes(content),
        split_extensions(data, extensions_at, payload_at, understood) if extensions_bytes else (),
        checksum,
    )
    if topic_hash != expected_hash:
        raise RemoteProtocolError(f"{_name(batch)} is malformed: the hash of the topic is {topic_hash:#x}")
    if fault := _numbers_fault(batch):
        raise RemoteProtocolError(f"{_name(batch)} is malformed: {fault}")
    return _keep_head(batch, bytes(data[start:payload_at]))


def split_extensions(data: Buffer, start: int, end: int, understood: tuple[int, ...] = ()) -> tuple[Extension, ...]:
    """The extensions in these bytes; those that must be understood have to be among `understood`."""
    extensions: list[Extension] = []
    while start < end:
        if end - start < _EXTENSION.size or len(extensions) == EXTENSIONS_MAX:
            raise RemoteProtocolError(f"malformed extensions: {end - start} bytes after {len(extensions)} of them")
        type_, size = _EXTENSION.unpack_from(data, start)
        start += _EXTENSION.size
        if size > end - start:
            raise RemoteProtocolError(f"an extension has {size} bytes, {end - start} are left")
        must_understand = bool(type_ & _MUST_UNDERSTAND)
        type_ &= EXTENSION_TYPE_MAX
        if must_understand and type_ not in understood:
            raise RemoteProtocolError(f"an extension of type {type_} must be understood, but is not")
        extensions.append(Extension(type_, must_understand, bytes(data[start : start + size])))
        start += size
    return tuple(extensions)


def _check(found: int, checksum: int) -> None:
    if found != checksum:
        raise RemoteProtocolError(f"a frame has checksum {checksum:#x}, but {found:#x} is right")


# ---- both ways


def _batch_checksum(head: Buffer, payload_checksum: int) -> int:
    """Return the checksum of a batch, from its head without the checksum and the checksum of its payload."""
    digest = xxh3_64(head)
    digest.update(payload_checksum.to_bytes(_CHECKSUM_BYTES, "little"))
    return digest.intdigest()


@lru_cache(maxsize=4_096)
def _topic(name: bytes) -> tuple[str, int]:
    """A topic's name as text, and its hash. Remembered: the same few names come with every batch."""
    return name.decode(), xxh3_64_intdigest(name)


def _names_fault(topic_bytes: int, publisher_bytes: int, position_bytes: int) -> str | None:
    if not 1 <= topic_bytes <= TOPIC_BYTES_MAX:
        return f"topic has {topic_bytes} bytes, not 1 to {TOPIC_BYTES_MAX}"
    if publisher_bytes > PUBLISHER_BYTES_MAX:
        return f"publisher has {publisher_bytes} bytes, at most {PUBLISHER_BYTES_MAX} are allowed"
    if position_bytes > POSITION_BYTES_MAX:
        return f"position has {position_bytes} bytes, at most {POSITION_BYTES_MAX} are allowed"
    return None


def _numbers_fault(batch: Batch) -> str | None:
    """Return what is wrong with the batch's numbers, if anything. Those that may have any value of their width are not
    checked."""
    if len(batch.stream.origin) != NODE_ID_BYTES:
        return f"origin has {len(batch.stream.origin)} bytes, not {NODE_ID_BYTES}"
    if not 1 <= batch.row_count <= INT_MAX:
        return f"row_count is {batch.row_count}, not 1 to {INT_MAX}"
    if not 1 <= batch.first_sequence <= LONG_MAX - batch.row_count:
        return f"first_sequence is {batch.first_sequence}, not 1 to {LONG_MAX} less row_count"
    if not 0 <= batch.part < batch.parts <= INT_MAX:
        return f"part {batch.part} of {batch.parts}"
    if not (
        0 <= batch.incarnation <= LONG_MAX
        and 0 <= batch.origin_batch <= LONG_MAX
        and 0 <= batch.published_at_ms <= LONG_MAX
    ):
        return f"incarnation, origin_batch or published_at_ms is not 0 to {LONG_MAX}"
    return None


def _name(batch: Batch) -> str:
    return f"batch {batch.first_sequence} of topic {batch.stream.topic!r} of {batch.stream.origin.hex()}"


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
