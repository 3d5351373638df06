"""Selective topics in gaps and audit, against brute force: who wanted what is taken from the table of interest, whether
a row was wanted is decided by its content, and a skip does not excuse a node that wanted the rows."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.report.page import write_report
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.jobs.wants import MARGIN
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.frames import deliveries_frame, roster_frame, values
from tests.jobs.scenarios import BEGIN, Membership, Record

LATER = BEGIN + timedelta(hours=1)
NODES = ("n1", "n2", "n3", "n4", "n5")
ORIGIN, KEEPER = "n1", "n4"
EVENTS = events_table("sel", StructType([StructField("country", StringType())]))


@dataclass(frozen=True)
class Wanted:
    """A registration on the topic: rows of one country, or all."""

    node: str
    number: int
    country: str | None
    epoch: int
    from_s: float
    until_s: float | None = None

    def is_sure(self, at: datetime) -> bool:
        begin = BEGIN + timedelta(seconds=self.from_s)
        end = None if self.until_s is None else BEGIN + timedelta(seconds=self.until_s)
        return begin + MARGIN <= at and (end is None or at < end - MARGIN)

    def as_row(self, read_at: datetime, first_read_at: datetime) -> dict[str, Any]:
        moment = [None if each is None else BEGIN + timedelta(seconds=each) for each in (self.from_s, self.until_s)]
        return {
            "number": self.number,
            "node_id": self.node,
            "node": self.node,
            "registration": f"r{self.number}",
            "owner": "ann",
            "topic": "sel",
            "condition": None if self.country is None else f"country = '{self.country}'",
            "language": None if self.country is None else "sql",
            "start": "latest",
            "epoch": self.epoch,
            "incarnation": 1,
            "ts": self.number,
            "from_at": moment[0],
            "until_at": moment[1],
            "until_incarnation": None,
            "until_ts": None,
            "revision": self.number if self.until_s is None else self.number + 100,
            "read_at": read_at,
            "first_read_at": first_read_at,
        }


@dataclass(frozen=True)
class Published:
    first: int
    at: datetime
    countries: tuple[str, ...]
    is_ingested: bool = True

    @property
    def last(self) -> int:
        return self.first + len(self.countries) - 1


INTERESTS = (
    Wanted("n2", 1, "PL", 7, 30.0, 150.0),
    Wanted("n2", 2, "PL", 9, 170.5),
    Wanted("n2", 3, "DE", 8, 60.0, 90.0),
    Wanted("n3", 1, None, 4, -600.0),
)
"""n4 keeps the stream and wants nothing of it; n5 neither."""


def published(random: Random) -> list[Published]:
    found: list[Published] = []
    first, at = 1, BEGIN + timedelta(seconds=5)
    for number in range(40):
        rows = tuple(random.choices(("PL", "DE", "FR"), k=random.choice((1, 1, 2, 5))))
        found.append(Published(first, at, rows, is_ingested=number not in (11, 12, 13, 27)))
        first, at = first + len(rows), at + timedelta(seconds=6)
    return found


def is_wanted(node: str, batch: Published, interests: Iterable[Wanted] = INTERESTS) -> bool | None:
    """None: it depends on rows that were not ingested."""
    sure = [each for each in interests if each.node == node and each.is_sure(batch.at)]
    if any(each.country is None for each in sure):
        return True
    if not batch.is_ingested and sure:
        return None
    return any(each.country in batch.countries for each in sure)


def delivered(random: Random, batches: list[Published]) -> tuple[list[Record], set[tuple[str, int]]]:
    """The records of all nodes, and which wanted batches did not arrive: (node, first sequence)."""
    lost: set[tuple[str, int]] = set()
    records: list[Record] = []
    for node in NODES:
        came: list[Record] = []
        for number, batch in enumerate(batches):
            wants = is_wanted(node, batch) is not False
            arrives = node in (ORIGIN, KEEPER) or (wants and random.random() < 0.8)
            how, reason = ("published" if node == ORIGIN else "pushed", None) if arrives else (None, "filtered")
            if not arrives and wants:
                lost.add((node, batch.first))
            if not arrives and (node == "n5" or random.random() < 0.5):
                continue  # a node is told of what it does not want now and then, or never
            came.append(
                Record(
                    delivery=len(came) + 1,
                    node_id=node,
                    origin=ORIGIN,
                    topic="sel",
                    first_sequence=batch.first,
                    last_sequence=batch.last,
                    kind="batch" if arrives else "skip",
                    reason=reason,
                    published_at=batch.at if arrives else None,
                    delivered_at=batch.at + timedelta(milliseconds=20),
                    hops=1 if arrives else None,
                    how=how,
                    origin_batch=number + 1 if arrives else None,
                    checksum=f"{batch.first:016x}" if arrives else None,
                    spread="selective" if arrives else None,
                )
            )
        records += came
    return records, lost


def by_hand(batches: list[Published], lost: set[tuple[str, int]]) -> set[tuple[Any, ...]]:
    """Window, node -> published, expected, missing, not read, declined, epoch, status."""
    windows: dict[tuple[datetime, str], list[Published]] = defaultdict(list)
    for node in NODES:
        for batch in batches:
            windows[batch.at.replace(second=0, microsecond=0), node].append(batch)
    found = set()
    for (window, node), theirs in windows.items():
        sums = dict.fromkeys(("published", "expected", "missing", "not_read", "declined"), 0)
        epochs: list[int] = []
        for batch in theirs:
            rows, wants = len(batch.countries), is_wanted(node, batch)
            sums["published"] += rows
            sums["expected"] += rows if wants is not False else 0
            sums["declined"] += rows if wants is False else 0
            if (node, batch.first) in lost:
                sums["not_read" if wants is None else "missing"] += rows
            sure = [each for each in INTERESTS if each.node == node and each.is_sure(batch.at)]
            hits = [
                each for each in sure if each.country is None or (batch.is_ingested and each.country in batch.countries)
            ]
            epochs += [max(each.epoch for each in hits or sure)] if sure else []
        status = "OK"
        if not sums["expected"]:
            status = "NOT_EXPECTED"
        elif sums["missing"]:
            status = "STALLED" if sums["missing"] + sums["not_read"] == sums["expected"] else "INCOMPLETE"
        elif sums["not_read"]:
            status = "NOT_READ"
        found.add((window, node, *sums.values(), max(epochs, default=None), status))
    return found


COLUMNS = ("window_start", "node_id", "published", "expected", "missing", "not_read", "declined", "epoch", "status")


def put(tables: TableFolder, records: Iterable[Record], batches: Iterable[Published]) -> None:
    tables.append(DELIVERIES, deliveries_frame(tables.spark, [(0, each) for each in records]).drop("scenario"))
    rows = [
        {
            "_topic": "sel",
            "_origin": ORIGIN,
            "_sequence": batch.first + at,
            "_published_at": batch.at,
            "country": country,
        }
        for batch in batches
        if batch.is_ingested
        for at, country in enumerate(batch.countries)
    ]
    tables.append(EVENTS, frame(tables.spark, rows, EVENTS.schema))


def tell(tables: TableFolder, interests: Iterable[Wanted], read_at: datetime, first_read_at: datetime) -> None:
    rows = [each.as_row(read_at, first_read_at) for each in interests]
    frame(tables.spark, rows, INTEREST.schema).write.format("delta").mode("append").save(INTEREST.path(tables.folder))


def test_gaps_and_audit_as_by_hand_in_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableFolder(spark, str(tmp_path))
    for table in (DELIVERIES, ROSTER, INTEREST, EVENTS):
        tables.ensure(table)
    roster = [Membership(node, 1, BEGIN - timedelta(hours=1)) for node in NODES]
    tables.append(ROSTER, roster_frame(spark, [(0, each) for each in roster]).drop("scenario"))
    random = Random("wants 1")
    batches = published(random)
    records, lost = delivered(random, batches)
    half = batches[20].at
    early = {each.first for each in batches if each.at < half}
    # First half: what had ended by then had not been read as ended, and n2's second registration was unknown.
    told = [replace(each, until_s=None) for each in INTERESTS if each.from_s < 120]
    put(
        tables, [each for each in records if each.first_sequence in early], [each for each in batches if each.at < half]
    )
    tell(tables, told, LATER, LATER)
    delivery_audit.run(spark, tables.folder, as_of=half, grace=timedelta(0))
    ordering_gaps.run(spark, tables.folder, as_of=half, grace=timedelta(0))

    put(tables, [each for each in records if each.first_sequence not in early], [b for b in batches if b.at >= half])
    spark.sql(f"DELETE FROM {INTEREST.quoted(tables.folder)}")
    later = LATER + timedelta(minutes=1)
    tell(tables, [each for each in INTERESTS if each.until_s is None and each in told], LATER, LATER)
    tell(tables, [each for each in INTERESTS if each.until_s is not None], later, LATER)
    tell(tables, [each for each in INTERESTS if each.from_s >= 120], later, later)
    expected = by_hand(batches, lost)
    assert {row[-1] for row in expected} >= {"OK", "INCOMPLETE", "NOT_EXPECTED", "NOT_READ"}
    missing, not_read = sum(row[4] for row in expected), sum(row[5] for row in expected)
    assert missing and not_read

    begins = {node: min(each.first_sequence for each in records if each.node_id == node) for node in ("n2", "n3")}
    sure = {(node, each.first): len(each.countries) for node in begins for each in batches if is_wanted(node, each)}
    wanted_and_lost = [(*key, rows) for key, rows in sure.items() if key in lost]
    assert sum(rows for *_, rows in wanted_and_lost) == missing

    audited = delivery_audit.run(spark, tables.folder, as_of=LATER)
    assert not audited.run.is_full
    assert values(tables.read(DELIVERY_AUDIT), *COLUMNS) == expected
    assert (audited.run.missing, audited.run.not_read, audited.run.verdict) == (missing, not_read, "INCOMPLETE")
    gaps = ordering_gaps.run(spark, tables.folder, as_of=LATER)
    seen = sum(rows for node, first, rows in wanted_and_lost if first >= begins[node])
    assert (gaps.missing, gaps.run.verdict) == (seen, "INCOMPLETE"), "what is undecided, the audit tells"
    write_report(tables, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Who wanted what" in text
    assert text.count("country = &#x27;PL&#x27;") == 2 and "<td>every row</td>" in text
