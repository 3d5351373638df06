"""Shared parts of the jobs' command lines: options for tables and Spark, the session, and how a job is stopped.

Every job is one click command, which runs as `m4cast NAME` and as `spark-submit jobs/NAME.py`. Options that other
commands also have are in `m4cast.console`. Progress is shown on stderr; the summary goes to stdout, as one JSON
object with `--json`. Spark's own messages go to a file, whose name is printed on stderr.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m4cast.console.access import NodeAccess
from m4cast.console.options import all_of, moment_option, pairs_option
from m4cast.jobs.session import has_session, job_session
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE = timedelta(minutes=2)
"""Time that rows may be in flight before an audit reports them as missing."""

tables_option = click.option(
    "--tables",
    required=True,
    metavar="PATH",
    envvar="M4CAST_TABLES",
    show_envvar=True,
    help="Location of the Delta tables: a folder, or any URL that Spark can write to.",
)
as_of_option = moment_option("--as-of", help="Audit as if this were the current time (UTC); now by default.")
grace_option = click.option(
    "--grace",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    default=int(GRACE.total_seconds()),
    show_default=True,
    callback=lambda _context, _option, seconds: timedelta(seconds=seconds),
    help="How long rows may take to arrive after the end of their minute. A longer grace delays verdicts.",
)
beyond_option = click.option(
    "--beyond",
    multiple=True,
    metavar="PATH",
    help="Tables of another channel whose rows arrive here through gateways; they show what was published there. Can "
    "be repeated.",
)
spark_options = all_of(
    pairs_option("--spark-conf", "spark_conf", metavar="KEY=VALUE", help="A setting of Spark."),
    click.option(
        "--spark-log",
        metavar="FILE",
        help="File for Spark's own messages; - is stderr. By default a new temporary file, whose name is printed on "
        "stderr. No effect under spark-submit, which has already started Spark.",
    ),
)
"""Adds `spark_conf` and `spark_log`, for `session_of`."""


def source_options(access: NodeAccess) -> dict[str, str]:
    """Access to the channel, as options of `format("m4cast")`."""
    values = {
        "nodes": ",".join(access.nodes),
        "token": access.token,
        "tlsCa": access.ca,
        "tlsCert": access.cert,
        "tlsKey": access.key,
    }
    return {name: value for name, value in values.items() if value}


def folder_of(tables: str) -> str:
    """The location of the tables, made absolute, so that it is the same wherever Spark runs."""
    return tables.rstrip("/") if "://" in tables else str(Path(tables).resolve())


def filled_folder_of(tables: str, wanted: str = "*") -> str:
    """The location of the tables, which must include one of this name. A folder on this machine is checked before Spark
    starts, since that takes long; any other location is visible only to Spark."""
    folder = folder_of(tables)
    if "://" in folder:
        return folder
    advice = "name the folder that ingest writes to"
    if not Path(folder).is_dir():
        raise M4castError(f"there is no folder {folder}: {advice}")
    if not any(Path(folder).glob(f"{wanted}/_delta_log")) and not any(Path(folder).glob(f"{wanted}/*/_delta_log")):
        raise M4castError(f"there is no table{'' if wanted == '*' else f' {wanted}'} in {folder}: {advice}")
    return folder


def session_of(name: str, given: Mapping[str, Any]) -> "SparkSession":
    """The Spark session of a job. Reports the location of its log."""
    settings = given["spark_conf"]
    if has_session():
        return job_session(name, settings=settings)
    log = given["spark_log"]
    if log is None:
        number, log = tempfile.mkstemp(prefix=f"{name.replace(' ', '-')}-", suffix=".log")
        os.close(number)
        click.echo(f"Spark's log is in {log}", err=True)
    return job_session(name, settings=settings, log=None if log == "-" else Path(log))


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set instead of ending the process."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
