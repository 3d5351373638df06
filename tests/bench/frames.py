"""Frames encoded and decoded per second, against `struct` and XXH3 over as many bytes: what the format costs on top."""

import struct

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.wire.frame import encode, seal
from m4cast.overlay.protocol.wire.frame_reader import FrameReader
from m4cast.overlay.protocol.wire.messages import EdgeSearchCall, Heartbeat, Message, PullCall
from tests.bench.comparison import Bench
from tests.bench.speed import repeated

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


def measure(bench: Bench) -> None:
    messages: list[tuple[str, Message | BatchFrame]] = [(type(each).__name__, each) for each in CONTROL]
    for size in PAYLOAD_BYTES:
        messages.append((f"batch of {size:,} bytes", _batch(size)))
    for name, message in messages:
        _encoding(bench, name, message)
        _decoding(bench, name, message)


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


def _encoding(bench: Bench, name: str, message: Message | BatchFrame) -> None:
    """The reference packs as many fields, hashes the rest once, and joins them."""
    rest = bytes(max(0, len(encode(message)) - HEAD.size))

    def plain() -> bytes:
        checksum = xxh3_64_intdigest(rest)
        return HEAD.pack(0, 1, 2, 3, 4, NODE, 5, 6, 7, 8, 9, 10, 11, 12, 13, checksum) + rest

    ours = repeated("m4cast", lambda: encode(message))
    bench.compare(f"encode {name}", "times/s", ours, repeated("pack + xxh3", plain))


def _decoding(bench: Bench, name: str, message: Message | BatchFrame) -> None:
    """The reference unpacks as many fields, hashes the rest once, and copies it out."""
    data = encode(message)
    padded = data.ljust(HEAD.size, b"\0")
    reader = FrameReader(FRAME_BYTES_MAX)

    def plain() -> tuple[object, ...]:
        fields = HEAD.unpack_from(padded)
        return (fields, xxh3_64_intdigest(padded[HEAD.size :]))

    ours = repeated("m4cast", lambda: reader.feed(data))
    bench.compare(f"decode {name}", "times/s", ours, repeated("unpack + xxh3", plain))
