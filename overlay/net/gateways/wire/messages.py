"""Messages between gatekeepers, as they are on a link or on disk. Those of the federation's machine that are as they
are there have no class here; each class has a record of the same name and fields in `schemas/avro/gateway.avsc`."""

from typing import NamedTuple

from m4cast.overlay.federation.messages import (
    AdditionMessage,
    AddresseesUnknown,
    CarriedCharge,
    Charge,
    ClientMoved,
    ClientReleased,
    EventAck,
    EventId,
    GateId,
    GatewayNews,
    LinkProbe,
    TopicHeard,
    TopicQuiet,
    TopicWanted,
    Turn,
    UnitHello,
    WantsVersion,
)
from m4cast.overlay.federation.units import Chain, Unit, UnitId, UnitRecord
from m4cast.overlay.ids import NodeId
from m4cast.overlay.value import value

GATEWAY_VERSION_MIN = GATEWAY_VERSION_MAX = 1


class WantedProfile(NamedTuple):
    language: str
    version: int
    text: str


class UnitRows(NamedTuple):
    topic: str
    profile: WantedProfile | None


class WantsKey(NamedTuple):
    topic: str
    profile: bytes


class TakenCharge(NamedTuple):
    charge: Charge
    turn: Turn | None


class ExportedStream(NamedTuple):
    """Everything of the stream below `next` was handed to the federation."""

    origin: NodeId
    topic: str
    next: int


@value
class StreamHead:
    """The part of a stream that its channel keeps: `low .. next - 1`. Sent in place of a batch when a stream is idle,
    so that those that want it notice missing rows."""

    origin: NodeId
    topic: str
    low: int
    next: int


@value
class GatewayHello:
    """First message in both directions. Anything else before it is a protocol error."""

    version_min: int
    version_max: int
    is_call: bool
    node: UnitId
    address: str
    channel: str
    top: int


@value
class GatewayRefused:
    """The sender closes this connection; `detail` names the thing and the fix."""

    reason: str
    detail: str


@value
class WantsNewsNote:
    """`WantsNews` on its way."""

    to: tuple[GateId, ...]
    level: int
    announcer: Chain
    version: WantsVersion
    base: WantsVersion
    gates: tuple[GateId, ...]
    is_all: bool
    joined: tuple[UnitRows, ...]
    left: tuple[WantsKey, ...]
    trail: tuple[Unit, ...]


@value
class WantsAckNote:
    """`WantsAck` on its way."""

    to: Chain
    level: int
    gates: tuple[GateId, ...]
    version: WantsVersion
    active: int
    trail: tuple[Unit, ...]


@value
class PlainNote:
    """Another note on its way: exactly one of these."""

    quiet: TopicQuiet | None
    wanted: TopicWanted | None
    heard: TopicHeard | None
    unknown: AddresseesUnknown | None
    moved: ClientMoved | None
    released: ClientReleased | None
    trail: tuple[Unit, ...]


@value
class CarriedCopy:
    """The hop part of `EventCopy`; its batch follows in the same frame."""

    number: int
    id: EventId
    topic: str
    served: Chain
    served_from: int
    charges: tuple[CarriedCharge, ...]
    origin: Chain
    mail_to: tuple[str, ...]
    hops: int
    head: StreamHead | None = None
    """A head that travels in place of a batch."""
    is_final: bool = False
    """The channel that it was published on forbids the receiving one to pass it on to others (H46)."""


@value
class WithheldCopy:
    """A copy that no rule lets pass on this link. The receiver acknowledges its number, and knows no more of it."""

    number: int


@value
class ExportedStmt:
    """Sent to gatekeepers of the own channel, which continue from there if the sender fails."""

    entries: tuple[ExportedStream, ...]


@value
class StreamFindCall:
    """Asks who keeps row `first` of this stream. `begin_ms`: if the asker has nothing of it, the time to begin with."""

    asker: UnitId
    ask: int
    origin: NodeId
    topic: str
    first: int
    begin_ms: int
    hops: int


@value
class StreamFindResp:
    """All who were asked beyond the sender have answered. `low`: the first row kept from there on; 0: none is."""

    asker: UnitId
    ask: int
    low: int
    next: int
    first: int
    is_final: bool = False
    """The same as in `CarriedCopy`."""


@value
class StreamPullCall:
    """Goes where the find has found most."""

    asker: UnitId
    ask: int
    first: int
    next: int
    bytes_max: int


@value
class PulledBatch:
    """The batch follows in the same frame."""

    asker: UnitId
    ask: int


@value
class StreamPullResp:
    """The answer to a pull: the rows were sent up to `next`; 0: nothing was sent."""

    asker: UnitId
    ask: int
    next: int


@value
class AcrossFrame:
    """A routed frame follows, about a selective stream: on the way of a find, or back."""

    asker: UnitId
    ask: int
    is_back: bool


@value
class ClientFindCall:
    """Asks who has a row of this client with a lower session."""

    asker: UnitId
    ask: int
    key: str
    digest: bytes
    session: int
    hops: int


@value
class ClientFindResp:
    """All who were asked beyond the sender have answered. `session` 0: nobody has an older row."""

    asker: UnitId
    ask: int
    session: int
    at: Chain
    is_cut: bool


class TraceStep(NamedTuple):
    """One thing that a gatekeeper did with a batch."""

    gatekeeper: UnitId
    address: str
    channel: str
    hops: int
    at_ms: int
    kind: str
    peer: str
    unit: Unit | None
    hits: tuple[Unit, ...]
    wants: tuple[str, ...]


@value
class TraceCall:
    """Asks for the way of the batch that has this row."""

    asker: UnitId
    ask: int
    origin: NodeId
    topic: str
    sequence: int
    hops: int


@value
class TraceResp:
    """All who were asked beyond the sender have answered."""

    asker: UnitId
    ask: int
    steps: tuple[TraceStep, ...]
    is_cut: bool


@value
class StoredPlace:
    """`KeptPlace` on disk."""

    records: tuple[UnitRecord, ...]
    has_joined: bool


@value
class StoredCopy:
    """`KeptEvent` on disk, without the batch, which has a row of its own."""

    id: EventId
    topic: str
    summary: bytes
    has_event: bool
    served: Chain
    served_from: int
    open: tuple[CarriedCharge, ...]
    taken: tuple[TakenCharge, ...]
    is_delivered: bool
    origin: Chain
    mail_to: tuple[str, ...]


@value
class StoredHead:
    """A head on disk, on its way."""

    head: StreamHead


@value
class StoredRoamer:
    """`KeptClient` on disk."""

    incarnation: int
    rows: UnitRows
    previous: tuple[Chain, ...]
    to: Chain
    left_ms: int


@value
class StoredWish:
    """Rows that are wanted here, on disk."""

    rows: UnitRows


FindMessage = StreamFindCall | StreamFindResp | StreamPullCall | PulledBatch | StreamPullResp | AcrossFrame
ClientFindMessage = ClientFindCall | ClientFindResp
TraceMessage = TraceCall | TraceResp
GatewayMessage = (
    GatewayHello
    | GatewayRefused
    | UnitHello
    | GatewayNews
    | WantsNewsNote
    | WantsAckNote
    | PlainNote
    | CarriedCopy
    | WithheldCopy
    | EventAck
    | LinkProbe
    | AdditionMessage
    | ExportedStmt
    | FindMessage
    | ClientFindMessage
    | TraceMessage
)
"""The messages that may be sent on a link."""
