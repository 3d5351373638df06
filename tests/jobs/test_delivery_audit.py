"""The delivery audit against brute force: 200 seeded scenarios; full and incremental runs; periods and the roster."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from m4cast.jobs import delivery_audit
from m4cast.jobs.audit import windows
from m4cast.jobs.audit.comparison import COLUMNS, audit, extents_of
from m4cast.jobs.audit.windows import closed_until, merged
from m4cast.jobs.delivery_audit import changed_voices
from m4cast.jobs.expectation import members_of, membership_changes
from m4cast.jobs.runs import NodeLife
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import BAD, DELIVERY_AUDIT
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.audit_by_hand import audit_by_hand
from tests.jobs.frames import deliveries_frame, roster_frame, values
from tests.jobs.scenarios import BEGIN, Membership, Record, Scenario, scenario

SCENARIOS = [scenario(number) for number in range(200)]
LATE_MS = 30_000
LATER = BEGIN + timedelta(hours=3)
KEY = ("window_start", "origin", "topic", "node_id")


def as_tuples(rows: dict[tuple[datetime, str, str, str], dict[str, Any]], *before: object) -> set[tuple[Any, ...]]:
    whole = [dict(zip(KEY, key, strict=True)) | row for key, row in rows.items()]
    return {(*before, *(row[name] for name in COLUMNS)) for row in whole}


def by_hand(one: Scenario, until: datetime | None = None) -> set[tuple[Any, ...]]:
    return as_tuples(audit_by_hand(one.records, one.roster, LATE_MS, until))


def audited(spark: SparkSession, scenarios: list[Scenario]) -> set[tuple[Any, ...]]:
    """The rows of the transform, with the number of their scenario."""
    deliveries = deliveries_frame(spark, [(each.number, record) for each in scenarios for record in each.records])
    roster = roster_frame(spark, [(each.number, membership) for each in scenarios for membership in each.roster])
    is_batch = F.col("kind") == "batch"
    within = ("scenario",)
    members = members_of(roster, deliveries, within)
    extents = extents_of(deliveries, within)
    found = audit(deliveries.where(is_batch), deliveries.where(~is_batch), members, extents, LATE_MS, within)
    return values(found, "scenario", *COLUMNS)


def test_scenarios_as_by_hand(spark: SparkSession) -> None:
    expected: set[tuple[Any, ...]] = set()
    for each in SCENARIOS:
        expected |= as_tuples(audit_by_hand(each.records, each.roster, LATE_MS), each.number)
    statuses = {row[1 + COLUMNS.index("status")] for row in expected}
    assert statuses == {"OK", "LATE", "INCOMPLETE", "STALLED", "SILENT", "NOT_READ", "LEFT", "NOT_EXPECTED"}
    assert audited(spark, SCENARIOS) == expected


@pytest.mark.parametrize("seconds", [7, 150])
def test_windows_of_another_length_as_by_hand(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The length is one constant: everything follows when it changes."""
    length = timedelta(seconds=seconds)
    monkeypatch.setattr(windows, "WINDOW", length)
    some = SCENARIOS[:25]
    expected: set[tuple[Any, ...]] = set()
    for each in some:
        expected |= as_tuples(audit_by_hand(each.records, each.roster, LATE_MS, window_length=length), each.number)
    assert audited(spark, some) == expected
    begin, end = windows.window_of(BEGIN + timedelta(seconds=3 * seconds + 1))
    assert end - begin == length
    assert closed_until(end + timedelta(seconds=9), grace=timedelta(seconds=9)) == end
    assert windows.start_of_window(end) == end and windows.start_of_window(end - timedelta(microseconds=1)) == begin


def put(tables: TableFolder, records: list[Record], roster: list[Membership]) -> None:
    deliveries = deliveries_frame(tables.spark, [(0, record) for record in records]).drop("scenario")
    tables.append(DELIVERIES, deliveries)
    told = roster_frame(tables.spark, [(0, membership) for membership in roster]).drop("scenario")
    told.select(*ROSTER.schema.names).write.format("delta").mode("overwrite").save(ROSTER.path(tables.folder))


def rich_scenario() -> Scenario:
    def is_rich(one: Scenario) -> bool:
        kinds = {record.kind for record in one.records}
        return len(one.roster) >= 4 and kinds == {"batch", "skip"} and any(each.to_at for each in one.roster)

    return next(each for each in SCENARIOS if is_rich(each))


def test_incremental_runs_equal_a_full_one(spark: SparkSession, tmp_path: Path) -> None:
    """A part of the records; then the rest, with skips, late ones, a node that is heard of only now, and one gone."""
    folder = str(tmp_path)
    tables = TableFolder(spark, folder)
    tables.ensure(DELIVERIES)
    tables.ensure(ROSTER)
    one = rich_scenario()
    first = Scenario(
        0,
        [each for each in one.records if each.delivery == 1 or (each.kind == "batch" and each.delivery % 3)],
        [Membership(each.node_id, each.incarnation, each.from_at) for each in one.roster if each.incarnation == 1],
    )
    rest = [record for record in one.records if record not in first.records]

    def table() -> set[tuple[Any, ...]]:
        return values(tables.read(DELIVERY_AUDIT), *COLUMNS)

    put(tables, first.records, first.roster)
    in_the_middle = BEGIN + timedelta(minutes=2, seconds=30)
    summary = delivery_audit.run(spark, folder, as_of=in_the_middle, grace=timedelta(0))
    assert summary.run.is_full
    assert table() == by_hand(first, closed_until(in_the_middle, timedelta(0)))

    put(tables, rest, one.roster)
    earlier = delivery_audit.run(spark, folder, as_of=BEGIN + timedelta(minutes=1), grace=timedelta(0))
    assert not earlier.run.is_full and earlier.run.records == len(rest)
    summary = delivery_audit.run(spark, folder, as_of=LATER)
    assert summary.run.records == 0
    assert table() == by_hand(one), "news that the run before did not state are not forgotten"

    counts = audit_by_hand(one.records, one.roster, LATE_MS).values()
    assert summary.run.missing == sum(row["missing"] for row in counts)
    bad = any(row["status"] in BAD for row in counts)
    assert summary.run.verdict == ("INCOMPLETE" if bad else "OK")
    delivery_audit.run(spark, folder, as_of=LATER, full=True)
    assert table() == by_hand(one)
    assert tables.read(AUDIT_RUNS).where("job = 'delivery_audit'").count() == 4

    # Maintenance deletes the records of the first two minutes; a newcomer tells that it skips all there ever was.
    stated, kept_from = table(), BEGIN + timedelta(minutes=3)
    spark.sql(f"DELETE FROM {DELIVERIES.quoted(folder)} WHERE delivered_at < '{BEGIN + timedelta(minutes=2.5)}'")
    skip = next(record for record in one.records if record.kind == "skip")
    told = replace(skip, node_id="newcomer", delivery=1, first_sequence=1, last_sequence=10**6, delivered_at=LATER)
    put(tables, [told], one.roster)
    for full in (False, True):
        delivery_audit.run(spark, folder, as_of=LATER, full=full)
        assert {row for row in table() if row[0] < kept_from} == {row for row in stated if row[0] < kept_from}
        assert {row for row in table() if row[0] >= kept_from} == {row for row in stated if row[0] >= kept_from}


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def member(
    node: str, begin: float, end: float | None = None, *, silent: bool = False, reports: bool = True
) -> NodeLife:
    return NodeLife(node, node, "h:1", 1, at(begin), None if end is None else at(end), None, silent, reports)


def test_periods_are_put_together() -> None:
    minutes = [(at(n), at(n + 1)) for n in (5, 1, 2, 9, 2)]
    assert merged(minutes) == [(at(1), at(3)), (at(5), at(6)), (at(9), at(10))]
    assert merged(minutes, periods_max=2) == [(at(1), at(6)), (at(9), at(10))]
    assert merged([(at(1), at(1))]) == []


def test_a_window_is_closed_after_its_grace() -> None:
    assert closed_until(at(5), timedelta(minutes=2)) == at(3)
    assert closed_until(at(4.99), timedelta(minutes=2)) == at(2)


@pytest.mark.parametrize(
    ("before", "now", "since"),
    [
        ([member("a", 1)], [member("a", 1)], None),
        ([member("a", 1)], [member("a", 1), member("b", 7)], at(7)),
        ([member("a", 1)], [member("a", 1, 4)], at(4)),
        ([member("a", 1, 4)], [member("a", 1, 3)], at(3)),
        ([member("a", 2)], [member("a", 1)], at(1)),
        ([member("a", 2)], [], at(2)),
        ([member("a", 1)], [member("a", 1, silent=True)], None),
    ],
)
def test_since_when_the_roster_tells_otherwise(
    before: list[NodeLife], now: list[NodeLife], since: datetime | None
) -> None:
    assert membership_changes(before, now) == since


def test_voices_that_changed() -> None:
    before = [member("a", 1), member("b", 1), member("c", 1, reports=False)]
    now = [member("a", 1, 5), member("b", 1, silent=True), member("c", 1)]
    assert changed_voices(before, now) == ["a", "b", "c"]
