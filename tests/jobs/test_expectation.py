"""Gaps, audit and the page agree about receivers whose records were not read or are deleted, and raise no alarm."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.delivery_audit import has_failed
from m4cast.jobs.gaps.gap_rows import advance
from m4cast.jobs.ordering_gaps import findings
from m4cast.jobs.ranges import NUMBER_MAX
from m4cast.jobs.report.page import write_report
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.frames import deliveries_frame, roster_frame
from tests.jobs.scenarios import BEGIN, Membership, Record

MEMBER_SINCE = BEGIN - timedelta(hours=1)


def batch(node: str, number: int, *, at_s: float, topic: str = "t", late_s: float = 1, skew_s: float = 0) -> Record:
    """The `number`th batch of n1, of ten rows, published `at_s` after the beginning by n1's clock."""
    published = BEGIN + timedelta(seconds=at_s)
    delivered = published if node == "n1" else published + timedelta(seconds=late_s - skew_s)
    rows = number * 10 - 9, number * 10
    how = "published" if node == "n1" else "pushed"
    return Record(
        number, node, "n1", topic, *rows, "batch", None, published, delivered, 1, how, number, f"{number:016x}"
    )


def filled(spark: SparkSession, folder: str, records: list[Record], roster: list[Membership]) -> TableFolder:
    tables = TableFolder(spark, folder)
    for table in (DELIVERIES, ROSTER):
        tables.ensure(table)
    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in records]).drop("scenario"))
    tables.append(ROSTER, roster_frame(spark, [(0, each) for each in roster]).drop("scenario"))
    return tables


def statuses(tables: TableFolder) -> set[tuple[object, ...]]:
    named = tables.read(DELIVERY_AUDIT).select("window_start", "topic", "node_id", "status")
    return {tuple(row) for row in named.collect()}


def test_records_that_nobody_has_read_are_no_missing_rows(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    """n2 was drained and never ingested; n3 was ingested, and then drained; n4 is there, and was never ingested."""
    records = [batch(node, number, at_s=70 * number) for node in ("n1", "n5") for number in (1, 2, 3)]
    records.append(batch("n3", 1, at_s=70))
    roster = [Membership(node, 1, MEMBER_SINCE) for node in ("n1", "n4", "n5")]
    roster += [Membership(node, 1, MEMBER_SINCE, BEGIN + timedelta(seconds=200), "left") for node in ("n2", "n3")]
    tables = filled(spark, folder, records, roster)
    gaps = ordering_gaps.run(spark, folder)
    audit = delivery_audit.run(spark, folder)
    not_read = 20 + 10 + 30
    for run in (gaps.run, audit.run):
        assert (run.verdict, run.missing, run.lost, run.not_read) == ("NOT_READ", 0, 0, not_read)
    assert audit.bad == {"NOT_READ": 2 + 1 + 3}
    assert f"{not_read} not read" in gaps.text and f"{not_read} not read" in audit.text
    assert [has_failed(audit, fail_on) for fail_on in ("incomplete", "not-read", "late")] == [False, True, True]

    page = tmp_path / "report.html"
    write_report(tables, page)
    text = page.read_text()
    assert re.findall(r'class="verdict [a-z]+"><b>([^<]*)</b>', text) == ["NOT_READ"]
    shown = dict(re.findall(r"<span>([^<]*)</span><b>([^<]*)</b>", text))
    assert (shown["rows missing"], shown["rows not read"]) == ("0", str(not_read))
    assert {name for name in shown if name.startswith("windows")} == {"windows OK", "windows LEFT", "windows NOT_READ"}
    listed = re.findall(r'<td class="n">(\d+)</td><td class="n">(\d+)</td><td>([^<]*)</td>', text)
    assert sorted(listed) == [("1", "20", "not read"), ("1", "30", "not read"), ("11", "30", "not read")]

    # What was not read is read after all: n4's records, of which one is late.
    late = [batch("n4", number, at_s=70 * number, late_s=40 if number == 3 else 1) for number in (1, 2, 3)]
    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in late]).drop("scenario"))
    runs = ordering_gaps.run(spark, folder).run, delivery_audit.run(spark, folder).run
    assert [(run.verdict, run.is_full, run.missing, run.not_read) for run in runs] == [("NOT_READ", False, 0, 30)] * 2


def test_deleted_records_are_no_missing_rows_whatever_the_clocks(spark: SparkSession, folder: str) -> None:
    """n1's clock is ten minutes ahead, so n1 still has what is deleted at n2: of topic u, all that n2 had."""
    skew_s = {"n1": 0.0, "n2": 600.0}
    records = []
    for node, skew in skew_s.items():
        records.append(batch(node, 1, at_s=700, topic="u", skew_s=skew))
        batches = [batch(node, number, at_s=700 + 70 * number, skew_s=skew) for number in range(1, 9)]
        records += [replace(each, delivery=each.delivery + 1) for each in batches]
    tables = filled(spark, folder, records, [Membership(node, 1, MEMBER_SINCE) for node in skew_s])
    deleted_before = BEGIN + timedelta(seconds=700 + 70 * 5 - 600)
    spark.sql(f"DELETE FROM {DELIVERIES.quoted(folder)} WHERE delivered_at < '{deleted_before}'")
    assert tables.read(DELIVERIES).where("node_id = 'n1'").count() == 9
    assert tables.read(DELIVERIES).where("node_id = 'n2'").count() == 4
    runs = ordering_gaps.run(spark, folder).run, delivery_audit.run(spark, folder).run
    assert [(run.verdict, run.missing, run.not_read) for run in runs] == [("OK", 0, 0)] * 2

    # More is deleted, and one more batch comes: what was stated of the others stays.
    stated = {
        tuple(row) for row in tables.read(DELIVERY_AUDIT).select("window_start", "topic", "node_id", "status").collect()
    }
    more_before = BEGIN + timedelta(seconds=700 + 70 * 7)
    spark.sql(f"DELETE FROM {DELIVERIES.quoted(folder)} WHERE delivered_at < '{more_before}'")
    new = [replace(batch(node, 9, at_s=700 + 70 * 9, skew_s=skew), delivery=10) for node, skew in skew_s.items()]
    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in new]).drop("scenario"))
    runs = ordering_gaps.run(spark, folder).run, delivery_audit.run(spark, folder).run
    assert [(run.verdict, run.missing, run.not_read) for run in runs] == [("OK", 0, 0)] * 2
    now = {
        tuple(row) for row in tables.read(DELIVERY_AUDIT).select("window_start", "topic", "node_id", "status").collect()
    }
    assert stated <= now and len(now) == len(stated) + 2


def test_a_skip_of_everything_from_here_on(spark: SparkSession) -> None:
    """Up to the highest number that there is: nothing overflows, whatever lies before, behind or in it."""

    def skip(node: str, delivery: int, first: int, last: int = NUMBER_MAX) -> Record:
        at = BEGIN + timedelta(seconds=delivery)
        return Record(delivery, node, "n1", "t", first, last, "skip", "not-subscribed", None, at, *[None] * 4)

    records = [batch(node, number, at_s=number) for node in ("n1", "n2", "n3") for number in (1, 2)]
    records += [skip("n2", 3, 21), replace(batch("n2", 3, at_s=3), delivery=4), skip("n2", 5, 15)]
    records += [skip("n3", 3, 31), skip("n4", 1, 1), skip("n4", 2, 1), skip("n5", 1, NUMBER_MAX)]
    numbered = [(0, record) for record in records]
    first = advance(deliveries_frame(spark, numbered[:8]), None).present.drop("scenario")
    lines = advance(deliveries_frame(spark, numbered[8:]).drop("scenario"), first.localCheckpoint())
    rows = lines.present.where("line = 'stream'").localCheckpoint()
    found = {
        (row["node_id"], row["state"], row["first"], row["last"])
        for row in rows.where("node_id IN ('n2', 'n3', 'n4', 'n5')").collect()
    }
    assert found == {
        ("n2", "HELD", 1, 30),
        ("n2", "SKIPPED", 31, NUMBER_MAX),
        ("n3", "HELD", 1, 20),
        ("n3", "MISSING", 21, 30),
        ("n3", "SKIPPED", 31, NUMBER_MAX),
        ("n4", "SKIPPED", 1, NUMBER_MAX),
        ("n5", "SKIPPED", NUMBER_MAX, NUMBER_MAX),
    }
    counts = findings(rows, []).collect()[0]
    assert counts["skipped"] == NUMBER_MAX, "more than a number can say"
