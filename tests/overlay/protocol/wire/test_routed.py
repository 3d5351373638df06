"""Routed frames: golden bytes, both ways, each limit from both sides, and no flipped bit that passes."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Extension, How
from m4cast.overlay.protocol.wire.control import ROUTED_CLASSES, ROUTED_VALUES, from_avro, to_avro
from m4cast.overlay.protocol.wire.frame import decode, encode, seal
from m4cast.overlay.protocol.wire.routed import (
    DESTINATIONS_MAX,
    LIST_BYTES_MAX,
    ROUTED_CONTROL_BYTES_MAX,
    decode_routed,
    encode_routed,
)
from m4cast.overlay.protocol.wire.selective import (
    CoverEntry,
    CoverStmt,
    Destination,
    KeepCall,
    ProfileText,
    RoutedFrame,
    RoutedMessage,
    SelectPullCall,
    SelectPullResp,
    spread_extension,
)
from m4cast.schemas.avro_types import ROUTED_FILES, read_types
from tests.vectors import read_routed_vectors

VECTORS = read_routed_vectors()
NAMES = [name for name, _, _ in VECTORS]
FRAMES = {name: frame for name, _, frame in VECTORS}
BATCH = FRAMES["batch"]
KEEP = FRAMES["KeepCall"]
CONTENTS: dict[str, Any] = {name: frame.content for name, frame in FRAMES.items()}
SELECTIVE: Batch = CONTENTS["batch"]


@pytest.mark.parametrize(("name", "data", "frame"), VECTORS, ids=NAMES)
def test_the_golden_bytes(name: str, data: bytes, frame: RoutedFrame) -> None:
    assert encode_routed(frame).hex() == data.hex()
    assert decode_routed(data) == frame


def test_every_routed_message_has_a_vector_and_a_record() -> None:
    assert {message.__name__ for message in get_args(RoutedMessage)} <= set(NAMES)
    types = read_types(ROUTED_FILES)
    assert {name for name, each in types.items() if "number" in each} == set(ROUTED_CLASSES)
    records = {name for name, each in types.items() if each["type"] == "record" and "number" not in each}
    assert records >= set(ROUTED_VALUES)


@pytest.mark.parametrize(("name", "data", "frame"), VECTORS, ids=NAMES)
def test_no_flipped_bit_passes(name: str, data: bytes, frame: RoutedFrame) -> None:
    """The hop part (channel, hops, how) is under no checksum."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit // 8 in (7, 8):
            continue
        with pytest.raises(RemoteProtocolError):
            decode_routed(bytes(flipped))


def test_the_list_of_one_batch_does_not_fit_another() -> None:
    other = replace(BATCH, content=seal(replace(SELECTIVE, schema_id=9, checksum=0)))
    one, two = encode_routed(BATCH), encode_routed(other)
    body = 9 + 26 + 32 * len(BATCH.destinations)
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode_routed(one[:body] + two[body:])


def test_plain_frames_carry_no_selective_batch_and_no_routed_message() -> None:
    with pytest.raises(RemoteProtocolError, match="must be understood"):
        decode(encode(BatchFrame(SELECTIVE, 0, How.PUSHED)))
    for name, data, _ in VECTORS:
        with pytest.raises(RemoteProtocolError):
            decode(data)
        if name in ROUTED_CLASSES:
            with pytest.raises(RemoteProtocolError, match="no control message number"):
                from_avro(*to_avro(CONTENTS[name]))


def test_plain_frames_are_no_routed_ones() -> None:
    plain = seal(replace(SELECTIVE, extensions=(), checksum=0))
    with pytest.raises(RemoteProtocolError):
        decode_routed(encode(BatchFrame(plain, 0, How.PUSHED)))


def _nodes(count: int) -> tuple[Destination, ...]:
    return tuple(Destination(NodeId(number.to_bytes(16, "big")), 0, 1) for number in range(count))


def test_the_largest_list_passes_and_one_more_does_not() -> None:
    frame = replace(KEEP, destinations=_nodes(DESTINATIONS_MAX))
    data = encode_routed(frame)
    assert decode_routed(data) == frame
    assert len(data) - len(encode_routed(replace(KEEP, destinations=_nodes(1)))) == LIST_BYTES_MAX - 26 - 32
    assert len(data) <= ROUTED_CONTROL_BYTES_MAX
    for wrong in (_nodes(DESTINATIONS_MAX + 1), ()):
        with pytest.raises(LocalProtocolError, match="destinations, not 1 to"):
            encode_routed(replace(KEEP, destinations=wrong))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (replace(KEEP, destinations=_nodes(2)[::-1]), "order of their ids"),
        (replace(KEEP, destinations=_nodes(1) * 2), "order of their ids"),
        (replace(KEEP, destinations=(Destination(NodeId(bytes(16)), 1, 1),)), "first is not 0 to 0"),
        (replace(KEEP, destinations=(Destination(NodeId(bytes(16)), 0, 2**63),)), "version not 0 to"),
        (replace(BATCH, destinations=(Destination(NodeId(bytes(16)), 0, 1),)), "first is not 1 to"),
        (replace(BATCH, destinations=(Destination(NodeId(bytes(16)), 6, 1),)), "first is not 1 to 5"),
    ],
)
def test_a_list_beyond_its_limits_is_not_sent(frame: RoutedFrame, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        encode_routed(frame)


@pytest.mark.parametrize(
    "extensions",
    [
        (),
        (spread_extension(2), spread_extension(2)),
        (Extension(2, False, b"\x01\x02"),),
        (Extension(2, True, b"\x01"),),
        (Extension(2, True, b"\x02\x02"),),
        (Extension(2, True, b"\x01\x09"),),
    ],
)
def test_a_routed_batch_says_once_and_rightly_how_it_spreads(extensions: tuple[Extension, ...]) -> None:
    """H51."""
    batch = seal(replace(SELECTIVE, extensions=extensions, checksum=0))
    with pytest.raises(LocalProtocolError, match="spread"):
        encode_routed(replace(BATCH, content=batch))


ORIGIN = BATCH.speaker
PULL = SelectPullCall(
    call=1,
    origin=ORIGIN,
    topic="t",
    first_sequence=1,
    next_sequence=2,
    version=1,
    checksum=0,
    profiles=(),
    bytes_max=1,
)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (CoverStmt(ORIGIN, (CoverEntry("t", 1, 1, 0),) * 257), "257 items"),
        (CoverStmt(ORIGIN, (CoverEntry("t", 2, 1, 0),)), "ends before it begins"),
        (CoverStmt(ORIGIN, (CoverEntry("", 1, 1, 0),)), "0 bytes"),
        (replace(PULL, profiles=(ProfileText("sql", 1, "x"),) * 65), "65 items"),
        (replace(PULL, profiles=(ProfileText("sql", 1, "x" * 4_097),)), "4097 bytes"),
        (replace(PULL, first_sequence=3), "ends before it begins"),
        (replace(CONTENTS["SelectPullResp"], covered_next=1), "ends before it begins"),
        (replace(CONTENTS["BeginCall"], times_ms=(1,) * 65), "65 items"),
    ],
)
def test_a_message_beyond_its_limits_is_not_sent(message: Any, complaint: str) -> None:
    with pytest.raises(LocalProtocolError, match=complaint):
        encode_routed(RoutedFrame(ORIGIN, _nodes(1), message))


def test_messages_at_their_limits_are_sent() -> None:
    entries = tuple(CoverEntry("t" * 200, 1, 2**63 - 1, 2**64 - 1) for _ in range(256))
    profiles = (ProfileText("x" * 32, 2**31 - 1, "x" * 4_096),) * 64
    resp: SelectPullResp = CONTENTS["SelectPullResp"]
    for message in (CoverStmt(ORIGIN, entries), replace(PULL, profiles=profiles), KeepCall(keep=False), resp):
        frame = RoutedFrame(ORIGIN, _nodes(1), message)
        data = encode_routed(frame)
        assert decode_routed(data) == frame
        assert len(data) <= ROUTED_CONTROL_BYTES_MAX
