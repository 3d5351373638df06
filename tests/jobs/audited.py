"""Makes the tables of a scenario: what ingest would write, then both jobs."""

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.frames import deliveries_frame, roster_frame
from tests.jobs.scenarios import Scenario

PAYLOAD = StructType([StructField("price", LongType())])


def make_audited(spark: SparkSession, folder: str, made: Scenario, as_of: datetime) -> None:
    tables = TableFolder(spark, folder)
    for table in (DELIVERIES, ROSTER):
        tables.ensure(table)
    deliveries = deliveries_frame(spark, [(0, record) for record in made.records]).drop("scenario")
    tables.append(DELIVERIES, deliveries)
    tables.append(ROSTER, roster_frame(spark, [(0, each) for each in made.roster]).drop("scenario"))
    for topic in sorted({record.topic for record in made.records}):
        events = events_table(topic, PAYLOAD)
        tables.ensure(events)
        batches = deliveries.where((F.col("how") == "published") & (F.col("topic") == topic))
        rows = batches.select(
            F.col("topic").alias("_topic"),
            F.col("origin").alias("_origin"),
            F.explode(F.sequence("first_sequence", "last_sequence")).alias("_sequence"),
            F.col("published_at").alias("_published_at"),
            F.lit(1).cast("long").alias("price"),
        )
        tables.append(events, rows)
    ordering_gaps.run(spark, folder)
    delivery_audit.run(spark, folder, as_of=as_of)
