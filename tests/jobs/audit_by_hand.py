"""The delivery audit by brute force: batch by batch, row by row, in plain Python."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import Any, NamedTuple

from tests.jobs.scenarios import Membership, Record

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Batch(NamedTuple):
    origin: str
    topic: str
    first: int
    last: int
    at: datetime
    window: datetime
    """The start of its window."""

    @property
    def rows(self) -> range:
        return range(self.first, self.last + 1)


def audit_by_hand(
    records: Iterable[Record],
    roster: Iterable[Membership],
    late_ms: int,
    until: datetime | None = None,
    cut: frozenset[str] = frozenset(),
    deleted_until: datetime | None = None,
    window_length: timedelta = MINUTE,
) -> dict[tuple[datetime, str, str, str], dict[str, Any]]:
    """The rows of the table by window, origin, topic and receiver, without `run_id`."""
    all_records, memberships = list(records), list(roster)
    copies: dict[tuple[Batch, str], list[Record]] = defaultdict(list)
    batches: dict[Batch, list[Record]] = defaultdict(list)
    for record in all_records:
        if record.published_at is not None:
            rows = record.first_sequence, record.last_sequence
            start = EPOCH + (record.published_at - EPOCH) // window_length * window_length
            batch = Batch(record.origin, record.topic, *rows, record.published_at, start)
            if until is None or batch.window + window_length <= until:
                copies[batch, record.node_id].append(record)
                batches[batch].append(record)
    nodes = {each.node_id for each in memberships}
    found = {}
    for window, origin, topic in {(batch.window, batch.origin, batch.topic) for batch in batches}:
        of_window = [batch for batch in batches if (batch.window, batch.origin, batch.topic) == (window, origin, topic)]
        for node in nodes | {record.node_id for record in all_records}:
            is_listed = any(
                each.node_id == node
                and each.from_at < window + window_length
                and (each.to_at is None or each.to_at > window - DAY)
                for each in memberships
            )
            theirs = of_window if is_listed else [batch for batch in of_window if (batch, node) in copies]
            if theirs:
                skips = [
                    record
                    for record in all_records
                    if (record.kind, record.node_id, record.origin, record.topic) == ("skip", node, origin, topic)
                ]
                told = Told.of(node, origin, topic, all_records, memberships)
                doubtful_until = deleted_until if node in cut else None
                row = _window(node, theirs, batches, copies, skips, memberships, told, doubtful_until)
                row["status"] = _status(row, node, memberships, late_ms)
                for name in ("was_member", "arrived", "unknown"):
                    del row[name]
                found[window, origin, topic, node] = row
    return found


class Told(NamedTuple):
    """The range that a receiver reports of a stream; `is_unread` if not all of it could be read."""

    low: int | None
    high: int | None
    is_unread: bool

    @classmethod
    def of(cls, node: str, origin: str, topic: str, records: list[Record], memberships: list[Membership]) -> "Told":
        of_node = [each for each in records if each.node_id == node]
        line = [each for each in of_node if (each.origin, each.topic) == (origin, topic)]
        theirs = sorted((each for each in memberships if each.node_id == node), key=lambda each: each.incarnation)
        is_gone = bool(theirs) and theirs[-1].to_at is not None
        low = min((each.first_sequence for each in line), default=None)
        high = max((each.last_sequence for each in line), default=None)
        return cls(low, high, is_gone or not of_node)


def _window(
    node: str,
    theirs: list[Batch],
    batches: dict[Batch, list[Record]],
    copies: dict[tuple[Batch, str], list[Record]],
    skips: list[Record],
    memberships: list[Membership],
    told: Told,
    doubtful_until: datetime | None,
) -> dict[str, Any]:
    names = ["published", "expected", "delivered", "missing", "lost", "declined", "mismatched", "duplicates", "arrived"]
    row: dict[str, Any] = dict.fromkeys([*names, "not_read", "unknown"], 0)
    published_bits = delivered_bits = 0
    latencies: list[int] = []
    hops: list[int] = []
    skipped = {n for skip in skips for n in range(skip.first_sequence, skip.last_sequence + 1)}
    declined = {
        n
        for skip in skips
        if skip.reason in ("filtered", "not-subscribed")
        for n in range(skip.first_sequence, skip.last_sequence + 1)
    }
    for batch in theirs:
        of_node = [each for each in memberships if each.node_id == node and each.from_at <= batch.at]
        is_member = any(each.to_at is None or batch.at < each.to_at for each in of_node)
        row["was_member"] = row.get("was_member", False) or bool(of_node)
        true = next((each.checksum for each in batches[batch] if each.how == "published"), None)
        true = true or min(each.checksum or "" for each in batches[batch])
        came = sorted(copies.get((batch, node), []), key=lambda each: each.delivery)
        right = next((each for each in came if each.checksum == true), None)
        row["published"] += len(batch.rows)
        row["duplicates"] += sum(len(batch.rows) for _ in came[1:])
        row["delivered"] += len(batch.rows) if right else 0
        is_early = doubtful_until is not None and batch.at <= doubtful_until
        if not is_member:
            continue
        expected = len(batch.rows)
        if right:
            row["arrived"] += len(batch.rows)
            late_by = (right.delivered_at - batch.at) // timedelta(microseconds=1)
            latencies += [late_by] * len(batch.rows)
            hops += [right.hops or 0] * len(batch.rows)
        else:
            for number in batch.rows:
                if number in declined:
                    row["declined"] += 1
                    expected -= 1
                elif number in skipped:
                    row["lost"] += 1
                elif (is_early and told.low is None) or (told.low is not None and number < told.low):
                    row["unknown"] += 1
                    expected -= 1
                elif told.is_unread and (told.high is None or number > told.high):
                    row["not_read"] += 1
                else:
                    row["missing"] += 1
            row["mismatched"] += len(batch.rows) if came else 0
        row["expected"] += expected
        if expected:
            published_bits ^= int(true, 16)
            arrived = true if right else came[0].checksum if came else None
            delivered_bits ^= int(arrived or "0", 16)
    return {
        **row,
        "completeness": 100 * row["arrived"] / row["expected"] if row["expected"] else None,
        "latency_p50_ms": _percentile(latencies, 0.5),
        "latency_p95_ms": _percentile(latencies, 0.95),
        "latency_p99_ms": _percentile(latencies, 0.99),
        "latency_max_ms": max(latencies) / 1000 if latencies else None,
        "clocks": _clocks(node, theirs[0].origin, memberships),
        "hops_mean": sum(hops) / len(hops) if hops else None,
        "hops_max": max(hops, default=None),
        "published_checksum": f"{published_bits:016x}",
        "delivered_checksum": f"{delivered_bits:016x}",
        "is_identical": published_bits == delivered_bits,
        "first_sequence": min(batch.first for batch in theirs),
        "last_sequence": max(batch.last for batch in theirs),
        "epoch": None,
    }


def _status(row: dict[str, Any], node: str, memberships: list[Membership], late_ms: int) -> str:
    if row["expected"] == 0:
        return "LEFT" if row["was_member"] and not row["declined"] and not row["unknown"] else "NOT_EXPECTED"
    if row["missing"] == row["lost"] == 0:
        if row["not_read"]:
            return "NOT_READ"
        return "LATE" if row["latency_max_ms"] > late_ms else "OK"
    if row["arrived"] or row["lost"] or row["mismatched"]:
        return "INCOMPLETE"
    latest = max((each for each in memberships if each.node_id == node), key=lambda each: each.incarnation)
    return "SILENT" if latest.silent else "STALLED"


def _percentile(values: list[int], share: float) -> float | None:
    """Between the two nearest values, as Spark's exact `percentile`; microseconds in, milliseconds out."""
    if not values:
        return None
    in_order = sorted(values)
    place = (len(in_order) - 1) * share
    lower, upper = floor(place), ceil(place)
    if in_order[lower] == in_order[upper]:
        return in_order[lower] / 1000
    return ((upper - place) * in_order[lower] + (place - lower) * in_order[upper]) / 1000


def _clocks(node: str, origin: str, memberships: list[Membership]) -> str:
    if node == origin:
        return "own"
    hosts = {each.node_id: str(each.as_row(0)["address"]).partition(":")[0] for each in memberships}
    return "host" if node in hosts and hosts[node] == hosts.get(origin) else "apart"
