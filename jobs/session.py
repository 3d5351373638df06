"""The Spark session of a job, with Delta: the active one, spark-submit's, or a new one.

A job started by itself runs on this machine (`local[*]`); Spark downloads Delta's jars the first time and caches them.
Under spark-submit the JVM is already running, so the jars must be named there:

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/ingest.py --help

Delta's settings are set here, unless spark-submit sets them.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m4cast.console.errors import errors_reported
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client")
S3_SETTINGS = {
    "spark.jars.packages": ",".join(
        [
            DELTA_PACKAGE,
            "org.apache.hadoop:hadoop-aws:3.5.0",  # Spark's own version of Hadoop
            *(f"software.amazon.awssdk:{module}:2.35.4" for module in AWS_MODULES),
        ]
    ),
    "spark.jars.excludes": "software.amazon.awssdk:bundle",
}
"""Needed for tables in S3: 18 MB of jars. The bundle that Hadoop offers instead of these modules has 686 MB."""
CATALOG = "spark.sql.catalog.spark_catalog"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's metadata is small; its default of 50 tasks slows down every small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Times in tables are instants; print them in UTC wherever the session runs.
    "spark.sql.session.timeZone": "UTC",
    # Statements contain names of topics and columns, and `${env:HOME}` is a valid one: do not substitute it.
    "spark.sql.variable.substitute": "false",
}
ON_THIS_MACHINE = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.python.authenticate.socketTimeout": "120s",  # Python workers start slowly on a busy machine
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # by default VACUUM lists with 10,000 tasks
    "spark.jars.packages": DELTA_PACKAGE,
}

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
IN_ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
}
"""Meant for tables that fit into memory: starting further tasks takes longer than their work."""
FEW_RECORDS = 100_000
"""Up to this many delivery records, Spark takes longer to compile a query than to interpret it. Measured with gaps:
5,000 records 2.8 s instead of 5.5, 50,000 4.4 instead of 5.4, 300,000 10 instead of 8."""


def delta_builder(name: str) -> "SparkSession.Builder":
    """A builder for a new session that can read and write Delta."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark looks for data sources in it
    builder = SparkSession.builder.appName(name)
    for key, value in {**ON_THIS_MACHINE, **DELTA_SETTINGS}.items():
        builder = builder.config(key, value)
    return builder


def has_session() -> bool:
    """True if a job would run in an existing session, or in the JVM of spark-submit."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def job_session(name: str, *, settings: Mapping[str, str] | None = None, log: Path | None = None) -> "SparkSession":
    """A session that reads and writes Delta tables and finds `format("m4cast")`.

    `log`: the file for all output of a new session's JVM; None: stdout and stderr.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise M4castError(f"jobs need Spark ({error}): pip install 'm4cast[spark]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return _with_delta(active)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM already
        return _with_delta(_submitted(name, settings or {}))
    builder = delta_builder(name)
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    if (settings or {}).get("spark.master", "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _printing_into(log):
        try:
            session = builder.getOrCreate()
        except Exception as error:
            problem = str(error).strip().partition("\n")[0][:200]
            where = "" if log is None else f"; see {log}"
            raise M4castError(f"Spark does not start ({problem}){where}; `m4cast doctor` checks Java") from error
        return _with_delta(session)


def _submitted(name: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    given = dict(SparkConf().getAll())
    builder = SparkSession.builder.appName(given.get("spark.app.name", name))
    for key, value in {**DELTA_SETTINGS, **given, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _with_delta(session: "SparkSession") -> "SparkSession":
    if session.conf.get(CATALOG, "") != DELTA_SETTINGS[CATALOG]:
        wanted = " ".join(f"--conf {key}={value}" for key, value in list(DELTA_SETTINGS.items())[:2])
        raise M4castError(
            f"this Spark session does not support Delta: use spark-submit --packages {DELTA_PACKAGE} {wanted}"
        )
    try:
        session.sql("SELECT 1").collect()  # loads the catalog's class
    except Exception as error:
        problem = str(error).strip().partition("\n")[0][:200]
        raise M4castError(
            f"Delta's jars are missing: use spark-submit --packages {DELTA_PACKAGE} ({problem})"
        ) from error
    return session


@contextmanager
def _printing_into(log: Path | None) -> Iterator[None]:
    """A process started in this context (the JVM) writes its stdout and stderr to this file for its whole life."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(file)


@contextmanager
def interpreted_if_few(session: "SparkSession", records: int, *, is_small: bool = False) -> Iterator[None]:
    """A context in which queries are interpreted if there are few records, and each runs in one task if everything
    that it reads `is_small`; otherwise the session's settings apply."""
    few = INTERPRETED if records <= FEW_RECORDS else {}
    with set_meanwhile(session, {**few, **(IN_ONE_TASK if is_small else {})}):
        yield


@contextmanager
def set_meanwhile(session: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    kept = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, before in kept.items():
            if before is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, before)


def as_script(main: click.Command) -> None:
    """Run a job by itself; errors are reported as by the `m4cast` command."""
    with errors_reported():
        main()
