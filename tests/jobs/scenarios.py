"""Seeded scenarios: small channels with known losses, duplicates, reorderings, skips, late arrivals, joiners, leavers
and silent nodes, as the delivery records and the roster that their nodes would tell."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTES = 4
SKIP_REASONS = ("expired", "lost", "filtered", "not-subscribed")


@dataclass(frozen=True)
class Record:
    """A delivery record, with the names of the table's columns."""

    delivery: int
    node_id: str
    origin: str
    topic: str
    first_sequence: int
    last_sequence: int
    kind: str
    reason: str | None
    published_at: datetime | None
    delivered_at: datetime
    hops: int | None
    how: str | None
    origin_batch: int | None
    checksum: str | None
    spread: str | None = None

    @property
    def rows(self) -> int:
        return self.last_sequence - self.first_sequence + 1

    def as_row(self, scenario: int) -> dict[str, Any]:
        return {
            "scenario": scenario,
            "node": self.node_id,
            "incarnation": 1,
            "from_node": None,
            "row_count": self.rows,
            "payload_bytes": None if self.kind == "skip" else 100,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


@dataclass(frozen=True)
class Membership:
    node_id: str
    incarnation: int
    from_at: datetime
    to_at: datetime | None = None
    reason: str | None = None
    silent: bool = False

    def as_row(self, scenario: int) -> dict[str, Any]:
        host = {"n0": "hosta", "n1": "hosta"}.get(self.node_id, f"host{self.node_id}")
        return {
            "scenario": scenario,
            "name": self.node_id,
            "site": "",
            "address": f"{host}:7401",
            "door": "",
            "heard_by": "n1",
            "last_heard_at": None,
            "neighbours": _neighbours(self.node_id),
            "read_at": BEGIN,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


def _neighbours(node_id: str) -> list[str]:
    """A graph that is a ring of nine with chords, as the roster of a report shows it."""
    at = int(node_id[1:]) - 1
    return [f"n{(at + step) % 9 + 1}" for step in (-2, -1, 1, 2)]


@dataclass
class Scenario:
    number: int
    records: list[Record] = field(default_factory=list)
    """By node in the order of delivery."""
    roster: list[Membership] = field(default_factory=list)


@dataclass(frozen=True)
class _Batch:
    origin: str
    topic: str
    first: int
    last: int
    number: int
    at: datetime

    @property
    def checksum(self) -> str:
        return f"{Random(f'{self.origin}/{self.topic}/{self.first}').getrandbits(64):016x}"


def scenario(number: int) -> Scenario:
    random = Random(f"scenario {number}")
    nodes = [f"n{index}" for index in range(random.randint(2, 5))]
    made = Scenario(number, roster=_memberships(random, nodes))
    batches = _published(random, nodes[: random.randint(1, 2)])
    for node in nodes:
        if random.random() < 0.1:
            continue  # reports nothing
        made.records += _received(random, node, batches)
    return made


def _memberships(random: Random, nodes: list[str]) -> list[Membership]:
    roster: list[Membership] = []
    for node in nodes:
        fate = random.choice(["stays", "stays", "stays", "joins", "leaves", "returns", "restarts", "silent", "unknown"])
        middle = BEGIN + timedelta(seconds=random.randint(0, 60 * MINUTES))
        later = middle + timedelta(seconds=random.randint(1, 90))
        start = BEGIN - timedelta(hours=1)
        if fate == "joins":
            roster.append(Membership(node, 1, middle))
        elif fate == "leaves":
            roster.append(Membership(node, 1, start, middle, "left"))
        elif fate == "returns":
            roster += [Membership(node, 1, start, middle, "left"), Membership(node, 2, later)]
        elif fate == "restarts":
            roster += [Membership(node, 1, start, middle, "restarted"), Membership(node, 2, middle)]
        elif fate != "unknown":
            roster.append(Membership(node, 1, start, silent=fate == "silent"))
    return roster


def _published(random: Random, origins: list[str]) -> list[_Batch]:
    batches: list[_Batch] = []
    for origin in origins:
        frontier: dict[str, int] = {}
        at = BEGIN + timedelta(milliseconds=random.randint(0, 20_000))
        for number in range(1, random.randint(2, 14)):
            topic = random.choice(["t", "u"])
            first = frontier.get(topic, 1)
            last = first + random.choice([0, 0, 3, 9, 40])
            frontier[topic] = last + 1
            batches.append(_Batch(origin, topic, first, last, number, at))
            at += timedelta(milliseconds=random.randint(0, 40_000))
    return batches


def _received(random: Random, node: str, batches: list[_Batch]) -> list[Record]:
    trouble = random.choice(
        ["none", "none", "loss", "duplicates", "reorder", "skips", "late", "latest", "damage", "all"]
    )

    def happens(what: str, chance: float = 0.3) -> bool:
        return trouble in (what, "all") and random.random() < chance

    came: list[tuple[datetime, _Batch | tuple[_Batch, str]]] = []
    begins = random.randint(0, len(batches)) if trouble == "latest" else 0
    for index, batch in enumerate(batches):
        at = batch.at + timedelta(milliseconds=random.randint(1, 900))
        if node == batch.origin:
            came.append((batch.at, batch))
            continue
        if index < begins or happens("loss"):
            continue
        if happens("skips"):
            came.append((at, (batch, random.choice(SKIP_REASONS))))
            if random.random() < 0.6:
                continue
        if happens("late"):
            at += timedelta(seconds=random.choice([20, 45, 300]))
        if happens("reorder"):
            at += timedelta(seconds=random.randint(1, 60))
        came.append((at, batch))
        if happens("duplicates"):
            came.append((at + timedelta(seconds=random.randint(0, 30)), batch))
    came.sort(key=lambda each: each[0])
    return [_record(random, node, delivery, at, what, trouble) for delivery, (at, what) in enumerate(came, 1)]


def _record(
    random: Random, node: str, delivery: int, at: datetime, what: "_Batch | tuple[_Batch, str]", trouble: str
) -> Record:
    if isinstance(what, tuple):
        batch, reason = what
        first = max(1, batch.first - random.choice([0, 0, 2]))
        last = batch.last + random.choice([0, 0, 5])
        return Record(
            delivery, node, batch.origin, batch.topic, first, last, "skip", reason, None, at, None, None, None, None
        )
    is_own = node == what.origin
    is_damaged = trouble == "damage" and random.random() < 0.3 and not is_own
    return Record(
        delivery,
        node,
        what.origin,
        what.topic,
        what.first,
        what.last,
        "batch",
        None,
        what.at,
        at,
        0 if is_own else random.randint(1, 4),
        "published" if is_own else random.choice(["pushed", "pulled"]),
        what.number,
        "bad0000000000bad" if is_damaged else what.checksum,
    )


def channel() -> Scenario:
    """A larger one, for reports: nine nodes in a ring with chords, two origins, half an hour, trouble at some."""
    random = Random("channel")
    nodes = [f"n{index}" for index in range(1, 10)]
    made = Scenario(0, roster=[Membership(node, 1, BEGIN - timedelta(hours=1)) for node in nodes])
    made.roster[6] = Membership("n7", 1, BEGIN - timedelta(hours=1), silent=True)
    made.roster[8] = Membership("n9", 1, BEGIN + timedelta(minutes=10))
    batches = []
    for origin in nodes[:2]:
        for number in range(1, 121):
            at = BEGIN + timedelta(seconds=15 * number + random.random())
            batches.append(_Batch(origin, "orders", 100 * number - 99, 100 * number, number, at))
    for node in nodes:
        made.records += _received_in_trouble(random, node, batches)
    return made


def _received_in_trouble(random: Random, node: str, batches: list[_Batch]) -> list[Record]:
    came: list[tuple[datetime, _Batch | tuple[_Batch, str]]] = []
    for batch in batches:
        at = batch.at if node == batch.origin else batch.at + timedelta(milliseconds=5 + random.expovariate(0.02))
        minute = (batch.at - BEGIN) / timedelta(minutes=1)
        if (node == "n7" and minute > 20) or (node == "n9" and minute < 10):
            continue
        if node == "n4" and 5 < minute < 9:
            at += timedelta(minutes=random.choice([1, 3]))
        if node == "n5" and random.random() < 0.03:
            continue
        if node == "n6" and 14 < minute < 16:
            came.append((at, (batch, "expired")))
            continue
        came.append((at, batch))
    came.sort(key=lambda each: each[0])
    return [_record(random, node, delivery, at, what, "none") for delivery, (at, what) in enumerate(came, 1)]
