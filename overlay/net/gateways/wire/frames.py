"""Frames between gatekeepers: a checksummed hop part in Avro, and, of copies, the batch as its origin sealed it.

    u32 bytes that follow | u8 message number | u32 bytes of the hop part | u64 XXH3 of it | hop part | batch

The message number is the seed of the checksum, so that no hop part passes for one of another kind.
Strict as the channel's own control messages are (`protocol/wire/control.py`): every message has one encoding, every
value a limit, and a batch is held against its checksum before anything else looks at it (guarantee 8).
"""

import struct
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, get_args

from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.federation.contract import KeptClient, KeptEvent, KeptPlace
from m4cast.overlay.federation.messages import (
    AdditionMessage,
    AddresseesUnknown,
    CarriedCharge,
    Charge,
    ChargeKind,
    ClientMoved,
    ClientReleased,
    EventAck,
    EventCopy,
    EventId,
    GateId,
    GatewayConnection,
    GatewayNews,
    GatewaySide,
    GatewayStatus,
    LinkMessage,
    LinkProbe,
    RoutedNote,
    TopicHeard,
    TopicQuiet,
    TopicWanted,
    Turn,
    UnitEvent,
    UnitHello,
    UnitWant,
    WantsAck,
    WantsNews,
    WantsVersion,
)
from m4cast.overlay.federation.units import Unit, UnitRecord
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.wire.messages import (
    AcrossFrame,
    CarriedCopy,
    ClientFindMessage,
    ExportedStmt,
    ExportedStream,
    FindMessage,
    GatewayHello,
    GatewayMessage,
    GatewayRefused,
    PlainNote,
    PulledBatch,
    StoredCopy,
    StoredHead,
    StoredPlace,
    StoredRoamer,
    StoredWish,
    StreamHead,
    TakenCharge,
    TraceMessage,
    TraceStep,
    UnitRows,
    WantedProfile,
    WantsAckNote,
    WantsKey,
    WantsNewsNote,
    WithheldCopy,
)
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.condition import FilterError
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, Profile, UnknownLanguageError, canonical_text, read
from m4cast.overlay.protocol.selective.demand import summary_of
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.control import from_avro, more_kinds, to_avro
from m4cast.overlay.protocol.wire.frame import decode_body, encode_head
from m4cast.overlay.protocol.wire.selective import SPREAD_EXTENSION
from m4cast.schemas.avro_types import GATEWAY_FILES

HEADER = struct.Struct("<IBIQ")
LENGTH_BYTES = 4
AVRO_BYTES_MAX = 4 << 20
"""The maximum size of a hop part: far more than a federation within its limits needs."""
HELLO_BYTES_MAX = 4_096
PROFILES_REMEMBERED = 65_536

_VALUES: dict[str, Any] = {
    "Unit": Unit,
    "UnitRecord": UnitRecord,
    "GateId": GateId,
    "GatewaySide": lambda generation, status, extra: GatewaySide(generation, GatewayStatus(status), extra),
    "GatewayConnection": GatewayConnection,
    "WantedProfile": WantedProfile,
    "UnitRows": UnitRows,
    "WantsKey": WantsKey,
    "WantsVersion": WantsVersion,
    "EventId": EventId,
    "Charge": lambda kind, *rest: Charge(ChargeKind(kind), *rest),
    "TopicQuiet": TopicQuiet,
    "TopicWanted": TopicWanted,
    "TopicHeard": TopicHeard,
    "AddresseesUnknown": AddresseesUnknown,
    "ClientMoved": ClientMoved,
    "ClientReleased": ClientReleased,
    "Turn": Turn,
    "CarriedCharge": CarriedCharge,
    "TakenCharge": TakenCharge,
    "ExportedStream": ExportedStream,
    "StreamHead": StreamHead,
    "TraceStep": TraceStep,
}
_MESSAGES: dict[str, Any] = {
    message.__name__: message
    for message in (
        GatewayHello,
        GatewayRefused,
        UnitHello,
        GatewayNews,
        WantsNewsNote,
        WantsAckNote,
        PlainNote,
        CarriedCopy,
        WithheldCopy,
        EventAck,
        LinkProbe,
        *get_args(AdditionMessage),
        ExportedStmt,
        *get_args(FindMessage),
        *get_args(ClientFindMessage),
        *get_args(TraceMessage),
        StoredPlace,
        StoredCopy,
        StoredHead,
        StoredWish,
        StoredRoamer,
    )
}
_KINDS = more_kinds(GATEWAY_FILES, _MESSAGES, _VALUES)
_STORED = 60
"""Numbers from here on are of values on disk, and never on a link."""


# ---- frames


def encode(message: GatewayMessage, batch: Batch | bytes | None = None) -> list[bytes | memoryview]:
    """The pieces of a frame."""
    number, avro = to_avro(message)
    body = [] if batch is None else [batch] if isinstance(batch, bytes) else [encode_head(batch), batch.content]
    size = HEADER.size - LENGTH_BYTES + len(avro) + sum(map(len, body))
    return [HEADER.pack(size, number, len(avro), xxh3_64_intdigest(avro, seed=number)) + avro, *body]


def decode(content: bytes) -> tuple[Any, memoryview]:
    """The message in a frame without its first four bytes, and the bytes behind it."""
    if len(content) < HEADER.size - LENGTH_BYTES:
        raise RemoteProtocolError(f"a frame of {len(content)} bytes: at least {HEADER.size - LENGTH_BYTES} are needed")
    number, size, checksum = struct.unpack_from("<BIQ", content)
    start = HEADER.size - LENGTH_BYTES
    if size > min(AVRO_BYTES_MAX, len(content) - start):
        raise RemoteProtocolError(f"a hop part of {size} bytes in a frame of {len(content)}")
    avro = content[start : start + size]
    if xxh3_64_intdigest(avro, seed=number) != checksum:
        raise RemoteProtocolError("a hop part does not have its checksum")
    if number >= _STORED:
        raise RemoteProtocolError(f"message {number} is not for links")
    message: Any = from_avro(number, avro, _KINDS)
    body = memoryview(content)[start + size :]
    has_batch = isinstance(message, PulledBatch | AcrossFrame) or (
        isinstance(message, CarriedCopy) and message.head is None
    )
    if bool(body) != has_batch:
        raise RemoteProtocolError(f"{type(message).__name__} with {len(body)} bytes behind it")
    return message, body


def batch_in(body: memoryview | bytes) -> Batch:
    """The batch behind a hop part, or of a row of the store. Its checksum is checked."""
    return decode_body(bytes(body), (SPREAD_EXTENSION,))


def batch_bytes(batch: Batch) -> bytes:
    return encode_head(batch) + bytes(batch.content)


# ---- the machine's messages


def event_id(stream: StreamId, first_sequence: int) -> EventId:
    """A batch, as the federation knows it: the same at every gatekeeper."""
    topic = blake2b(stream.topic.encode(), digest_size=8).digest()
    return EventId(stream.origin + topic, 0, 0, first_sequence)


def event_of(batch: Batch) -> UnitEvent:
    """The batch for the machine, which needs no rows."""
    return UnitEvent(event_id(batch.stream, batch.first_sequence), batch.stream.topic, summary_of(batch))


def head_event(head: StreamHead, now_ms: int) -> UnitEvent:
    """A head for the machine: for all who want anything of the topic."""
    at = event_id(StreamId(head.origin, head.topic), head.next)
    return UnitEvent(at._replace(incarnation=1, time_ms=now_ms), head.topic, None)


def origin_of(event: EventId) -> NodeId:
    return NodeId(event.publisher[:16])


def hop_part(copy: EventCopy, hops: int, head: StreamHead | None, *, is_final: bool = False) -> CarriedCopy:
    return CarriedCopy(
        number=copy.number,
        id=copy.event.id,
        topic=copy.event.topic,
        served=copy.served,
        served_from=copy.served_from,
        charges=copy.charges,
        origin=copy.event.origin,
        mail_to=copy.event.to,
        hops=hops,
        head=head,
        is_final=is_final,
    )


def copy_of(part: CarriedCopy, batch: Batch | None) -> EventCopy:
    """The copy that came with this hop part; `RemoteProtocolError` if its batch or head is of another event."""
    if batch is not None:
        event = event_of(batch)
    elif part.head is not None:
        event = head_event(part.head, part.id.time_ms)
    else:
        raise RemoteProtocolError("a copy has neither a batch nor a head")
    if (part.id, part.topic) != (event.id, event.topic):
        raise RemoteProtocolError("a hop part names another batch than the one that it came with")
    event = replace(event, to=part.mail_to, origin=part.origin)
    return EventCopy(part.number, event, part.served, part.served_from, part.charges)


def outward(message: LinkMessage) -> GatewayMessage:
    """A message of the machine, as it is on a link. Copies of batches are not for this function."""
    match message:
        case RoutedNote(WantsNews() as news, trail):
            return WantsNewsNote(
                to=news.to,
                level=news.level,
                announcer=news.announcer,
                version=news.version,
                base=news.base,
                gates=news.gates,
                is_all=news.is_all,
                joined=tuple(map(wanted_rows, news.joined)),
                left=tuple(WantsKey(*key) for key in news.left),
                trail=trail,
            )
        case RoutedNote(WantsAck() as ack, trail):
            return WantsAckNote(ack.to, ack.level, ack.gates, ack.version, ack.active, trail)
        case RoutedNote(body, trail):
            return PlainNote(
                quiet=body if isinstance(body, TopicQuiet) else None,
                wanted=body if isinstance(body, TopicWanted) else None,
                heard=body if isinstance(body, TopicHeard) else None,
                unknown=body if isinstance(body, AddresseesUnknown) else None,
                moved=body if isinstance(body, ClientMoved) else None,
                released=body if isinstance(body, ClientReleased) else None,
                trail=trail,
            )
        case UnitHello() | GatewayNews() | EventAck() | LinkProbe():
            return message
    raise AssertionError(f"{type(message).__name__} has a frame of its own")


def inward(message: Any) -> LinkMessage | None:
    """The machine's message; None if it is not the machine's. Parses profiles: up to 20 ms each that is new."""
    match message:
        case WantsNewsNote():
            news = WantsNews(
                to=message.to,
                level=message.level,
                announcer=message.announcer,
                version=message.version,
                base=message.base,
                gates=message.gates,
                is_all=message.is_all,
                joined=tuple(map(unit_want, message.joined)),
                left=tuple((key.topic, key.profile) for key in message.left),
            )
            return RoutedNote(news, message.trail)
        case WantsAckNote(to, level, gates, version, active, trail):
            return RoutedNote(WantsAck(to, level, gates, version, active), trail)
        case PlainNote(quiet, wanted, heard, unknown, moved, released, trail):
            bodies = [each for each in (quiet, wanted, heard, unknown, moved, released) if each is not None]
            if len(bodies) != 1:
                raise RemoteProtocolError(f"a note with {len(bodies)} bodies: one is needed")
            return RoutedNote(bodies[0], trail)
        case UnitHello() | GatewayNews() | EventAck() | LinkProbe():
            return message
    return None


def wanted_rows(want: UnitWant) -> UnitRows:
    text = "" if want.profile is None else canonical_text(want.profile.text)
    return UnitRows(want.topic, WantedProfile(SQL, SQL_VERSION, text) if text else None)


def unit_want(rows: UnitRows) -> UnitWant:
    """A profile in a language that is unknown here, or whose text is not canonical, wants all: too much is safe."""
    return UnitWant(rows.topic, None if rows.profile is None else _profile(*rows.profile))


@lru_cache(PROFILES_REMEMBERED)
def _profile(language: str, version: int, text: str) -> Profile | None:
    try:
        return read(text, language, version)
    except (UnknownLanguageError, FilterError):
        return None


# ---- on disk


def stored_place(place: KeptPlace) -> bytes:
    return to_avro(StoredPlace(place.records, place.has_joined))[1]


def place_in(content: bytes) -> KeptPlace:
    stored: Any = from_avro(_STORED, content, _KINDS)
    return KeptPlace(stored.records, stored.has_joined)


def stored_want(want: UnitWant) -> bytes:
    return to_avro(StoredWish(wanted_rows(want)))[1]


def want_in(content: bytes) -> UnitWant:
    stored: Any = from_avro(_STORED + 3, content, _KINDS)
    return unit_want(stored.rows)


def stored_client(client: KeptClient) -> bytes:
    rows = wanted_rows(client.want)
    return to_avro(StoredRoamer(client.incarnation, rows, client.previous, client.to, client.left_ms))[1]


def client_in(content: bytes) -> KeptClient:
    row: Any = from_avro(_STORED + 4, content, _KINDS)
    return KeptClient(row.incarnation, unit_want(row.rows), row.previous, row.to, row.left_ms)


def stored_body(body: Batch | StreamHead) -> bytes:
    """A batch, or the head in place of one, that is on its way."""
    if isinstance(body, StreamHead):
        return b"\1" + to_avro(StoredHead(body))[1]
    return b"\0" + batch_bytes(body)


def body_in(content: bytes) -> Batch | StreamHead:
    if content[:1] == b"\1":
        stored: Any = from_avro(_STORED + 2, content[1:], _KINDS)
        head: StreamHead = stored.head
        return head
    return batch_in(content[1:])


def stored_event(event: EventId, kept: KeptEvent) -> bytes:
    summary = b"" if kept.event is None or kept.event.summary is None else summary_bytes.encode(kept.event.summary)
    row = StoredCopy(
        id=event,
        topic="" if kept.event is None else kept.event.topic,
        summary=summary,
        has_event=kept.event is not None,
        served=kept.served,
        served_from=kept.served_from,
        open=kept.open,
        taken=tuple(TakenCharge(*each) for each in kept.taken),
        is_delivered=kept.is_delivered,
        origin=() if kept.event is None else kept.event.origin,
        mail_to=() if kept.event is None else kept.event.to,
    )
    return to_avro(row)[1]


def event_in(content: bytes) -> tuple[EventId, KeptEvent]:
    row: Any = from_avro(_STORED + 1, content, _KINDS)
    event = None
    if row.has_event:
        summary = summary_bytes.decode(row.summary) if row.summary else None
        event = UnitEvent(row.id, row.topic, summary, to=row.mail_to, origin=row.origin)
    kept = KeptEvent(
        event=event,
        served=row.served,
        served_from=row.served_from,
        open=row.open,
        taken=tuple((each.charge, each.turn) for each in row.taken),
        is_delivered=row.is_delivered,
    )
    return row.id, kept
