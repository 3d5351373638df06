"""Feeds of what audits need besides rows: the delivery records of all nodes, the roster, and who wanted what."""

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.jobs.direct.engine import EngineChoice, chosen_engine, start_direct
from m4cast.jobs.feeds.feed import FeedFailedError, FeedRun, TableFeed, checked_start, reason_of, started
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER

if TYPE_CHECKING:
    from m4cast.jobs.ingest import Ingest

OF_ALL_FEEDS = ("failondataloss",)
"""Options for rows that apply to delivery records as well."""


def deliveries_feed(spark: SparkSession, ingest: "Ingest", engines: dict[str, EngineChoice]) -> FeedRun:
    """Its engine is noted in `engines` when it starts."""
    return FeedRun(TableFeed(DELIVERIES.name, partial(_start_deliveries, spark, ingest, engines)))


def _start_deliveries(spark: SparkSession, ingest: "Ingest", engines: dict[str, EngineChoice]) -> StreamingQuery:
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


def merge_roster(spark: SparkSession, ingest: "Ingest") -> None:
    """Add new members and update known ones. Where two rosters differ, the earlier begin and a known end are kept."""
    try:
        _merge_roster(TableFolder(spark, ingest.tables), ingest.access)
    except PySparkException as error:
        raise FeedFailedError(f"{ROSTER.name}: {reason_of(error)}") from error


def _merge_roster(tables: TableFolder, access: Mapping[str, str]) -> None:
    tables.ensure(ROSTER)
    heard = tables.spark.read.format("m4cast").options(**access, read="roster").load()
    heard = heard.withColumn("read_at", F.current_timestamp()).select(ROSTER.schema.names)
    same = " AND ".join(f"known.{name} = heard.{name}" for name in ROSTER.key)
    kept: dict[str, str | Column] = {
        name: F.col(f"heard.{name}") for name in ROSTER.schema.names if name not in ROSTER.key
    }
    kept["from_at"] = F.least("known.from_at", "heard.from_at")
    for name in ("to_at", "reason"):
        kept[name] = F.coalesce(f"heard.{name}", f"known.{name}")
    merge = tables.delta(ROSTER).alias("known").merge(heard.alias("heard"), same)
    merge.whenMatchedUpdate(set=kept).whenNotMatchedInsertAll().execute()


def merge_interest(spark: SparkSession, ingest: "Ingest") -> None:
    """Add new registrations and update those that have ended, of all nodes that answer."""
    try:
        _merge_interest(TableFolder(spark, ingest.tables), ingest.access)
    except PySparkException as error:
        raise FeedFailedError(f"{INTEREST.name}: {reason_of(error)}") from error


def _merge_interest(tables: TableFolder, access: Mapping[str, str]) -> None:
    """Nothing is committed if nothing has changed."""
    tables.ensure(INTEREST)
    told = tables.spark.read.format("m4cast").options(**access, read="interest", of="all").load()
    known = tables.read(INTEREST).select(*INTEREST.key, "revision")
    is_known = [*INTEREST.key, "revision"]
    now = F.current_timestamp()
    news = told.join(known, on=is_known, how="left_anti").withColumns({"read_at": now, "first_read_at": now})
    rows = [row.asDict() for row in news.select(INTEREST.schema.names).collect()]
    if not rows:
        return
    same = " AND ".join(f"known.{name} = told.{name}" for name in INTEREST.key)
    merge = tables.delta(INTEREST).alias("known").merge(frame(tables.spark, rows, INTEREST.schema).alias("told"), same)
    changing = [name for name in INTEREST.schema.names if name not in (*INTEREST.key, "first_read_at")]
    changed: dict[str, str | Column] = {name: F.col(f"told.{name}") for name in changing}
    merge.whenMatchedUpdate("told.revision > known.revision", changed).whenNotMatchedInsertAll().execute()
