"""Random histories of channels as the protocol makes them: nodes that join, are drained, crash, stall and come back,
with clocks that are wrong, records that nobody has read, and records that maintenance has deleted.

Unlike `scenarios`, a node delivers each stream in order, as its store demands: what it delivered is put into a real
store, and the delivery records come from there.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store import inspection
from m4cast.overlay.store.store import DeliveryRecord
from tests.jobs.scenarios import BEGIN, Membership, Record
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.store.store_parts import opened, synced

SECONDS = 300.0
"""From the first publish to the last, about."""
AS_OF = BEGIN + timedelta(hours=6)
"""When all windows are closed, by the worst of the clocks."""
SKEWS_S = (0, 0, 0, 0, 3, -3, 600, -600, 7_200)
FATES = ("stays", "stays", "stays", "joins", "drained", "drained", "crashes", "returns")
NEVER = 1e9


@dataclass(frozen=True)
class Told(Membership):
    """A membership of a node with an id as nodes have it."""

    def as_row(self, scenario: int) -> dict[str, Any]:
        row = replace(Membership("n1", 1, self.from_at)).as_row(scenario)
        return {**row, **{name: getattr(self, name) for name in self.__dataclass_fields__}, "name": self.node_id[:8]}


@dataclass
class Peer:
    """A node, in seconds of true time."""

    node_id: NodeId
    skew_s: float
    fate: str
    joined_s: float
    left_s: float
    back_s: float
    begins_at_latest: bool
    stalls_s: float
    read_until_s: float
    """Of its delivery records, those from before were ingested."""
    skips: SkipReason | None
    delivered: list[tuple[float, "Batch | Skip"]] = field(default_factory=list)

    def clock_ms(self, true_s: float) -> int:
        return round((BEGIN.timestamp() + true_s + self.skew_s) * 1000)

    def is_here(self, true_s: float) -> bool:
        return self.joined_s <= true_s < self.left_s or true_s >= self.back_s


@dataclass
class History:
    number: int
    records: list[Record]
    """That are in the table: they were read, and are not deleted."""
    roster: list[Membership]
    cut: frozenset[str]
    """Nodes of which records were deleted."""
    is_whole: bool | None
    """True if everybody got everything, in truth; None if clocks are so wrong that the roster cannot tell."""
    problems: list[str]
    """Of the stores, by `m4cast store check`."""

    @property
    def deleted_until(self) -> datetime | None:
        return AS_OF if self.cut else None


def history(number: int, folder: Path) -> History:
    random = Random(f"history {number}")
    peers = [_peer(random, number, at) for at in range(random.randint(2, 5))]
    # One is always there and read, so that something is known of the channel.
    peers[0] = Peer(peers[0].node_id, peers[0].skew_s, "stays", -3_600, NEVER, NEVER, False, NEVER, NEVER, None)
    batches = _published(random, peers[: random.randint(1, 2)])
    problems: list[str] = []
    records: list[Record] = []
    for at, peer in enumerate(peers):
        _deliver(random, peer, batches)
        told, report = _stored(peer, folder / f"{number}-{at}")
        problems += report.problems
        made = zip(told, peer.delivered, strict=True)
        records += [_record(peer, record) for record, (true_s, _) in made if true_s < peer.read_until_s]
    reporters = {record.node_id for record in records}
    if random.random() < 0.4:
        cutoff = BEGIN + timedelta(seconds=random.uniform(0, SECONDS))
        records = [record for record in records if record.delivered_at >= cutoff]
    whole = {record.node_id for record in records if record.delivery == 1}
    roster = [each for peer in peers for each in _memberships(peer)]
    return History(number, records, roster, frozenset(reporters - whole), _truth(peers, batches), problems)


def _peer(random: Random, number: int, at: int) -> Peer:
    fate = random.choice(FATES)
    middle = random.uniform(0, SECONDS)
    left = middle if fate in ("drained", "crashes", "returns") else NEVER
    is_read = random.choice(["all", "all", "all", "all", "part", "none"])
    until = {"all": NEVER, "part": random.uniform(0, left if left < NEVER else SECONDS), "none": -NEVER}[is_read]
    return Peer(
        node_id=NodeId(number.to_bytes(8, "big") + at.to_bytes(8, "big")),
        skew_s=random.choice(SKEWS_S),
        fate=fate,
        joined_s=middle if fate == "joins" else -3_600,
        left_s=left,
        back_s=left + random.uniform(1, 60) if fate == "returns" else NEVER,
        begins_at_latest=fate == "joins" and random.random() < 0.5,
        stalls_s=random.uniform(0, SECONDS) if random.random() < 0.15 else NEVER,
        read_until_s=until if fate in ("drained", "crashes") or is_read == "none" else NEVER,
        skips=random.choice([None, None, None, SkipReason.FILTERED, SkipReason.EXPIRED]),
    )


def _published(random: Random, origins: list[Peer]) -> list[tuple[float, Batch]]:
    """The history with true times, which origins do not know."""
    found: list[tuple[float, Batch]] = []
    for origin in origins:
        last: dict[str, Batch] = {}
        at_s = random.uniform(0, 20)
        for number in range(1, random.randint(2, 12)):
            topic = random.choice(["t", "u"])
            before = last.get(topic)
            batch = Batch(
                stream=StreamId(origin.node_id, topic),
                incarnation=1,
                first_sequence=before.next_sequence if before else 1,
                row_count=random.choice([1, 1, 4, 10]),
                origin_batch=number,
                schema_id=1,
                published_at_ms=origin.clock_ms(at_s),
                publisher="",
                position="",
                part=0,
                parts=1,
                previous_checksum=before.checksum if before else 0,
                payload=b"rows",
            )
            if origin.is_here(at_s):
                last[topic] = seal(batch)
                found.append((at_s, last[topic]))
            at_s += random.uniform(0, 2 * SECONDS / 12)
    return found


def _deliver(random: Random, peer: Peer, batches: list[tuple[float, Batch]]) -> None:
    """Each stream in order, each batch when it is there and the node is."""
    came: list[tuple[float, Batch | Skip]] = []
    reached: dict[StreamId, float] = {}
    stopped: set[StreamId] = set()
    for published_s, batch in batches:
        stream = batch.stream
        is_own = stream.origin == peer.node_id
        at_s = (
            published_s if is_own else max(published_s + random.uniform(0.01, 2), peer.joined_s, reached.get(stream, 0))
        )
        if peer.begins_at_latest and published_s < peer.joined_s and stream not in reached:
            continue
        if not peer.is_here(at_s):
            at_s = max(at_s, peer.back_s)
        if stream in stopped or not peer.is_here(at_s) or at_s >= NEVER or (at_s >= peer.stalls_s and not is_own):
            stopped.add(stream)
            continue
        reached[stream] = at_s
        is_skip = peer.skips is not None and not is_own and random.random() < 0.3
        rows = batch.first_sequence, batch.last_sequence
        came.append((at_s, Skip(stream, *rows, peer.skips, stream.origin) if is_skip and peer.skips else batch))
    peer.delivered = sorted(came, key=lambda each: each[0])


def _stored(peer: Peer, folder: Path) -> tuple[list[DeliveryRecord], inspection.CheckReport]:
    """The report of the node's store about its deliveries, and what is wrong with it."""
    starts: dict[StreamId, int] = {}
    appends = []
    for token, (at_s, what) in enumerate(peer.delivered, 1):
        is_new = what.stream not in starts
        starts.setdefault(what.stream, what.first_sequence)
        published_ms = what.published_at_ms if isinstance(what, Batch) else 0
        is_own = what.stream.origin == peer.node_id
        how, sender = (How.PUBLISHED, None) if is_own else (How.PUSHED, what.stream.origin)
        rows = what.first_sequence, what.last_sequence
        delivery = Delivery(what.stream, *rows, published_ms, peer.clock_ms(at_s), 1, how, sender)
        appends.append(
            append_of(
                token,
                batches=(what,) if isinstance(what, Batch) else (),
                skips=(what,) if isinstance(what, Skip) else (),
                deliveries=(delivery,),
                starts=((what.stream, what.first_sequence),) if is_new and what.first_sequence > 1 else (),
            )
        )
    with opened(folder) as store:
        synced(store, *appends)
        records = list(store.read_deliveries(0, 10_000))
    return records, inspection.check(folder)


def _record(peer: Peer, told: DeliveryRecord) -> Record:
    delivery = told.delivery
    is_batch = told.reason is None
    return Record(
        delivery=told.number,
        node_id=peer.node_id.hex(),
        origin=delivery.stream.origin.hex(),
        topic=delivery.stream.topic,
        first_sequence=delivery.first_sequence,
        last_sequence=delivery.last_sequence,
        kind="batch" if is_batch else "skip",
        reason=None if told.reason is None else told.reason.name.lower().replace("_", "-"),
        published_at=_moment(delivery.published_at_ms) if is_batch else None,
        delivered_at=_moment(delivery.received_at_ms),
        hops=delivery.hops if is_batch else None,
        how=delivery.how.name.lower() if is_batch else None,
        origin_batch=told.origin_batch if is_batch else None,
        checksum=f"{told.checksum:016x}" if is_batch else None,
    )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, BEGIN.tzinfo)


def _memberships(peer: Peer) -> list[Membership]:
    """The roster as a node with a right clock reports it. A node that crashed is not heard, and has not left."""

    def at(true_s: float) -> datetime:
        return BEGIN + timedelta(seconds=true_s)

    node_id = peer.node_id.hex()
    if peer.fate == "crashes":
        return [Told(node_id, 1, at(peer.joined_s), silent=True)]
    if peer.fate == "drained":
        return [Told(node_id, 1, at(peer.joined_s), at(peer.left_s), "left")]
    if peer.fate == "returns":
        return [Told(node_id, 1, at(peer.joined_s), at(peer.left_s), "left"), Told(node_id, 2, at(peer.back_s))]
    return [Told(node_id, 1, at(peer.joined_s))]


def _truth(peers: list[Peer], batches: list[tuple[float, Batch]]) -> bool | None:
    """True if every row is at every node that was there, and did not leave, when it was published."""
    moves = any(peer.fate in ("joins", "returns", "drained") for peer in peers)
    is_telling = not (moves and any(peer.skew_s for peer in peers))  # by the origin's clock, other nodes were there
    for peer in peers:
        has = {(each.stream, each.first_sequence) for _, each in peer.delivered if isinstance(each, Batch)}
        gave_up = any(isinstance(each, Skip) and each.reason is SkipReason.EXPIRED for _, each in peer.delivered)
        declined = {(each.stream, each.first_sequence) for _, each in peer.delivered if isinstance(each, Skip)}
        stays = peer.left_s >= NEVER or peer.fate in ("returns", "crashes")
        for published_s, batch in batches:
            was_here = peer.joined_s <= published_s < peer.left_s or published_s >= peer.back_s
            key = batch.stream, batch.first_sequence
            if (was_here or peer.fate == "crashes") and stays and key not in has | declined:
                return False if is_telling else None
        if gave_up:
            return False if is_telling else None
    if any(peer.fate == "crashes" and peer.read_until_s < NEVER for peer in peers):
        return None  # one that is not heard may have got what nobody has read: an alarm is right
    return True if is_telling or not any(peer.begins_at_latest for peer in peers) else None
