"""Inputs, outputs and settings of a `Federation`: the whole contract with whoever drives it.

`handle` takes an input and returns outputs in the order in which they are to be performed. One rule binds the driver:
**what the outputs of a call keep is durable before anything that they send leaves.** So a batch that is acknowledged to
a neighbour, or delivered, survives a crash together with what is left to do for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from m4cast.overlay.federation.messages import (
    AdditionMessage,
    CarriedCharge,
    Charge,
    EventId,
    LinkMessage,
    Turn,
    UnitEvent,
    UnitWant,
)
from m4cast.overlay.federation.units import LEVELS_MAX, Chain, Unit, UnitId, UnitRecord
from m4cast.overlay.value import value


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """Each says what raising it costs."""

    top: int = 1
    """The top level, equal in the whole federation: 64 ** (top + 1) nodes. Higher: more matchings on the way."""
    links_max: tuple[int, ...] = (8, 4, 4, 4, 4, 4, 4, 4)
    """The most links of each level at this node (GES's connection thresholds). More: shorter ways, more to tell."""
    hosts_refused: tuple[str, ...] = ()
    """Newcomers whose address begins with one of these are refused."""
    top_filter: bool = True
    """Units of the top level get what somebody inside wants. False: they get every batch, as in the paper."""
    news_delay_ms: int = 5
    """News of connections and wants waits so long for company. Longer: fewer messages, slower news. Guess."""
    check_ms: int = 2_000
    """The interval at which loads and overdue acknowledgements are checked. GES: every few seconds."""
    suspect_ms: int = 3_000
    """A link that acknowledges nothing for this long, of what was sent, is suspected. Longer: a stalled link holds
    batches for longer."""
    call_ms: int = 2_000
    """The time to wait for the answer to a call. A place is reserved for five times as long. Guess."""
    retry_ms: int = 1_000
    """The delay before unacknowledged wants are announced again, doubling up to a minute, and before stuck batches are
    retried. Guess."""
    bury_ms: int = 6_000
    """A gatekeeper of the own cluster that cannot be reached for this long: its gateways are declared gone. Guess."""
    stale_ms: int = 300_000
    """Connections that cannot be reached are forgotten after this, removed ones after twice as long. Guess."""
    absent_ms: int = 600_000
    """The time for which a unit's wants count after the last connection of their announcer was lost; then they are
    forgotten. Longer: batches are kept for units that will not return; shorter: a unit that returns later has missed
    batches. Guess."""
    drain_ms: int = 10_000
    """The time for which the want of a client that moved away is kept, for batches on their way to it. Longer: more
    batches are delivered to both nodes; shorter: batches that were delayed for longer are missed. Guess."""
    events_max: int = 65_536
    """Batches remembered, so that a copy that comes again is not delivered again. More: memory. Guess."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= LEVELS_MAX:
            raise ValueError(f"top = {self.top}: between 1 and {LEVELS_MAX}")
        if len(self.links_max) <= self.top or min(self.links_max) < 0:
            raise ValueError(f"links_max = {self.links_max}: a number for each level from 0 to {self.top}")


# ---- what is kept


@value
class KeptEvent:
    """A batch that this node has, and what it has to do for it. Without an event: done with."""

    event: UnitEvent | None
    served: Chain = ()
    served_from: int = 0
    open: tuple[CarriedCharge, ...] = ()
    taken: tuple[tuple[Charge, Turn | None], ...] = ()
    """Charges that were here, with the highest turn; None: carried out here."""
    is_delivered: bool = False


@value
class KeptPlace:
    """The node's place in the hierarchy, and the units beside its own."""

    records: tuple[UnitRecord, ...]
    has_joined: bool
    """It is, or was, linked: without links it waits for them, and does not take itself for the whole federation."""


@value
class KeptClient:
    """A client that roams, at a node where it is or was."""

    incarnation: int
    want: UnitWant
    previous: tuple[Chain, ...] = ()
    """The nodes that it came from, until they have released it."""
    to: Chain = ()
    """The node that it went to."""
    left_ms: int = 0


KeptKey = tuple[str, object]
"""("place", None), ("want", name), ("client", name) or ("event", id)."""
KeptValue = KeptPlace | UnitWant | KeptClient | KeptEvent


@dataclass(slots=True)
class FederationRecovered:
    """The state recovered from disk; empty for a new node."""

    node: UnitId
    incarnation: int
    address: str
    kept: Mapping[KeptKey, KeptValue] = field(default_factory=dict)


# ---- inputs


@value
class LinkOpened:
    """A link was made, by this node or to it."""

    conn: int


@value
class LinkClosed:
    conn: int


@value
class LinkHeard:
    conn: int
    message: LinkMessage


@value
class LinkDelay:
    """The time for which messages wait for the link, measured by the driver. `waits_from`: the number of the first copy
    that the driver has not sent yet; 0: it has sent all."""

    conn: int
    delay_ms: int
    waits_from: int = 0


@value
class AddressHeard:
    """A message from an address, without a link."""

    sender: str
    message: AdditionMessage


@value
class ConnectFailed:
    address: str


@value
class TimeCame:
    """The time that `Federation.next_at` named has come."""


@value
class JoinUnit:
    """Be added by the node at this address; `bits` as in AdditionCall."""

    bits: int
    address: str


@value
class MergeUnit:
    """Add this node's whole unit of this level to the federation of the node at this address."""

    level: int
    address: str


@value
class LeaveUnit:
    """Leave the cluster for good. Refused (`AdditionFailed`) while batches wait here to be handed over."""


@value
class WantRows:
    """A client wants rows, under a name of its own."""

    name: str
    want: UnitWant


@value
class UnwantRows:
    name: str


@value
class PublishEvent:
    event: UnitEvent


@value
class ClientArrived:
    """A client that roams is at this node. It brings its want, its incarnation, which rises each time that it connects,
    and the units of the node where it was (`PlaceChanged`), if it was at one."""

    name: str
    incarnation: int
    want: UnitWant
    previous: Chain = ()


@value
class HandOver:
    """A batch that this node had for a client that it has released (`ClientGone`)."""

    name: str
    event: UnitEvent


FederationInput = (
    LinkOpened
    | LinkClosed
    | LinkHeard
    | LinkDelay
    | AddressHeard
    | ConnectFailed
    | TimeCame
    | JoinUnit
    | MergeUnit
    | LeaveUnit
    | WantRows
    | UnwantRows
    | PublishEvent
    | ClientArrived
    | HandOver
)

# ---- outputs


@value
class KeepValue:
    """Keep the value under the key; None: forget it."""

    key: KeptKey
    value: KeptValue | None


@value
class SendLink:
    conn: int
    message: LinkMessage


@value
class SendAddress:
    address: str
    message: AdditionMessage


@value
class ConnectTo:
    """Make a link to the node at this address."""

    address: str


@value
class CloseLink:
    conn: int
    is_final: bool = False
    """It is not to be made again."""


@value
class UnsendCopies:
    """Drop the copies with these numbers if they still wait for the link: they go another way (anti-events, A16)."""

    conn: int
    numbers: tuple[int, ...]


@value
class DeliverEvent:
    """The batch is for these wants of this node, by name."""

    event: UnitEvent
    names: tuple[str, ...]
    is_handed_over: bool = False
    """True if it comes from the node where the client was before: the client may have received it there."""


@value
class ClientGone:
    """A client is at another node, which has confirmed its want: hand over what is left for it here (`HandOver`). Said
    again after a restart."""

    name: str
    incarnation: int


@value
class ClientRefused:
    """An arrival with an incarnation that is not higher than the last one."""

    name: str
    incarnation: int


@value
class TopicQuenched:
    """Output: no unit wants anything of the topic, so what is published of it here is sent nowhere; or some unit does
    again."""

    topic: str
    is_quenched: bool


@value
class MailUnknown:
    """Output: no unit answers for these clients, so a batch of this node did not reach them."""

    event: EventId
    clients: tuple[str, ...]


@value
class WantActive:
    """A want is active up to this level: 0 = this node, 1 = its cluster, ..., top + 1 = everywhere.

    `is_confirmed`: every gatekeeper concerned has applied it, so that no matching batch issued inside is missed. If
    not, a batch from there was seen, which proves one way only (X20)."""

    name: str
    level: int
    is_confirmed: bool


@value
class AdditionDone:
    """A request of this node was granted, and the link is up."""

    bits: int


@value
class AdditionFailed:
    bits: int
    reason: str


@value
class PlaceChanged:
    """The node's units, and their numbers from the top down."""

    chain: Chain
    numbers: tuple[int, ...]


@value
class PartitionChanged:
    """Units beside the own one that cannot be reached, all of them; none: the partition is over."""

    level: int
    unreachable: tuple[Unit, ...]


@value
class MatchedUnits:
    """A step of a batch's trace: a gatekeeper matched it for a unit, and these sub-units get it."""

    event: EventId
    unit: Unit
    hits: tuple[Unit, ...]


FederationOutput = (
    KeepValue
    | SendLink
    | SendAddress
    | ConnectTo
    | CloseLink
    | UnsendCopies
    | DeliverEvent
    | ClientGone
    | ClientRefused
    | TopicQuenched
    | MailUnknown
    | WantActive
    | AdditionDone
    | AdditionFailed
    | PlaceChanged
    | PartitionChanged
    | MatchedUnits
)
