"""The progress of streaming queries as a Delta table: a `StreamingQueryListener` for queries that read or publish.

    spark.streams.addListener(DeltaProgressListener("/tables", nodes="127.0.0.1:7501"))

It uses what Spark reports after each trigger. Offsets of the channel are frontiers, so the backlog is the difference of
two of them, and rows that a micro-batch covers but did not receive were skipped or, with the option `where`, filtered
away. Spark does not know the sizes of rows: with `nodes`, the nodes are asked for the mean row size of each stream.

Rows are buffered for `every_s`, since each write is a commit of the table; the rest is written when a query idles or
ends. If the table cannot be written, up to `ROWS_MAX` rows are retained and a warning is logged; the query is never
affected.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.query_progress import QUERY_PROGRESS
from m4cast.schemas.tables.table import VERSION_PROPERTY
from m4cast.spark_connector.access import channel_of
from m4cast.spark_connector.offsets import (
    Frontier,
    StreamName,
    filter_of,
    parse_frontier,
    rows_between,
    skips_of,
    without_skips,
)
from m4cast.spark_connector.options import parse, write_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("m4cast.spark")

EVERY_S = 10.0
ROWS_MAX = 10_000
NO_OFFSET = ("None", "null")
"""An offset that Spark does not report, in classic sessions and in JSON."""
Row = tuple[str | int | datetime | None, ...]
"""A row of the table, in the order of its columns."""


class DeltaProgressListener(StreamingQueryListener):
    """Appends to the table `query_progress` in `folder`. `options` (`token`, `tlsCa`, ...) are for the `nodes`."""

    def __init__(self, folder: str, *, nodes: str | None = None, every_s: float = EVERY_S, **options: str) -> None:
        self._folder = folder
        self._access = None if nodes is None else write_options(parse({"nodes": nodes, **options})).access
        self._every_s = every_s
        self._rows: list[Row] = []
        self._written_at = time.monotonic()
        self._is_upgraded = False

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        pass

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        if "addBatch" not in event.progress.durationMs:  # a trigger that found nothing new
            return
        self._rows = [*self._rows[-ROWS_MAX + 1 :], row_of(event.progress, self._row_bytes(event.progress))]
        if time.monotonic() - self._written_at >= self._every_s:
            self._write()

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        self._write()

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        self._write()

    def _write(self) -> None:
        if not self._rows:
            return
        self._written_at = time.monotonic()
        try:
            spark = self.spark or SparkSession.builder.getOrCreate()  # only Spark Connect sets a listener's session
            self._prepare(spark)
            table = spark.createDataFrame(self._rows, QUERY_PROGRESS.schema).coalesce(1)
            table.write.format("delta").mode("append").save(QUERY_PROGRESS.path(self._folder))
            self._rows = []
        except Exception as error:  # any error of the table's storage; the next attempt may succeed
            log.warning("cannot write the progress of queries to %s: %s", self._folder, str(error)[:1_000])

    def _prepare(self, spark: SparkSession) -> None:
        """Create the table, or upgrade one that an earlier version created."""
        spark.sql(QUERY_PROGRESS.create_statement(self._folder))
        if not self._is_upgraded:
            shown = spark.sql(f"SHOW TBLPROPERTIES {QUERY_PROGRESS.quoted(self._folder)}").collect()
            found = int({row["key"]: row["value"] for row in shown}[VERSION_PROPERTY])
            if found < QUERY_PROGRESS.version:
                for statement in QUERY_PROGRESS.upgrade_statements(self._folder, found):
                    spark.sql(statement)
            self._is_upgraded = True

    def _row_bytes(self, progress: StreamingQueryProgress) -> dict[StreamName, float] | None:
        """The mean row size of each stream that was read, as a node stores it."""
        read = [source for source in map(_channel_offsets, progress.sources) if source is not None]
        if self._access is None or not read:
            return None
        channel = channel_of(self._access)
        sizes: dict[StreamName, float] = {}
        try:
            for topic in {topic for source in read for topic in source.end}:
                for origin, held in channel.describe(topic)["streams"].items():
                    if held["next"] > held["low"] and held["bytes"] is not None:
                        sizes[StreamName(topic, origin)] = held["bytes"] / (held["next"] - held["low"])
        except M4castError as error:
            log.warning("cannot determine row sizes: %s", error)
            return None
        return sizes


class ChannelOffsets(NamedTuple):
    """Spark's report about a source that is a channel."""

    start: Frontier | None
    """None for the first micro-batch of a query."""
    end: Frontier
    latest: Frontier
    planned_skips: int
    """Rows that the plan of the micro-batch left out because no node retains them."""
    is_filtered: bool


class RowCounts(NamedTuple):
    """The rows in the range of a micro-batch, counted by their fate, for one source."""

    skipped: int
    tested: int | None
    filtered: int | None

    @classmethod
    def of(cls, within: int, received: int, read: ChannelOffsets) -> "RowCounts":
        """Count rows. With a filter, those that a task skipped cannot be distinguished from those that did not
        match."""
        if not read.is_filtered:
            return cls(max(within - received, 0), None, None)
        tested = max(within - read.planned_skips, 0)
        return cls(read.planned_skips, tested, max(tested - received, 0))


def row_of(progress: StreamingQueryProgress, row_bytes: Mapping[StreamName, float] | None = None) -> Row:
    """The row for one trigger. Sources other than the channel only count towards the number of rows."""
    backlog: int | None = None
    size: float | None = None
    counts: list[RowCounts] = []
    for source in progress.sources:
        read = _channel_offsets(source)
        if read is None:
            continue
        backlog = (backlog or 0) + sum(rows_between(read.end, read.latest).values())
        if read.start is None:
            continue
        within = rows_between(read.start, read.end)
        counts.append(RowCounts.of(sum(within.values()), source.numInputRows, read))
        if row_bytes is not None:
            size = (size or 0) + sum(count * row_bytes.get(stream, 0) for stream, count in within.items())
    durations = progress.durationMs
    return (
        str(progress.id),
        str(progress.runId),
        progress.name,
        progress.batchId,
        datetime.fromisoformat(progress.timestamp),
        sum(source.numInputRows for source in progress.sources),
        None if size is None else round(size),
        backlog,
        _total(each.skipped for each in counts),
        durations.get("addBatch"),
        durations.get("triggerExecution"),
        _total(each.tested for each in counts),
        _total(each.filtered for each in counts),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _channel_offsets(source: Any) -> ChannelOffsets | None:
    """None for other sources: only offsets of a channel are frontiers."""
    try:
        start = None if source.startOffset in NO_OFFSET else _frontier(source.startOffset)
        end = _frontier(source.endOffset)
        latest = end if source.latestOffset in NO_OFFSET else _frontier(source.latestOffset)
    except (ValueError, TypeError):
        return None
    if not end:
        return None
    offset = json.loads(source.endOffset)
    return ChannelOffsets(
        start=start,
        end=end,
        latest=latest,
        planned_skips=sum(until - first for first, until in skips_of(offset).values()),
        is_filtered=filter_of(offset) is not None,
    )


def _frontier(offset: str) -> Frontier:
    value = json.loads(offset)
    return parse_frontier(without_skips(value) if isinstance(value, dict) else value)
