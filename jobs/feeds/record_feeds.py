"""Feeds of the data that audits need besides rows: the delivery records of all nodes, the roster, and interest records.

Delivery records are a log, and a streaming query reads them. Roster and interest records change: they are read from the
nodes and compared with what the tables have in this process, beside the queries (`RecordMerges`), so that Spark is used
only for what has changed.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.jobs.direct.engine import EngineChoice, chosen_engine, start_direct
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds.feed import FeedFailedError, FeedRun, TableFeed, checked_start, reason_of, started
from m4cast.jobs.feeds.table_locks import TableLocks
from m4cast.jobs.table_folder import CHANGES_MAX, TableFolder, frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER
from m4cast.schemas.tables.table import Table
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source import changing_records
from m4cast.spark_connector.source.changing_records import ChangingKind, ChangingRecords, Record, plain_records

if TYPE_CHECKING:
    from m4cast.jobs.ingest import Ingest

OF_ALL_FEEDS = ("failondataloss",)
"""Options for rows that apply to delivery records as well."""
FIRST_MERGE_S, MERGE_EVERY_S = 30.0, 10.0
"""The delay before a continuous ingest first merges roster and interest, so that the first rows take precedence, and
the interval after that. Lower: more small commits. Changes between two merges are not lost: both lists include past
ones."""
UNCHANGED_S = 60.0
"""The interval at which a roster is written if only its times have changed."""
TIMES = ("last_heard_at", "read_at")
CONFLICT = "DELTA_CONCURRENT"
"""Delta's names of conflicts with other writers begin with it."""


def deliveries_feed(
    spark: SparkSession, ingest: "Ingest", engines: dict[str, EngineChoice], locks: TableLocks
) -> FeedRun:
    """The feed of delivery records. Its engine is noted in `engines` when it starts."""
    return FeedRun(TableFeed(DELIVERIES.name, partial(_start_deliveries, spark, ingest, engines, locks)))


def _start_deliveries(
    spark: SparkSession, ingest: "Ingest", engines: dict[str, EngineChoice], locks: TableLocks
) -> StreamingQuery:
    locks.take_table(DELIVERIES.name)
    tables = TableFolder(spark, ingest.tables)
    starting = "earliest"
    if checked_start(tables, DELIVERIES, ingest) == "after":
        ends = tables.read(DELIVERIES).groupBy("node_id").agg(F.max("delivery").alias("last")).collect()
        starting = json.dumps({"deliveries": {row["node_id"]: row["last"] + 1 for row in ends}})
    tables.ensure(DELIVERIES)
    engines[DELIVERIES.name] = chosen_engine(tables, DELIVERIES, ingest.engine)
    if engines[DELIVERIES.name].engine == "direct":
        return start_direct(tables, ingest, DELIVERIES, options_of(ingest, starting))
    records = spark.readStream.format("m4cast").options(**options_of(ingest, starting)).load()
    writer = records.select(DELIVERIES.schema.names).writeStream.format("delta")
    writer = writer.option("path", DELIVERIES.path(ingest.tables))
    return started(writer, ingest, DELIVERIES.name, ingest.checkpoint(DELIVERIES))


def options_of(ingest: "Ingest", starting: str) -> dict[str, str]:
    shared = {name: value for name, value in ingest.options.items() if name.lower() in OF_ALL_FEEDS}
    return {**ingest.access, **shared, "read": "deliveries", "of": "all", "startingOffsets": starting}


class RecordMerges:
    """Keeps the tables of roster and interest up to date, on a thread of its own while feeds run."""

    def __init__(self, spark: SparkSession, ingest: "Ingest") -> None:
        self._merges = [
            *([RosterMerge(spark, ingest)] if "roster" in ingest.kinds else []),
            *([InterestMerge(spark, ingest)] if "interest" in ingest.kinds else []),
        ]
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ingest-merges", daemon=True)
        if ingest.continuous and self._merges:
            self._thread.start()

    def _run(self) -> None:
        pause_s = FIRST_MERGE_S
        while not self._is_over.wait(pause_s):
            pause_s = MERGE_EVERY_S
            try:
                for merge in self._merges:
                    merge.merge()
            except Exception as error:  # raised by `check`, on the thread of the feeds
                self._error = error
                return

    def check(self) -> None:
        """Raise what has failed."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def finish(self) -> None:
        """Merge once more: as it was when the last delivery was read."""
        self.stop()
        self.check()
        for merge in self._merges:
            merge.merge(is_last=True)


class _RecordMerge(ABC):
    """Merges records of one kind, as the nodes have them now, into their table."""

    table: Table
    kind: ChangingKind

    def __init__(self, spark: SparkSession, ingest: "Ingest") -> None:
        self._tables = TableFolder(spark, ingest.tables)
        given = {**ingest.access, "read": self.table.name}
        chosen = parse(given if self.table is ROSTER else {**given, "of": "all"})
        self._records = ChangingRecords(self.kind, read_options(chosen, streaming=False))
        self._is_ready = False

    def merge(self, *, is_last: bool = False) -> None:
        try:
            if not self._is_ready:
                self._tables.ensure(self.table)
                self._is_ready = True
            heard = self._records.now()
            for attempt in range(1, CHANGES_MAX + 1):
                try:
                    self._apply(heard, round(time.time() * 1_000_000), is_last=is_last)
                    return
                except PySparkException as error:
                    if CONFLICT not in str(error) or attempt == CHANGES_MAX:
                        raise
                    self._forget()
        except PySparkException as error:
            raise FeedFailedError(f"{self.table.name}: {reason_of(error)}") from error

    @abstractmethod
    def _apply(self, heard: Iterable[Record], now_us: int, *, is_last: bool) -> None:
        """Write what has changed."""

    @abstractmethod
    def _forget(self) -> None:
        """Called when another writer has changed the table: read it again."""

    def _version_now(self) -> int | None:
        """Delta's version of the table, as far as it can be known without Spark; 0: the table was only created."""
        if not TableLog.is_available(self._tables.spark):
            return None
        return TableLog(self._tables.spark, self.table.path(self._tables.folder)).version()

    def _frame(self, rows: Iterable[Record]) -> DataFrame:
        return frame(self._tables.spark, list(rows), self.table.schema)


class RosterMerge(_RecordMerge):
    """A small table, which is replaced as a whole. Its content is remembered until another writer changes the table."""

    table = ROSTER
    kind = changing_records.ROSTER

    def __init__(self, spark: SparkSession, ingest: "Ingest") -> None:
        super().__init__(spark, ingest)
        self._known: dict[tuple[object, ...], Record] = {}
        self._version: int | None = None
        """Delta's version whose content is `_known`."""
        self._written_at = -UNCHANGED_S

    def _forget(self) -> None:
        self._version = None

    def _apply(self, heard: Iterable[Record], now_us: int, *, is_last: bool) -> None:
        version = self._version_now()
        if version is None or version != self._version:
            rows = plain_records(self._tables.read(ROSTER).toArrow()) if version != 0 else []
            self._known = {_key(row): row for row in rows}
            self._version = version
        known = self._known
        merged = known | {_key(row): _merged(known.get(_key(row)), row, now_us) for row in heard}
        is_due = is_last or time.monotonic() - self._written_at >= UNCHANGED_S
        if not is_due and _lasting(merged) == _lasting(known):
            return
        writer = self._frame(merged.values()).coalesce(1).write.format("delta")
        writer.mode("overwrite" if known else "append").save(ROSTER.path(self._tables.folder))
        self._known, self._written_at = merged, time.monotonic()
        # If somebody else wrote meanwhile, too, the number is another one.
        self._version = None if version is None or self._version_now() != version + 1 else version + 1


def _key(row: Record) -> tuple[object, ...]:
    return tuple(row[name] for name in ROSTER.key)


def _merged(known: Record | None, heard: Record, now_us: int) -> Record:
    """Merge two versions of a roster row. Where they differ, the earlier begin and a known end are kept."""
    heard = {**heard, "read_at": now_us}
    if known is None:
        return heard
    ends = {name: known[name] if heard[name] is None else heard[name] for name in ("to_at", "reason")}
    return {**heard, **ends, "from_at": min(known["from_at"], heard["from_at"])}


def _lasting(rows: dict[tuple[object, ...], Record]) -> list[Record]:
    return [{name: value for name, value in rows[key].items() if name not in TIMES} for key in sorted(rows, key=str)]


class InterestMerge(_RecordMerge):
    """Adds new registrations and updates those that have ended, of all nodes that answer. Nothing is committed if
    nothing has changed."""

    table = INTEREST
    kind = changing_records.INTEREST

    def __init__(self, spark: SparkSession, ingest: "Ingest") -> None:
        super().__init__(spark, ingest)
        self._revisions: dict[tuple[object, ...], int] | None = None
        """The revision in the table, by key."""

    def _forget(self) -> None:
        self._revisions = None

    def _apply(self, heard: Iterable[Record], now_us: int, *, is_last: bool) -> None:
        if self._revisions is None:
            self._revisions = {}
            if self._version_now() != 0:
                known = self._tables.read(INTEREST).select(*INTEREST.key, "revision").collect()
                self._revisions = {tuple(row)[:-1]: row["revision"] for row in known}
        found = {tuple(row[name] for name in INTEREST.key): row for row in heard}
        news = {key: row for key, row in found.items() if self._revisions.get(key) != row["revision"]}
        if not news:
            return
        told = self._frame({**row, "read_at": now_us, "first_read_at": now_us} for row in news.values())
        same = " AND ".join(f"known.{name} = told.{name}" for name in INTEREST.key)
        merge = self._tables.delta(INTEREST).alias("known").merge(told.alias("told"), same)
        changing = [name for name in INTEREST.schema.names if name not in (*INTEREST.key, "first_read_at")]
        changed: dict[str, str | Column] = {name: F.col(f"told.{name}") for name in changing}
        merge.whenMatchedUpdate("told.revision > known.revision", changed).whenNotMatchedInsertAll().execute()
        self._revisions |= {key: row["revision"] for key, row in news.items()}
