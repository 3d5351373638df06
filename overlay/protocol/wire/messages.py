"""Control messages between nodes. Names follow the patents' where the patents have them (PROTOCOL.md, messages).

A `call` expects a `resp` on the same connection; a `stmt` does not. External messages travel on a call between
any two nodes, internal ones only between neighbours. Only flooded statements are de-duplicated: a walk
legitimately revisits nodes. Each class here has one record of the same name and fields in `schemas/avro/`.
"""

from typing import NamedTuple

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.wire.interest import (
    InterestAskStmt,
    InterestDigestStmt,
    InterestNewsStmt,
    InterestVersionsStmt,
)
from m4cast.overlay.value import value

PROTOCOL_VERSION_MIN = 1
PROTOCOL_VERSION_MAX = 4
HELD_VERSION = 2
"""The first version that has `HeldCall`, `HeldResp` and `AbsentStmt`, and in which any node may pull on a call of its
own."""
ENTRIES_PER_MESSAGE = 1_000
"""Entries of a list that a node puts into one message; receivers take a few more."""
INCARNATION_SHIFT = 32
"""A node counts its flooded searches from its incarnation shifted by this: others remember those of its last run."""


class Setting(NamedTuple):
    """A cluster setting in a hello; values are compared as text."""

    key: str
    value: str


class RosterEntry(NamedTuple):
    """A node's report about itself; the entry with the larger (incarnation, counter) wins."""

    node_id: NodeId
    incarnation: int
    counter: int
    address: str
    door: str
    """The address at which clients reach it; empty for a node without clients."""
    name: str
    site: str
    origin_batch: int
    """The number of batches that this node has numbered: it exposes a store that was rolled back."""
    leaving: bool
    beacon_interval_ms: int
    neighbours: tuple[NodeId, ...]


class HoldingEntry(NamedTuple):
    """The part of one stream that a node has: `low` the first sequence kept, `next` the next expected."""

    origin: NodeId
    topic: str
    low: int
    next: int


class FrontierEntry(NamedTuple):
    origin: NodeId
    topic: str
    next: int


class AckEntry(NamedTuple):
    """`held_from .. durable_next - 1` of this topic are on the sender's disk, without a skip."""

    topic: str
    held_from: int
    durable_next: int


class HeldEntry(NamedTuple):
    """The part of one stream that a node has: `held_from .. durable_next - 1` are on its disk without a skip, and
    everything below `next` is accepted."""

    origin: NodeId
    topic: str
    held_from: int
    durable_next: int
    next: int


# ---- both sides of every connection


@value
class Hello:
    """First message in both directions. Anything else before it is a protocol error."""

    version_min: int
    version_max: int
    node_id: NodeId
    incarnation: int
    address: str
    settings: tuple[Setting, ...]


@value
class RefusedStmt:
    """The sender closes this connection; `reason` is a stable word, `detail` names the thing and the fix."""

    reason: str
    detail: str


# ---- external


@value
class SeekingConnectionCall:
    """Are you fully connected to the channel?"""

    seeking: bool
    """The caller is not on the channel itself: a fellow, if you seek too."""
    depth: int
    """The number of ports of the channel's order, from the first on, that the caller has searched."""


@value
class SeekingConnectionResp:
    full: bool
    hears_you: bool
    """A beacon of the caller has reached the answerer lately: both are in one component."""
    depth: int
    """The same as in the call, from an answerer that seeks."""


@value
class ConnectionRequestCall:
    """Please initiate my connection; I have this many holes."""

    holes: int


@value
class ConnectionRequestResp:
    expected_holes: int
    diameter: int
    ready: bool
    """The answerer takes the caller as a neighbour on this very connection."""
    roster: tuple[RosterEntry, ...]


@value
class EdgeProposalCall:
    """The sender offers its edge to `neighbour`: it would connect to you, `neighbour` to the search's partner."""

    search: int
    neighbour: Contact
    partner: NodeId


@value
class EdgeProposalResp:
    accepted: bool
    search_on: bool
    """Refused, but another edge is still wanted: the walk goes on."""


@value
class PortConnectionCall:
    """The sender has a hole and proposes to be your neighbour."""


@value
class PortConnectionResp:
    accepted: bool


@value
class MergeCall:
    """Our components do not hear each other: let us be neighbours, each giving up one where it has no hole."""


@value
class MergeResp:
    accepted: bool


@value
class SwapCall:
    """Let us exchange ends: my edge to `partner` and one of yours, to d, become an edge between us and one between
    `partner` and d."""

    partner: Contact
    give_up: tuple[NodeId, ...]
    """d is one of these; empty: anybody."""
    keep: tuple[NodeId, ...]
    """d is none of these."""


@value
class SwapResp:
    accepted: bool
    given_up: tuple[Contact, ...]
    """d; empty when the sender had a hole and gave up none."""
    others: tuple[Contact, ...]
    """The sender's other neighbours, for further swaps."""


@value
class ConnectedStmt:
    """The sender, with whom the receiver was seeking, is on the channel now."""


@value
class HeldCall:
    """Asks what a node has of the streams of these origins, and of others of their lineage. The first is the asker
    itself, the others are its former ids."""

    origins: tuple[NodeId, ...]


@value
class HeldResp:
    """Everything that the sender has of the streams it was asked about, in one message or several (`last`), and what
    it knows of the asker by beacons: whether it knew the asker before its present incarnation, the latest incarnation
    that it has heard of (0: none), and how many batches the asker had numbered."""

    knew: bool
    incarnation: int
    origin_batch: int
    entries: tuple[HeldEntry, ...]
    last: bool


@value
class HolderFoundStmt:
    """Answer to a holder search: the sender has `low .. next - 1` of the stream and serves pulls on this call."""

    search: int
    origin: NodeId
    topic: str
    low: int
    next: int


# ---- internal: membership


@value
class PortSearchStmt:
    """The requester seeks a node with a hole. Flooded over `hops_max` hops."""

    requester: Contact
    search: int
    hops: int
    hops_max: int


@value
class EdgeSearchCall:
    """A random walk that looks for an edge u-v to replace by requester-u and partner-v (partner may be requester)."""

    requester: Contact
    partner: Contact
    search: int
    distance: int
    steps_left: int


@value
class EdgeSearchResp:
    """Sent to the neighbour from which the walk came: the edge between us was accepted (court `partner` now) or
    refused."""

    search: int
    accepted: bool
    partner: Contact


@value
class DiameterEstimateStmt:
    diameter: int


@value
class DisconnectStmt:
    """The sender leaves. Its neighbours connect in the listed pairs: first with second, third with fourth, ..."""

    neighbours: tuple[Contact, ...]


@value
class DropStmt:
    """The sender gives up this link but stays on the channel; the receiver has a hole."""


@value
class NeighboursStmt:
    """The sender's neighbours; sent on every change."""

    neighbours: tuple[NodeId, ...]


@value
class Heartbeat:
    frontier_digest: int
    clock_ms: int = 0
    """The time of the sender's clock since 1970; 0: not sent. An extension of the frame, not a field of the record."""


@value
class BeaconStmt:
    entry: RosterEntry
    hops: int
    version: int = 0
    """The latest protocol version of the node that it is about; 0: not sent. An extension of the frame, not a field of
    the record."""


@value
class FailedStmt:
    """A neighbour of this node lost it and cannot reach it. Flooded; a beacon with a later counter refutes it."""

    node_id: NodeId
    incarnation: int
    counter: int
    """The counter of the last beacon that the accuser has of it."""


@value
class AbsentStmt:
    """Sent to a new neighbour: nodes that may return and are absent at the sender. News is passed on."""

    entries: tuple[RosterEntry, ...]


@value
class ShutdownStmt:
    """The channel is being shut down: pass it on, and stop. Flooded."""

    requester: Contact
    """The node that a client asked for it."""


@value
class ApartStmt:
    """Walks to a random node, which swaps an edge with one of `beyond`: they are in another component."""

    beyond: tuple[Contact, ...]
    taken: tuple[NodeId, ...]
    """Ends of the swaps that were made: the next swap must have others."""
    swaps_left: int
    distance: int
    steps_left: int


# ---- internal: dissemination


@value
class SummaryStmt:
    """Digests of the sender's frontier in buckets of streams; the receiver answers with its holdings in those
    that differ. Sent at link-up, and when digests in heartbeats differ though nothing moves."""

    digests: tuple[int, ...]


@value
class HoldingsStmt:
    """The sender's holdings in the buckets that differed; `last` ends the answer to one summary."""

    entries: tuple[HoldingEntry, ...]
    your_incarnation: int
    your_origin_batch: int
    """The latest that the sender knows of the receiver: if that exceeds its own store, the store was rolled back."""
    last: bool


@value
class AnnounceStmt:
    """The sender has this large batch; pull it."""

    origin: NodeId
    topic: str
    first_sequence: int
    next_sequence: int
    payload_bytes: int


@value
class FrontierStmt:
    """The positions of the sender in streams of which it did not pass on every batch (coalesced)."""

    entries: tuple[FrontierEntry, ...]


@value
class PullCall:
    """Please send me `first_sequence .. next_sequence - 1`, at most about `bytes_max`."""

    origin: NodeId
    topic: str
    first_sequence: int
    next_sequence: int
    bytes_max: int


@value
class PullResp:
    """The answer to a pull: the rows have been sent up to `served_next`. `low` above the first sequence: the sender no
    longer keeps it; `next` not above it: the sender does not have it yet. `served_next` 0: the sender has it and cannot
    read it."""

    origin: NodeId
    topic: str
    first_sequence: int
    served_next: int
    low: int
    next: int


@value
class AckStmt:
    """Sent to an origin: how far its streams are on the sender's disk."""

    entries: tuple[AckEntry, ...]


@value
class HolderSearchStmt:
    """Asks who keeps this sequence. Flooded over `hops_max` hops; holders dial the requester."""

    requester: Contact
    search: int
    origin: NodeId
    topic: str
    sequence: int
    hops: int
    hops_max: int


@value
class PruneStmt:
    """The sender receives the stream sooner from elsewhere: do not push it here until it is pulled again."""

    origin: NodeId
    topic: str


Message = (
    Hello
    | RefusedStmt
    | SeekingConnectionCall
    | SeekingConnectionResp
    | ConnectionRequestCall
    | ConnectionRequestResp
    | EdgeProposalCall
    | EdgeProposalResp
    | PortConnectionCall
    | PortConnectionResp
    | MergeCall
    | MergeResp
    | SwapCall
    | SwapResp
    | ConnectedStmt
    | HeldCall
    | HeldResp
    | HolderFoundStmt
    | PortSearchStmt
    | EdgeSearchCall
    | EdgeSearchResp
    | DiameterEstimateStmt
    | DisconnectStmt
    | DropStmt
    | NeighboursStmt
    | Heartbeat
    | BeaconStmt
    | FailedStmt
    | AbsentStmt
    | ApartStmt
    | ShutdownStmt
    | SummaryStmt
    | HoldingsStmt
    | AnnounceStmt
    | FrontierStmt
    | PullCall
    | PullResp
    | AckStmt
    | HolderSearchStmt
    | PruneStmt
    | InterestDigestStmt
    | InterestVersionsStmt
    | InterestAskStmt
    | InterestNewsStmt
)
