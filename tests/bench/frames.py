"""Frames encoded and decoded per second, against `struct` and XXH3 over as many bytes: what the format costs on top."""

import struct

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.frame import FrameReader, encode, seal
from m4cast.overlay.protocol.messages import EdgeSearchCall, Heartbeat, Message, PullCall
from tests.bench.speed import compare

PAYLOAD_BYTES = (100, 10_000, 1_000_000)
FRAME_BYTES_MAX = 1 << 24
NODE = NodeId(bytes(range(16)))
CONTACT = Contact(NODE, "host.example:7400")
CONTROL: tuple[Message, ...] = (
    Heartbeat(12345678901234567890),
    PullCall(NODE, "default", 123_456, 123_556, 4_000_000),
    EdgeSearchCall(CONTACT, CONTACT, 77, 12, 44),
)
HEAD = struct.Struct("<IBHBB16sQIQIQQQIIQ")
"""About the fixed part of a batch's frame."""


def measure() -> list[dict[str, object]]:
    messages: list[tuple[str, Message | BatchFrame]] = [(type(each).__name__, each) for each in CONTROL]
    for size in PAYLOAD_BYTES:
        messages.append((f"batch of {size:,} bytes", _batch(size)))
    rows = []
    for name, message in messages:
        rows.append(_encoding(name, message))
        rows.append(_decoding(name, message))
    return rows


def _batch(size: int) -> BatchFrame:
    batch = Batch(
        stream=StreamId(NODE, "default"),
        incarnation=3,
        first_sequence=1_000_001,
        row_count=100,
        origin_batch=10_001,
        schema_id=1,
        published_at_ms=1_700_000_000_000,
        publisher="orders",
        position="1:2",
        part=0,
        parts=1,
        previous_checksum=0x0123456789ABCDEF,
        payload=bytes(size),
    )
    return BatchFrame(seal(batch), 2, How.PUSHED)


def _encoding(name: str, message: Message | BatchFrame) -> dict[str, object]:
    """The reference packs as many fields, hashes the rest once, and joins them."""
    rest = bytes(max(0, len(encode(message)) - HEAD.size))

    def plain() -> bytes:
        checksum = xxh3_64_intdigest(rest)
        return HEAD.pack(0, 1, 2, 3, 4, NODE, 5, 6, 7, 8, 9, 10, 11, 12, 13, checksum) + rest

    return compare(f"encode {name}", lambda: encode(message), "pack + xxh3", plain).as_row()


def _decoding(name: str, message: Message | BatchFrame) -> dict[str, object]:
    """The reference unpacks as many fields, hashes the rest once, and copies it out."""
    data = encode(message)
    padded = data.ljust(HEAD.size, b"\0")
    reader = FrameReader(FRAME_BYTES_MAX)

    def plain() -> tuple[object, ...]:
        fields = HEAD.unpack_from(padded)
        return (fields, xxh3_64_intdigest(padded[HEAD.size :]))

    return compare(f"decode {name}", lambda: reader.feed(data), "unpack + xxh3", plain).as_row()
