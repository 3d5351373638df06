"""A driver program that ingests into an S3-compatible store, with a JVM of its own, which has the jars for it.

    python -m tests.jobs.object_store '{"node": "127.0.0.1:7501", "endpoint": "http://127.0.0.1:9000", "folder": ...}'

It prints what came of it as one line of JSON. `folder` is on this machine, for tables of the direct engine.
"""

import json
import sys
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from m4cast.jobs import ingest, maintain
from m4cast.jobs.ingest import Ingest
from m4cast.jobs.session import S3_SETTINGS, delta_builder
from m4cast.jobs.table_folder import TableFolder, file_system_of
from m4cast.overlay.client import Channel
from m4cast.schemas.tables.events import events_table

BUCKET = "lake"
TOPIC = "orders"
TABLE = events_table(TOPIC, StructType())


def session(endpoint: str) -> SparkSession:
    store = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    store |= {"connection.ssl.enabled": "false", "access.key": "any", "secret.key": "any"}
    builder = delta_builder("m4cast-object-store").master("local[2]").config("spark.log.level", "ERROR")
    for name, value in {**S3_SETTINGS, **{f"spark.hadoop.fs.s3a.{key}": value for key, value in store.items()}}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def remove(spark: SparkSession, place: str) -> None:
    path, files = file_system_of(spark, place)
    assert files.delete(path, True), place


def ids(spark: SparkSession, folder: str) -> list[int]:
    return sorted(row["id"] for row in TableFolder(spark, folder).read(TABLE).select("id").collect())


def main(node: str, endpoint: str, folder: str) -> None:
    spark, channel = session(endpoint), Channel([node])
    plan = Ingest({"nodes": node}, f"s3a://{BUCKET}/tables", max_rows=20)

    def publish(first: int, count: int, **more: Any) -> None:
        channel.publish(TOPIC, [{"id": number, "in": {"a": number}, **more} for number in range(first, first + count)])

    publish(0, 50)
    engines = {each.table: (each.engine, each.engine_reason) for each in ingest.run(spark, plan).tables}
    publish(50, 10, new="x")
    # As if the driver had died after Delta's commit and before Spark's.
    remove(spark, f"{plan.checkpoint(TABLE)}/commits/2")
    ingest.run(spark, plan)
    after_replay = ids(spark, plan.tables)
    remove(spark, plan.checkpoints)
    publish(60, 5)
    ingest.run(spark, plan)
    maintained = maintain.run(spark, plan.tables)
    ingest.run(spark, replace(plan, tables=folder))
    here, there = (TableFolder(spark, each).read(TABLE) for each in (folder, plan.tables))
    columns = sorted(here.columns)
    print(
        json.dumps(
            {
                "engines": engines,
                "after_replay": after_replay,
                "ids": ids(spark, plan.tables),
                "maintained": sorted(each.table for each in maintained),
                "differences": here.select(columns).exceptAll(there.select(columns)).count(),
                "types": sorted(here.dtypes) == sorted(there.dtypes),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
