"""Frames: the golden vectors, the layout by hand, every way to cut a stream of bytes, every limit, every damage."""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.wire import frame
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Extension, How, StoredPayload
from m4cast.overlay.protocol.wire.control import MESSAGE_CLASSES, to_avro
from m4cast.overlay.protocol.wire.frame import (
    BATCH_OVERHEAD_BYTES,
    CONTROL_FRAME_BYTES_MAX,
    HELLO_FRAME_BYTES_MAX,
    body_extension,
    decode,
    decode_body,
    decode_parts,
    encode,
    encode_head,
    encode_parts,
    payload_checksum,
    seal,
    wire_bytes,
)
from m4cast.overlay.protocol.wire.frame_reader import FrameReader
from m4cast.overlay.protocol.wire.messages import ConnectionRequestCall, DropStmt, Heartbeat, Message
from tests.overlay.protocol.frame_parts import (
    CORE_BYTES,
    HEADER_BYTES,
    HOP_PART,
    ORIGIN,
    batch_body,
    batch_checksum,
    batch_frame,
    control_frame,
    extension,
    sealed_again,
)
from tests.vectors import Vector, read_vectors

VECTORS = read_vectors()
ACCEPTED = [vector for vector in VECTORS if not vector.refused]
FRAME_BYTES_MAX = 1 << 20


def parametrize_vectors(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.name)


def batch(**changes: Any) -> Batch:
    """The batch that `frame_parts.batch_body` makes when nothing is changed."""
    plain = Batch(
        stream=StreamId(ORIGIN, "orders"),
        incarnation=7,
        first_sequence=1_000,
        row_count=100,
        origin_batch=42,
        schema_id=2**64 - 2,
        published_at_ms=1_700_000_000_000,
        publisher="sink-7",
        position="q/12",
        part=1,
        parts=3,
        previous_checksum=2**64 - 1,
        payload=b"rows",
    )
    return replace(plain, **changes)


def refusal(hostile: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(hostile)
    return str(caught.value)


# ---- vectors and layout


def test_every_message_class_has_a_vector() -> None:
    messages = {type(vector.message).__name__ for vector in VECTORS if isinstance(vector.message, Message)}
    assert messages == set(MESSAGE_CLASSES)
    assert {vector.name for vector in VECTORS if vector.refused} == {
        "batch/must-understand-extension",
        "control/must-understand-extension",
    }


@parametrize_vectors(ACCEPTED)
def test_a_vector_decodes_to_what_it_means(vector: Vector) -> None:
    assert decode(vector.frame) == vector.message


@parametrize_vectors(ACCEPTED)
def test_what_a_vector_means_encodes_to_its_bytes(vector: Vector) -> None:
    assert vector.message is not None
    encoded = encode(vector.message)
    if vector.skipped:
        assert len(encoded) < len(vector.frame)
        assert decode(encoded) == vector.message
    else:
        assert encoded.hex() == vector.frame.hex()


@parametrize_vectors([vector for vector in VECTORS if vector.refused])
def test_a_vector_that_must_be_refused_is(vector: Vector) -> None:
    assert vector.refused in refusal(vector.frame)
    with pytest.raises(RemoteProtocolError, match=vector.refused):
        FrameReader(FRAME_BYTES_MAX).feed(vector.frame)


def test_a_batch_is_laid_out_as_written_by_hand() -> None:
    frame_by_hand = batch_frame()
    assert len(frame_by_hand) == HEADER_BYTES + CORE_BYTES + len("orderssink-7q/12rows")
    assert encode(BatchFrame(seal(batch()), 2, How.PUSHED)) == frame_by_hand
    extended = seal(batch(extensions=(Extension(1, False, b"a"), Extension(2, False, b""))))
    by_hand = batch_frame(extensions=extension(1, b"a") + extension(2, b""), channel=9)
    assert encode(BatchFrame(extended, 2, How.PUSHED), channel=9) == by_hand


def test_a_control_message_is_laid_out_as_written_by_hand() -> None:
    assert encode(ConnectionRequestCall(4), channel=3) == control_frame(18, b"\x08", channel=3)
    assert encode(DropStmt()) == control_frame(37, b"")


# ---- batches


def test_an_extension_is_found_without_the_payload() -> None:
    extensions = (Extension(1, False, b"one"), Extension(2, False, b""), Extension(3, False, b"x"))
    head = encode_head(seal(batch(extensions=(*extensions, extensions[2]))))
    assert [body_extension(b"..." + head, 3, wanted) for wanted in (1, 2, 3, 4)] == [b"one", b"", None, None]
    assert body_extension(encode_head(seal(batch())), 0, 1) is None


def test_extensions_of_a_damaged_body_are_found_or_not() -> None:
    head = encode_head(seal(batch(extensions=(Extension(1, False, b"one"), Extension(2, False, b"two")))))
    for at in range(8, 8 * len(head)):
        damaged = bytearray(head)
        damaged[at // 8] ^= 1 << at % 8
        found = body_extension(bytes(damaged), 0, 1)
        assert found is None or isinstance(found, bytes)
    assert body_extension(head[:-4], 0, 1) is None


def test_seal_covers_everything_but_the_checksum() -> None:
    sealed = seal(batch())
    assert sealed == replace(
        batch(), checksum=batch_checksum((encode_head(sealed) + sealed.content)[8:], len(sealed.payload))
    )
    assert seal(sealed) == sealed
    staged = replace(batch(), payload=StoredPayload(len(sealed.payload), payload_checksum(sealed.payload)))
    assert seal(staged).checksum == sealed.checksum, "numbering what was staged needs no payload"
    hashed = payload_checksum(sealed.payload)
    assert seal(batch(), hashed) == sealed, "nor does numbering what was hashed when it was made"
    assert seal(batch(), hashed + 1).checksum != sealed.checksum, "it is taken at its word"
    changes: dict[str, Any] = {
        "stream": StreamId(ORIGIN, "other"),
        "extensions": (Extension(1, False, b""),),
        "payload": b"ROWS",
        "publisher": "sink-8",
        "position": "q/13",
    }
    for field in fields(Batch):
        if field.init and field.name != "checksum":
            changed = changes.get(field.name) or getattr(sealed, field.name) - 1
            assert seal(replace(sealed, **{field.name: changed})).checksum != sealed.checksum, field.name


def test_a_batch_is_sent_as_it_was_sealed_or_read_and_a_changed_copy_anew() -> None:
    sealed = seal(batch())
    (read,) = FrameReader(FRAME_BYTES_MAX).feed(encode(BatchFrame(sealed, 1, How.PUSHED)))
    assert isinstance(read, BatchFrame)
    assert encode_head(sealed) is sealed.head
    assert encode_head(read.batch) is read.batch.head
    assert read.batch.head == sealed.head == encode_head(replace(sealed))
    other = seal(replace(sealed, row_count=sealed.row_count + 1))
    assert decode_parts(encode_head(other), other.content) == other


def test_what_is_in_a_reader_s_memory_before_does_not_matter() -> None:
    frame = encode(BatchFrame(seal(batch(payload=bytes(1_000))), 1, How.PUSHED))
    reader = FrameReader(FRAME_BYTES_MAX, allocate=lambda size: memoryview(bytearray(b"\xff" * size)))
    assert reader.feed(frame[:100]) == []
    assert reader.feed(frame[100:]) == [decode(frame)]


def test_the_parts_of_a_batch_frame() -> None:
    sealed = seal(batch(extensions=(Extension(1, False, b"x"),)))
    whole = encode(BatchFrame(sealed, 3, How.PULLED), channel=5)
    head, payload = encode_parts(BatchFrame(sealed, 3, How.PULLED), channel=5)
    assert payload is sealed.payload
    assert head + payload == whole
    body = encode_head(sealed) + payload
    assert whole.endswith(body)
    assert decode_body(body) == sealed
    assert decode_body(memoryview(body)) == sealed
    head, payload = body[: len(body) - len(sealed.payload)], sealed.payload
    assert isinstance(payload, bytes)
    assert decode_parts(memoryview(head), payload) == sealed
    assert decode_parts(head, payload).payload is payload
    for other_head, other_payload in ((body, b""), (body, payload), (head, payload + b"."), (head, payload[:-1])):
        if (other_head, other_payload) != (head, payload):
            with pytest.raises(RemoteProtocolError, match="do not add up"):
                decode_parts(other_head, other_payload)
    if payload:
        with pytest.raises(RemoteProtocolError, match="checksum"):
            decode_parts(head, bytes([payload[0] ^ 1]) + payload[1:])


def test_a_batch_that_is_not_sealed_is_not_sent() -> None:
    for unsealed in (encode_head, lambda batch_: encode(BatchFrame(batch_, 0, How.PUSHED))):
        with pytest.raises(LocalProtocolError, match="not sealed"):
            unsealed(batch())


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_a_batch_comes_back_as_it_went(data: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    names = st.text(st.characters(codec="utf-8"), max_size=40)
    row_count, parts = number(1, 2**31 - 1), number(1, 2**31 - 1)
    sealed = seal(
        Batch(
            StreamId(NodeId(data.draw(st.binary(min_size=16, max_size=16))), "t" + data.draw(names)),
            number(0, 2**63 - 1),
            number(1, 2**63 - 1 - row_count),
            row_count,
            number(0, 2**63 - 1),
            number(0, 2**64 - 1),
            number(0, 2**63 - 1),
            data.draw(names),
            data.draw(names),
            number(0, parts - 1),
            parts,
            number(0, 2**64 - 1),
            data.draw(st.binary(max_size=100)),
            tuple(
                Extension(type_, False, value)
                for type_, value in data.draw(
                    st.lists(st.tuples(st.integers(0, 0x7FFF), st.binary(max_size=20)), max_size=3)
                )
            ),
        )
    )
    message = BatchFrame(sealed, number(0, 255), How(number(0, 2)))
    encoded = encode(message)
    assert decode(encoded) == message
    assert len(encoded) == wire_bytes(message)
    overhead = len(encoded) - len(sealed.payload) - sum(4 + len(added.value) for added in sealed.extensions)
    assert overhead <= BATCH_OVERHEAD_BYTES


@parametrize_vectors(ACCEPTED)
def test_wire_bytes_without_encoding(vector: Vector) -> None:
    assert vector.message is not None
    encoded = encode(vector.message)
    if isinstance(vector.message, BatchFrame):
        assert wire_bytes(vector.message) == len(encoded)
    else:
        assert len(encoded) / 3 <= wire_bytes(vector.message) <= len(encoded) * 2


# ---- limits of a batch, from both sides


BATCH_LIMITS = [
    # (fields of the batch, fields on the wire) at the limit, then beyond it
    ("topic is empty", {"topic": "t"}, {"topic": ""}),
    ("topic is long", {"topic": "t" * 200}, {"topic": "t" * 201}),
    ("topic is long in bytes", {"topic": "ż" * 100}, {"topic": "ż" * 101}),
    ("publisher", {"publisher": "k" * 200}, {"publisher": "k" * 201}),
    ("position", {"position": "p" * 1_000}, {"position": "p" * 1_001}),
    ("no rows", {"row_count": 1}, {"row_count": 0}),
    ("many rows", {"row_count": 2**31 - 1}, {"row_count": 2**31}),
    ("first sequence", {"first_sequence": 1}, {"first_sequence": 0}),
    ("last sequence", {"first_sequence": 2**63 - 101}, {"first_sequence": 2**63 - 100}),
    ("parts", {"part": 0, "parts": 1}, {"part": 0, "parts": 0}),
    ("part", {"part": 2, "parts": 3}, {"part": 3, "parts": 3}),
    ("many parts", {"part": 0, "parts": 2**31 - 1}, {"part": 0, "parts": 2**31}),
    ("incarnation", {"incarnation": 2**63 - 1}, {"incarnation": 2**63}),
    ("origin batch", {"origin_batch": 2**63 - 1}, {"origin_batch": 2**63}),
    ("time", {"published_at_ms": 2**63 - 1}, {"published_at_ms": 2**63}),
]


def _fields(changes: dict[str, Any]) -> dict[str, Any]:
    topic = changes.get("topic")
    others = {name: value for name, value in changes.items() if name != "topic"}
    return others if topic is None else {**others, "stream": StreamId(ORIGIN, topic)}


def _wire(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.encode() if isinstance(value, str) else value for name, value in changes.items()}


@pytest.mark.parametrize(("at_limit", "beyond"), [case[1:] for case in BATCH_LIMITS], ids=[c[0] for c in BATCH_LIMITS])
def test_each_limit_of_a_batch(at_limit: dict[str, Any], beyond: dict[str, Any]) -> None:
    sealed = seal(batch(**_fields(at_limit)))
    assert encode(BatchFrame(sealed, 2, How.PUSHED)) == batch_frame(**_wire(at_limit))
    assert decode(batch_frame(**_wire(at_limit))) == BatchFrame(sealed, 2, How.PUSHED)
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        seal(batch(**_fields(beyond)))
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        encode(BatchFrame(batch(**_fields(beyond), checksum=1), 2, How.PUSHED))
    assert "malformed" in refusal(batch_frame(**_wire(beyond)))


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": StreamId(NodeId(bytes(15)), "t")},
        {"stream": StreamId(NodeId(bytes(17)), "t")},
        {"stream": StreamId(ORIGIN, "\ud800")},
        {"publisher": "\ud800"},
        {"incarnation": -1},
        {"origin_batch": -1},
        {"published_at_ms": -1},
        {"part": -1},
        {"schema_id": -1},
        {"schema_id": 2**64},
        {"previous_checksum": 2**64},
        {"checksum": 2**64},
        {"row_count": 1.5},
        {"extensions": (Extension(0x8000, False, b""),)},
        {"extensions": (Extension(-1, False, b""),)},
    ],
)
def test_what_has_no_place_on_the_wire_cannot_be_sealed(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        seal(batch(**changes))


@pytest.mark.parametrize(("hops", "channel"), [(256, 0), (-1, 0), (0, 65_536), (0, -1)])
def test_the_hop_part_has_limits(hops: int, channel: int) -> None:
    sealed = seal(batch())
    assert decode(encode(BatchFrame(sealed, 255, How.PUSHED), 65_535), 65_535) == BatchFrame(sealed, 255, How.PUSHED)
    with pytest.raises(LocalProtocolError, match="no frame can be made"):
        encode(BatchFrame(sealed, hops, How.PUSHED), channel)


def test_extensions_have_limits() -> None:
    sixteen = seal(batch(extensions=(Extension(1, False, b"x"),) * 16))
    assert decode(encode(BatchFrame(sixteen, 2, How.PUSHED))) == BatchFrame(sixteen, 2, How.PUSHED)
    with pytest.raises(LocalProtocolError, match="17 extensions"):
        seal(batch(extensions=(Extension(1, False, b"x"),) * 17))
    assert "after 16 of them" in refusal(batch_frame(extensions=extension(1, b"x") * 17))

    largest = seal(batch(extensions=(Extension(1, False, bytes(0xFFFF - 4)),)))
    assert decode(encode(BatchFrame(largest, 2, How.PUSHED))) == BatchFrame(largest, 2, How.PUSHED)
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        seal(batch(extensions=(Extension(1, False, bytes(0xFFFF - 3)),)))


def test_control_extensions_have_the_same_limits() -> None:
    assert decode(control_frame(37, b"", extension(1, b"x") * 16)) == DropStmt()
    assert "after 16 of them" in refusal(control_frame(37, b"", extension(1, b"x") * 17))
    assert decode(control_frame(37, b"", extension(1, bytes(0xFFFF - 4)))) == DropStmt()


# ---- malformed frames


MALFORMED = [
    (b"", "at least 22"),
    (control_frame(37, b"")[:-1], "at least 22"),
    (control_frame(37, b"") + b"x", "says that it has 18 bytes, but has 19"),
    (struct.pack("<I", 19) + control_frame(37, b"")[4:], "says that it has 19 bytes, but has 18"),
    (control_frame(37, b"", channel=1), "channel 1"),
    (control_frame(37, b"", hops=1), "hops 1"),
    (control_frame(37, b"", how=1), "how 1"),
    (control_frame(37, b"", inner_kind=1), "control frame of kind 1"),
    (control_frame(37, b"", extensions_bytes=1), "1 bytes of extensions"),
    (control_frame(37, b"", b"\x01\x00\x00"), "malformed extensions: 3 bytes after 0"),
    (control_frame(37, b"", b"\x01\x00\x02\x00a"), "an extension has 2 bytes, 1 are left"),
    (control_frame(37, b"", extension(1, b"", must_understand=True)), "type 1 must be understood"),
    (control_frame(39, bytes(8), extension(1, bytes(7))), "a heartbeat's clock is '00000000000000', not 8 bytes"),
    (control_frame(39, bytes(8), extension(1, b"\xff" * 8)), "a heartbeat's clock is 'ffffffffffffffff', not 8 bytes"),
    (control_frame(999, b""), "no control message number 999"),
    (control_frame(37, b"\x00"), "DropStmt"),
    (sealed_again(control_frame(37, b"")[:4] + b"\x02" + control_frame(37, b"")[5:]), "kind 2"),
    (sealed_again(control_frame(37, b"")[:4] + b"\x01" + control_frame(37, b"")[5:]), "its core alone 104"),
    (batch_frame(how=3), "how 3"),
    (batch_frame(channel=1), "channel 1"),
    (batch_frame(kind=0), "kind 0"),
    (batch_frame(kind=2), "kind 2"),
    (batch_frame(payload_bytes=5), "do not add up"),
    (batch_frame(payload_bytes=2**32 - 1), "do not add up"),
    (batch_frame(topic_bytes=7), "do not add up"),
    (batch_frame(checksum=1), "checksum 0x1"),
    (batch_frame(topic_hash=1), "the hash of the topic is 0x1"),
    (batch_frame(topic=b"\xff"), "utf-8"),
    (batch_frame(publisher=b"\xed\xa0\x80"), "utf-8"),
    (batch_frame(position=b"\xc0\x80"), "utf-8"),
    (batch_frame(extensions=b"\x01\x00\x00"), "malformed extensions: 3 bytes after 0"),
    (batch_frame(extensions=b"\x01\x00\x02\x00a"), "an extension has 2 bytes, 1 are left"),
    (batch_frame(extensions=extension(1, b"") + extension(9, b"", must_understand=True)), "type 9 must be"),
]


@pytest.mark.parametrize(
    ("hostile", "complaint"), MALFORMED, ids=[f"{number}: {case[1]}" for number, case in enumerate(MALFORMED)]
)
def test_a_malformed_frame_is_refused(hostile: bytes, complaint: str) -> None:
    assert complaint in refusal(hostile)


def test_a_malformed_body_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="its core alone"):
        decode_body(batch_body()[:103])
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode_body(batch_body(checksum=5))


@parametrize_vectors(VECTORS)
def test_every_truncation_is_refused(vector: Vector) -> None:
    for size in range(len(vector.frame)):
        with pytest.raises(RemoteProtocolError):
            decode(vector.frame[:size])
        # Nor does it help to make the length and the checksum fit.
        with pytest.raises(RemoteProtocolError):
            decode(sealed_again(vector.frame[:size]))


def _bit_flips(whole: bytes) -> Iterator[tuple[int, bytes]]:
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(flipped)


@parametrize_vectors([vector for vector in ACCEPTED if isinstance(vector.message, BatchFrame)])
def test_a_flipped_bit_of_a_batch_is_refused_or_in_the_hop_part(vector: Vector) -> None:
    assert isinstance(vector.message, BatchFrame)
    accepted = 0
    for bit, flipped in _bit_flips(vector.frame):
        try:
            message = decode(flipped)
        except RemoteProtocolError:
            continue
        assert bit // 8 in range(*HOP_PART.indices(HEADER_BYTES))
        assert isinstance(message, BatchFrame)
        assert message.batch == vector.message.batch
        assert (message.hops, message.how) != (vector.message.hops, vector.message.how)
        accepted += 1
    assert accepted >= 8 + 1, "hops and how are not under the checksum"


@parametrize_vectors([vector for vector in ACCEPTED if not isinstance(vector.message, BatchFrame)])
def test_a_flipped_bit_of_a_control_message_is_refused(vector: Vector) -> None:
    for _, flipped in _bit_flips(vector.frame):
        with pytest.raises(RemoteProtocolError):
            decode(flipped)


# ---- the reader


STREAM = b"".join(vector.frame for vector in ACCEPTED)
MESSAGES = [vector.message for vector in ACCEPTED]


def test_merged_frames_come_out_in_order() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    assert reader.feed(STREAM) == MESSAGES
    assert reader.feed(STREAM + STREAM) == MESSAGES + MESSAGES
    assert reader.feed(b"") == []


@pytest.mark.parametrize("view", [bytes, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer_will_do(view: Callable[[bytes], bytes | memoryview]) -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    assert reader.feed(view(STREAM[:100])) + reader.feed(view(STREAM[100:])) == MESSAGES


@pytest.mark.parametrize("cut", [0, 50])
def test_what_is_fed_can_be_overwritten_afterwards(cut: int) -> None:
    expected = BatchFrame(seal(batch()), 0, How.PUSHED)
    buffer = bytearray(encode(expected))
    reader = FrameReader(FRAME_BYTES_MAX)
    assert reader.feed(memoryview(buffer)[:cut]) == []
    buffer[:cut] = bytes(cut)
    (message,) = reader.feed(memoryview(buffer)[cut:])
    buffer[:] = bytes(len(buffer))
    assert message == expected
    assert isinstance(message, BatchFrame)
    assert memoryview(message.batch.content).readonly


@parametrize_vectors(ACCEPTED)
def test_a_frame_split_at_every_byte(vector: Vector) -> None:
    follower = encode(Heartbeat(5))
    whole = vector.frame + follower
    for cut in range(len(whole) + 1):
        reader = FrameReader(FRAME_BYTES_MAX)
        messages = reader.feed(whole[:cut])
        assert len(messages) == (cut >= len(vector.frame)) + (cut == len(whole))
        assert messages + reader.feed(whole[cut:]) == [vector.message, Heartbeat(5)]


@pytest.mark.parametrize("cut", [1, 3, 4, 50, 100_000])
def test_the_rest_of_a_large_frame_is_read_to_where_it_belongs(cut: int) -> None:
    large = BatchFrame(seal(batch(payload=bytes(range(256)) * 1_000)), 0, How.PUSHED)
    data = encode(large)
    reader = FrameReader(FRAME_BYTES_MAX)
    assert reader.space() is None
    assert reader.feed(data[:cut]) == []
    given = max(cut, 4)
    assert reader.feed(data[cut:given]) == []
    messages: list[object] = []
    while (space := reader.space()) is not None:
        assert len(space) == len(data) - given
        size = min(len(space), 70_000)
        space[:size] = data[given : given + size]
        messages += reader.filled(size)
        given += size
    messages += reader.feed(data[given:] + encode(Heartbeat(5)))
    assert messages == [large, Heartbeat(5)]
    assert isinstance(messages[0], BatchFrame)
    assert isinstance(messages[0].batch.payload, memoryview), "it was copied"
    assert messages[0].batch.payload.readonly
    assert reader.space() is None


def test_a_damaged_frame_that_was_read_directly_is_refused() -> None:
    data = bytearray(encode(BatchFrame(seal(batch(payload=bytes(200_000))), 0, How.PUSHED)))
    data[-1] ^= 1
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(bytes(data[:100]))
    space = reader.space()
    assert space is not None
    space[:] = data[100:]
    with pytest.raises(RemoteProtocolError, match="checksum"):
        reader.filled(len(space))
    with pytest.raises(LocalProtocolError):
        reader.feed(b"")


def test_byte_by_byte() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    assert [message for at in range(len(STREAM)) for message in reader.feed(STREAM[at : at + 1])] == MESSAGES


def test_random_cuts() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        cuts = sorted(chance.randrange(len(STREAM)) for _ in range(chance.randrange(40)))
        reader = FrameReader(FRAME_BYTES_MAX)
        pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert [message for piece in pieces for message in reader.feed(piece)] == MESSAGES, f"seed {seed}"


def test_the_largest_frame_and_one_byte_more() -> None:
    largest = encode(BatchFrame(seal(batch(payload=bytes(1_000))), 0, How.PUSHED))
    assert len(FrameReader(len(largest)).feed(largest)) == 1
    for before, piece in ((b"", largest), (b"", largest[:4]), (largest[:3], largest[3:4]), (largest[:1], largest[1:])):
        reader = FrameReader(len(largest) - 1)
        assert reader.feed(before) == []
        with pytest.raises(RemoteProtocolError, match=f"{len(largest)} bytes begins"):
            reader.feed(piece)


def test_a_frame_too_short_to_be_one_is_refused_at_its_length() -> None:
    for length in (0, 17):
        with pytest.raises(RemoteProtocolError, match="begins"):
            FrameReader(FRAME_BYTES_MAX).feed(struct.pack("<I", length))
    assert FrameReader(FRAME_BYTES_MAX).feed(struct.pack("<I", 18)) == []


def test_the_first_frame_can_be_held_to_less() -> None:
    small, large = encode(Heartbeat(1)), encode(BatchFrame(seal(batch(payload=bytes(1_000))), 0, How.PUSHED))
    assert len(FrameReader(len(large), first_frame_bytes_max=len(small)).feed(small + large)) == 2
    with pytest.raises(RemoteProtocolError, match="begins"):
        FrameReader(len(large), first_frame_bytes_max=len(small)).feed(large)
    with pytest.raises(RemoteProtocolError, match="begins"):
        FrameReader(len(large), first_frame_bytes_max=len(small) - 1).feed(small)
    split = FrameReader(len(large), first_frame_bytes_max=len(small))
    assert split.feed(small[:10]) == []
    assert len(split.feed(small[10:] + large)) == 2


def test_the_largest_control_frames_fit_where_they_should() -> None:
    hello = next(vector for vector in ACCEPTED if vector.name == "control/Hello").message
    assert hello is not None
    assert len(encode(hello)) < HELLO_FRAME_BYTES_MAX < 200_000
    assert HELLO_FRAME_BYTES_MAX < CONTROL_FRAME_BYTES_MAX < 3_200_000


def test_a_reader_that_met_an_error_is_of_no_use() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    assert reader.feed(STREAM[:200])
    with pytest.raises(RemoteProtocolError):
        reader.feed(bytes(10_000))
    for data in (b"", STREAM):
        with pytest.raises(LocalProtocolError, match="cannot be used any more"):
            reader.feed(data)


def test_a_reader_takes_only_the_channel_of_its_link() -> None:
    framed = encode(Heartbeat(1), channel=7)
    assert FrameReader(FRAME_BYTES_MAX, channel=7).feed(framed) == [Heartbeat(1)]
    with pytest.raises(RemoteProtocolError, match="channel 7"):
        FrameReader(FRAME_BYTES_MAX).feed(framed)


def test_a_malformed_frame_is_refused_however_it_comes() -> None:
    hostile = batch_frame(checksum=1)
    for cut in range(len(hostile)):
        reader = FrameReader(FRAME_BYTES_MAX)
        assert reader.feed(hostile[:cut]) == []
        with pytest.raises(RemoteProtocolError, match="checksum"):
            reader.feed(hostile[cut:])


def test_topics_are_remembered_within_a_bound() -> None:
    for number in range(5_000):
        decode(batch_frame(topic=b"t%d" % number))
    assert frame._topic.cache_info().currsize <= 4_096


def test_the_number_of_a_message_is_that_of_its_record() -> None:
    for vector in ACCEPTED:
        if vector.message is not None and not isinstance(vector.message, BatchFrame):
            number, _ = to_avro(vector.message)
            assert struct.unpack_from("<H", vector.frame, HEADER_BYTES + 9) == (number,)
