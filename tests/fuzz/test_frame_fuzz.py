"""Arbitrary and damaged bytes into `decode` and `FrameReader`: a message or `RemoteProtocolError`, and nothing else.

What is accepted must encode to the same bytes again (control messages with extensions apart: those are skipped). Most
damage is repaired on the outside (length, checksum), since it would otherwise end there. Each input is made from a
seed of its own, which the failure names. M4CAST_FUZZ_ROUNDS is the number of inputs, M4CAST_FUZZ_FIRST the first seed.
"""

import os
import random
import struct
from collections import Counter
from collections.abc import Callable

import pytest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.protocol.wire.batch import BatchFrame
from m4cast.overlay.protocol.wire.frame import decode, encode
from m4cast.overlay.protocol.wire.frame_reader import FrameReader
from m4cast.overlay.protocol.wire.messages import Message
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.schemas.avro_types import CONTROL_FILES, read_types
from tests.overlay.protocol.frame_parts import (
    HEADER_BYTES,
    batch_frame,
    control_frame,
    sealed_again,
    varint,
)
from tests.vectors import read_vectors

ROUNDS = int(os.environ.get("M4CAST_FUZZ_ROUNDS", "100000"))
FIRST = int(os.environ.get("M4CAST_FUZZ_FIRST", "0"))
FRAMES = [vector.frame for vector in read_vectors()]
NUMBERS = [definition["number"] for definition in read_types(CONTROL_FILES).values() if "number" in definition]
FRAME_BYTES_MAX = 1 << 16

# Where mistakes are made: around zero, and where a width or a limit ends.
EDGES = [0, 1, 2, 63, 64, 127, 128, 200, 201, 255, 256, 1_024, 1_025, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]
EDGES += [2**62, 2**63 - 1, 2**63, 2**64 - 1]


# ---- makers of input


def arbitrary(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(200))


def arbitrary_body(chance: random.Random) -> bytes:
    return sealed_again(bytes(4) + bytes([chance.randrange(2)]) + bytes(4) + chance.randbytes(chance.randrange(8, 200)))


def damaged(chance: random.Random) -> bytes:
    return _damage(chance, chance.choice(FRAMES))


def damaged_and_sealed(chance: random.Random) -> bytes:
    return sealed_again(_damage(chance, chance.choice(FRAMES)))


def arbitrary_avro(chance: random.Random) -> bytes:
    return control_frame(chance.choice(NUMBERS), chance.randbytes(chance.randrange(40)))


def edgy_avro(chance: random.Random) -> bytes:
    """Numbers at the edges, and text and ids between them: much of it has the shape of some message."""
    avro = b""
    for _ in range(chance.randrange(12)):
        match chance.randrange(4):
            case 0:
                avro += varint(chance.choice(EDGES[:-2]) * chance.choice((1, 1, 1, -1)))
            case 1:
                avro += bytes([chance.randrange(3)])
            case 2:
                avro += chance.randbytes(16)
            case _:
                size = chance.randrange(5)
                avro += varint(size) + b"x" * size
    return control_frame(chance.choice(NUMBERS), avro)


def edgy_core(chance: random.Random) -> bytes:
    """A batch with some of its numbers at the edges of their width."""
    widths = {"row_count": 32, "part": 32, "parts": 32, "payload_bytes": 32, "topic_bytes": 8, "publisher_bytes": 16}
    widths |= {"position_bytes": 16, "extensions_bytes": 16, "kind": 8, "incarnation": 64, "first_sequence": 64}
    widths |= {"origin_batch": 64, "published_at_ms": 64, "schema_id": 64, "topic_hash": 64, "checksum": 64}
    changes = {
        name: chance.choice([edge for edge in EDGES if edge < 1 << widths[name]])
        for name in chance.sample(sorted(widths), chance.randrange(4))
    }
    extensions = chance.randbytes(chance.randrange(12)) if chance.randrange(2) else b""
    return batch_frame(channel=0, hops=chance.randrange(256), how=chance.randrange(4), extensions=extensions, **changes)


def _damage(chance: random.Random, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                del changed[at : at + chance.randrange(1, 9)]
            case 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 2:
                changed[at : at + 1] = bytes([chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))])
            case 3:
                changed[at : at + 4] = struct.pack("<I", chance.choice(EDGES) & 0xFFFFFFFF)
            case 4:
                other = chance.choice(FRAMES)
                cut = chance.randrange(len(other))
                changed[at:] = other[cut : cut + chance.randrange(100)]
            case _:
                if at < len(changed):
                    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


MAKERS: list[Callable[[random.Random], bytes]] = [
    arbitrary,
    arbitrary_body,
    damaged,
    damaged_and_sealed,
    damaged_and_sealed,
    arbitrary_avro,
    edgy_avro,
    edgy_core,
]


# ---- what must hold


def outcome(data: bytes) -> WireFrame | None:
    """The result of `decode` for the bytes; None if it refuses them. Any other error fails the test."""
    try:
        message = decode(data)
    except RemoteProtocolError:
        return None
    assert isinstance(message, Message | BatchFrame)
    if isinstance(message, BatchFrame) or struct.unpack_from("<H", data, HEADER_BYTES + 11)[0] == 0:
        assert encode(message) == data
    else:
        assert decode(encode(message)) == message
    return message


def check_decode(seed: int) -> str:
    chance = random.Random(seed)
    maker = chance.choice(MAKERS)
    accepted = outcome(maker(chance))
    return f"{maker.__name__} {'refused' if accepted is None else 'accepted'}"


def check_reader(seed: int) -> str:
    """Some frames, one of them perhaps damaged, in arbitrary pieces: the reader says what `decode` says of each."""
    chance = random.Random(seed)
    frames = [chance.choice(FRAMES) for _ in range(chance.randrange(3))] + [chance.choice(MAKERS)(chance)]
    data = b"".join(frames)
    expected = _expected(data)
    reader = FrameReader(FRAME_BYTES_MAX)
    found: list[WireFrame] = []
    at = 0
    while at < len(data):
        size = chance.choice((1, 3, 4, 5, 20, 200, 2_000))
        try:
            found += reader.feed(data[at : at + size])
        except RemoteProtocolError:
            # Messages that came in one piece with the malformed frame are lost with it.
            assert expected[-1:] == [None]
            assert found == expected[: len(found)]
            return "reader refused"
        at += size
    assert found == expected
    return "reader accepted"


def _expected(data: bytes) -> list[WireFrame | None]:
    """The messages in these bytes; None at the end where a malformed frame ends them."""
    messages: list[WireFrame | None] = []
    while len(data) >= 4:
        size = 4 + struct.unpack_from("<I", data)[0]
        if not 22 <= size <= FRAME_BYTES_MAX:
            return [*messages, None]
        if size > len(data):
            return messages
        messages.append(outcome(data[:size]))
        if messages[-1] is None:
            return messages
        data = data[size:]
    return messages


def run(check: Callable[[int], str], rounds: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + rounds):
        try:
            seen[check(seed)] += 1
        except Exception as error:
            command = f"M4CAST_FUZZ_FIRST={seed} M4CAST_FUZZ_ROUNDS=1 pytest {__file__} -k {check.__name__}"
            pytest.fail(f"seed {seed}: {error!r}\nto see it again: {command}")
    return seen


def test_check_decode() -> None:
    seen = run(check_decode, ROUNDS)
    if ROUNDS >= 10_000:  # else chance may leave one out
        # The makers reach behind the outer checks: each kind of damage is refused, and some of it is harmless.
        assert {f"{maker.__name__} refused" for maker in MAKERS} <= seen.keys()
        assert {"damaged_and_sealed accepted", "edgy_avro accepted", "edgy_core accepted"} <= seen.keys()


def test_check_reader() -> None:
    seen = run(check_reader, max(1, ROUNDS // 10))
    if ROUNDS >= 10_000:
        assert seen.keys() == {"reader refused", "reader accepted"}
