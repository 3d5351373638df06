"""The source of the shared query: the rows of many topics, of which Spark sees one row for each file.

A task gets some topics of a micro-batch, reads their rows, writes each topic's into files in the folder of its table,
and returns a row for each file, so that the JVM never sees the rows themselves. If a topic cannot be read or written,
the task returns a row with the reason instead, and continues with the next topic: the driver lets the topic join again.
Only if no node can be reached does the task fail, and with it the micro-batch.

Offsets are frontiers with the numbers of the topics' joins (`joins`). Topics that the plan does not have are left where
they are. If more topics have new rows than a micro-batch takes, those that waited longest come first.
"""

import heapq
import json
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.jobs.direct.joins import PlanFile, PlannedTopic, Start
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.source import FILES, ROWS_PER_FILE
from m4cast.overlay.errors import M4castError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, StreamName
from m4cast.spark_connector.options import ReadOptions, parse, read_options
from m4cast.spark_connector.source import planner
from m4cast.spark_connector.source.lease import ReaderLease
from m4cast.spark_connector.source.planner import SequenceSpan
from m4cast.spark_connector.source.rows import WAIT_S
from m4cast.spark_connector.source.spans import SpanReader
from m4cast.spark_connector.source.topics import SourceTopics
from m4cast.spark_connector.source_filter import SourceFilter

if TYPE_CHECKING:
    import pyarrow as pa

PLAN_OPTION = "plan"
TASKS_OPTION = "tasks"
TABLES_MAX = 100
"""Tables in one micro-batch. Higher: fewer micro-batches for many topics, which take longer. Guess."""
PAUSE_PER_TOPIC_S, PAUSE_MAX_S = 0.04, 40.0
"""A continuous query lets a topic with few new rows wait this long for each topic that it reads: about as long as a
commit takes. Higher: fewer and larger files, less CPU, later rows. Guess."""
OWN_TASK_ROWS = 100_000
"""A piece of a stream with so many rows has a task to itself; smaller ones share tasks."""
TOPIC_COST_ROWS = 5_000
"""The fixed cost of a topic, as a number of rows, for distributing topics among tasks. Guess."""
LEASED_TOPICS = 500
"""Topics in one lease; nodes allow 1,000."""
REPORTS = StructType(
    [
        StructField("topic", StringType()),
        StructField("join", LongType()),
        StructField("start", StringType()),
        StructField("error", StringType()),
        *FILES,
    ]
)
"""A file of a topic, or the error that its task met."""


@dataclass(frozen=True, slots=True)
class TopicPart:
    """The rows of a topic for one task."""

    topic: str
    join: int
    start: Start | None
    """The position from which this micro-batch reads the whole topic; None: the start of its join."""
    layout: str | None
    """None: the driver has no table for it now."""
    spans: tuple[SequenceSpan, ...]
    where: str | None = None

    @property
    def cost(self) -> int:
        return TOPIC_COST_ROWS + sum(span.rows for span in self.spans)


class TopicsPartition(InputPartition):
    def __init__(self, parts: Sequence[TopicPart], row_filter: SourceFilter | None) -> None:
        super().__init__((tuple(parts), row_filter))


class SharedSource(DataSource):
    """The options of `format("m4cast")` for topics, and `plan`: the path of a `PlanFile`; `tasks`: how many tasks share
    small topics."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        self._plan = PlanFile(Path(given.pop(PLAN_OPTION)))
        self._tasks = int(given.pop(TASKS_OPTION))
        per_file = {name.lower(): value for name, value in ROWS_PER_FILE.items()}
        self._values = parse({**per_file, **given})

    @classmethod
    def name(cls) -> str:
        return "m4cast-topics"

    def schema(self) -> StructType:
        return REPORTS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SharedStream(read_options(self._values, streaming=True), self._plan, self._tasks)


class SharedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, plan: PlanFile, tasks: int) -> None:
        self._options = options
        self._file = plan
        self._tasks = tasks
        self._topics = SourceTopics(options)
        self._plan: dict[str, PlannedTopic] = {}
        self._plan_version: tuple[int, int] | None = None
        self._target: Frontier | None = None
        self._latest: Frontier | None = None
        self._leases: list[ReaderLease] = []
        self._last_at = 0.0
        """The time at which the last micro-batch was planned, or the first one could have been."""
        self._given_at: dict[str, float] = {}
        """The time at which each topic was last part of a micro-batch."""

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._topics.frontier()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        plan = self._planned()
        at = positions(start, plan)
        self._latest = self._newest(at) if self._target is None else self._target
        self._hold(at, plan)
        read = tuple(topic for topic, planned in plan.items() if planned.layout is not None)
        ahead = offsets.rows_between(at, offsets.of_topics(self._latest, read))
        if not ahead or self._waits_for_more(sum(ahead.values())):
            return start
        rows = self._limited(ahead, len(read))
        if not rows:
            return start
        moved = offsets.advanced(at, rows)
        end = {**offsets.without_skips(start), **offsets.of_topics(moved, tuple(plan))}
        numbers = {**offsets.joins_of(start), **{topic: planned.number for topic, planned in plan.items()}}
        return offsets.with_joins(offsets.with_filter(end, self._options.row_filter), numbers)

    def _waits_for_more(self, rows: int) -> bool:
        """True if there are fewer rows than `minRowsPerTrigger`, and `maxTriggerDelay` has not passed."""
        now = time.monotonic()
        self._last_at = self._last_at or now
        is_over = now >= self._last_at + self._options.max_trigger_delay_ms / 1000
        if self._target is None and rows < self._options.min_rows_per_trigger and not is_over:
            return True
        self._last_at = now
        return False

    def _planned(self) -> dict[str, PlannedTopic]:
        version = self._file.version()
        if version != self._plan_version:
            self._plan, self._plan_version = self._file.read(), version
        return self._plan

    def _newest(self, at: Frontier) -> Frontier:
        """The latest frontier; if nothing is new, the node waits a moment for new rows."""
        known = self._latest
        is_idle = known is not None and not offsets.rows_between(at, offsets.of_topics(known, tuple(at)))
        return self._topics.newest(WAIT_S if is_idle else 0)

    def _limited(self, ahead: dict[StreamName, int], topics: int) -> dict[StreamName, int]:
        """The rows of the next micro-batch: of the topics that waited longest, up to the limit for each."""
        by_topic: dict[str, dict[StreamName, int]] = {}
        for stream, count in ahead.items():
            by_topic.setdefault(stream.topic, {})[stream] = count
        now = time.monotonic()
        pause_s = min(PAUSE_PER_TOPIC_S * topics, PAUSE_MAX_S) if self._target is None else 0.0
        due = [
            topic
            for topic, rows in by_topic.items()
            if now - self._given_at.get(topic, -PAUSE_MAX_S) >= pause_s or sum(rows.values()) >= OWN_TASK_ROWS
        ]
        longest = heapq.nsmallest(TABLES_MAX, due, key=lambda topic: (self._given_at.get(topic, 0.0), topic))
        taken: dict[StreamName, int] = {}
        for topic in longest:
            self._given_at[topic] = now
            rows = by_topic[topic]
            if self._options.max_rows_per_trigger is not None:
                rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
            if self._options.max_bytes_per_trigger is not None:
                sizes = self._topics.row_bytes(rows)
                rows = planner.rows_of_bytes(rows, sizes, self._options.max_bytes_per_trigger)
            taken.update(rows)
        return taken

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = topic_parts(start, end, self._planned(), self._options)
        row_filter = offsets.filter_of(end)
        tasks = max(self._tasks, self._options.min_partitions)
        return [TopicsPartition(each, row_filter) for each in shared_out(parts, tasks)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        from m4cast.spark_connector.columns import arrow_schema

        schema = arrow_schema(REPORTS)
        parts, row_filter = partition.value
        for part in parts:
            own = row_filter if part.where is None else SourceFilter(part.where, "sql")
            reports = list(self._reports(part, own))
            if reports:
                yield pa.RecordBatch.from_pylist(reports, schema=schema)

    def _reports(self, part: TopicPart, row_filter: SourceFilter | None) -> Iterator[dict[str, Any]]:
        from m4cast.jobs.direct.data_file import written_files

        start = None if part.start is None else json.dumps(part.start)
        about = {"topic": part.topic, "join": part.join, "start": start}
        try:
            if part.layout is None:
                raise M4castError("its table was not ready when the micro-batch was repeated")
            layout = FileLayout.from_json(part.layout)
            spans = SpanReader(self._options, layout.columns, drop_others=False)
            rows = chain.from_iterable(spans.read(span, row_filter) for span in part.spans)
            files = list(written_files(layout, rows))
        except Exception as error:  # whatever is wrong with one topic must not stop the others
            if isinstance(error, ConnectorError) and error.id == "M4CAST_UNREACHABLE":
                raise
            yield {**about, "error": f"{error}" or type(error).__name__}
            return
        for file in files:
            yield {**about, **asdict(file)}

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint stores what was read."""

    def stop(self) -> None:
        for lease in self._leases:
            lease.close()

    def _hold(self, at: Frontier, plan: Mapping[str, PlannedTopic]) -> None:
        """Lease the rows that are not in their tables yet, also of topics that are not read now."""
        topics = sorted(plan)
        if self._options.reader is None or not topics:
            return
        chunks = [topics[first : first + LEASED_TOPICS] for first in range(0, len(topics), LEASED_TOPICS)]
        for number in range(len(self._leases), len(chunks)):  # created late: they cannot be pickled for the tasks
            name = f"{self._options.reader}-{number}" if number else self._options.reader
            self._leases.append(ReaderLease(self._options.access, name, self._options.lease_ms))
        for lease, chunk in zip(self._leases, chunks, strict=False):
            lease.hold(offsets.of_topics(at, tuple(chunk)), tuple(chunk))


# ---- pure arithmetic


def positions(offset: dict[str, Any], plan: Mapping[str, PlannedTopic]) -> Frontier:
    """Return the position of each planned topic: the one in the offset, if it has joined with the present number, else
    its start."""
    numbers = offsets.joins_of(offset)
    return {
        topic: dict(offset.get(topic, {}) if numbers.get(topic) == planned.number else planned.start)
        for topic, planned in sorted(plan.items())
    }


def topic_parts(
    start: dict[str, Any], end: dict[str, Any], plan: Mapping[str, PlannedTopic], options: ReadOptions
) -> list[TopicPart]:
    """Plan what a micro-batch reads, topic by topic: large pieces of streams one by one, the others together.

    A topic that has joined again since then is left out: it is read from the start of its new join.
    """
    before, now = offsets.joins_of(start), offsets.joins_of(end)
    begins: dict[str, Start | None] = {}
    for topic, number in sorted(now.items()):
        planned = plan.get(topic)
        if before.get(topic) == number:
            begins[topic] = start.get(topic, {})
        else:
            begins[topic] = None if planned is None else planned.start
        if planned is not None and planned.number != number:
            del begins[topic]
    first = {topic: begin or {} for topic, begin in begins.items()}
    last = offsets.of_topics(offsets.without_skips(end), tuple(begins))
    spans = planner.spans(first, last, min_partitions=options.min_partitions, max_rows=options.max_rows_per_partition)
    by_topic: dict[str, list[SequenceSpan]] = {}
    for span in spans:
        by_topic.setdefault(span.topic, []).append(span)
    apart = len(by_topic) < options.min_partitions
    parts: list[TopicPart] = []
    for topic, mine in by_topic.items():
        planned = plan.get(topic)
        layout = None if planned is None else planned.layout
        groups = [(span,) for span in mine if apart or span.rows >= OWN_TASK_ROWS]
        small = tuple(span for span in mine if not apart and span.rows < OWN_TASK_ROWS)
        for group in (*groups, *([small] if small else [])):
            where = None if planned is None else planned.where
            parts.append(TopicPart(topic, now[topic], begins[topic], layout, group, where))
    return parts


def shared_out(parts: Iterable[TopicPart], tasks: int) -> list[list[TopicPart]]:
    """The parts in so many tasks, about equally expensive; a large one has a task to itself."""
    shared: list[TopicPart] = []
    planned: list[list[TopicPart]] = []
    for part in parts:
        if part.spans[0].rows >= OWN_TASK_ROWS:
            planned.append([part])
        else:
            shared.append(part)
    bins: list[tuple[int, int, list[TopicPart]]] = [(0, number, []) for number in range(min(tasks, len(shared)))]
    for part in sorted(shared, key=lambda part: -part.cost):
        cost, number, least = heapq.heappop(bins)
        least.append(part)
        heapq.heappush(bins, (cost + part.cost, number, least))
    return [*planned, *(each for _, _, each in sorted(bins, key=lambda one: one[1]))]
