"""Ordering gaps by brute force: every sequence by itself, record after record, in plain Python."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeVar

from tests.jobs.scenarios import Membership, Record

Value = TypeVar("Value")


class Range(NamedTuple):
    """A row of the table, in the order in which the test reads it."""

    line: str
    node_id: str
    origin: str
    topic: str
    state: str
    first: int
    last: int
    is_tail: bool = False
    reason: str | None = None
    first_seen_at: datetime | None = None
    repaired_at: datetime | None = None
    repaired_by: str | None = None
    records: int | None = None
    duplicates: int | None = None
    reorder_depth: int | None = None
    first_delivered_at: datetime | None = None
    last_delivered_at: datetime | None = None
    last_delivery: int | None = None
    expected: int | None = None


def gaps_by_hand(
    records: Iterable[Record],
    receipted: dict[tuple[str, str], int] | None = None,
    roster: Iterable[Membership] | None = None,
    until: datetime | None = None,
    cut: frozenset[str] = frozenset(),
    deleted_until: datetime | None = None,
) -> set[Range]:
    records = list(records)
    by_line: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_line["stream", record.node_id, record.origin, record.topic].append(record)
        if record.kind == "batch":
            passes = record.spread == "selective"
            numbered = replace(record, kind="skip", reason="selective") if passes else record
            by_line["origin", record.node_id, record.origin, "*"].append(numbered)
    ends: dict[tuple[str, str, str], int] = defaultdict(int)
    for (origin, topic), last in (receipted or {}).items():
        ends["stream", origin, topic] = last
    for (line, _, origin, topic), came in by_line.items():
        ends[line, origin, topic] = max(ends[line, origin, topic], *(max(_numbers(line, each)) for each in came))
    found: set[Range] = set()
    for key, came in by_line.items():
        passed = _passed(by_line, key[2]) if key[0] == "origin" else set()
        found.update(_line(key, sorted(came, key=lambda each: each.delivery), ends[key[0], key[2], key[3]], passed))
    for (line, origin, topic), end in ends.items():
        together = [
            each for key, came in by_line.items() if (key[0], *key[2:]) == (line, origin, topic) for each in came
        ]
        found.update(_everybody((line, "*", origin, topic), together, end))
    if roster is None:
        return found
    wanted = _wanted(records, list(roster), until, set(cut), deleted_until, by_line)
    return set(_with_expected(found, wanted, by_line))


Line = tuple[str, str, str, str]


def _passed(by_line: dict[Line, list[Record]], origin: str) -> set[int]:
    """Numbers of batches of an origin that nobody has to receive."""
    of_origin = (came for key, came in by_line.items() if (key[0], key[2]) == ("origin", origin))
    return {each.origin_batch for came in of_origin for each in came if each.kind == "skip" and each.origin_batch}


def _wanted(
    records: list[Record],
    roster: list[Membership],
    until: datetime | None,
    cut: set[str],
    deleted_until: datetime | None,
    by_line: dict[Line, list[Record]],
) -> dict[Line, set[int]]:
    """The sequences that each receiver was expected to get."""
    wanted: dict[Line, set[int]] = defaultdict(set)
    for record in records:
        at = record.published_at
        if at is None or (until is not None and at >= until):
            continue
        for each in roster:
            key = ("stream", each.node_id, record.origin, record.topic)
            is_member = each.from_at <= at and (each.to_at is None or at < each.to_at)
            is_doubtful = each.node_id in cut and deleted_until is not None and at <= deleted_until
            if is_member and not (is_doubtful and key not in by_line):
                wanted[key].update(range(record.first_sequence, record.last_sequence + 1))
    return wanted


def _with_expected(
    found: set[Range], wanted: dict[Line, set[int]], by_line: dict[Line, list[Record]]
) -> Iterator[Range]:
    for row in found:
        is_counted = row.line == "stream" and row.node_id != "*" and row.state in ("MISSING", "SKIPPED")
        numbers = wanted.get(row[:4], set()) & set(range(row.first, row.last + 1))
        yield row._replace(expected=len(numbers)) if is_counted else row
    for key, numbers in wanted.items():
        for first, last, _ in _runs(dict.fromkeys(numbers)):
            yield Range(*key, "EXPECTED", first, last)
            if key not in by_line:
                yield Range(*key, "MISSING", first, last, is_tail=True, expected=last - first + 1)


def _numbers(line: str, record: Record) -> range:
    if line == "origin":
        assert record.origin_batch is not None
        return range(record.origin_batch, record.origin_batch + 1)
    return range(record.first_sequence, record.last_sequence + 1)


def _line(key: tuple[str, str, str, str], came: list[Record], end: int, passed: set[int]) -> Iterator[Range]:
    line = key[0]
    by_number: dict[int, list[Record]] = defaultdict(list)
    skipped: dict[int, Record] = {}
    open_since: dict[int, datetime] = {}
    depth_of: dict[int, int] = {}
    told: set[int] = set()
    for record in came:
        numbers = _numbers(line, record)
        if told:
            low, high = min(told), max(told)
            for number in (*range(high + 1, numbers[0]), *range(numbers[-1] + 1, low)):
                open_since[number] = record.delivered_at
            filled = [number for number in numbers if number in open_since]
            if filled and record.kind == "batch":
                depth_of[record.delivery] = high - numbers[0]
            if line == "stream":
                for first, last, since in _runs({number: open_since[number] for number in filled}):
                    yield Range(
                        *key,
                        "REPAIRED",
                        first,
                        last,
                        first_seen_at=since,
                        repaired_at=record.delivered_at,
                        repaired_by=record.kind,
                    )
            for number in filled:
                del open_since[number]
        told.update(numbers)
        for number in numbers:
            if record.kind == "batch":
                by_number[number].append(record)
            elif line == "origin":
                skipped[number] = record
            else:
                skipped.setdefault(number, record)
    yield from _held(key, by_number, depth_of if line == "stream" else {})
    for first, last, reason in _runs({n: skip.reason for n, skip in skipped.items() if n not in by_number}):
        latest = max(skipped[number].delivery for number in range(first, last + 1))
        yield Range(*key, "SKIPPED", first, last, reason=reason, last_delivery=latest)
    for first, last, since in _runs({number: since for number, since in open_since.items() if number not in passed}):
        yield Range(*key, "MISSING", first, last, first_seen_at=since if line == "stream" else None)
    if max(told) < end:
        times = [each.delivered_at for each in came if each.kind == "batch"]
        seen = max(times, default=None) if line == "stream" else None
        tail = set(range(max(told) + 1, end + 1)) - passed
        for first, last, _ in _runs(dict.fromkeys(tail)):
            yield Range(*key, "MISSING", first, last, is_tail=True, first_seen_at=seen)


def _held(
    key: tuple[str, str, str, str], by_number: dict[int, list[Record]], depth_of: dict[int, int]
) -> Iterator[Range]:
    for first, last, _ in _runs(dict.fromkeys(by_number)):
        copies = [record for number in range(first, last + 1) for record in by_number[number]]
        own = {record.delivery: record for record in copies}
        times = [record.delivered_at for record in own.values()]
        yield Range(
            *key,
            "HELD",
            first,
            last,
            records=len(own),
            duplicates=len(copies) - (last - first + 1),
            reorder_depth=max(depth_of.get(delivery, 0) for delivery in own),
            first_delivered_at=min(times),
            last_delivered_at=max(times),
            last_delivery=max(own),
        )


def _everybody(key: tuple[str, str, str, str], came: list[Record], end: int) -> Iterator[Range]:
    line = key[0]
    held: dict[int, list[datetime]] = defaultdict(list)
    said: dict[tuple[int, str], str] = {}
    for record in came:
        for number in _numbers(line, record):
            if record.kind == "batch":
                held[number].append(record.delivered_at)
            else:
                assert record.reason is not None
                said.setdefault((number, record.node_id), record.reason)  # a receiver's first word stands
    skipped: dict[int, str] = {}
    for (number, _), reason in said.items():
        skipped[number] = min(reason, skipped.get(number, reason))
    for first, last, _ in _runs(dict.fromkeys(held)):
        times = [at for number in range(first, last + 1) for at in held[number]]
        yield Range(*key, "HELD", first, last, first_delivered_at=min(times), last_delivered_at=max(times))
    for first, last, reason in _runs({number: why for number, why in skipped.items() if number not in held}):
        yield Range(*key, "SKIPPED", first, last, reason=reason)
    told = {*held, *skipped}
    high = max(told, default=0)
    unknown = set(range(min(told, default=1), end + 1)) - told
    for first, last, is_tail in _runs({number: number > high for number in unknown}):
        yield Range(*key, "MISSING", first, last, is_tail=is_tail)


def _runs(numbers: "dict[int, Value]") -> Iterator[tuple[int, int, Value]]:
    """Runs of consecutive numbers with the same value."""
    run: list[int] = []
    for number in sorted(numbers):
        if run and (number != run[-1] + 1 or numbers[number] != numbers[run[-1]]):
            yield run[0], run[-1], numbers[run[0]]
            run = []
        run.append(number)
    if run:
        yield run[0], run[-1], numbers[run[0]]
