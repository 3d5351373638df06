"""Feeds of topics into `events/<topic>`.

Rows are read with the topic's columns, by the shared query of the direct engine where it can fill the table
(`m4cast.jobs.direct`), or else by Spark in a query for each topic; in raw mode, as batches that are decoded here. A
table without a checkpoint means that the checkpoint was lost, or that another engine filled it: the feed continues
after the rows that the table has of each stream.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType, TimeType

from m4cast.jobs.direct.engine import EngineChoice, chosen_engine
from m4cast.jobs.direct.shared_feed import SharedFeed
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds.dead_letters import columns_of, decoded, waiting, write_decoded
from m4cast.jobs.feeds.feed import FeedRun, TableFeed, checked_start, checked_table, started
from m4cast.jobs.feeds.table_locks import TableLocks
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.events import CHANNEL_COLUMNS, events_table
from m4cast.schemas.tables.table import Table, sql_name
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.rows import schema_of
from m4cast.spark_connector.source.topics import SourceTopics

if TYPE_CHECKING:
    from m4cast.jobs.ingest import Engine, Ingest

JOINING_S = 2.0
"""The time for which a continuous ingest prepares tables of new topics before it looks after its feeds again."""
CHANNEL_NAMES = tuple(column.name for column in CHANNEL_COLUMNS)


def storable(type_: DataType) -> DataType:
    """The type to store in Delta instead of this one. Delta has no times of day: they are stored as text, which Spark
    can cast back (`CAST(at AS TIME)`)."""
    match type_:
        case TimeType():
            return StringType()
        case ArrayType():
            return ArrayType(storable(type_.elementType), type_.containsNull)
        case MapType():
            return MapType(storable(type_.keyType), storable(type_.valueType), type_.valueContainsNull)
        case StructType():
            return StructType([StructField(each.name, storable(each.dataType), each.nullable) for each in type_])
    return type_


def with_storable_types(rows: DataFrame) -> DataFrame:
    changed = [each for each in rows.schema if storable(each.dataType) != each.dataType]
    return rows.withColumns({each.name: F.col(sql_name(each.name)).cast(storable(each.dataType)) for each in changed})


class EventFeeds:
    def __init__(self, spark: SparkSession, ingest: "Ingest", locks: TableLocks) -> None:
        self._spark = spark
        self._ingest = ingest
        self._locks = locks
        self._tables = TableFolder(spark, ingest.tables)
        self._shared = SharedFeed(self._tables, ingest, self._shared_options(), self._prepare, locks)
        self._apart: dict[str, FeedRun] = {}
        """Feeds, by topic, of tables that the shared query does not fill."""
        self._names: tuple[str, ...] | None = None
        self.engines: dict[str, EngineChoice] = {}
        """The engine with which each feed was last started."""

    def now(self) -> list[FeedRun]:
        """Feeds of the topics on the channel. A continuous ingest waits for named topics that do not exist yet."""
        known = {*self._apart, *self._shared.topics()}
        names = [name for name in self._topics_now() if name not in known]
        if self._ingest.raw or self._ingest.engine == "spark":
            for name in names:
                self._feed_apart(name, self._start_raw if self._ingest.raw else self._start)
        elif names:
            until = time.monotonic() + JOINING_S if self._ingest.continuous else float("inf")
            self._shared.add(names, until)
        return [*([self._shared] if self._shared.topics() else []), *self._apart.values()]

    def _topics_now(self) -> tuple[str, ...]:
        """An ingest that ends reads the topics that existed when it began."""
        if self._names is not None and not self._ingest.continuous:
            return self._names
        which = {"topicPattern": self._ingest.topic_pattern}
        topics = SourceTopics(read_options(parse({**self._ingest.access, **which}), streaming=True))
        names = tuple(dict.fromkeys(self._ingest.topics)) or topics.names()
        if self._ingest.topics and self._ingest.continuous:
            known = set(topics.channel().topics())
            names = tuple(name for name in names if name in known)
        self._names = names
        return names

    def _feed_apart(self, topic: str, start: Callable[[str], StreamingQuery]) -> None:
        self._apart[topic] = FeedRun(TableFeed(f"events/{topic}", partial(start, topic)))

    def dead_letters_waiting(self) -> int:
        return waiting(self._tables).count() if self._tables.has(DEAD_LETTERS) else 0

    # ---- rows with the topic's columns

    def _prepare(self, topic: str, log: TableLog) -> Table | None:
        """Create the table of a topic. None if Spark has to fill it, in a query of its own."""
        checked_table(self._tables, events_table(topic, StructType()), self._ingest)
        columns = schema_of(read_options(parse(self._options(topic, "earliest")), streaming=True))
        table = self._ensured(topic, columns, log)
        timed = next((each.name for each in columns if storable(each.dataType) != each.dataType), None)
        why_not = None if timed is None else f"column {timed!r} has times of day, which Spark converts to text"
        if self._chosen_engine(topic, table, why_not, log) == "direct":
            return table
        self._feed_apart(topic, self._start)
        return None

    def _start(self, topic: str) -> StreamingQuery:
        """A query for this topic alone. If the shared query has read the topic, it no longer does."""
        self._locks.take_table(events_table(topic, StructType()).name)
        self._shared.forget(topic)
        options = self._options(topic, self._starting(topic))
        columns = schema_of(read_options(parse(options), streaming=True))
        table = self._ensured(topic, columns)
        rows = self._spark.readStream.format("m4cast").options(**options).load()
        writer = (
            with_storable_types(rows).select(table.selected).writeStream.format("delta").option("mergeSchema", "true")
        )
        writer = writer.option("path", table.path(self._ingest.tables))
        self.engines.setdefault(f"events/{topic}", EngineChoice("spark"))
        return started(writer, self._ingest, table.name, self._ingest.checkpoint(table))

    def _chosen_engine(self, topic: str, table: Table, why_not: str | None, log: TableLog | None = None) -> "Engine":
        choice = chosen_engine(self._tables, table, self._ingest.engine, why_not, log)
        self.engines[f"events/{topic}"] = choice
        return choice.engine

    def _options(self, topic: str, starting: str, **options: str) -> dict[str, str]:
        """Return the options of the source of a query for one topic."""
        which = {"topic": topic, "startingOffsets": starting, "reader": self._ingest.reader(topic)}
        if topic in self._ingest.where:
            which["where"] = self._ingest.where[topic]
        return self._source_options({**options, **which})

    def _shared_options(self) -> dict[str, str]:
        topics = self._ingest.topics
        which = {"topics": json.dumps(topics)} if topics else {"topicPattern": self._ingest.topic_pattern}
        reader = self._ingest.reader(self._ingest.selection)
        return self._source_options({**which, "startingOffsets": "earliest", "reader": reader})

    def _source_options(self, options: dict[str, str]) -> dict[str, str]:
        if self._ingest.max_rows is not None:
            options["maxRowsPerTrigger"] = str(self._ingest.max_rows)
        return {**self._ingest.access, **self._ingest.options, **options}

    # ---- batches as they were published

    def _start_raw(self, topic: str) -> StreamingQuery:
        self._locks.take_table(events_table(topic, StructType()).name)
        starting = self._starting(topic)
        chosen = self._ingest.columns
        columns = columns_of(chosen) if chosen else self._columns(topic)
        table = self._ensured(topic, columns)
        self._chosen_engine(topic, table, "Spark separates dead letters from rows (--raw)")
        self._tables.ensure(DEAD_LETTERS)
        raw = self._spark.readStream.format("m4cast").options(**self._options(topic, starting, read="raw")).load()
        rows = decoded(raw, table.schema, drop_others=chosen is not None)
        writer = rows.writeStream.foreachBatch(partial(write_decoded, table, self._ingest.tables))
        return started(writer, self._ingest, table.name, self._ingest.checkpoint(table))

    def _columns(self, topic: str) -> StructType:
        return self._spark.read.format("m4cast").options(**self._ingest.access, topic=topic).load().schema

    # ---- both

    def _starting(self, topic: str) -> str:
        """Return the starting offsets of a new query. Spark ignores them if there is a checkpoint."""
        table = events_table(topic, StructType())
        if checked_start(self._tables, table, self._ingest) == "earliest":
            return "earliest"
        ends = self._tables.read(table).groupBy("_origin").agg(F.max("_sequence").alias("last")).collect()
        return json.dumps({topic: {row["_origin"]: row["last"] + 1 for row in ends}}) if ends else "earliest"

    def _ensured(self, topic: str, columns: StructType, log: TableLog | None = None) -> Table:
        # A column that is null in every row has no type. Delta cannot store it: it is added once a value gives it one.
        payload = [
            StructField(each.name, storable(each.dataType))
            for each in columns
            if each.name not in CHANNEL_NAMES and each.dataType != NullType()
        ]
        table = events_table(topic, StructType(payload))
        self._tables.ensure(table, log)
        return table
