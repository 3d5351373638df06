"""The options that several commands share, each declared once, so that they mean and look the same everywhere.

    @command()
    @count_option("--limit", low=1, default=100, help="How many to show.")
    @json_option
    def show(limit: int, as_json: bool) -> None: ...

`command` and `group` stand in for click's, and add `-h`. Options that name nodes and credentials are in `access`.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from m4cast.overlay.errors import M4castError

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
CONTEXT = {"help_option_names": ["-h", "--help"]}


def command(name: str | None = None, **attributes: Any) -> Callable[[Command], click.Command]:
    return click.command(name, context_settings=CONTEXT, **attributes)


def group(name: str | None = None, **attributes: Any) -> Callable[[Command], click.Group]:
    return click.group(name, context_settings=CONTEXT, **attributes)


def all_of(*decorators: Decorator) -> Decorator:
    """One decorator that applies several, listed in help in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


# ---- what a command prints

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
json_per_node_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per node and nothing else."
)
svg_option = click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="Draw the graph of the channel to this file."
)
report_option = click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write an HTML report to this file.",
)


def log_options(verbose_help: str) -> Decorator:
    """Adds `verbose` and `log_format`, for `log_format.log_to_stderr`."""
    return all_of(
        click.option("--verbose", is_flag=True, help=verbose_help),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Format of log lines: text, or one JSON object per line.",
        ),
    )


# ---- quantities, times and places


def count_option(
    flag: str,
    name: str | None = None,
    *,
    low: int = 0,
    high: int | None = None,
    default: int | None = None,
    help: str,
) -> Decorator:
    """A whole number from `low` to `high`."""
    return click.option(
        *(flag, name) if name else (flag,),
        type=click.IntRange(low, high),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=help,
    )


def seconds_option(
    flag: str, *, low: float, high: float | None = None, default: float | None = None, help: str
) -> Decorator:
    """A duration in seconds; fractions are allowed."""
    return click.option(
        flag,
        type=click.FloatRange(low, high),
        metavar="SECONDS",
        default=default,
        show_default=default is not None,
        help=help,
    )


def moment_option(flag: str, *, help: str) -> Decorator:
    """A moment in UTC, given as a date or as a date and a time of day."""

    def in_utc(_context: click.Context, _option: click.Parameter, moment: datetime | None) -> datetime | None:
        return None if moment is None else moment.replace(tzinfo=UTC)

    about = f"{help} As in 2026-01-31 or 2026-01-31T12:00:00."
    return click.option(flag, type=click.DateTime(), metavar="TIME", callback=in_utc, help=about)


def folder_option(*, default: str | None = None, variable: str | None = None, help: str) -> Decorator:
    """`--dir`, as `folder`; required if there is no default. `variable`: of the environment, where it may be set."""
    return click.option(
        "--dir",
        "folder",
        required=default is None,
        default=default,
        show_default=default is not None,
        envvar=variable,
        show_envvar=variable is not None,
        metavar="DIR",
        type=click.Path(path_type=Path),
        help=help,
    )


def pairs_option(flag: str, name: str, *, metavar: str = "NAME=VALUE", help: str) -> Decorator:
    """NAME=VALUE, any number of times; the command gets a dict of strings."""

    def parsed(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        for text in texts:
            if text.find("=") < 1:
                raise click.BadParameter(f"{text!r} is not {metavar}", param_hint=flag)
        return dict(text.split("=", 1) for text in texts)

    return click.option(flag, name, multiple=True, metavar=metavar, callback=parsed, help=f"{help} Can be repeated.")


# ---- confirmation

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str) -> None:
    """Ask, and raise unless the answer is yes. Asked on stderr, so that stdout has results only."""
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise M4castError("nothing was deleted: answer y, or give --yes")
