"""The `m4cast` command: a room for each noun, and in it a module for each subcommand or family of subcommands.

A subcommand is imported only when it is used, so `m4cast --help` is fast and a client install does not need the
packages of a node or of the simulator. To add one, write a click command in a module of the room it belongs to,
and name it in `SUBCOMMANDS`.

Exit codes: 0 success; 1 the command ran, but a check failed or part of the work could not be done; 2 an error, which
stderr explains in one line; 130 interrupted by Ctrl-C; 141 the reader of the output has gone (`m4cast topics | head`).
"""

import importlib
import os
import sys
from typing import Any, NamedTuple

import click

import m4cast
from m4cast.console.errors import errors_reported
from m4cast.console.options import CONTEXT


class Subcommand(NamedTuple):
    """A command: where it is defined, and its line in the list of commands, which is shown without importing it."""

    location: str  # module:attribute
    summary: str


SUBCOMMANDS = {
    "audit": Subcommand("m4cast.jobs.delivery_audit:main", "Audit the Delta tables: published against delivered."),
    "bridge": Subcommand("m4cast.cli.rows.bridge:bridge", "Carry Kafka topics into channel topics and back."),
    "certs": Subcommand("m4cast.cli.nodes.certs:certs", "Make and show the certificates of a cluster."),
    "client": Subcommand("m4cast.cli.topics.client_mail:client", "Use clients, which have a key and a position."),
    "cluster": Subcommand(
        "m4cast.cli.trials.cluster:cluster", "Run a local cluster of real nodes for trying things out."
    ),
    "demo": Subcommand("m4cast.cli.trials.demo:demo", "Watch a channel of real nodes survive crashes."),
    "doctor": Subcommand("m4cast.cli.trials.doctor:doctor", "Check whether this machine has what m4cast needs."),
    "drain": Subcommand("m4cast.cli.nodes.departure:drain", "Retire a node once other nodes have all its rows."),
    "explain": Subcommand("m4cast.cli.topics.filters:explain", "Show what a filter means and costs, and what passes."),
    "federation": Subcommand(
        "m4cast.cli.trials.federation:federation", "Run local channels joined by gateways for trying things out."
    ),
    "gaps": Subcommand("m4cast.jobs.ordering_gaps:main", "Find ranges that are missing, late or duplicated."),
    "ingest": Subcommand("m4cast.jobs.ingest:ingest", "Ingest a channel into Delta tables, each row exactly once."),
    "maintain": Subcommand("m4cast.jobs.maintain:maintain", "Keep the Delta tables fast and small."),
    "node": Subcommand("m4cast.cli.nodes.node:node", "Run a node of a channel until it is asked to leave."),
    "notified": Subcommand("m4cast.jobs.audit.notified:main", "Show which clients would have been notified of rows."),
    "publish": Subcommand("m4cast.cli.rows.rows:publish", "Publish rows from a file or from standard input."),
    "publishers": Subcommand("m4cast.cli.topics.publishers:publishers", "List or remove the publisher keys of nodes."),
    "query": Subcommand("m4cast.cli.topics.asking:query", "Print the rows of a topic that match a filter."),
    "repair": Subcommand("m4cast.jobs.repair:main", "Put lost rows back into a node's store from the Delta tables."),
    "route": Subcommand("m4cast.cli.nodes.status:route", "Show the path from one node to another."),
    "shutdown": Subcommand("m4cast.cli.nodes.departure:shutdown", "Stop a node gracefully, or a whole channel."),
    "sim": Subcommand("m4cast.cli.trials.sim:sim", "Simulate a channel: real protocol code, virtual nodes and time."),
    "snapshot": Subcommand("m4cast.jobs.snapshot:main", "Write the current rows of a topic to Parquet files."),
    "status": Subcommand("m4cast.cli.nodes.status:status", "Show a node's state, neighbours and roster."),
    "store": Subcommand("m4cast.cli.nodes.store:store", "Inspect a node's store."),
    "subscribe": Subcommand("m4cast.cli.topics.filters:subscribe", "Register rows of a topic as wanted at nodes."),
    "subscriptions": Subcommand("m4cast.cli.topics.filters:subscriptions", "Show who wants what on the channel."),
    "table": Subcommand("m4cast.cli.topics.asking:table", "Print the rows of a table as they stand."),
    "tail": Subcommand("m4cast.cli.rows.rows:tail", "Print rows as JSON lines as they arrive."),
    "topic": Subcommand("m4cast.cli.topics.topic:topic", "Describe a topic, change its settings, or delete its rows."),
    "topics": Subcommand("m4cast.cli.nodes.status:topics", "List the topics that a node knows."),
    "topology": Subcommand("m4cast.cli.nodes.status:topology", "Show or draw the graph of the channel."),
    "trace": Subcommand("m4cast.cli.nodes.units:trace", "Show the route that a row took between channels."),
    "units": Subcommand("m4cast.cli.nodes.units:units", "Show the federation as a gatekeeper knows it."),
    "unsubscribe": Subcommand("m4cast.cli.topics.filters:unsubscribe", "Remove what `subscribe` registered."),
}


CLIENTS = frozenset(
    {
        "client",
        "doctor",
        "drain",
        "explain",
        "publish",
        "publishers",
        "query",
        "route",
        "shutdown",
        "status",
        "subscribe",
        "subscriptions",
        "table",
        "tail",
        "topic",
        "topics",
        "topology",
        "unsubscribe",
    }
)
"""Commands that report connection errors themselves and therefore silence gRPC. (A node logs what gRPC reports.)"""


class LazyGroup(click.Group):
    """A click group that knows its commands by name and imports each when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        subcommand = SUBCOMMANDS.get(cmd_name)
        if subcommand is None:
            return None
        if cmd_name in CLIENTS and "pyarrow" not in sys.modules:  # gRPC reads it when it is loaded
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
        with errors_reported():
            return super().invoke(ctx)


def _print_version(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"m4cast, version {m4cast.__version__}")
        context.exit()


@click.group(cls=LazyGroup, context_settings=CONTEXT)
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
