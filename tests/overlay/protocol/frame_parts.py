"""The wire layout written down a second time, by hand, so that the code is not only compared with itself.

Every field can be set to what no node would send; lengths, topic hash and checksum are right unless they are given.
"""

import struct
from typing import Any

import xxhash

from m4cast.overlay.ids import NodeId

ORIGIN = NodeId(bytes(range(16)))

CORE_FIELDS = {
    "checksum": "Q",
    "kind": "B",
    "topic_bytes": "B",
    "publisher_bytes": "H",
    "position_bytes": "H",
    "extensions_bytes": "H",
    "payload_bytes": "I",
    "row_count": "I",
    "part": "I",
    "parts": "I",
    "origin": "16s",
    "topic_hash": "Q",
    "incarnation": "Q",
    "first_sequence": "Q",
    "origin_batch": "Q",
    "schema_id": "Q",
    "published_at_ms": "Q",
    "previous_checksum": "Q",
}
CORE_BYTES = 104
HEADER_BYTES = 9
HOP_PART = slice(5, 9)


def frame(kind: int, body: bytes, channel: int = 0, hops: int = 0, how: int = 0) -> bytes:
    return struct.pack("<IBHBB", 5 + len(body), kind, channel, hops, how) + body


def control_frame(number: int, avro: bytes, extensions: bytes = b"", **changes: int) -> bytes:
    extensions_bytes = changes.pop("extensions_bytes", len(extensions))
    rest = struct.pack("<BHH", changes.pop("inner_kind", 0), number, extensions_bytes) + avro + extensions
    return frame(0, struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest, **changes)


def batch_body(
    topic: bytes = b"orders",
    publisher: bytes = b"sink-7",
    position: bytes = b"q/12",
    extensions: bytes = b"",
    payload: bytes = b"rows",
    **changes: Any,
) -> bytes:
    core: dict[str, Any] = {
        "kind": 1,
        "topic_bytes": len(topic),
        "publisher_bytes": len(publisher),
        "position_bytes": len(position),
        "extensions_bytes": len(extensions),
        "payload_bytes": len(payload),
        "row_count": 100,
        "part": 1,
        "parts": 3,
        "origin": ORIGIN,
        "topic_hash": xxhash.xxh3_64_intdigest(topic),
        "incarnation": 7,
        "first_sequence": 1_000,
        "origin_batch": 42,
        "schema_id": 2**64 - 2,
        "published_at_ms": 1_700_000_000_000,
        "previous_checksum": 2**64 - 1,
    }
    core.update(changes)
    packed = b"".join(struct.pack("<" + CORE_FIELDS[name], core[name]) for name in CORE_FIELDS if name != "checksum")
    rest = packed + topic + publisher + position + extensions + payload
    return struct.pack("<Q", core.get("checksum", batch_checksum(rest, len(payload)))) + rest


def batch_checksum(rest: bytes, payload_bytes: int) -> int:
    """The checksum of what follows it in a body: the head, and the payload by its own checksum."""
    payload_at = len(rest) - min(payload_bytes, len(rest))
    payload_checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(rest[payload_at:]))
    return xxhash.xxh3_64_intdigest(rest[:payload_at] + payload_checksum)


def batch_frame(channel: int = 0, hops: int = 2, how: int = 1, **changes: Any) -> bytes:
    return frame(1, batch_body(**changes), channel, hops, how)


def extension(type_: int, value: bytes, must_understand: bool = False) -> bytes:
    return struct.pack("<HH", type_ | (0x8000 if must_understand else 0), len(value)) + value


def sealed_again(damaged: bytes) -> bytes:
    """The frame with the length and the checksum that fit what is in it now, to get past both."""
    if len(damaged) < HEADER_BYTES + 8:
        return damaged
    rest = damaged[HEADER_BYTES + 8 :]
    if damaged[4] == 1 and len(rest) >= 12:
        checksum = batch_checksum(rest, struct.unpack_from("<I", rest, 8)[0])
    else:
        checksum = xxhash.xxh3_64_intdigest(rest)
    return (
        struct.pack("<I", len(damaged) - 4)
        + damaged[4:HEADER_BYTES]
        + struct.pack("<Q", checksum)
        + damaged[HEADER_BYTES + 8 :]
    )


# ---- Avro, as in its specification


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*encoded, zigzag])


def text(value: str) -> bytes:
    return varint(len(value.encode())) + value.encode()
