"""Routed frames and the control messages of selective topics (PROTOCOL.md, section 18)."""

from typing import NamedTuple

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Extension, How
from m4cast.overlay.protocol.wire.messages import Message
from m4cast.overlay.value import value

ROUTED_VERSION = 4
"""The first protocol version that has routed frames. They travel over links and through nodes that have it, alone."""
SPREAD_EXTENSION = 2
"""The extension of a batch that belongs to a selective stream. It must be understood."""
SELECTIVE = 1
KEEPERS_MAX = 8


class Destination(NamedTuple):
    """A node that a routed frame is for, and the statement to it: of this version of its entry nothing that matches
    lies between `first` and the batch. In control frames `first` is 0."""

    node_id: NodeId
    first: int
    version: int


class ProfileText(NamedTuple):
    """A condition as text, in a named language."""

    language: str
    version: int
    text: str


class CoverEntry(NamedTuple):
    """The statement that no row in `first .. next - 1` of the topic's stream matches."""

    topic: str
    first: int
    next: int
    checksum: int
    """The checksum of the batch that ends at `next`; 0: unknown."""


class SelectAckEntry(NamedTuple):
    topic: str
    next: int


class SentBatch(NamedTuple):
    first: int
    next: int


class KeptEntry(NamedTuple):
    """The position up to which the sender has a stream without a hole."""

    origin: NodeId
    topic: str
    next: int
    checksum: int


# ---- messages


@value
class CoverStmt:
    """Statements about streams of this origin, for the version that each destination is listed with."""

    origin: NodeId
    entries: tuple[CoverEntry, ...]


@value
class SelectAckStmt:
    """Everything that this version of the sender's entry wants of these streams, below `next`, is on its disk."""

    origin: NodeId
    version: int
    entries: tuple[SelectAckEntry, ...]


@value
class SelectPullCall:
    """Please send me what matches one of these profiles (none: every row) in `first_sequence .. next_sequence - 1`."""

    call: int
    origin: NodeId
    topic: str
    first_sequence: int
    next_sequence: int
    version: int
    """The version of the asker's entry for which the answer counts."""
    checksum: int
    """The checksum of the batch that ends at `first_sequence`; 0: unknown."""
    profiles: tuple[ProfileText, ...]
    bytes_max: int


@value
class SelectPullResp:
    """These batches were sent. Besides them nothing matches in `first_sequence .. covered_next - 1`."""

    call: int
    origin: NodeId
    topic: str
    first_sequence: int
    covered_next: int
    low: int
    """Below this position the sender lacks rows that it wanted: retention removed them, here or wherever it asked."""
    next: int
    """The end of what the sender knows of the stream."""
    is_whole: bool
    """The sender has, or had, every row from the first on."""
    is_fork: bool
    batches: tuple[SentBatch, ...]


@value
class BeginCall:
    """Asks where the stream begins for a registration that was made at this time, or that names this time. One answer
    for each."""

    call: int
    origin: NodeId
    topic: str
    times_ms: tuple[int, ...]
    are_named: bool
    """The registrations name these times; otherwise they were made then."""


@value
class BeginResp:
    call: int
    origin: NodeId
    topic: str
    begins: tuple[int, ...]


@value
class KeepCall:
    """Keep all selective streams of the sender, or keep them no longer."""

    keep: bool


@value
class KeptCall:
    """A question: which streams of these origins do you keep, and how far?"""

    origins: tuple[NodeId, ...]


@value
class KeptResp:
    entries: tuple[KeptEntry, ...]


class Confirmation(NamedTuple):
    """This node, in this incarnation, has applied the entry up to this version."""

    node_id: NodeId
    incarnation: int
    applied_incarnation: int
    applied_ts: int


@value
class ActiveCall:
    """Please confirm, when you have applied my entry up to this version."""

    incarnation: int
    ts: int


@value
class ActiveStmt:
    """These nodes have applied the subscriber's entry."""

    subscriber: NodeId
    hops: int
    """Links that the oldest of them has travelled."""
    confirmations: tuple[Confirmation, ...]


RoutedMessage = (
    CoverStmt
    | SelectAckStmt
    | SelectPullCall
    | SelectPullResp
    | BeginCall
    | BeginResp
    | KeepCall
    | KeptCall
    | KeptResp
    | ActiveCall
    | ActiveStmt
)


@value
class RoutedFrame:
    """A batch or message on its way to several nodes along the tree of its speaker."""

    speaker: NodeId
    destinations: tuple[Destination, ...]
    content: Batch | RoutedMessage
    hops: int = 0
    how: How = How.PUBLISHED


WireFrame = Message | BatchFrame | RoutedFrame
"""Whatever travels over a link."""


def spread_extension(keepers: int) -> Extension:
    return Extension(SPREAD_EXTENSION, True, bytes((SELECTIVE, keepers)))


def is_selective(batch: Batch) -> bool:
    return any(extension.type == SPREAD_EXTENSION for extension in batch.extensions)
