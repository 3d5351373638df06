"""The Spark session of a job: the one that is running, or a new one that can read and write Delta.

Under `spark-submit` the session is the user's to configure, since jars cannot be added to a running JVM; without the
Delta jar its first table says what to add.
"""

import os
import sys

import click
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from m4cast.overlay.errors import M4castError

EXIT_CODE_ERROR = 2

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's own metadata is small; its default of 50 tasks makes every small commit slow.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Times in tables are moments; a session that prints them says them in UTC wherever it runs.
    "spark.sql.session.timeZone": "UTC",
}


def delta_builder(name: str) -> SparkSession.Builder:
    """A builder whose session can read and write Delta; Spark fetches the jars once and keeps them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # in it, Spark looks for data sources
    builder = SparkSession.builder.appName(name)
    for key, value in DELTA_SETTINGS.items():
        builder = builder.config(key, value)
    return configure_spark_with_delta_pip(builder)


def job_session(name: str) -> SparkSession:
    active = SparkSession.getActiveSession()
    return active if active is not None else delta_builder(name).getOrCreate()


def as_script(main: click.Command) -> None:
    """A job by itself: an error of ours is the user's to read, in one line, as in the `m4cast` command."""
    try:
        main()
    except M4castError as error:
        click.echo(f"m4cast: {error}", err=True)
        raise SystemExit(EXIT_CODE_ERROR) from None
