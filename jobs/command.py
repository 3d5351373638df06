"""What the command lines of all jobs share: options, the session, how they end.

Every job is one click command, which `m4cast NAME` and `spark-submit jobs/NAME.py` run alike. Progress goes to stderr,
and only to a terminal; the summary goes to stdout, as one JSON object with `--json`.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m4cast.jobs.session import job_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

Command = Callable[..., Any]

tables_option = click.option(
    "--tables",
    required=True,
    metavar="PATH",
    envvar="M4CAST_TABLES",
    show_envvar=True,
    help="Where the Delta tables are: a folder, or anything that Spark can write to.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
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
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Where Spark's own messages go, if not to stderr. Not under spark-submit, which has started Spark before.",
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


def session_of(name: str, given: Mapping[str, Any]) -> "SparkSession":
    return job_session(name, settings=pairs(given["spark_conf"], "--spark-conf"), log=given["spark_log"])


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
