"""Delivery records as a source: what was delivered at one node, or at all nodes, as a stream or as a batch.

A node numbers its records from 1 without gaps, across restarts and incarnations; a store that was rolled back continues
under a new node id. So the log of a node id is a stream, an offset is `{"deliveries": {node id: next}}`, and
`[start, end)` returns equal records each time they are read, as long as the node keeps them.

Only the node itself has its records. While a node is unreachable, a stream continues with the others and reads its
records later. Once its records are planned, they are waited for. A node that is seen for the first time begins with the
first record that it keeps: its position becomes part of the offset before anything is read from it.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from m4cast.overlay.errors import RefusedError, UnreachableError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import RETRY_S, as_connector_error, channel_of
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, StreamName
from m4cast.spark_connector.option_values import Edge
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source import planner
from m4cast.spark_connector.source.nodes import Nodes

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import DeliveryRange

log = logging.getLogger("m4cast.spark")

TOPIC = "deliveries"
"""Stands for the topic in offsets."""
RECORDS_PER_PARTITION = 100_000
"""Upper limit, about 30 MB in a task. Guess."""
ASKING_SHARE = 0.1
"""The share of time that an idle stream spends asking its nodes. Guess."""


class RecordsPartition(InputPartition):
    """Records of one node, and its door at planning time."""

    def __init__(self, span: planner.SequenceSpan, door: str) -> None:
        super().__init__((span, door))


class Logs:
    """The delivery logs to read, as they are at the nodes now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._nodes = Nodes(options)

    def ranges(self, chosen: Sequence[str] = (), *, is_patient: bool = True) -> dict[str, "DeliveryRange"]:
        """The ranges of the nodes that answer; if some are chosen, only of those."""
        wanted = list(self._nodes.of_ids(chosen).values()) if chosen else self._nodes.wanted()
        present = [node for node in wanted if node.is_here]
        answers = self._nodes.ask(present, lambda channel: channel.delivery_range(), is_patient=is_patient)
        # Another node may have taken over the door.
        return {node_id: found for node_id, found in sorted(answers.items()) if found.node_id == node_id}

    def all_ranges(self) -> dict[str, "DeliveryRange"]:
        """The ranges of all requested nodes that have not left. Unreachable ones are an error, or are skipped."""
        ranges = self.ranges()
        unreachable = [node for node in self._nodes.wanted() if node.is_here and node.node_id not in ranges]
        if unreachable:
            names = ", ".join(f"{node.name} ({node.node_id[:8]}) at {node.door or 'no door'}" for node in unreachable)
            if self._options.fail_on_data_loss:
                fix = "start them, read from fewer nodes, or skip them with failOnDataLoss = false"
                raise ConnectorError(
                    "M4CAST_UNREACHABLE", f"nodes whose deliveries are to be read are unreachable: {names}", fix
                )
            log.warning("skipping the deliveries of unreachable nodes: %s", names)
        return ranges

    def doors(self, node_ids: Sequence[str]) -> dict[str, str]:
        known = self._nodes.of_ids(node_ids)
        return {node_id: known[node_id].door if node_id in known else "" for node_id in node_ids}

    def read(self, span: planner.SequenceSpan, door: str) -> Iterator["pa.RecordBatch"]:
        """The records of a span, from their node, whose door may change meanwhile."""
        first = span.first
        deadline = time.monotonic() + self._options.access.timeout_s
        while first < span.next:
            try:
                for records in self._of_node(span, first, door):
                    yield records
                    first = records["delivery"][-1].as_py() + 1
                    deadline = time.monotonic() + self._options.access.timeout_s
                return
            except UnreachableError as error:
                if time.monotonic() > deadline:
                    if self._options.fail_on_data_loss:
                        raise as_connector_error(error, self._options.access.timeout_s) from error
                    log.warning("skipping deliveries %d to %d of %s: %s", first, span.next - 1, span.origin, error)
                    return
            time.sleep(RETRY_S)
            door = self.doors([span.origin])[span.origin] or door

    def _of_node(self, span: planner.SequenceSpan, first: int, door: str) -> Iterator["pa.RecordBatch"]:
        if not door:
            raise UnreachableError(f"the door of node {span.origin} is unknown")
        channel = channel_of(self._options.access).at(door)
        on_missing: Literal["fail", "skip"] = "fail" if self._options.fail_on_data_loss else "skip"
        try:
            if channel.delivery_range().node_id != span.origin:
                raise UnreachableError(f"{door} is the door of another node, not of {span.origin}")
            yield from channel.delivery_batches(first, span.next, on_missing=on_missing)
        except RefusedError as error:
            if error.code in ("stopping", "not-ready", "busy", "timeout"):
                raise UnreachableError(str(error)) from error
            detail = f"node {span.origin}: {error.detail}"
            raise as_connector_error(RefusedError(error.code, detail), channel.timeout_s) from error


class DeliveryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs = Logs(options)
        self._looks_once = False
        self._target: dict[str, DeliveryRange] | None = None
        self._seen: dict[str, DeliveryRange] = {}
        self._ask_at = 0.0

    def initialOffset(self) -> dict[str, Any]:
        return _edge(self._options.starting, self._logs.ranges())

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._looks_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._looks_once and self._target is None:
            self._target = self._logs.ranges(self._chosen(start))
        ranges = self._target if self._target is not None else self._now(start)
        rows = records_ahead(start, ranges)
        if self._options.max_rows_per_trigger is not None and not isinstance(limit, ReadAllAvailable) and rows:
            rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
        return offsets.advanced(joined(start, ranges), rows)

    def _chosen(self, start: Frontier) -> list[str]:
        """A stream of one node's records continues with that node, whichever listed node answers first now."""
        return list(start.get(TOPIC, {})) if self._options.of == "first" else []

    def _now(self, start: Frontier) -> Mapping[str, "DeliveryRange"]:
        """The ranges at the nodes; those of the last question while it is too early to ask again."""
        asked_at = time.monotonic()
        if asked_at >= self._ask_at:
            self._seen = self._logs.ranges(self._chosen(start), is_patient=False)
            now = time.monotonic()
            self._ask_at = now + (now - asked_at) * (1 / ASKING_SHARE - 1)
        return self._seen

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {TOPIC: {node_id: found.next for node_id, found in self._seen.items()}} if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _partitions(start, end, self._options, self._logs)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._logs, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint stores what was read."""


class DeliveryTable(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs = Logs(options)

    def partitions(self) -> Sequence[InputPartition]:
        ranges = self._logs.all_ranges()
        start, end = _edge(self._options.starting, ranges), _edge(self._options.ending, ranges)
        return _partitions(start, end, self._options, self._logs)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if partition.value is None:  # Spark's placeholder when there is nothing to read
            return iter(())
        return _read(partition, self._logs, self._schema)


def joined(start: Frontier, ranges: Mapping[str, "DeliveryRange"]) -> Frontier:
    """The start, with each log that it does not name at the first record that is kept."""
    lows = {node_id: found.low for node_id, found in ranges.items()}
    named = {**lows, **start.get(TOPIC, {})}
    return offsets.frontier_of({StreamName(TOPIC, node_id): number for node_id, number in named.items()})


def records_ahead(start: Frontier, ranges: Mapping[str, "DeliveryRange"]) -> dict[StreamName, int]:
    """The number of records to read from each log that the start names. An unreachable node has none now."""
    named = start.get(TOPIC, {})
    counts = {node_id: found.next - named[node_id] for node_id, found in ranges.items() if node_id in named}
    return {StreamName(TOPIC, node_id): count for node_id, count in counts.items() if count > 0}


def _edge(edge: Edge | int, ranges: Mapping[str, "DeliveryRange"]) -> Frontier:
    assert not isinstance(edge, int), "options refuse times for deliveries"
    if isinstance(edge, dict):
        return offsets.of_topics(edge, (TOPIC,))
    at = {node_id: found.low if edge == "earliest" else found.next for node_id, found in ranges.items()}
    return offsets.frontier_of({StreamName(TOPIC, node_id): number for node_id, number in at.items()})


def _partitions(start: Frontier, end: Frontier, options: ReadOptions, logs: Logs) -> list[InputPartition]:
    most = min(options.max_rows_per_partition, RECORDS_PER_PARTITION)
    named = start.get(TOPIC, {})  # a new log is read from the next micro-batch on
    end = {TOPIC: {node_id: until for node_id, until in end.get(TOPIC, {}).items() if node_id in named}}
    planned = planner.spans(start, end, min_partitions=options.min_partitions, max_rows=most)
    doors = logs.doors(sorted({span.origin for span in planned})) if planned else {}
    return [RecordsPartition(span, doors[span.origin]) for span in planned]


def _read(partition: InputPartition, logs: Logs, schema: StructType) -> Iterator["pa.RecordBatch"]:
    from m4cast.spark_connector.columns import arrow_schema, projected

    wanted = arrow_schema(schema)
    span, door = partition.value
    for records in logs.read(span, door):
        yield projected(records, wanted, {}, drop_others=True)
