"""Dead letters: batches whose rows do not fit the columns that their topic is ingested with, stored so that they can be
decoded again.

In raw mode, ingest reads batches as they were published and decodes them itself. Each becomes either rows of the events
table or one dead letter with the original payload. `replay` decodes dead letters again with the present columns.

Both write two tables, each exactly once: dead letters are merged by their position on the channel, before the rows, so
that a repeated micro-batch merges nothing; rows are appended under the query id and the micro-batch number, which Delta
accepts once. Replayed rows are merged by their position, before their dead letters are marked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from m4cast.jobs.table_folder import TableFolder, despite_appends
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.events import CHANNEL_COLUMNS, events_table
from m4cast.schemas.tables.table import Table
from m4cast.spark_connector.columns import arrow_schema, projected
from m4cast.spark_connector.errors import ConnectorError

REASON, DETAIL, PAYLOAD = "_m4cast_reason", "_m4cast_detail", "_m4cast_payload"
"""Columns besides those of the rows: null in a row, set in a dead letter. A payload cannot have these columns."""
FAILED_BY = "ingest"
NOT_ARROW = "M4CAST_NOT_ARROW"
NEW_COLUMNS = "M4CAST_NEW_COLUMNS"
CHANNEL_NAMES = frozenset(column.name for column in CHANNEL_COLUMNS)


def columns_of(ddl: str) -> StructType:
    """Columns from text such as `id long, price double`."""
    try:
        columns = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise M4castError(
            f"{ddl!r} is not a list of columns ({error.getCondition()}): write it as in 'id long, price double'"
        ) from None
    assert isinstance(columns, StructType)
    return columns


# ---- decoding


def decoded(raw: DataFrame, columns: StructType, *, drop_others: bool) -> DataFrame:
    """Rows with these columns, and dead letters among them.

    Further columns of a batch are dropped, or fail the query, which then is planned with them.
    """
    rows = StructType([StructField(field.name, field.dataType) for field in columns])
    letters = ((REASON, StringType()), (DETAIL, StringType()), (PAYLOAD, BinaryType()))
    both = StructType([*rows, *(StructField(name, type_) for name, type_ in letters)])
    return raw.mapInArrow(partial(_decode, arrow_schema(rows), arrow_schema(both), drop_others), both)


def _decode(
    rows: pa.Schema, both: pa.Schema, drop_others: bool, raw: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batches in raw:
        for batch in batches.to_pylist():
            try:
                opened = _opened(batch)
                where = {
                    "topic": batch["_topic"],
                    "origin": batch["_origin"],
                    "next": batch["first_sequence"] + opened.num_rows,
                    "published_at_ms": round(batch["_published_at"].timestamp() * 1000),
                }
                fitting = projected(opened, rows, where, drop_others=drop_others)
            except ConnectorError as error:
                if error.id == NEW_COLUMNS:
                    raise
                yield _letter(batch, error.id, error.problem, both)
            except (pa.ArrowException, ValueError) as error:
                yield _letter(batch, NOT_ARROW, str(error), both)
            else:
                nothing = [pa.nulls(fitting.num_rows, field.type) for field in list(both)[len(rows) :]]
                yield pa.record_batch([*fitting.columns, *nothing], schema=both)


def _opened(batch: dict[str, Any]) -> pa.RecordBatch:
    table = pa.ipc.open_stream(batch["payload"]).read_all().combine_chunks()
    table.validate(full=True)
    if not table.num_rows:
        raise ValueError("the batch has no rows")
    (rows,) = table.to_batches()
    return rows


def _letter(batch: dict[str, Any], reason: str, detail: str, both: pa.Schema) -> pa.RecordBatch:
    place = {name: batch[name] for name in ("_topic", "_origin", "_published_at")}
    letter = {"_sequence": batch["first_sequence"], REASON: reason, DETAIL: detail, PAYLOAD: batch["payload"]}
    return pa.RecordBatch.from_pylist([{**place, **letter}], schema=both)


# ---- writing


def write_decoded(table: Table, folder: str, batch: DataFrame, batch_id: int) -> None:
    """Write a micro-batch to its two tables."""
    spark = batch.sparkSession
    tables = TableFolder(spark, folder)
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query_id, "Spark sets it while a micro-batch is written"
    batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        letters = batch.where(F.col(REASON).isNotNull())
        if not letters.isEmpty():
            _merge_letters(tables, letters)
        rows = batch.where(F.col(REASON).isNull()).select(table.selected)
        if batch_id == 0:
            rows = _not_yet_stored(rows, tables.read(table))
        once = {"txnAppId": query_id, "txnVersion": str(batch_id)}
        rows.write.format("delta").mode("append").options(mergeSchema="true", **once).save(table.path(folder))
    finally:
        batch.unpersist()


def _not_yet_stored(rows: DataFrame, known: DataFrame) -> DataFrame:
    """The rows that the table lacks. A query that continues a table that was filled without --raw may begin in the
    middle of a batch, but reads the whole batch."""
    lowest = rows.agg(F.min("_sequence")).collect()[0][0]
    if lowest is None:
        return rows
    place = ["_origin", "_sequence"]
    return rows.join(known.where(F.col("_sequence") >= lowest).select(*place), on=place, how="left_anti")


def _merge_letters(tables: TableFolder, letters: DataFrame) -> None:
    new = letters.select(
        F.current_timestamp().alias("failed_at"),
        F.lit(FAILED_BY).alias("failed_by"),
        F.col(REASON).alias("reason"),
        F.col(DETAIL).alias("detail"),
        F.lit("channel").alias("source"),
        F.col("_topic").alias("source_topic"),
        F.col("_origin").alias("source_stream"),
        F.col("_sequence").alias("source_position"),
        F.col("_topic").alias("target_topic"),
        F.col(PAYLOAD).alias("value"),
        F.col("_published_at").alias("timestamp"),
    )
    inserted: dict[str, str | Column] = {name: F.col(f"new.{name}") for name in new.columns}
    merge = tables.delta(DEAD_LETTERS).alias("known").merge(new.alias("new"), _same(DEAD_LETTERS))
    despite_appends(merge.whenNotMatchedInsert(values=inserted).execute, DEAD_LETTERS.name, "add dead letters")


def _same(table: Table) -> str:
    return " AND ".join(f"known.{name} = new.{name}" for name in table.key)


# ---- trying again


@dataclass(frozen=True, slots=True)
class Replayed:
    letters: int
    """Dead letters that became rows."""
    rows: int
    left: int
    """Dead letters that still do not fit."""


def waiting(tables: TableFolder, version: int | None = None) -> DataFrame:
    """Dead letters that were not replayed; `version`: as of this version of the table."""
    letters = tables.read(DEAD_LETTERS) if version is None else tables.read_at(DEAD_LETTERS, version)
    return letters.where((F.col("failed_by") == FAILED_BY) & F.col("replayed_at").isNull())


def replay(spark: SparkSession, folder: str, *, columns: str | None = None) -> Replayed:
    """Decode ingest's dead letters again, with all columns of their events table or with these."""
    tables = TableFolder(spark, folder)
    _, version = tables.version(DEAD_LETTERS)  # a concurrent ingest may add letters: they are left for the next replay
    letters_now = waiting(tables, version)
    topics = [row[0] for row in letters_now.select("target_topic").distinct().orderBy("target_topic").collect()]
    chosen = None if columns is None else columns_of(columns)
    done = [_replay_topic(tables, letters_now.where(F.col("target_topic") == topic), topic, chosen) for topic in topics]
    letters, rows, left = (sum(getattr(each, name) for each in done) for name in ("letters", "rows", "left"))
    return Replayed(letters, rows, left)


def _replay_topic(tables: TableFolder, letters: DataFrame, topic: str, chosen: StructType | None) -> Replayed:
    known = tables.read(events_table(topic, StructType())).schema
    payload = [field for field in chosen or known if field.name not in CHANNEL_NAMES]
    table = events_table(topic, StructType(payload))
    raw = letters.select(
        F.col("source_topic").alias("_topic"),
        F.col("source_stream").alias("_origin"),
        F.col("timestamp").alias("_published_at"),
        F.col("source_position").alias("first_sequence"),
        F.col("value").alias("payload"),
    )
    both = decoded(raw, table.schema, drop_others=True).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = both.where(F.col(REASON).isNull()).select(table.selected)
        place = (F.col("_origin").alias("source_stream"), F.col("_sequence").alias("source_position"))
        left = both.where(F.col(REASON).isNotNull()).select(*place)
        fitting = letters.join(left, ["source_stream", "source_position"], "left_anti").select(*DEAD_LETTERS.key)
        counted = Replayed(fitting.count(), rows.count(), left.count())
        into = tables.delta(table).alias("known").merge(rows.alias("new"), _same(table))
        inserting = into.whenNotMatchedInsert(values={name: F.col(f"new.{name}") for name in table.selected})
        despite_appends(inserting.execute, table.name, "add replayed ones")
        marked = tables.delta(DEAD_LETTERS).alias("known").merge(fitting.alias("new"), _same(DEAD_LETTERS))
        marking = marked.whenMatchedUpdate(set={"replayed_at": F.current_timestamp()})
        despite_appends(marking.execute, DEAD_LETTERS.name, "mark those that were replayed")
    finally:
        both.unpersist()
    return counted
