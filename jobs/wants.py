"""Wants of receivers: which rows of selective topics each wanted, by the table `interest`. Shared by gaps and audit.

A row of a selective topic is expected at a receiver that had, when it was published, a registration that the row
satisfies. Batches travel whole, so a batch is wanted if one of its rows is. Whether a row satisfies a condition is
decided by the nodes' own matcher, over the rows of the topic's events table. Where that lacks rows of a batch, it may
be *undecided*.

A registration counts from `MARGIN` after it was made until `MARGIN` before it was given up, because its times and those
of publication are from different clocks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from m4cast.jobs.ranges import length
from m4cast.jobs.runs import AuditRun, in_utc
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.interest import INTEREST

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.profiles.condition import Condition

MARGIN = timedelta(seconds=1)
"""Rows that were published this close to the begin or the end of a registration are not expected because of it, since
the clocks of nodes differ. Guess."""
SELECTIVE = "selective"
BATCH = ("origin", "topic", "first", "last", "published_at")
PLACE = ("origin", "topic", "published_at")
"""Columns that are equal for all rows of a batch."""

SPANS = StructType(
    [
        StructField("node_id", StringType()),
        StructField("topic", StringType()),
        StructField("condition_number", IntegerType()),
        StructField("epoch", LongType()),
        StructField("from_at", TimestampType()),
        StructField("until_at", TimestampType()),
    ]
)
MATCHED = StructType(
    [
        StructField("origin", StringType()),
        StructField("topic", StringType()),
        StructField("published_at", TimestampType()),
        StructField("sequence", LongType()),
        StructField("conditions", ArrayType(IntegerType())),
    ]
)
ConditionText = tuple[str, str, str]
"""Topic, language, text."""


@dataclass(frozen=True)
class InterestFacts:
    streams: DataFrame
    """Origin and topic of the selective streams."""
    batches: DataFrame
    """Batch and receiver -> `is_wanted`, `is_undecided`, `epoch`; none if the receiver wanted nothing of the topic."""


def topics_if_selective() -> Column:
    """An aggregate over delivery records: the topics that have selective streams."""
    return F.collect_set(F.when(F.col("spread") == SELECTIVE, F.col("topic"))).alias("selective_topics")


def met_so_far(last: AuditRun | None, found: Iterable[str]) -> tuple[str, ...]:
    """The topics with selective streams of the last run, and those found since."""
    return tuple(sorted({*found, *((last.selective_topics or ()) if last is not None else ())}))


def interest_read_at(tables: TableFolder, topics: Sequence[str]) -> datetime | None:
    """Return the time at which ingest read the last change of interest in these topics."""
    if not topics or not tables.has(INTEREST):
        return None
    found = tables.read(INTEREST).where(F.col("topic").isin(list(topics))).agg(F.max("read_at").alias("at"))
    at: datetime | None = in_utc(found.collect()[0].asDict())["at"]
    return at


def interest_changes(tables: TableFolder, topics: Sequence[str], since: datetime | None) -> datetime | None:
    """The earliest moment from which the known interest differs from what was known at `since`."""
    if not topics or not tables.has(INTEREST):
        return None
    news = tables.read(INTEREST).where(F.col("topic").isin(list(topics)))
    begin = F.col("from_at")
    if since is not None:
        news = news.where(F.col("read_at") > F.lit(since))
        begin = F.when(F.col("first_read_at") > F.lit(since), begin).otherwise(F.coalesce("until_at", begin))
    at: datetime | None = in_utc(news.agg(F.min(begin).alias("at")).collect()[0].asDict())["at"]
    return None if at is None else at - MARGIN


def find_wants(
    tables: TableFolder, batches: DataFrame, topics: Sequence[str], published: Column
) -> InterestFacts | None:
    """Find who wanted which rows of these batch records. None: no topic is selective. `published`: a condition on
    `published_at` that all of them satisfy, for reading the events tables."""
    if not topics:
        return None
    selective = batches.where(F.col("spread") == SELECTIVE)
    firsts = F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last")
    numbered = selective.select("origin", "topic", *firsts, "published_at").distinct()
    conditions, spans = _spans(tables, topics)
    told = F.broadcast(frame(tables.spark, spans, SPANS))
    margin = F.expr(f"INTERVAL {MARGIN // timedelta(milliseconds=1)} MILLISECONDS")
    lasts = F.col("until_at").isNull() | (F.col("published_at") < F.col("until_at") - margin)
    of_time = (F.col("published_at") >= F.col("from_at") + margin) & lasts
    pairs = numbered.join(told, on="topic", how="inner").where(of_time)
    return InterestFacts(
        selective.select("origin", "topic").distinct(), _decided(tables, pairs, numbered, conditions, published)
    )


def _spans(tables: TableFolder, topics: Sequence[str]) -> tuple[list[ConditionText], list[dict[str, Any]]]:
    """The registrations of these topics, with conditions by number."""
    conditions: dict[ConditionText, int] = {}
    spans: list[dict[str, Any]] = []
    rows = tables.read(INTEREST).where(F.col("topic").isin(list(topics))).collect() if tables.has(INTEREST) else []
    for row in rows:
        number = None
        if row["condition"] is not None:
            number = conditions.setdefault((row["topic"], row["language"], row["condition"]), len(conditions))
        names = ("node_id", "topic", "epoch", "from_at", "until_at")
        spans.append({"condition_number": number, **{name: row[name] for name in names}})
    return list(conditions), spans


def _decided(
    tables: TableFolder, pairs: DataFrame, batches: DataFrame, conditions: Sequence[ConditionText], published: Column
) -> DataFrame:
    """One row per batch and receiver with a registration, from one per batch and registration."""
    is_match = F.col("condition_number").isNull()
    is_open = F.lit(False)
    if conditions:
        matched = _matched(tables, batches, conditions, published)
        pairs = pairs.join(matched, on=list(BATCH), how="left")
        hit = F.coalesce(F.array_contains("conditions", F.col("condition_number")), F.lit(False))
        is_match = is_match | hit
        is_open = ~is_match & (F.coalesce("known", F.lit(0)) < length())
    decided = pairs.withColumns({"is_match": is_match, "is_open": is_open}).groupBy(*BATCH, "node_id")
    return decided.agg(
        F.bool_or("is_match").alias("is_wanted"),
        (F.bool_or("is_open") & ~F.bool_or("is_match")).alias("is_undecided"),
        F.coalesce(F.max(F.when(F.col("is_match"), F.col("epoch"))), F.max("epoch")).alias("epoch"),
    )


def _matched(
    tables: TableFolder, batches: DataFrame, conditions: Sequence[ConditionText], published: Column
) -> DataFrame:
    """The conditions that some rows of each batch satisfy, and how many of its rows are known."""
    found = frame(tables.spark, [], MATCHED)
    for topic in sorted({topic for topic, _, _ in conditions}):
        table = events_table(topic, StructType())
        if tables.has(table):
            events = tables.read(table).withColumnRenamed("_published_at", "published_at").where(published)
            wanted = {number: each[1:] for number, each in enumerate(conditions) if each[0] == topic}
            found = found.unionByName(events.mapInArrow(_matcher(topic, wanted), MATCHED))
    rows = found.join(batches, on=list(PLACE), how="inner").where(
        F.col("sequence").between(F.col("first"), F.col("last"))
    )
    return rows.groupBy(*BATCH).agg(
        F.array_distinct(F.flatten(F.collect_list("conditions"))).alias("conditions"),
        F.count_distinct("sequence").alias("known"),
    )


def _matcher(topic: str, wanted: dict[int, tuple[str, str]]) -> Any:
    """A function for `mapInArrow`: the conditions that each row of the topic satisfies."""

    def match(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        parsed = parsed_conditions(wanted)
        for batch in batches:
            columns = [
                batch.column("_origin"),
                pa.array([topic] * batch.num_rows),
                batch.column("published_at"),
                batch.column("_sequence"),
                held_conditions(batch, parsed),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=MATCHED.names)

    return match


def parsed_conditions(wanted: Mapping[int, tuple[str, str]]) -> "dict[int, Condition]":
    """Parse conditions, given as language and text; both are keyed by number."""
    from m4cast.overlay.profiles import parse

    return {number: parse(text, language).condition for number, (language, text) in wanted.items()}


def held_conditions(batch: "pa.RecordBatch", parsed: "Mapping[int, Condition]") -> "pa.Array":
    """The numbers of the conditions that each row satisfies, by the nodes' own matcher."""
    import numpy as np
    import pyarrow as pa

    from m4cast.overlay.profiles import BatchTerms

    terms, numbers = BatchTerms(batch), np.array(list(parsed), np.int32)
    holds = np.zeros((batch.num_rows, len(parsed)), bool)
    for at, condition in enumerate(parsed.values()):
        holds[:, at] = terms.mask(condition)
    _, held = np.nonzero(holds)
    ends = np.concatenate([[0], np.cumsum(holds.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers[held]))
