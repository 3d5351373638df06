"""Damaged bytes into `decode_routed`: a frame within all limits or `RemoteProtocolError`, and nothing else.

Most damage is repaired on the outside (length, both checksums), since it would otherwise end there. Each input is made
from a seed of its own, which the failure names. M4CAST_FUZZ_ROUNDS is the number of inputs.
"""

import os
import random
import struct
from collections import Counter

import pytest
import xxhash

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.protocol.wire.routed import decode_routed, encode_routed
from tests.overlay.protocol.frame_parts import HEADER_BYTES
from tests.vectors import read_routed_vectors

ROUNDS = int(os.environ.get("M4CAST_FUZZ_ROUNDS", "100000")) // 5
FIRST = int(os.environ.get("M4CAST_FUZZ_FIRST", "0"))
FRAMES = [data for _, data, _ in read_routed_vectors()]
EDGES = [0, 1, 2, 127, 128, 255, 256, 1_024, 1_025, 2**16 - 1, 2**31 - 1, 2**32 - 1]


def damaged(chance: random.Random, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                del changed[at : at + chance.randrange(1, 40)]
            case 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 40))
            case 2:
                changed[at : at + 4] = struct.pack("<I", chance.choice(EDGES))
            case 3:
                other = chance.choice(FRAMES)
                cut = chance.randrange(len(other))
                changed[at:] = other[cut:]
            case _:
                if at < len(changed):
                    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def sealed_again(data: bytes) -> bytes:
    """The same with right length and checksums, as far as there are such fields."""
    changed = bytearray(data)
    if len(changed) < HEADER_BYTES + 26:
        return bytes(changed)
    struct.pack_into("<I", changed, 0, len(changed) - 4)
    (count,) = struct.unpack_from("<H", changed, HEADER_BYTES + 24)
    body = HEADER_BYTES + 26 + 32 * count
    if body + 13 > len(changed):
        return bytes(changed)
    if changed[4] == 3:
        struct.pack_into("<Q", changed, body, xxhash.xxh3_64_intdigest(bytes(changed[body + 8 :])))
    elif body + 104 <= len(changed):
        (payload_bytes,) = struct.unpack_from("<I", changed, body + 16)
        payload_at = max(body + 8, len(changed) - payload_bytes)
        digest = xxhash.xxh3_64(bytes(changed[body + 8 : payload_at]))
        digest.update(xxhash.xxh3_64_digest(bytes(changed[payload_at:]))[::-1])
        struct.pack_into("<Q", changed, body, digest.intdigest())
    listed = bytes(changed[HEADER_BYTES + 8 : body + 8])
    struct.pack_into("<Q", changed, HEADER_BYTES, xxhash.xxh3_64_intdigest(listed))
    return bytes(changed)


def check(seed: int) -> str:
    chance = random.Random(seed)
    data = damaged(chance, chance.choice(FRAMES))
    is_sealed = chance.random() < 0.8
    if is_sealed:
        data = sealed_again(data)
    try:
        frame = decode_routed(data)
    except RemoteProtocolError:
        return "refused"
    again = encode_routed(frame)
    assert again == data or (data[4] == 3 and decode_routed(again) == frame)  # its extensions are skipped
    return "accepted"


def test_the_outer_repair_is_right() -> None:
    for data in FRAMES:
        assert sealed_again(data) == data


def test_whatever_the_bytes_are() -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + ROUNDS):
        try:
            seen[check(seed)] += 1
        except Exception as error:
            command = f"M4CAST_FUZZ_FIRST={seed} M4CAST_FUZZ_ROUNDS=5 pytest {__file__}"
            pytest.fail(f"seed {seed}: {error!r}\nto see it again: {command}")
    if ROUNDS >= 10_000:
        assert seen.keys() == {"refused", "accepted"}
