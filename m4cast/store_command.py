"""`m4cast store`: look into a node's store, also while the node runs on it. Only `trust-clock` changes anything.

People get tables; `--json` prints one object for programs. The exit code is 0 when the store is sound, 1 when `check`
found something wrong, 2 when the folder has no store that this version can read.
"""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from m4cast.overlay.store import inspection
from m4cast.overlay.store.folder import set_retention_clock
from m4cast.overlay.store.inspection import CheckReport, Stats
from m4cast.quantities import age_of, size_of
from m4cast.screen import Screen

EXIT_CODE_BROKEN = 1
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")


@click.group(context_settings=_HELP_NAMES)
def store() -> None:
    """Look into the store of a node: is it whole, what is in it. Works while the node runs."""


@store.command(context_settings=_HELP_NAMES)
@_FOLDER
@_JSON
def check(folder: Path, as_json: bool) -> None:
    """Read all of the store in DIR and report what is wrong with it.

    Every stream is without holes, apart from skips; every batch and staged payload has its checksum; holdings agree
    with the log; no payload is missing or left over. If no node runs on it, the pages of the file are walked as well.
    The exit code is 1 if anything is wrong.
    """
    report = inspection.check(folder)
    if as_json:
        click.echo(json.dumps({"sound": report.is_sound, **asdict(report)}))
    else:
        print_report(report)
    if not report.is_sound:
        raise SystemExit(EXIT_CODE_BROKEN)


@store.command(context_settings=_HELP_NAMES)
@_FOLDER
@_JSON
def stats(folder: Path, as_json: bool) -> None:
    """Say whose store is in DIR, what it holds and how much room is left."""
    found = inspection.stats(folder)
    if as_json:
        click.echo(json.dumps(found.as_fields()))
    else:
        print_stats(found)


@store.command("trust-clock", context_settings=_HELP_NAMES)
@_FOLDER
def trust_clock(folder: Path) -> None:
    """Let retention take this host's clock as right, at once, from the next start of the node in DIR on.

    A node that was off for long and has no neighbour to confirm its clock makes up for that time at twice the speed,
    and keeps rows for longer meanwhile. If you know that the clock is right, this ends that. Rows that are too old by
    this clock are removed soon after the start. The node must not run.
    """
    now = datetime.now(UTC)
    set_retention_clock(folder, int(now.timestamp() * 1000))
    click.echo(f"From the next start of the node on, ages of rows are measured from {now:%Y-%m-%d %H:%M:%S} UTC on.")


def print_report(report: CheckReport) -> None:
    console = Screen()
    table = _table()
    table.add_row("streams", f"{report.streams:,}", "origin and topic")
    table.add_row("batches", f"{report.batches:,}", f"read and checked: {report.rows:,} rows, {size_of(report.bytes)}")
    table.add_row("skips", f"{report.skips:,}", "ranges that the store knows it has not got")
    table.add_row("staged", f"{report.staged:,}", "payloads that wait for their commit")
    table.add_row("payloads", f"{report.payloads:,}", "with a place of their own, staged ones included")
    table.add_row("in use", "yes" if report.in_use else "no", "pages are walked only when no node runs on the store")
    console.print(table)
    if report.is_sound:
        console.print("\nThe store is sound.", style="green")
        return
    console.print("\nDAMAGED:", style="bold red")
    for problem in report.problems:
        console.print(f"- {problem}", style="red", markup=False)


def print_stats(found: Stats) -> None:
    console = Screen()
    table = _table()
    owner, space, content = found.owner, found.space, found.content
    table.add_row("channel", f"{owner.channel_type}/{owner.channel_instance}", f"format version {owner.format_version}")
    table.add_row("node", owner.node_id, f"incarnation {owner.incarnation}, {len(owner.former_ids)} former ids")
    table.add_row("own batches", f"{owner.origin_batch:,}", "numbered by this node so far")
    table.add_row(
        "kept", f"{content.batches:,}", f"batches of {len(found.streams):,} streams, {size_of(content.log_bytes)}"
    )
    in_use = f"{size_of(space.live_bytes)} in use; at most {size_of(space.map_bytes)}"
    table.add_row("file", size_of(space.file_bytes), in_use)
    left = "NEARLY FULL" if space.is_nearly_full else "left for more"
    table.add_row("room", size_of(space.available_bytes), left)
    table.add_row("deliveries", f"{content.deliveries:,}", "records of what was handed over here")
    table.add_row("publishers", f"{content.publishers:,}", "keys")
    table.add_row("staged", f"{content.staged:,}", f"payloads, {size_of(content.staged_bytes)}")
    table.add_row("schemas", f"{content.schemas:,}", "")
    table.add_row("roster", f"{content.roster:,}", "nodes heard of")
    console.print(table)
    if found.streams:
        streams = Table("topic", "origin", "low", "next", "batches", "size", title="Streams", box=None, pad_edge=False)
        for stream in sorted(found.streams, key=lambda stream: (stream.topic, stream.origin)):
            numbers = (f"{number:,}" for number in (stream.low, stream.next, stream.batches))
            streams.add_row(stream.topic, stream.origin[:8], *numbers, size_of(stream.bytes))
        console.print(streams)
    if found.readers:
        readers = Table("name", "lease ends in", "lag, rows", "cut, rows", title="Readers", box=None, pad_edge=False)
        now_ms = time.time_ns() // 1_000_000
        for reader in found.readers:
            left_ms = reader.lease_until_ms - now_ms
            lease = age_of(left_ms) if left_ms > 0 else "it has ended"
            readers.add_row(reader.name, lease, f"{reader.lag_rows:,}", f"{reader.cut_rows:,}")
        console.print(readers)


def _table() -> Table:
    return Table("", "", "what it says", box=None, pad_edge=False)
