"""Rows of topics, or their raw batches, as a stream of micro-batches or as one batch.

Offsets are frontiers, so a query continues through any node that holds the topics, and `[start, end)` returns equal
rows each time (guarantee 6). Rows that have not arrived are waited for; rows that no listed node keeps are data loss,
which fails the query or is skipped. Readers are pickled before they are used, so they connect lazily.

Spark keeps one stream reader in a separate process for the offsets and sends copies to the tasks: all that a task needs
is in the options and in its partition. `spans` reads the partitions in the tasks.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import client_of, saved_by_client
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, StreamName
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source import planner
from m4cast.spark_connector.source.lease import ReaderLease
from m4cast.spark_connector.source.spans import RowChoice, SpanReader
from m4cast.spark_connector.source.topics import SourceTopics
from m4cast.spark_connector.source_filter import SourceFilter, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("m4cast.spark")

WAIT_S = 0.1
"""Time that a node waits for new rows before it answers an idle stream. Spark asks the sources of a query one after the
other, so their waits add up. Higher: fewer requests, more latency for other sources. Guess."""
LOWS_S = 10.0
"""Interval at which planning checks which rows are still kept; tasks check again. Guess."""


class SpanPartition(InputPartition):
    """A piece of one stream, and the filter that the nodes apply to it."""

    def __init__(self, span: planner.SequenceSpan, row_filter: RowChoice) -> None:
        super().__init__((span, row_filter))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        check_filter(options, schema, is_complete=not drop_others)
        self._options = options
        self._topics = SourceTopics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)
        self._target: Frontier | None = None
        self._latest: Frontier | None = None
        self._lease: ReaderLease | None = None
        self._checked_lows_at = 0.0
        self._given_at = 0.0
        """The time at which the last micro-batch was planned, or the first one could have been."""

    def initialOffset(self) -> dict[str, Any]:
        if self._options.wait_active is not None:
            self._topics.wait_active(self._options.wait_active)
        return offsets.with_filter(self._topics.frontier(self._options.starting), self._options.row_filter)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._topics.frontier()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = offsets.without_skips(start)
        # After a fail-over the node may lag: an offset never goes back, and rows up to a target are waited for.
        self._latest = self._newest(at) if self._target is None else self._target
        self._hold(at)
        ahead = offsets.rows_between(at, self._latest)
        if not ahead or self._waits_for_more(ahead):
            return start
        skips = self._lost(at, ahead)
        begin = offsets.after_skips(at, skips)
        rows = offsets.rows_between(begin, self._latest)
        if rows and not isinstance(limit, ReadAllAvailable):
            rows = self._limited(rows)
        self._note_change(offsets.filter_of(start))
        return offsets.with_filter(offsets.with_skips(offsets.advanced(begin, rows), skips), self._options.row_filter)

    def _note_change(self, before: SourceFilter | None) -> None:
        """A query may be restarted with another filter, which selects among the rows that it has not read yet."""
        now = self._options.row_filter
        if before != now:
            old, new = ("no filter" if each is None else repr(each.text) for each in (before, now))
            log.warning(
                "option where was changed from %s to %s: the new one applies from this micro-batch on", old, new
            )

    def _newest(self, at: Frontier) -> Frontier:
        """The latest frontier; if nothing is new, the node waits a moment for new rows."""
        known = self._latest
        is_idle = known is not None and not offsets.rows_between(at, known)
        return self._topics.newest(WAIT_S if is_idle else 0)

    def _waits_for_more(self, ahead: dict[StreamName, int]) -> bool:
        """True if there are fewer rows than `minRowsPerTrigger`, and `maxTriggerDelay` has not passed."""
        now = time.monotonic()
        self._given_at = self._given_at or now
        is_over = now >= self._given_at + self._options.max_trigger_delay_ms / 1000
        if self._target is None and sum(ahead.values()) < self._options.min_rows_per_trigger and not is_over:
            return True
        self._given_at = now
        return False

    def _limited(self, rows: dict[StreamName, int]) -> dict[StreamName, int]:
        """Spark passes only one limit; the options may set two."""
        if self._options.max_rows_per_trigger is not None:
            rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            sizes = self._topics.row_bytes(rows)
            rows = planner.rows_of_bytes(rows, sizes, self._options.max_bytes_per_trigger)
        return rows

    def _lost(self, at: Frontier, ahead: dict[StreamName, int]) -> dict[StreamName, tuple[int, int]]:
        """Ranges of the next rows that no listed node keeps any more: an error, or to be skipped."""
        now = time.monotonic()
        if now < self._checked_lows_at + LOWS_S:
            return {}
        self._checked_lows_at = now
        lost = {}
        for stream, low in self._topics.lows(at, ahead).items():
            first = offsets.position(at, stream)
            lost[stream] = (first, low)
            rows = f"topic {stream.topic!r}, origin {stream.origin}: no node keeps rows {first} to {low - 1} any more"
            if self._options.fail_on_data_loss:
                fix = "list a node that still keeps them, start at a later offset, or set failOnDataLoss to false"
                raise ConnectorError("M4CAST_DATA_LOSS", rows, fix)
            log.warning("skipping rows: %s", rows)
        return lost

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        at = offsets.without_skips(start)
        self._hold(at)
        begin = offsets.after_skips(at, offsets.skips_of(end))
        return _partitions(begin, offsets.without_skips(end), self._options, offsets.filter_of(end))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._spans.read(*partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint stores what was read."""

    def stop(self) -> None:
        if self._lease is not None:
            self._lease.close()

    def _hold(self, start: Frontier) -> None:
        """Lease the rows from `start` on. Earlier rows are in the checkpoint and are not replayed."""
        topics = self._options.topics or tuple({**(self._latest or {}), **start})
        if self._options.reader is None or not topics:
            return
        if self._lease is None:  # created late: it cannot be pickled for the tasks
            self._lease = ReaderLease(
                self._options.access, self._options.reader, self._options.lease_ms, self._options.row_filter
            )
        self._lease.hold(start, topics)


class BatchReader(DataSourceReader):
    """One read of a range.

    It does not support filter push-down (`pushFilters`): Spark shares one reader between all uses of a DataFrame,
    including the filters of the last use, so that another use without filters would lose rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        check_filter(options, schema, is_complete=not drop_others)
        self._options = options
        self._topics = SourceTopics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self._topics.range()
        return _partitions(start, end, self._options, self._options.row_filter)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if partition.value is None:  # Spark's placeholder when there is nothing to read
            return iter(())
        return self._spans.read(*partition.value)


def _partitions(
    start: Frontier, end: Frontier, options: ReadOptions, row_filter: SourceFilter | None
) -> list[InputPartition]:
    planned = planner.spans(start, end, min_partitions=options.min_partitions, max_rows=options.max_rows_per_partition)
    return [SpanPartition(span, row_filter) for span in planned]


def schema_of(options: ReadOptions) -> StructType:
    """The present columns of the topics with the requested columns of the channel, or the columns of records."""
    from m4cast.schemas.arrow_types import CLIENT_PROFILES, DELIVERIES, INTEREST, ROSTER
    from m4cast.spark_connector.columns import RAW, merged, spark_schema

    match options.read:
        case "deliveries":
            return spark_schema(DELIVERIES)
        case "roster":
            return spark_schema(ROSTER)
        case "interest":
            return spark_schema(INTEREST)
        case "raw":
            return spark_schema(merged([("", RAW)], options.metadata))
        case "clients":
            return spark_schema(CLIENT_PROFILES)
        case "client":
            return spark_schema(_columns_of_topics(of_client(options)))
        case "rows" | "table":
            found = spark_schema(_columns_of_topics(options))
            check_filter(options, found, is_complete=True)
            return found


def of_client(options: ReadOptions) -> ReadOptions:
    """The read of the topics that a client has profiles on, as its access point says."""
    topics = saved_by_client(client_of(options), options).topics
    if not topics:
        problem = f"client {options.client!r} has no profiles"
        raise ConnectorError("M4CAST_CLIENT", problem, "subscribe it to something first: m4cast client subscribe")
    return replace(options, topics=topics)


def check_filter(options: ReadOptions, schema: StructType, *, is_complete: bool) -> None:
    """See `source_filter.check_columns`."""
    from m4cast.spark_connector.columns import RESERVED

    if options.row_filter is not None:
        check_columns(options.row_filter, schema, made=RESERVED, is_complete=is_complete)


def _columns_of_topics(options: ReadOptions) -> "pa.Schema":
    from m4cast.spark_connector.columns import merged

    topics = SourceTopics(options)
    names = topics.names()
    if not names:
        problem = f"no topic matches {options.topic_pattern!r}"
        fix = "list the names with `m4cast topics`, or set the columns with schema() to wait for a topic"
        raise ConnectorError("M4CAST_UNKNOWN_TOPIC", problem, fix)
    return merged([(name, schema) for name in names for schema in topics.schemas(name)], options.metadata)
