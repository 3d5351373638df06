"""The `m4cast` command.

Subcommands are imported only when they are called or listed by name, so that `m4cast --help` stays quick and a client
install does not need what only a node or the simulator imports. To add one: write a click command in a module of its
own and name it in `SUBCOMMANDS`.

An error of ours (`M4castError`) is the user's to read: it prints as one line on stderr, with a second one where there
is a hint, and exits with 2. Anything else is a bug and keeps its traceback. A command whose reader has gone (`m4cast
topics | head -1`) exits with 141, as if SIGPIPE had ended it, and one that Ctrl-C ended with 130: 1 is for promises
that are broken.
"""

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import click

import m4cast
from m4cast.console.errors import hint_for, said_of
from m4cast.console.interruption import EXIT_CODE_INTERRUPTED
from m4cast.overlay.errors import M4castError

EXIT_CODE_ERROR = 2
EXIT_CODE_BROKEN_PIPE = 141
"""As shells have it: 128 and the number of SIGPIPE."""


class Subcommand(NamedTuple):
    """Where a command is, and its line in the list of commands (kept here, so that listing imports nothing)."""

    location: str  # module:attribute
    summary: str


SUBCOMMANDS = {
    "audit": Subcommand("m4cast.jobs.delivery_audit:main", "Audit the Delta tables: published against delivered."),
    "bridge": Subcommand("m4cast.cli.bridge:bridge", "Carry Kafka topics into channel topics, and back."),
    "certs": Subcommand("m4cast.cli.certs:certs", "Make and show the certificates of a cluster."),
    "cluster": Subcommand("m4cast.cli.cluster:cluster", "A local cluster of real nodes, to try things."),
    "demo": Subcommand("m4cast.cli.demo:demo", "See it work: real nodes, one of them killed and brought back."),
    "doctor": Subcommand("m4cast.cli.doctor:doctor", "Check whether this machine has what m4cast needs."),
    "drain": Subcommand("m4cast.cli.departure:drain", "Take a node out of service once others have all its rows."),
    "gaps": Subcommand("m4cast.jobs.ordering_gaps:main", "Find what is held, missing, late or twice, in ranges."),
    "ingest": Subcommand("m4cast.jobs.ingest:ingest", "Ingest a channel into Delta tables, each row once."),
    "maintain": Subcommand("m4cast.jobs.maintain:maintain", "Keep the Delta tables quick and small."),
    "node": Subcommand("m4cast.cli.node:node", "Run one node of a channel until it is told to leave."),
    "publish": Subcommand("m4cast.cli.rows:publish", "Publish rows from a file or from standard input."),
    "publishers": Subcommand("m4cast.cli.publishers:publishers", "List publisher keys of a node, or remove some."),
    "shutdown": Subcommand("m4cast.cli.departure:shutdown", "Let a node leave the channel in order, and stop."),
    "sim": Subcommand("m4cast.cli.sim:sim", "Run the channel's own protocol code with simulated nodes and time."),
    "status": Subcommand("m4cast.cli.status:status", "Show a node: its state, its neighbours, whom it knows."),
    "store": Subcommand("m4cast.cli.store:store", "Look into a node's store: is it whole, what is in it."),
    "tail": Subcommand("m4cast.cli.rows:tail", "Print rows of topics as JSON lines, and wait for more."),
    "topic": Subcommand("m4cast.cli.topic:topic", "Describe a topic, set how much of it is kept, or delete it."),
    "topics": Subcommand("m4cast.cli.status:topics", "List the topics that a node knows, with the rows it keeps."),
    "topology": Subcommand("m4cast.cli.status:topology", "Show or draw the graph of the channel."),
}


CLIENTS = frozenset(
    {"doctor", "drain", "publish", "publishers", "shutdown", "status", "tail", "topic", "topics", "topology"}
)
"""Commands whose errors say what gRPC would say besides. A node's log has gRPC's words, so it is not among them."""


class LazyGroup(click.Group):
    """A click group that knows its commands by name and imports each when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        subcommand = SUBCOMMANDS.get(cmd_name)
        if subcommand is None:
            return None
        if cmd_name in CLIENTS and "pyarrow" not in sys.modules:  # it counts when gRPC is loaded
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        module_name, _, attribute = subcommand.location.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command), f"{subcommand.location} is not a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in SUBCOMMANDS:
            from difflib import get_close_matches

            if meant := get_close_matches(name, SUBCOMMANDS):
                names = ", ".join(repr(each) for each in sorted(meant))
                ctx.fail(f"No such command {name!r}. Did you mean {names if len(meant) == 1 else f'one of: {names}'}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:  # click's own signature
        try:
            return super().invoke(ctx)
        except M4castError as error:
            _exit_with(error)
        except KeyboardInterrupt:
            click.echo("m4cast: interrupted", err=True)
            raise SystemExit(EXIT_CODE_INTERRUPTED) from None
        except BrokenPipeError:
            _exit_unread()


def _exit_with(error: M4castError) -> NoReturn:
    click.echo(f"m4cast: {said_of(error)}", err=True)
    hint = hint_for(error)
    if hint is not None:
        click.echo(f"m4cast: hint: {hint}", err=True)
    raise SystemExit(EXIT_CODE_ERROR)


def _exit_unread() -> NoReturn:
    """What is left in the buffer goes nowhere: else Python would complain about it at its end."""
    with suppress(OSError):  # no file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(EXIT_CODE_BROKEN_PIPE)


def _print_version(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"m4cast, version {m4cast.__version__}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """A broadcast channel for Spark: every row reaches every site, in order, without a broker."""
