"""Ordering gaps against brute force: 200 seeded scenarios and made-up ranges; in one go, and in steps."""

import os
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from m4cast.jobs import ordering_gaps
from m4cast.jobs.expectation import expected_ranges, members_of
from m4cast.jobs.gaps.gap_rows import Expected, advance
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.receipt import Receipt, ReceiptStream
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.frames import deliveries_frame, roster_frame, values
from tests.jobs.gaps_by_hand import Range, gaps_by_hand
from tests.jobs.scenarios import BEGIN, Membership, Record, Scenario, scenario


def partly_selective(number: int) -> Scenario:
    """One topic of every fourth scenario is selective."""
    made = scenario(number)
    if number % 4 == 3:
        made.records = [replace(each, spread="selective") if each.topic == "u" else each for each in made.records]
    return made


SCENARIOS = [partly_selective(number) for number in range(200)]
WITHIN = ("scenario",)
LONG_AGO_S = BEGIN.timestamp()
TIME_ZONE = "spark.sql.session.timeZone"


@cache
def by_hand() -> set[tuple[object, ...]]:
    return {(each.number, *found) for each in SCENARIOS for found in gaps_by_hand(each.records, roster=each.roster)}


def expected(spark: SparkSession) -> Expected:
    records = [(each.number, record) for each in SCENARIOS for record in each.records if record.kind == "batch"]
    roster = roster_frame(spark, [(each.number, membership) for each in SCENARIOS for membership in each.roster])
    members = members_of(roster, roster.limit(0), WITHIN)
    return Expected(expected_ranges(deliveries_frame(spark, records), members, WITHIN))


def rows(*frames: DataFrame) -> set[tuple[object, ...]]:
    return {row for frame in frames for row in values(frame, "scenario", *Range._fields)}


def test_the_scenarios_have_what_they_are_for() -> None:
    found = {(each[1], each[5], each[8]) for each in by_hand()}
    kinds = (("stream", "HELD"), ("stream", "SKIPPED"), ("stream", "REPAIRED"), ("stream", "EXPECTED"))
    for line, state in (*kinds, ("origin", "MISSING"), ("origin", "SKIPPED")):
        assert (line, state, False) in found
    assert {("stream", "MISSING", False), ("stream", "MISSING", True)} <= found
    assert {each[14] for each in by_hand() if each[5] == "HELD"} > {0, 1}, "no duplicates"


def test_scenarios_as_by_hand(spark: SparkSession) -> None:
    records = [(each.number, record) for each in SCENARIOS for record in each.records]
    lines = advance(deliveries_frame(spark, records), None, within=WITHIN, expected=expected(spark))
    assert rows(lines.present, lines.repaired) == by_hand()


def test_in_steps_as_in_one_go(spark: SparkSession) -> None:
    """A run leaves all that the next one needs."""
    records = [(each.number, record) for each in SCENARIOS for record in each.records]
    repaired: set[tuple[object, ...]] = set()
    present: DataFrame | None = None
    for step in range(3):
        part = [(number, each) for number, each in records if min(each.delivery // 5, 2) == step]
        lines = advance(deliveries_frame(spark, part), present, within=WITHIN, expected=expected(spark))
        repaired |= rows(lines.repaired)
        present = lines.present.localCheckpoint()
    assert present is not None
    assert rows(present) | repaired == by_hand()


Spans = list[tuple[int, int, bool]]
"""(first, how many more, whether it is a skip) of each record."""


def line_of(spans: Spans) -> list[Record]:
    """Ranges as no origin would cut them: they overlap as they like."""
    return [
        Record(
            delivery,
            "n0",
            "o",
            "t",
            first,
            first + more,
            "skip" if is_skip else "batch",
            "lost" if is_skip and more % 2 else "expired" if is_skip else None,
            None if is_skip else BEGIN,
            BEGIN + timedelta(seconds=delivery),
            None,
            None,
            None if is_skip else first,
            None,
        )
        for delivery, (first, more, is_skip) in enumerate(spans, 1)
    ]


SPANS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9), st.booleans()), min_size=1, max_size=12)


@settings(
    max_examples=2,
    phases=[Phase.generate],  # a smaller example is not worth the Spark jobs that look for it
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(spans=st.lists(SPANS, min_size=100, max_size=150))
def test_ranges_that_overlap_as_they_like(spark: SparkSession, spans: list[Spans]) -> None:
    lines = [line_of(each) for each in spans]
    numbered = [(number, record) for number, records in enumerate(lines) for record in records]
    found = advance(deliveries_frame(spark, numbered), None, within=WITHIN)
    expected = {(number, *each) for number, records in enumerate(lines) for each in gaps_by_hand(records)}
    assert rows(found.present, found.repaired) == expected


def test_runs_keep_the_table_up_to_date(spark: SparkSession, tmp_path: Path) -> None:
    """New records, a node that comes late with all of its own, and receipts of rows that nobody has. Then a hole of
    another node is filled: what was repaired before stays."""
    folder = str(tmp_path / "tables")
    tables = TableFolder(spark, folder)
    tables.ensure(DELIVERIES)
    one = next(each for each in SCENARIOS if len({record.node_id for record in each.records}) >= 3)
    *torn, filling = (replace(each, node_id="m") for each in line_of([(1, 4, False), (11, 4, False), (6, 4, False)]))
    first = [record for record in one.records if record.delivery in (1, 2, 5)]
    second = [record for record in one.records if record not in first]  # 3 and 4 come late
    first += torn

    def table() -> set[tuple[object, ...]]:
        return values(tables.read(ORDERING_GAPS), *Range._fields)

    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in first]).drop("scenario"))
    summary = ordering_gaps.run(spark, folder)
    assert table() == gaps_by_hand(first)
    assert summary.run.is_full and summary.run.records == len(first)

    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in second]).drop("scenario"))
    stream = next(record for record in one.records if record.kind == "batch")
    lost = ReceiptStream(stream.topic, stream.origin, 1, 5_000, 5_000, 0)
    receipt = Receipt("sink", "q", 1, "q/1", BEGIN, (lost,))
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    kept = receipts / receipt.file_name
    kept.write_text(receipt.to_json(), encoding="utf-8")
    os.utime(kept, (LONG_AGO_S, LONG_AGO_S))  # older than the run before, which did not look at receipts
    summary = ordering_gaps.run(spark, folder, receipts=str(receipts))
    assert table() == gaps_by_hand([*one.records, *torn], {(stream.origin, stream.topic): 5_000})
    assert not summary.run.is_full and summary.run.records >= len(second)
    kept.unlink()

    another = Receipt("sink", "q", 2, "q/2", BEGIN, (replace(lost, topic="another"),))
    (receipts / another.file_name).write_text(another.to_json(), encoding="utf-8")
    tables.append(DELIVERIES, deliveries_frame(spark, [(0, filling)]).drop("scenario"))
    records = [*one.records, *torn, filling]
    zone = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "America/New_York")
    try:
        summary = ordering_gaps.run(spark, folder, receipts=str(receipts))
    finally:
        spark.conf.set(TIME_ZONE, zone or "UTC")
    both = {(stream.origin, stream.topic): 5_000, (stream.origin, "another"): 5_000}
    assert table() == gaps_by_hand(records, both), "the table remembers what the first receipt told"
    assert summary.unaccounted >= 4_000 and summary.run.verdict == "INCOMPLETE"
    assert f"{summary.unaccounted} rows were published without a record" in summary.text

    summary = ordering_gaps.run(spark, folder, full=True)
    assert table() == gaps_by_hand(records)
    assert tables.read(AUDIT_RUNS).count() == 4


def test_who_has_left_and_who_came_later_lack_nothing(spark: SparkSession, folder: str) -> None:
    """Rows 1 to 10: n2 left after 5, and n3 joined when the first eight were kept nowhere any more."""
    tables = TableFolder(spark, folder)
    for table in (DELIVERIES, ROSTER):
        tables.ensure(table)
    whole = [replace(each, node_id="n1") for each in line_of([(1, 4, False), (6, 4, False)])]
    left = [replace(each, node_id="n2") for each in line_of([(1, 4, False)])]
    newcomer = [replace(each, node_id="n3") for each in line_of([(1, 4, True), (6, 4, False)])]
    assert newcomer[0].reason == "expired"
    records = [(0, record) for record in (*whole, *left, *newcomer)]
    tables.append(DELIVERIES, deliveries_frame(spark, records).drop("scenario"))
    later = BEGIN + timedelta(hours=1)
    memberships = [Membership("n1", 1, BEGIN), Membership("n2", 1, BEGIN, BEGIN), Membership("n3", 1, later)]
    tables.append(ROSTER, roster_frame(spark, [(0, each) for each in memberships]).drop("scenario"))
    summary = ordering_gaps.run(spark, folder)
    assert (summary.run.verdict, summary.missing, summary.tail, summary.run.lost) == ("OK", 0, 0, 0)
    tail = tables.read(ORDERING_GAPS).where("node_id = 'n2' AND is_tail AND line = 'stream'").collect()
    assert [(row["first"], row["last"]) for row in tail] == [(6, 10)], "it is told all the same"
