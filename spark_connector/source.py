"""The source: rows of topics, or their batches, as a stream of micro-batches or as one batch.

Offsets are frontiers, so a query goes on through any node that holds the topics, and `[start, end)` gives equal rows
each time (guarantee 6). Rows that are not here yet are waited for; rows that no listed node keeps are data loss, which
fails or is passed over. Nothing is connected before Spark asks: readers are pickled as they are.

Spark keeps one stream reader in a process of its own for the offsets, and sends a copy to the tasks: what a task needs
is in the options and in its partition. `spans` reads partitions, in the tasks.
"""

import logging
import time
from collections.abc import Iterator, Sequence
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

from m4cast.spark_connector import offsets, planner
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.lease import ReaderLease
from m4cast.spark_connector.offsets import Frontier, Stream
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.spans import SpanReader
from m4cast.spark_connector.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("m4cast.spark")

WAIT_S = 0.1
"""How long a node is asked to wait for news, when there are none. Spark asks the sources of a query one after the
other, so each of them waits for all. Higher: fewer questions, later rows of other sources. Guess."""
LOWS_S = 10.0
"""How old the knowledge may be of which rows are kept, when a micro-batch is planned; tasks look again. Guess."""


class SpanPartition(InputPartition):
    """A piece of one stream."""

    def __init__(self, span: planner.Span) -> None:
        super().__init__(span)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._topics = Topics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)
        self._target: Frontier | None = None
        self._latest: Frontier | None = None
        self._lease: ReaderLease | None = None
        self._looked_at_lows = 0.0
        self._given_at = 0.0
        """When a micro-batch was planned last, or would have been, the first time."""

    def initialOffset(self) -> dict[str, Any]:
        return self._topics.frontier(self._options.starting)

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
        # A node that took over may be behind: an offset never goes back, and rows up to a target are waited for.
        self._latest = self._newest(at) if self._target is None else self._target
        self._hold(at)
        ahead = offsets.rows_between(at, self._latest)
        if not ahead or self._waits_for_more(ahead):
            return start
        skips = self._lost(at, ahead)
        begin = offsets.behind_skips(at, skips)
        rows = offsets.rows_between(begin, self._latest)
        if rows and not isinstance(limit, ReadAllAvailable):
            rows = self._limited(rows)
        return offsets.with_skips(offsets.advanced(begin, rows), skips)

    def _newest(self, at: Frontier) -> Frontier:
        """What there is; if that is known to be nothing new, the node waits a moment for news."""
        known = self._latest
        is_idle = known is not None and not offsets.rows_between(at, known)
        return self._topics.newest(WAIT_S if is_idle else 0)

    def _waits_for_more(self, ahead: dict[Stream, int]) -> bool:
        """Whether there are fewer rows than a micro-batch should have, and it has not waited for long enough."""
        now = time.monotonic()
        self._given_at = self._given_at or now
        is_over = now >= self._given_at + self._options.max_trigger_delay_ms / 1000
        if self._target is None and sum(ahead.values()) < self._options.min_rows_per_trigger and not is_over:
            return True
        self._given_at = now
        return False

    def _limited(self, rows: dict[Stream, int]) -> dict[Stream, int]:
        """Spark hands over one limit; of the options there may be two."""
        if self._options.max_rows_per_trigger is not None:
            rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            sizes = self._topics.row_bytes(rows)
            rows = planner.rows_of_bytes(rows, sizes, self._options.max_bytes_per_trigger)
        return rows

    def _lost(self, at: Frontier, ahead: dict[Stream, int]) -> dict[Stream, tuple[int, int]]:
        """Rows that come next and that no listed node keeps any more: refused, or to be passed over."""
        now = time.monotonic()
        if now < self._looked_at_lows + LOWS_S:
            return {}
        self._looked_at_lows = now
        lost = {}
        for stream, low in self._topics.lows(at, ahead).items():
            first = offsets.position(at, stream)
            lost[stream] = (first, low)
            rows = f"topic {stream.topic!r}, origin {stream.origin}: no node keeps rows {first} to {low - 1} any more"
            if self._options.fail_on_data_loss:
                fix = "list a node that keeps them, begin later, or set failOnDataLoss to false"
                raise ConnectorError("M4CAST_DATA_LOSS", rows, fix)
            log.warning("passed over: %s", rows)
        return lost

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        at = offsets.without_skips(start)
        self._hold(at)
        begin = offsets.behind_skips(at, offsets.skips_of(end))
        return _partitions(begin, offsets.without_skips(end), self._options)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._spans.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint keeps what was read; a node has nothing to be told."""

    def stop(self) -> None:
        if self._lease is not None:
            self._lease.close()

    def _hold(self, start: Frontier) -> None:
        """What is before `start` was read, and is in the checkpoint: an earlier micro-batch is not replayed."""
        topics = self._options.topics or tuple({**(self._latest or {}), **start})
        if self._options.reader is None or not topics:
            return
        if self._lease is None:  # made here, and not before the reader was pickled for the tasks
            self._lease = ReaderLease(self._options.access, self._options.reader, self._options.lease_ms)
        self._lease.hold(start, topics)


class BatchReader(DataSourceReader):
    """One read of a range.

    It does not take Spark's filters (`pushFilters`): Spark keeps one reader for all uses of a DataFrame, together with
    the filters of the use that came last, so that another use without filters would lose rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._topics = Topics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self._topics.range()
        return _partitions(start, end, self._options)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if partition.value is None:  # Spark's own, when there is nothing to read
            return iter(())
        return self._spans.read(partition.value)


def _partitions(start: Frontier, end: Frontier, options: ReadOptions) -> list[InputPartition]:
    planned = planner.spans(start, end, min_partitions=options.min_partitions, max_rows=options.max_rows_per_partition)
    return [SpanPartition(span) for span in planned]


def schema_of(options: ReadOptions) -> StructType:
    """The columns of the topics as they are now, with those that the channel adds; or those of records."""
    from m4cast.schemas.arrow_types import DELIVERIES, ROSTER
    from m4cast.spark_connector.columns import RAW, merged, spark_schema

    match options.read:
        case "deliveries":
            return spark_schema(DELIVERIES)
        case "roster":
            return spark_schema(ROSTER)
        case "raw":
            return spark_schema(merged([("", RAW)], options.metadata))
        case "rows":
            return spark_schema(_columns_of_topics(options))


def _columns_of_topics(options: ReadOptions) -> "pa.Schema":
    from m4cast.spark_connector.columns import merged

    topics = Topics(options)
    names = topics.names()
    if not names:
        problem = f"no topic matches {options.topic_pattern!r}"
        fix = "look at the names by `m4cast topics`, or give the columns by schema() to wait for one"
        raise ConnectorError("M4CAST_UNKNOWN_TOPIC", problem, fix)
    return merged([(name, schema) for name in names for schema in topics.schemas(name)], options.metadata)
