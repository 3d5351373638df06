"""What the command lines of all jobs share: options, the session, how they end.

Every job is one click command, which `m4cast NAME` and `spark-submit jobs/NAME.py` run alike. Progress goes to stderr;
the summary goes to stdout, as one JSON object with `--json`. Spark's own messages go to a file, which stderr names.
"""

import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m4cast.jobs.session import has_session, job_session
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

Command = Callable[..., Any]

GRACE = timedelta(minutes=2)
"""How long rows may be under way before an audit misses them."""

tables_option = click.option(
    "--tables",
    required=True,
    metavar="PATH",
    envvar="M4CAST_TABLES",
    show_envvar=True,
    help="Where the Delta tables are: a folder, or anything that Spark can write to.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
as_of_option = click.option(
    "--as-of",
    type=click.DateTime(),
    callback=lambda _context, _option, moment: None if moment is None else moment.replace(tzinfo=UTC),
    help="Look at it as if it were then (UTC); now if not given.",
)
grace_option = click.option(
    "--grace",
    type=click.IntRange(min=0),
    default=int(GRACE.total_seconds()),
    show_default=True,
    callback=lambda _context, _option, seconds: timedelta(seconds=seconds),
    help="Seconds that rows are given to arrive, from the end of their minute. Higher: later verdicts.",
)
_SPARK = (
    click.option(
        "--spark-conf",
        "spark_conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark.",
    ),
    click.option(
        "--spark-log",
        metavar="FILE",
        help="The file for Spark's own messages; - is stderr. If not given, a new temporary file, which stderr names. "
        "Not under spark-submit, which has started Spark already.",
    ),
)
_ACCESS = (
    click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="HOST:PORT",
        envvar="M4CAST_NODE",
        help="Door of a node; several for fail-over.",
    ),
    click.option(
        "--token",
        metavar="env:NAME|file:PATH|TOKEN",
        envvar="M4CAST_TOKEN",
        help="What the nodes ask for; a token that is written out is seen in the list of processes.",
    ),
    click.option("--ca", metavar="FILE", envvar="M4CAST_CA", help="The cluster's CA: speak TLS."),
    click.option("--cert", metavar="FILE", envvar="M4CAST_CERT", help="Own certificate, if nodes ask."),
    click.option("--key", metavar="FILE", envvar="M4CAST_KEY", help="The key of --cert."),
)


def spark_options(command: Command) -> Command:
    """Adds `spark_conf` and `spark_log`, for `session_of`."""
    return _with(command, _SPARK)


def access_options(command: Command) -> Command:
    """Adds `nodes`, `token`, `ca`, `cert` and `key`, for `access_of`."""
    return _with(command, _ACCESS)


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def access_of(given: Mapping[str, Any]) -> dict[str, str]:
    """How to reach the channel, as options of `format("m4cast")`."""
    if not given["nodes"]:
        raise click.UsageError("no node is named: give --node HOST:PORT, or set M4CAST_NODE")
    values = {
        "nodes": ",".join(given["nodes"]),
        "token": given["token"],
        "tlsCa": given["ca"],
        "tlsCert": given["cert"],
        "tlsKey": given["key"],
    }
    return {name: value for name, value in values.items() if value}


def folder_of(tables: str) -> str:
    """The folder of tables, so that it means the same wherever Spark runs."""
    return tables.rstrip("/") if "://" in tables else str(Path(tables).resolve())


def filled_folder_of(tables: str, wanted: str = "*") -> str:
    """The folder of tables, which must have a table of this name. What is on this machine is looked at before Spark
    starts, which takes long; what is elsewhere, only Spark can see."""
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
    """The session of a job, and where its log is."""
    settings = pairs(given["spark_conf"], "--spark-conf")
    if has_session():
        return job_session(name, settings=settings)
    log = given["spark_log"]
    if log is None:
        number, log = tempfile.mkstemp(prefix=f"{name.replace(' ', '-')}-", suffix=".log")
        os.close(number)
        click.echo(f"Spark's log is in {log}", err=True)
    return job_session(name, settings=settings, log=None if log == "-" else Path(log))


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Texts such as `name=value`."""
    for text in texts:
        if not all(text.partition("=")):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return dict(text.split("=", 1) for text in texts)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, in place of what they did before."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(summary: Mapping[str, object]) -> None:
    click.echo(json.dumps(summary, default=str))
