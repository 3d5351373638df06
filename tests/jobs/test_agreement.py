"""Gaps, audit and store check agree on random histories: whoever is asked, the answer is the same, and it is true."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from m4cast.jobs.audit.comparison import audit, extents_of
from m4cast.jobs.expectation import expected_ranges, members_of
from m4cast.jobs.gaps.gap_rows import Expected, advance
from m4cast.jobs.ordering_gaps import findings
from m4cast.jobs.runs import AuditRun
from m4cast.jobs.table_folder import frame
from tests.jobs.audit_by_hand import audit_by_hand
from tests.jobs.frames import SCENARIO, deliveries_frame, roster_frame, values
from tests.jobs.gaps_by_hand import Range, gaps_by_hand
from tests.jobs.histories import AS_OF, History, history

LATE_MS = 30_000
WITHIN = ("scenario",)
COUNTS = ("missing", "lost", "not_read")
KEY = ("window_start", "origin", "topic", "node_id")
COMPARED = (*KEY, "status", "published", "expected", "delivered", *COUNTS, "declined")


def verdict(counts: dict[str, int]) -> str:
    run = AuditRun.begun("job", datetime.now(UTC), "id", 1, is_full=True, records=0)
    return run.ended(**{name: counts[name] for name in COUNTS}, duplicates=0, unaccounted=counts["unaccounted"]).verdict


def nodes(spark: SparkSession, chosen: list[tuple[int, str]]) -> DataFrame:
    rows = [{"scenario": number, "node_id": node_id} for number, node_id in chosen]
    return frame(spark, rows, StructType([SCENARIO, StructField("node_id", StringType())]))


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.soak)], ids=["few", "many"])
def test_gaps_audit_and_stores_agree(spark: SparkSession, tmp_path: Path, count: int) -> None:
    histories = [history(number, tmp_path) for number in range(count)]
    assert [problem for each in histories for problem in each.problems] == [], "a store is not sound"
    deliveries = deliveries_frame(spark, [(each.number, record) for each in histories for record in each.records])
    deliveries = deliveries.localCheckpoint()
    roster = roster_frame(spark, [(each.number, told) for each in histories for told in each.roster])
    cut = nodes(spark, [(each.number, node_id) for each in histories for node_id in each.cut])
    had_records = deliveries.select(*WITHIN, "node_id").unionByName(cut)
    members = members_of(roster, had_records, WITHIN, cut).localCheckpoint()

    lines = by_gaps(deliveries, members, cut, histories)
    windows = by_audit(deliveries, members, histories)

    sums = {row["scenario"]: row.asDict() for row in windows.groupBy(*WITHIN).agg(*map(F.sum, COUNTS)).collect()}
    unread = members.where(F.col("is_gone") | ~F.col("has_reported")).select("node_id").collect()
    of_streams = lines.where("line = 'stream'")
    found = findings(of_streams, [row["node_id"] for row in unread], WITHIN)
    by_number = {row["scenario"]: row.asDict() for row in found.collect()}
    torn = {row[0] for row in of_streams.where("state = 'MISSING' AND NOT is_tail AND node_id <> '*'").collect()}
    assert not torn, "a line is torn, and the store of its receiver is sound"
    verdicts = []
    for each in histories:
        gaps = by_number.get(each.number, dict.fromkeys((*COUNTS, "unaccounted"), 0))
        audited = {name: sums.get(each.number, {}).get(f"sum({name})", 0) for name in COUNTS}
        assert {name: gaps[name] for name in COUNTS} == audited, f"history {each.number}: gaps and audit"
        assert gaps["unaccounted"] == 0, f"history {each.number}: rows that are at a node, or in deleted records"
        verdicts.append(verdict(gaps))
        if each.is_whole:
            assert verdicts[-1] != "INCOMPLETE", f"history {each.number}: a false alarm, {gaps}"
        if each.is_whole is False and not each.cut:
            assert verdicts[-1] != "OK", f"history {each.number}: nothing is said of what is missing"
    assert set(verdicts) == {"OK", "NOT_READ", "INCOMPLETE"}, "the histories have not what they are for"
    assert {each.is_whole for each in histories} == {True, False, None} and any(each.cut for each in histories)


def by_gaps(deliveries: DataFrame, members: DataFrame, cut: DataFrame, histories: list[History]) -> DataFrame:
    """All lines; as by hand."""
    batches = deliveries.where("kind = 'batch'")
    expected = expected_ranges(batches, members, WITHIN)
    sure = expected.join(cut, [*WITHIN, "node_id"], "left_anti")
    doubtful = expected.join(cut, [*WITHIN, "node_id"], "left_semi")
    lines = advance(deliveries, None, within=WITHIN, expected=Expected(sure, doubtful), cut=cut)
    rows = lines.present.unionByName(lines.repaired).localCheckpoint()
    is_deleted = (F.col("node_id") == "*") & ((F.col("state") == "MISSING") | F.col("reason").eqNullSafe("deleted"))
    wanted = {
        (each.number, *row)
        for each in histories
        for row in gaps_by_hand(
            each.records, roster=each.roster, until=AS_OF, cut=each.cut, deleted_until=each.deleted_until
        )
        if (row.node_id, row.state) != ("*", "MISSING")
    }
    assert values(rows.where(~is_deleted), "scenario", *Range._fields) == wanted
    return rows


def by_audit(deliveries: DataFrame, members: DataFrame, histories: list[History]) -> DataFrame:
    """All windows; as by hand."""
    is_batch = F.col("kind") == "batch"
    batches, skips = deliveries.where(is_batch), deliveries.where(~is_batch)
    found = audit(batches, skips, members, extents_of(deliveries, WITHIN), LATE_MS, WITHIN, AS_OF).localCheckpoint()
    wanted: set[tuple[Any, ...]] = set()
    for each in histories:
        rows = audit_by_hand(each.records, each.roster, LATE_MS, AS_OF, each.cut, each.deleted_until)
        wanted |= {
            (each.number, *(({**dict(zip(KEY, key, strict=True)), **row})[name] for name in COMPARED))
            for key, row in rows.items()
        }
    assert values(found, "scenario", *COMPARED) == wanted
    return found
