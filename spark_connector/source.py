"""The source: rows of topics as a stream of micro-batches, or as one batch.

Offsets are frontiers, so a query goes on through any node that holds the topics, and `[start, end)` gives equal rows
each time (guarantee 6). Rows that are not here yet are waited for; rows that no listed node keeps are data loss, which
fails or is passed over. Nothing is connected before Spark asks: readers are pickled as they are.

Spark keeps one stream reader in a process of its own for the offsets, and sends a copy to the tasks: what a task needs
is in the options and in its partition.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from m4cast.overlay.errors import M4castError, RefusedError
from m4cast.spark_connector import offsets, planner
from m4cast.spark_connector.access import channel_of, patiently, told
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.lease import ReaderLease
from m4cast.spark_connector.offsets import Frontier, Stream
from m4cast.spark_connector.options import Edge, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel


class SpanPartition(InputPartition):
    """A piece of one stream."""

    def __init__(self, span: planner.Span) -> None:
        super().__init__(span)


class Topics:
    """What is read, as the nodes have it now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def channel(self) -> "Channel":
        return channel_of(self._options.access)

    def names(self) -> tuple[str, ...]:
        """Also those that are not there yet, if they are named; of a pattern those that match now."""
        if self._options.topic_pattern is None:
            return self._options.topics
        pattern = re.compile(self._options.topic_pattern)
        known = patiently(lambda: self.channel().topics(), self._options.access.timeout_s)
        return tuple(sorted(name for name in known if pattern.fullmatch(name) and not name.startswith("_")))

    def frontier(self, edge: Edge | int = "latest") -> Frontier:
        """The edge as a frontier; an int is a time."""
        names = self.names()
        if not names:
            return {}
        if isinstance(edge, dict):
            return offsets.of_topics(edge, names)
        channel = self.channel()
        if edge == "earliest":
            return patiently(lambda: channel.earliest(names), self._options.access.timeout_s)
        at_ms = None if isinstance(edge, str) else edge
        return patiently(lambda: channel.frontier(names, at_ms=at_ms), self._options.access.timeout_s)

    def row_bytes(self, frontier: Frontier) -> dict[Stream, float]:
        """The mean size of a row of each stream, as the answering node stores it."""
        sizes: dict[Stream, float] = {}
        for topic in frontier:
            described = patiently(lambda topic=topic: self.channel().describe(topic), self._options.access.timeout_s)  # type: ignore[misc]
            for origin, held in described["streams"].items():
                if held["next"] > held["low"]:
                    sizes[Stream(topic, origin)] = held["bytes"] / (held["next"] - held["low"])
        return sizes


class SpanReader:
    """Reads partitions, in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._schema = schema
        self._drop_others = drop_others or options.ignore_new_columns or options.read == "raw"

    def read(self, span: planner.Span) -> Iterator["pa.RecordBatch"]:
        from m4cast.spark_connector.columns import arrow_schema, projected

        wanted = arrow_schema(self._schema)
        for rows, where in self._rows(span):
            yield projected(rows, wanted, where, drop_others=self._drop_others)

    def _rows(self, span: planner.Span) -> Iterator[tuple["pa.RecordBatch", Mapping[str, Any]]]:
        channel = channel_of(self._options.access)
        first = span.first
        end = {span.topic: {span.origin: span.next}}
        skips = False
        while first < span.next:
            start = {span.topic: {span.origin: first}}
            on_missing: Literal["fail", "skip"] = "skip" if skips else "fail"
            form: Literal["raw", "batches"] = "raw" if self._options.read == "raw" else "batches"
            reading = channel.read_batches(span.topic, start, end, on_missing=on_missing, form=form)
            try:
                for rows in reading:
                    yield rows, reading.where
                return
            except RefusedError as error:
                if error.code != "missing" or self._options.fail_on_data_loss:
                    raise told(error, channel.timeout_s) from error
            except M4castError as error:
                raise told(error, channel.timeout_s) from error
            first = reading.frontier[span.topic][span.origin]
            kept = self._first_kept(channel, span, first)
            skips = kept is None
            first = first if kept is None else kept

    def _first_kept(self, channel: "Channel", span: planner.Span, first: int) -> int | None:
        """From where on a node has the stream, if what is missing lies before; the earliest of all nodes."""
        lows = []
        for node in channel.nodes:
            try:
                lows.append(offsets.position(channel.at(node).earliest(span.topic), Stream(span.topic, span.origin)))
            except M4castError:
                continue  # it was asked for the rows before, and is away now
        later = [low for low in lows if low > first]
        return min(later) if later and len(later) == len(lows) else None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._topics = Topics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)
        self._target: Frontier | None = None
        self._latest: Frontier | None = None
        self._lease: ReaderLease | None = None

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
        # A node that took over may be behind: an offset never goes back, and rows up to a target are waited for.
        self._latest = self._topics.frontier() if self._target is None else self._target
        self._hold(start)
        end = offsets.maximum(start, self._latest)
        rows = offsets.rows_between(start, end)
        if not rows or isinstance(limit, ReadAllAvailable):
            return end
        # Spark hands over one limit; of the options there may be two.
        if self._options.max_rows_per_trigger is not None:
            rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            sizes = self._topics.row_bytes(end)
            rows = planner.rows_of_bytes(rows, sizes, self._options.max_bytes_per_trigger)
        return offsets.advanced(start, rows)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._hold(start)
        return _partitions(start, end, self._options)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._spans.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint keeps what was read; a node has nothing to be told."""

    def _hold(self, start: Frontier) -> None:
        """What is before `start` was read, and is in the checkpoint: an earlier micro-batch is not replayed."""
        topics = self._options.topics or tuple({**(self._latest or {}), **start})
        if self._options.reader is None or not topics:
            return
        if self._lease is None:  # made here, and not before the reader was pickled for the tasks
            self._lease = ReaderLease(self._options.access, self._options.reader, self._options.lease_ms)
        self._lease.hold(start, topics)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._topics = Topics(options)
        self._spans = SpanReader(options, schema, drop_others=drop_others)

    def partitions(self) -> Sequence[InputPartition]:
        start = self._topics.frontier(self._options.starting)
        end = self._topics.frontier(self._options.ending)
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
    from m4cast.spark_connector.columns import DELIVERIES, RAW, ROSTER, merged, spark_schema

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
    timeout_s = options.access.timeout_s
    schemas = [(name, patiently(lambda name=name: topics.channel().schema(name), timeout_s)) for name in names]  # type: ignore[misc]
    return merged(schemas, options.metadata)
