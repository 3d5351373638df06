"""Frames between gatekeepers: golden bytes, both ways, no flipped bit that passes, and each message on one frame."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.federation.contract import KeptClient, KeptEvent, KeptPlace
from m4cast.overlay.federation.messages import (
    AdditionAccept,
    AdditionCall,
    AdditionForward,
    AdditionOffer,
    AdditionRedirect,
    AdditionRefused,
    AddresseesUnknown,
    CarriedCharge,
    Charge,
    ChargeKind,
    ClientMoved,
    ClientReleased,
    EventAck,
    EventCopy,
    GateId,
    GatewayConnection,
    GatewayNews,
    GatewaySide,
    GatewayStatus,
    LinkProbe,
    NoteBody,
    RoutedNote,
    TopicHeard,
    TopicQuiet,
    TopicWanted,
    Turn,
    UnitHello,
    UnitWant,
    WantsAck,
    WantsNews,
    WantsVersion,
)
from m4cast.overlay.federation.units import Unit, UnitId, UnitRecord
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.wire import frames
from m4cast.overlay.net.gateways.wire.messages import (
    AcrossFrame,
    ClientFindCall,
    ClientFindResp,
    ExportedStmt,
    ExportedStream,
    GatewayHello,
    GatewayMessage,
    GatewayRefused,
    PulledBatch,
    StreamFindCall,
    StreamFindResp,
    StreamHead,
    StreamPullCall,
    StreamPullResp,
    TraceCall,
    TraceResp,
    TraceStep,
    WithheldCopy,
)
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal

GOLDEN = Path(__file__).parents[3] / "vectors" / "gateway" / "frames.json"
ID = UnitId(bytes(range(16)))
OTHER = UnitId(bytes(range(16, 32)))
CLUSTER = Unit(1, OTHER)
RECORD = UnitRecord(Unit(0, ID), OTHER, number=3, epoch=2, address="127.0.0.1:7700")
GATE = GateId(bytes(16), 1)
SIDES = (GatewaySide(4), GatewaySide(5, GatewayStatus.SUSPECTED, extra=2))
CONNECTION = GatewayConnection(bytes(16), 1, (CLUSTER, Unit(1, ID)), SIDES, ("a:1", "b:2"))
BATCH = seal(
    Batch(
        stream=StreamId(NodeId(ID), "orders"),
        incarnation=1,
        first_sequence=7,
        row_count=2,
        origin_batch=5,
        schema_id=9,
        published_at_ms=1_700_000_000_000,
        publisher="job",
        position="17",
        part=0,
        parts=1,
        previous_checksum=12,
        payload=b"two rows",
    )
)
HEAD = StreamHead(NodeId(ID), "orders", 3, 9)
CHARGE = CarriedCharge(Charge(ChargeKind.UNIT, CLUSTER), Turn(1, ID), (Unit(1, ID),))
NEED = CarriedCharge(Charge(ChargeKind.NEED, Unit(2, OTHER)), Turn(0, OTHER))
COPY = EventCopy(11, frames.event_of(BATCH), (ID, OTHER), 0, (CHARGE, NEED))
HEAD_COPY = EventCopy(12, frames.head_event(HEAD, 1_700_000_000_001), (OTHER,), 1, (CHARGE,))
VERSION = WantsVersion(3, 4)
NEWS = WantsNews(
    to=(GATE,),
    level=1,
    announcer=(ID, OTHER),
    version=VERSION,
    base=WantsVersion(0, 0),
    gates=(GATE,),
    is_all=False,
    joined=(UnitWant("orders"), UnitWant("ticks", read("`price` > 3"))),
    left=(("old", b""),),
)
CALL = AdditionCall(call=1, node=ID, bits=2, host="c:3", chain=(ID, OTHER), unit_level=1, unit_epoch=2, tried=(OTHER,))
STEP = TraceStep(ID, "a:1", "m4cast/a", 1, 1_700_000_000_000, "matched", "", CLUSTER, (Unit(0, ID),), ("demand:t/",))
MESSAGES: dict[str, tuple[GatewayMessage, Batch | None]] = {
    "hello": (GatewayHello(1, 1, False, ID, "127.0.0.1:7700", "m4cast/berlin", 1), None),
    "refused": (GatewayRefused("refused", "channel 'x': no [[gateway]] for it"), None),
    "unit-hello": (UnitHello((RECORD,), bytes(8)), None),
    "news": (GatewayNews((RECORD,), (CONNECTION,), is_whole=True), None),
    "wants": (frames.outward(RoutedNote(NEWS, (CLUSTER,))), None),
    "wants-ack": (frames.outward(RoutedNote(WantsAck((ID, OTHER), 1, (GATE,), VERSION, 2), ())), None),
    "quiet": (frames.outward(RoutedNote(TopicQuiet((ID, OTHER), 1, "orders", (GATE,)), (CLUSTER,))), None),
    "copy": (frames.hop_part(COPY, 1, None), BATCH),
    "head": (frames.hop_part(HEAD_COPY, 2, HEAD), None),
    "withheld": (WithheldCopy(5), None),
    "ack": (EventAck(11), None),
    "probe": (LinkProbe(is_answer=True), None),
    "addition-call": (CALL, None),
    "addition-newcomer": (AdditionCall(2, ID, 1, "c:3", None), None),
    "addition-forward": (AdditionForward("d:4", CALL), None),
    "addition-accept": (AdditionAccept(1, (RECORD,), 1, "a:1"), None),
    "addition-redirect": (AdditionRedirect(1, ("a:1",)), None),
    "addition-offer": (AdditionOffer(1, 2, "a:1", ("b:2",)), None),
    "addition-refused": (AdditionRefused(1, "no room"), None),
    "exported": (ExportedStmt((ExportedStream(NodeId(ID), "orders", 9),)), None),
    "find": (StreamFindCall(ID, 1, NodeId(OTHER), "orders", 3, 0, 1), None),
    "find-answer": (StreamFindResp(ID, 1, 3, 9, 3), None),
    "pull": (StreamPullCall(ID, 1, 3, 9, 1_000), None),
    "pulled": (PulledBatch(ID, 1), BATCH),
    "pull-over": (StreamPullResp(ID, 1, 9), None),
    "across": (AcrossFrame(ID, 1, is_back=True), BATCH),
    "trace": (TraceCall(ID, 1, NodeId(OTHER), "orders", 3, 1), None),
    "trace-answer": (TraceResp(ID, 1, (STEP,), is_cut=True), None),
    "client-find": (ClientFindCall(ID, 1, "anna", bytes(16), 3, 1), None),
    "client-find-answer": (ClientFindResp(ID, 1, 2, (ID, OTHER), is_cut=False), None),
}


def frame_of(name: str) -> bytes:
    return b"".join(frames.encode(*MESSAGES[name]))


def read_whole(frame: bytes) -> tuple[GatewayMessage, Batch | None]:
    message, body = frames.decode(frame)
    return message, frames.batch_in(body) if body else None


@pytest.mark.parametrize("name", MESSAGES)
def test_the_golden_bytes_of_gateways(name: str) -> None:
    message, batch = MESSAGES[name]
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert frame_of(name).hex() == "".join(golden[name])
    assert read_whole(frame_of(name)[frames.LENGTH_BYTES :]) == (message, batch)


def test_every_message_of_a_link_has_a_golden_frame() -> None:
    assert {type(message) for message, _ in MESSAGES.values()} == set(get_args(GatewayMessage))
    assert set(json.loads(GOLDEN.read_text(encoding="utf-8"))) == set(MESSAGES)


@pytest.mark.parametrize("name", ["wants", "copy", "find"])
def test_no_flipped_bit_of_a_frame_passes(name: str) -> None:
    frame = frame_of(name)[frames.LENGTH_BYTES :]
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            read_whole(bytes(flipped))


def test_the_machines_messages_come_out_as_they_went_in() -> None:
    note = RoutedNote(NEWS, (CLUSTER,))
    assert frames.inward(frames.outward(note)) == note
    part = frames.hop_part(COPY, 1, None)
    assert frames.copy_of(part, BATCH) == COPY
    assert frames.copy_of(frames.hop_part(HEAD_COPY, 1, HEAD), None) == HEAD_COPY


@pytest.mark.parametrize(
    "body",
    [
        TopicQuiet((ID, OTHER), 1, "orders", (GATE,)),
        TopicWanted((ID, OTHER), 1, "orders", (OTHER,)),
        TopicHeard((ID, OTHER), 1, "orders", OTHER),
        AddresseesUnknown((ID,), COPY.event.id, ("anna",)),
        ClientMoved((ID,), "anna", 3, (OTHER,)),
        ClientReleased((ID,), "anna", 3, OTHER),
    ],
)
def test_every_note_comes_out_as_it_went_in(body: NoteBody) -> None:
    data = b"".join(frames.encode(frames.outward(RoutedNote(body, (CLUSTER,)))))
    message, _ = frames.decode(data[frames.LENGTH_BYTES :])
    assert frames.inward(message) == RoutedNote(body, (CLUSTER,))


def test_a_hop_part_does_not_fit_another_batch() -> None:
    part = frames.hop_part(COPY, 1, None)
    with pytest.raises(RemoteProtocolError, match="another batch"):
        frames.copy_of(replace(part, id=part.id._replace(sequence=8)), BATCH)
    with pytest.raises(RemoteProtocolError, match="neither a batch nor a head"):
        frames.copy_of(part, None)


def test_what_is_kept_is_read_as_it_was_written() -> None:
    place = KeptPlace((RECORD,), has_joined=True)
    assert frames.place_in(frames.stored_place(place)) == place
    event = frames.event_of(BATCH)
    kept = KeptEvent(event, (ID, OTHER), 0, (CHARGE,), ((CHARGE.charge, None), (NEED.charge, NEED.turn)), True)
    assert frames.event_in(frames.stored_event(event.id, kept)) == (event.id, kept)
    roamer = KeptClient(3, NEWS.joined[1], ((ID, OTHER),), (OTHER,), 7)
    assert frames.client_in(frames.stored_client(roamer)) == roamer
    done = KeptEvent(None, is_delivered=True)
    assert frames.event_in(frames.stored_event(event.id, done)) == (event.id, done)
    for want in NEWS.joined:
        assert frames.want_in(frames.stored_want(want)) == want
    assert frames.body_in(frames.stored_body(BATCH)) == BATCH
    assert frames.body_in(frames.stored_body(HEAD)) == HEAD


def test_limits_hold_in_both_directions() -> None:
    most = StreamFindCall(ID, 1, NodeId(OTHER), "t" * 200, 3, 0, 64)
    assert frames.decode(b"".join(frames.encode(most))[frames.LENGTH_BYTES :])[0] == most
    with pytest.raises(LocalProtocolError, match="201 bytes"):
        frames.encode(StreamFindCall(ID, 1, NodeId(OTHER), "t" * 201, 3, 0, 64))
    with pytest.raises(LocalProtocolError, match="hops is 65"):
        frames.encode(StreamFindCall(ID, 1, NodeId(OTHER), "t", 3, 0, 65))


def test_what_is_for_the_disk_does_not_pass_on_a_link() -> None:
    avro = frames.stored_place(KeptPlace((RECORD,), has_joined=True))
    content = frames.HEADER.pack(0, 60, len(avro), xxh3_64_intdigest(avro, seed=60))[frames.LENGTH_BYTES :]
    with pytest.raises(RemoteProtocolError, match="not for links"):
        frames.decode(content + avro)
