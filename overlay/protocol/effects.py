"""The inputs and outputs of a node: the whole contract between the pure core and its drivers.

A driver (`overlay.net`, `overlay.sim`) feeds one input at a time and performs the outputs in order. Connections
and tokens are integers: connections that the node dials get their number from the node (odd), accepted ones from
the driver (even). A stale input (a connection or token that the node has forgotten) is harmless.

Storage contract. Appends become durable in the order they were asked for. After a crash the store holds a prefix
of them. When one fails, all that were asked for after it fail too, each with its own `AppendFailed`.

Reason: the file is long because it has every value of that contract, and nothing else. The values of selective topics
and clients stay here: the unions of inputs and outputs name them, and most modules take others with them.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, NamedTuple, TypeVar

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles.profile import Profile
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Delivery, Extension, Payload, Skip, StoredPayload
from m4cast.overlay.protocol.wire.interest import InterestItem, InterestKey
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.protocol.wire.selective import ProfileText, RoutedFrame, WireFrame
from m4cast.overlay.value import value

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")

# ---- values both ways


@value
class Range:
    """Rows that one commit gave to one stream."""

    stream: StreamId
    first_sequence: int
    next_sequence: int


@value
class KeyMove:
    """Move publisher `key` from position `expect` (None: the key is new) to `next`, or fail the whole commit."""

    key: str
    expect: str | None
    next: str


@value
class PublisherState:
    """The position of a publisher key and what the commit that moved it there wrote."""

    position: str
    ranges: tuple[Range, ...]
    origin: NodeId = NodeId(b"")
    """The identity this node had at that commit, and its `origin_batch` after it: which of two states is the later."""
    origin_batch: int = 0
    owner: str = ""
    """The client that created the key, as the door names it; empty: unknown, so it counts towards no client."""
    used_ms: int = 0
    """The node's `up_ms` when the key was last used; 0: unknown, so it counts from when the node first looks."""


@value
class FormerPart:
    """One batch of a commit of several batches, made under a former identity of this node.

    The parts of a commit come back from peers one by one. Each is durable with its batch until the commit is whole, so
    that a crash in between forgets none of the rows that its keys are answered with.
    """

    origin: NodeId
    """The former identity."""
    first_batch: int
    """`origin_batch` of the commit's first batch: together with `origin` it names the commit."""
    part: int
    key: str
    position: str
    rows: Range


@value
class Wish:
    """A registration that is asked for: rows of the topic that satisfy the profile are wanted at this node."""

    id: str
    topic: str
    profile: Profile | None = None
    """None: every row."""
    earliest: bool = False
    """True to begin with the earliest rows that are retained; else with those published from then on."""
    from_ms: int | None = None
    """The time of the wall clock at or after which the first rows were published."""
    positions: Mapping[NodeId, int] | None = None
    """The first rows, by origin; streams of other origins begin at their first row."""


@value
class Registration:
    """A wish that was granted: what this node wants, and since when."""

    topic: str
    language: str
    version: int
    text: str
    """The condition, as it was written in this language; empty: every row."""
    canonical: str
    """The same in canonical form: two registrations with equal ones want the same rows."""
    owner: str
    """The client that asked for it, as the door names it; empty: the node itself."""
    epoch: int
    since_ms: int
    """Time of the wall clock."""
    earliest: bool
    under: str
    """The id of a registration that covers this one, which is therefore not announced; empty: it is announced."""
    from_ms: int | None = None
    """The same as in `Wish`."""
    positions: Mapping[NodeId, int] | None = None
    """The same as in `Wish`."""

    @property
    def reaches_back(self) -> bool:
        """True if it begins with rows from before it was made. Others are told no more than this."""
        return self.earliest or self.from_ms is not None or self.positions is not None


@value
class ClientRow:
    """A row of the client table: a client is attached to a node."""

    session: int
    """Rises with every change of the access point."""
    covered: bool
    """The node has everything from the client's position on."""
    since_ms: int
    """Time of the wall clock."""
    digest: bytes
    """The digest of the client's credential."""


@value
class InterestState:
    """The version of this node's interest entry, and how many registrations were ever given up."""

    incarnation: int
    ts: int
    counter: int


@value
class Want:
    """A registration of this node, as the machine of selective topics knows it."""

    id: str
    topic: str
    profile: ProfileText | None
    """None: every row."""
    since_ms: int
    """Time of the wall clock."""
    earliest: bool = False
    keeps: NodeId | None = None
    """Every selective stream of this origin, whatever its topic."""
    from_ms: int | None = None
    """The same as in `Wish`."""
    positions: Mapping[NodeId, int] | None = None
    """The same as in `Wish`."""

    @property
    def begins_at_ms(self) -> int:
        """The time from which on its rows were published, if it does not name rows."""
        return self.since_ms if self.from_ms is None else min(self.from_ms, self.since_ms)


@value
class StoredWant:
    """A registration and the version of this node's entry with which it joined."""

    want: Want
    join: int


class BeginKey(NamedTuple):
    want: str
    stream: StreamId


@value
class TopicDescriptor:
    """The spread of those streams of a topic that begin from now on. The greater version (counter, node id) wins."""

    topic: str
    keepers: int
    route_by: tuple[str, ...]
    """Columns that publishes are split by, so that each batch has one value of them."""
    counter: int
    node_id: NodeId


@value
class InterestSpan:
    """A registration of this node, from when to when: what audits read."""

    id: str
    topic: str
    language: str
    text: str
    """Empty: every row."""
    owner: str
    epoch: int
    earliest: bool
    incarnation: int
    ts: int
    """Together with the incarnation, the version of this node's entry since which it counts."""
    from_ms: int
    """Time of the wall clock, as is `until_ms`."""
    revision: int
    """Counts changes of spans at this node: the greatest was changed last."""
    until_ms: int | None = None
    """None: it lasts."""
    until_incarnation: int = 0
    until_ts: int = 0
    """The version of the entry since which it does not count any longer."""


@value
class Staged:
    """A payload that waits in the store under a stage id; commit numbers it without reading or copying it."""

    topic: str
    row_count: int
    schema_id: int
    payload: Payload | StoredPayload
    """Bytes on the way to the store; once they are durable, the node keeps only their size and checksum."""
    checksum: int | None = field(default=None, compare=False)
    """XXH3-64 of the payload, if its producer has computed it: while the bytes are in the cache, off the node's
    thread."""
    extensions: tuple[Extension, ...] = field(default=(), compare=False)
    """The extensions that its batch carries besides the payload. In memory only: after a restart a staged payload has
    none."""


@value
class StoredStream:
    """Durable holdings of one stream, as read back at start."""

    low: int
    next: int
    last_checksum: int
    skips: tuple[Skip, ...] = ()
    owner: str = ""
    """The client whose publish created an own stream; empty: not known, so it counts towards no client."""
    last_published_ms: int = 0
    """The time at which the last batch of an own stream was published, even if that is no longer kept. 0 for streams
    of others."""
    origin_batch: int = 0
    """The `origin_batch` of the last batch in the log, for a selective stream of another node. 0 for all others."""


@value
class Recovered:
    """The state that a store had when it was opened. `former_ids`: identities given up after a rollback."""

    node_id: NodeId
    incarnation: int
    former_ids: tuple[NodeId, ...] = ()
    streams: dict[StreamId, StoredStream] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    origin_batch: int = 0
    roster: tuple[RosterEntry, ...] = ()
    records: "dict[type[StoredRecord[Any, Any]], dict[Any, Any]]" = field(default_factory=dict)
    """The rows of each kind of record, by key."""

    def of(self, kind: "type[StoredRecord[K, V]]") -> dict[K, V]:
        """The rows of one kind. The node that is made of this takes the publishers over and changes them: a copy of so
        many would be wasteful."""
        return self.records.setdefault(kind, {})


# ---- inputs: from the driver


@value
class Start:
    """Begin to seek the channel."""


@value
class Connected:
    conn: int
    peer_name: str = ""
    """The name in the peer's certificate; empty without certificates."""


@value
class DialFailed:
    conn: int


@value
class Disconnected:
    conn: int


@value
class Received:
    conn: int
    message: WireFrame


@value
class FrameProgress:
    """Part of a frame arrived on the connection: a large frame on a slow link is not silence. At most about once per
    second and connection."""

    conn: int


@value
class LinkBlocked:
    """The connection's send queue is over its limit: nothing but control until `LinkReady`."""

    conn: int


@value
class LinkReady:
    conn: int


@value
class Wake:
    """The time asked for by `WakeAt` has come (or any other time: harmless)."""


@value
class ClockSet:
    """The wall clock shows `now_ms + offset_ms` from now on: it was read for the first time, or was set."""

    offset_ms: int


@value
class Durable:
    """The append is on disk, and so are all that were asked for before it."""

    token: int


@value
class AppendFailed:
    token: int
    reason: str


@value
class RangeRead:
    """Batches found in the store, contiguous from the one that has the asked first sequence; empty when it is not there
    (any more)."""

    token: int
    batches: tuple[Batch, ...]
    following: int = 0
    """The first sequence after a batch that cannot be read. Only whole batches can be asked for."""


@value
class Damaged:
    """A batch in the store, `first_sequence .. next_sequence - 1`, was found to be unreadable."""

    stream: StreamId
    first_sequence: int
    next_sequence: int
    checksums: tuple[int, ...]
    """The checksums that it may have had, as far as is still known: only a batch that has one of these is the batch
    that was there."""


@value
class StoreFull:
    """Reports whether the store has less space left than it reserves for other nodes' rows and for retention."""

    is_full: bool


@value
class Trimmed:
    """Retention removed everything of the stream below `low`."""

    stream: StreamId
    low: int


@value
class SelectedRead:
    """The result of a `ReadSelected`."""

    token: int
    batches: tuple[Batch, ...]
    read_next: int
    """The position up to which the log was read."""
    low: int
    """The end of the last batch that retention removed, or of the last skip: below it rows may be lacking that were
    wanted here. 1: there is neither."""
    checksum_before: int
    """The checksum of the batch that ends at the requested first sequence; 0: it is not in the log."""


@value
class TimesFound:
    token: int
    sequences: tuple[int, ...]
    """0: no batch is that late."""


# ---- inputs: from clients (through a door)


@value
class Stage:
    request: int
    stage_id: str
    staged: Staged


@value
class Commit:
    """Number the staged payloads in this order and move the keys, in one transaction. `acks`: nodes besides this
    one that must have it on disk before the answer."""

    request: int
    stage_ids: tuple[str, ...]
    moves: tuple[KeyMove, ...]
    acks: int = 0
    owner: str = ""
    """The client that asks: new topics and keys count towards its share. Empty: towards nobody's."""


@value
class Publish:
    """Stage and commit in one step, for small publishes."""

    request: int
    payloads: tuple[Staged, ...]
    moves: tuple[KeyMove, ...] = ()
    acks: int = 0
    owner: str = ""


@value
class Abort:
    """Discard what was staged under these ids; what was committed stays."""

    stage_ids: tuple[str, ...]


@value
class RemoveKey:
    """Forget the publisher key, whoever created it, or only if `owner` did."""

    request: int
    key: str
    owner: str | None = None


@value
class Disown:
    """The own stream of this topic counts towards its client's share no longer."""

    topic: str


@value
class Forget:
    """The client no longer waits for the answer to this request. What has begun is completed; what has not is
    dropped."""

    request: int


@value
class Restore:
    """Put a batch back that a client has rebuilt, where this node does not keep it any longer. It has the checksum that
    it had; the node checks it."""

    request: int
    batch: Batch
    extensions: bytes = b""
    """The batch's, as its head has them."""


@value
class Subscribe:
    """Register these wishes, all or none. One whose id is taken replaces what is registered under it, if it differs."""

    request: int
    wishes: tuple[Wish, ...]
    owner: str = ""


@value
class Unsubscribe:
    """Give these registrations up, whoever asked for them, or only if `owner` did."""

    request: int
    ids: tuple[str, ...]
    owner: str | None = None


@value
class CreateTopic:
    """Make a selective topic, or set it up otherwise for the streams that begin from now on."""

    request: int
    topic: str
    keepers: int
    route_by: tuple[str, ...] = ()


@value
class WaitActive:
    """Answer when the nodes that are present have confirmed this version of the own interest entry, or when the time is
    over: with `Active`."""

    request: int
    incarnation: int
    ts: int
    timeout_ms: int


@value
class AnnounceClients:
    """Store and announce these rows of clients, by key, in place of former ones; None withdraws a row."""

    request: int
    rows: tuple[tuple[str, ClientRow | None], ...]


@value
class ImportBatch:
    """A batch of another channel came through a gateway: it is spread here as a stream of a foreign origin. Ignored
    unless it is the next of its stream."""

    frame: BatchFrame
    sender: NodeId
    """The gatekeeper at the other end."""


@value
class ImportBegin:
    """Rows of a foreign stream below `upto` are kept by nobody: the stream begins there, or skips what is missing.
    Ignored unless `first` is the next row."""

    stream: StreamId
    first: int
    upto: int


@value
class OpenGates:
    """This node is a gatekeeper: what it says to nodes of other channels goes across (`SendAcross`). It keeps the
    selective streams of these origins, which are of its own channel; and no longer, unless they asked it to, those of
    the ones to `drop`."""

    keep: tuple[NodeId, ...] = ()
    drop: tuple[NodeId, ...] = ()


@value
class CameAcross:
    """A frame about a selective stream came through a gateway."""

    frame: RoutedFrame


@value
class Drain:
    """Refuse publishes, so that existing rows can be copied; or accept them again."""

    begin: bool


@value
class Leave:
    """Leave the channel in order, handing own rows over first."""


@value
class Shutdown:
    """Shut the whole channel down: every node on it stops."""


ConnectionInput = Connected | DialFailed | Disconnected | Received | FrameProgress | LinkBlocked | LinkReady
StoreInput = Durable | AppendFailed | RangeRead | Damaged | StoreFull | Trimmed | SelectedRead | TimesFound
RequestInput = (
    Stage
    | Commit
    | Publish
    | Abort
    | RemoveKey
    | Disown
    | Forget
    | Subscribe
    | Unsubscribe
    | CreateTopic
    | AnnounceClients
    | WaitActive
    | Restore
)
GatewayInput = ImportBatch | ImportBegin | OpenGates | CameAcross
Input = Start | Wake | ClockSet | ConnectionInput | StoreInput | RequestInput | GatewayInput | Drain | Leave | Shutdown


# ---- outputs: to the driver


@value
class Dial:
    conn: int
    address: str


@value
class Send:
    conn: int
    message: WireFrame


@value
class Close:
    """Close after what was sent has been flushed. No `Disconnected` follows on this side."""

    conn: int


@value
class WakeAt:
    """Give a `Wake` at this time; replaces the previous wish."""

    at_ms: int


@value
class StartStream:
    """Begin the stream at a later sequence than 1 (the node joined with `start_from = latest`). A stream that the store
    has already keeps its beginning."""

    stream: StreamId
    first_sequence: int


@value
class AppendBatch:
    """Append the batch to its stream, and the record of its delivery."""

    batch: Batch
    delivery: Delivery | None = None
    stage_id: str | None = None
    """The stage id that has the payload, and is consumed: the batch itself has a `StoredPayload`."""


@value
class AppendSkip:
    """Append an entry without rows to the stream, and the record of its delivery."""

    skip: Skip
    delivery: Delivery | None = None


@value
class FillSkip:
    """Write the batch in place of a skip, or of a part of one. If it does not fit its neighbours, or there is no such
    skip (any more), neither batch nor delivery is written."""

    batch: Batch
    delivery: Delivery


@value
class PrependBatch:
    """Write the batch before the first row that is kept of its stream, if it ends there and the chain of checksums does
    not contradict it; else nothing is written. Nothing is delivered. Its age counts from `at_ms` on."""

    batch: Batch
    at_ms: int


@value
class RepairBatch:
    """Write the batch in place of a damaged one, if the chain of checksums proves that it is the same. No holdings
    change and nothing is delivered. If the damaged batch is gone, or proves to be another, nothing is written."""

    batch: Batch


@value
class InsertBatch:
    """Write the batch into its selective stream, at its place. If rows are there already, neither batch nor delivery is
    written."""

    batch: Batch
    delivery: Delivery


@value
class NoteSkip:
    """Rows of a selective stream that were wanted and that nobody keeps any longer."""

    skip: Skip


@value
class SetOwner:
    """Set the client that an own stream counts towards; empty: towards none."""

    stream: StreamId
    owner: str


@value
class StagePayload:
    """Keep a payload under a stage id; it replaces what is staged under the id."""

    stage_id: str
    staged: Staged


@value
class DropStaged:
    """Remove a stage id and its payload."""

    stage_id: str


@value
class StoredRecord(Generic[K, V]):
    """A row of a table that the store keeps for the node without using it: one subclass for each table.

    `content` replaces the row with the same key; None removes it.
    """

    key: K
    content: V | None


@value
class PublisherRecord(StoredRecord[str, PublisherState]):
    """A publisher key and where it stands."""


@value
class FormerPartRecord(StoredRecord[tuple[NodeId, int, int], FormerPart]):
    """A part of a former commit that is not whole yet, by identity, first batch and part."""


@value
class UpTimeRecord(StoredRecord[str, int]):
    """The time for which nodes have run on this store, in milliseconds. The only row has an empty key."""


@value
class RegistrationRecord(StoredRecord[str, Registration]):
    """A registration, by its id."""


@value
class ClientRowRecord(StoredRecord[str, ClientRow]):
    """The row of a client that is attached to this node, by its key."""


@value
class InterestStateRecord(StoredRecord[str, InterestState]):
    """The state of this node's interest entry. The only row has an empty key."""


@value
class MarksRecord(StoredRecord[StreamId, tuple[tuple[int, int], ...]]):
    """The marks of a selective stream."""


@value
class BeginRecord(StoredRecord[BeginKey, int]):
    """The position at which a registration begins in a stream."""


@value
class WantRecord(StoredRecord[str, StoredWant]):
    """A registration with its join, by its id."""


@value
class DescriptorRecord(StoredRecord[str, TopicDescriptor]):
    """The descriptor of a selective topic, by its name."""


@value
class SpreadRecord(StoredRecord[str, int]):
    """An own stream that is selective, by its topic: how many keepers its batches name."""


@value
class InterestSpanRecord(StoredRecord[int, InterestSpan]):
    """A registration that is or was, by its number at this node."""


Write = (
    StartStream
    | AppendBatch
    | AppendSkip
    | FillSkip
    | PrependBatch
    | RepairBatch
    | InsertBatch
    | NoteSkip
    | SetOwner
    | StagePayload
    | DropStaged
    | StoredRecord[Any, Any]
)


@value
class Append:
    """One transaction: the writes are applied in order, all or none."""

    token: int
    writes: tuple[Write, ...]

    def of(self, kind: type[W]) -> list[W]:
        """The writes of one kind, in order."""
        return [write for write in self.writes if isinstance(write, kind)]

    def payload_bytes(self) -> int:
        """The size of the payloads that it brings; what it commits from the stage is in the store already."""
        size = 0
        for write in self.writes:
            if isinstance(write, _WITH_BATCH):
                payload = write.batch.payload
            elif isinstance(write, StagePayload):
                payload = write.staged.payload
            else:
                continue
            if not isinstance(payload, StoredPayload):
                size += len(payload)
        return size


_WITH_BATCH = (AppendBatch, FillSkip, PrependBatch, RepairBatch, InsertBatch)


@value
class ReadRange:
    """Read whole batches, from the one that has `first_sequence` on, below `next_sequence`, until about `bytes_max`."""

    token: int
    stream: StreamId
    first_sequence: int
    next_sequence: int
    bytes_max: int


@value
class ReadSelected:
    """Read the batches that the log has in `first_sequence .. next_sequence - 1`, until about `bytes_max`."""

    token: int
    stream: StreamId
    first_sequence: int
    next_sequence: int
    bytes_max: int


@value
class FindTimes:
    """Find, for each time, the first batch in the log that was published then or later."""

    token: int
    stream: StreamId
    times_ms: tuple[int, ...]


# ---- outputs: to clients


@value
class StageDone:
    """The payload is in the store, durably."""

    request: int


@value
class Restored:
    """The rows are on this node's disk. `is_new`: they were not before."""

    request: int
    is_new: bool


@value
class KeyRemoved:
    """The key is gone from the store, durably. `position` is where it stood, None if there was no such key."""

    request: int
    position: str | None


@value
class Subscribed:
    """The registrations are in the store, durably, and will be announced; or are gone from it."""

    request: int
    epochs: tuple[int, ...]
    """The epochs of the wishes, in order; none for those that were given up."""


@value
class Covered:
    """The end of each registration's coverage on this node's disk, for each stream that moved: below it, every row that
    the registration wants is there."""

    registrations: tuple[str, ...]
    topic: str
    next: dict[NodeId, int]
    """The next sequence, by origin."""


@value
class TopicSpread:
    """A topic is selective: its streams that begin from now on are."""

    topic: str
    route_by: tuple[str, ...]


@value
class Active:
    """The present nodes that have applied the awaited version of this node's entry."""

    request: int
    confirmed: tuple[NodeId, ...]
    missing: tuple[NodeId, ...]
    """None: the registration is active."""


@value
class InterestChanged:
    """Reports that a node's wants have changed in this node's view: once per change, in the order of versions."""

    node_id: NodeId
    incarnation: int
    ts: int
    revision: int
    """The revision of the view: it rises by 1 with each change."""
    joined: tuple[InterestItem, ...] = ()
    left: tuple[InterestKey, ...] = ()
    rejoined: tuple[InterestItem, ...] = ()
    """Given up and registered again in between: what was received for them before does not count any longer."""
    present: bool = True
    """False: the node has departed, and its entry is not used until it returns."""


@value
class Published:
    """The commit is durable here and on as many other nodes as it asked for."""

    request: int
    ranges: tuple[Range, ...]


@value
class Refused:
    """The request changed nothing. `code` is a stable word, `detail` names the thing and the fix."""

    request: int
    code: str
    detail: str


@value
class Delivered:
    """These rows (or this skip) are durable here and follow, in order, what was delivered of the stream before."""

    delivery: Delivery | Skip


@value
class SendAcross:
    """A frame for a node of another channel: a gatekeeper carries it."""

    frame: RoutedFrame


@value
class RosterChanged:
    entry: RosterEntry


@value
class RolledBack:
    """The store is older than what the channel has of this node: open it again under a new identity."""

    detail: str


@value
class Left:
    """The node has left in order; it produces no further outputs."""


@value
class Trace:
    """A named event of the protocol, for traces and counters."""

    name: str
    detail: tuple[tuple[str, object], ...] = ()


DriverOutput = Dial | Send | Close | WakeAt | Append | ReadRange | ReadSelected | FindTimes
RequestOutput = StageDone | KeyRemoved | Published | Refused | Subscribed | Active | Restored
ShownOutput = Delivered | Covered | TopicSpread | RosterChanged | InterestChanged | SendAcross
ClientOutput = RequestOutput | ShownOutput | RolledBack | Left
Output = DriverOutput | ClientOutput | Trace
