"""The messages between nodes of a federation: over links, and as calls to an address while they have no link."""

from enum import IntEnum
from typing import NamedTuple

from m4cast.overlay.federation.units import Chain, Unit, UnitId, UnitRecord
from m4cast.overlay.profiles.profile import Profile
from m4cast.overlay.profiles.summary import Summary
from m4cast.overlay.value import value

# ---- connections (A4)


class GatewayStatus(IntEnum):
    UP = 0
    SUSPECTED = 1
    REMOVED = 2


@value
class GatewaySide:
    """The statement of one end of a connection about it. The higher generation counts."""

    generation: int
    status: GatewayStatus = GatewayStatus.UP
    extra: int = 0
    """The cost of using the connection beyond the levels of its ends."""


class GateId(NamedTuple):
    """One end of a connection: a node that is gatekeeper by it. It is the same however coarsely the end is seen."""

    connection: bytes
    side: int


@value
class GatewayConnection:
    """A link between two nodes, as a third one sees it: each end as a unit beside its own."""

    id: bytes
    level: int
    ends: tuple[Unit, Unit]
    """The ends, by side; side 0 is the node with the smaller id."""
    sides: tuple[GatewaySide, GatewaySide]
    addresses: tuple[str, str]
    """The addresses of the two nodes."""

    @property
    def status(self) -> GatewayStatus:
        return max(self.sides[0].status, self.sides[1].status)

    @property
    def extra(self) -> int:
        return max(self.sides[0].extra, self.sides[1].extra)


@value
class UnitHello:
    """The first message on a link, both ways."""

    records: tuple[UnitRecord, ...]
    """The records of the sender's own units, from itself up."""
    nonce: bytes
    """Makes the id of the connection: a link that comes back is another connection."""


@value
class GatewayNews:
    """Connections and records that are new to the receiver, rewritten for it."""

    records: tuple[UnitRecord, ...]
    connections: tuple[GatewayConnection, ...]
    is_whole: bool = False
    """True if, with what went before, the receiver has all that there is to know, as the sender does."""


# ---- what units want (A11, A12)


@value
class UnitWant:
    """Rows of a topic that are wanted: all, or those of a profile."""

    topic: str
    profile: Profile | None = None

    @property
    def key(self) -> tuple[str, bytes]:
        return self.topic, b"" if self.profile is None else self.profile.id


class WantsVersion(NamedTuple):
    incarnation: int
    number: int


NO_WANTS = WantsVersion(0, 0)


@value
class WantsNews:
    """The wants of a unit, from one of its announcers: whole, or as the difference from a version."""

    to: tuple[GateId, ...]
    level: int
    announcer: Chain
    version: WantsVersion
    base: WantsVersion
    """NO_WANTS: `joined` is all."""
    gates: tuple[GateId, ...]
    """The gates by which the announcer is a gatekeeper. Without any of them it is no longer heard (H50)."""
    is_all: bool
    """The unit may want anything: the announcer does not know yet."""
    joined: tuple[UnitWant, ...]
    left: tuple[tuple[str, bytes], ...]


@value
class WantsAck:
    """The gatekeepers have applied a version; or, of a base that they lack, hold another."""

    to: Chain
    level: int
    gates: tuple[GateId, ...]
    version: WantsVersion
    active: int
    """Every batch from inside the announcer's unit of this level reaches whoever wants it. 0: the version is what is
    held, and the difference did not fit."""


# ---- answers to publishers (quenching, A14)


class EventId(NamedTuple):
    """Unique for good: the publisher's id, its incarnation, when it started to count, and the count (A15)."""

    publisher: bytes
    incarnation: int
    time_ms: int
    sequence: int


@value
class TopicQuiet:
    """No node in the publisher's unit of this level, its own sub-unit aside, wants anything of the topic. The
    gatekeeper says so when that changes, and confirms no new want before the publisher has heard."""

    to: Chain
    level: int
    topic: str
    gates: tuple[GateId, ...]
    """The gates of the gatekeeper: without them its statements no longer count."""


@value
class TopicWanted:
    """Some unit wants something of the topic, or may."""

    to: Chain
    level: int
    topic: str
    by: Chain


@value
class TopicHeard:
    """The publisher knows that the topic is wanted."""

    to: Chain
    level: int
    topic: str
    origin: UnitId


@value
class AddresseesUnknown:
    """A batch named clients that nobody in the whole federation answers for (A14)."""

    to: Chain
    event: EventId
    clients: tuple[str, ...]


# ---- clients that roam (A17)


@value
class ClientMoved:
    """A client is at another node, where its want is confirmed for the unit that both nodes are in."""

    to: Chain
    client: str
    incarnation: int
    by: Chain


@value
class ClientReleased:
    """The node that the client left has withdrawn its want, and hands over what it has for it."""

    to: Chain
    client: str
    incarnation: int
    by: UnitId


NoteBody = (
    WantsNews | WantsAck | TopicQuiet | TopicWanted | TopicHeard | AddresseesUnknown | ClientMoved | ClientReleased
)


@value
class RoutedNote:
    """A message to gatekeepers, or to a node, anywhere in the units that the sender can see."""

    body: NoteBody
    trail: tuple[Unit, ...]


# ---- batches (A13 to A16)


@value
class UnitEvent:
    """A batch on its way. The federation looks at topic and summary only."""

    id: EventId
    topic: str
    summary: Summary | None
    """None: nobody can tell what is in it, so that every want on the topic matches."""
    body: bytes = b""
    to: tuple[str, ...] = ()
    """Mail: the clients that it is for, who want it by the column `to`. The publisher is told which of them nobody
    knows."""
    origin: Chain = ()
    """The units of the node where it was published, which writes them: answers go there."""


class ChargeKind(IntEnum):
    NEED = 0
    """Bring it to a gatekeeper of the unit, to have its sub-units matched."""
    UNIT = 1
    """Bring it into the unit."""
    HAND = 2
    """Bring it to a client that has moved to this node."""


class Charge(NamedTuple):
    kind: ChargeKind
    unit: Unit
    client: str = ""
    incarnation: int = 0
    """The client's incarnation when it came to the node: one that comes back is handed batches that it was handed
    before."""


class Turn(NamedTuple):
    """The attempt at a charge that a copy belongs to: unique, since each node counts its own. The highest is carried
    out."""

    attempt: int
    node: UnitId


@value
class CarriedCharge:
    charge: Charge
    turn: Turn
    trail: tuple[Unit, ...] = ()
    """Units crossed since the charge was issued: it enters none of them again."""
    chain: Chain = ()
    """The units of the node that a HAND is for."""


@value
class EventCopy:
    number: int
    """Counts the copies on this link."""
    event: UnitEvent
    served: Chain
    """The units that the batch was issued in, from `served_from` up."""
    served_from: int
    charges: tuple[CarriedCharge, ...]


@value
class EventAck:
    """All copies up to this number are on the receiver's disk, or done with."""

    number: int


@value
class LinkProbe:
    """Asks whether a suspected link works."""

    is_answer: bool = False


LinkMessage = UnitHello | GatewayNews | RoutedNote | EventCopy | EventAck | LinkProbe

# ---- additions (A2, A3)


@value
class AdditionCall:
    """A node asks to be let in, to be linked, or to have its unit let in."""

    call: int
    node: UnitId
    bits: int
    """Read from the right: bit 0 = become a member of the cluster; bit l = be a gatekeeper of level l."""
    host: str
    chain: Chain | None
    """The chain of a node that is already in the federation, or whose unit is to be added."""
    unit_level: int = 0
    """The level of the unit that is to be added with all that is in it; 0: none."""
    unit_epoch: int = 0
    tried: tuple[UnitId, ...] = ()
    """Members of the addressee's cluster that had no room."""


@value
class AdditionForward:
    """A member of the cluster had no room: the next one is asked for the requester."""

    requester: str
    call: AdditionCall


@value
class AdditionAccept:
    call: int
    records: tuple[UnitRecord, ...]
    """The records of the requester's units, from the level that is new up."""
    level: int
    """The level of the link that is reserved."""
    address: str
    """The address to link to."""


@value
class AdditionRedirect:
    """The cluster is full: gatekeepers of neighbouring clusters, to be asked in turn."""

    call: int
    addresses: tuple[str, ...]


@value
class AdditionOffer:
    """A node with room for a gateway of this level, and where the requester may become a member first."""

    call: int
    level: int
    address: str
    elsewhere: tuple[str, ...]


@value
class AdditionRefused:
    call: int
    reason: str


AdditionMessage = AdditionCall | AdditionForward | AdditionAccept | AdditionRedirect | AdditionOffer | AdditionRefused
