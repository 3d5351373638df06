"""`m4cast store`: inspect a node's store, even while the node is running. Only `trust-clock` changes anything.

The exit code is 0 when the store is sound, 1 when `check` found damage, 2 when the folder has no store that this
version can read.
"""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from m4cast.console.errors import EXIT_CODE_FAILED
from m4cast.console.options import group, json_option
from m4cast.console.quantities import age_of, count_of, size_of
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.store import inspection
from m4cast.overlay.store.folder import set_retention_clock
from m4cast.overlay.store.inspection import CheckReport, Stats

_folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@group()
def store() -> None:
    """Inspect a node's store: whether it is sound, and what it contains. Works while the node is running."""


@store.command()
@_folder_argument
@json_option
def check(folder: Path, as_json: bool) -> None:
    """Read the whole store in DIR and report any damage.

    The command verifies that every stream is contiguous apart from recorded skips, that every batch and staged payload
    matches its checksum, that holdings agree with the log, and that no payload is missing or orphaned. If no node is
    using the store, the pages of the file are verified as well. The exit code is 1 if there is any damage.
    """
    report = inspection.check(folder)
    if as_json:
        print_json({"sound": report.is_sound, **asdict(report)})
    else:
        print_report(report)
    if not report.is_sound:
        raise SystemExit(EXIT_CODE_FAILED)


@store.command()
@_folder_argument
@json_option
def stats(folder: Path, as_json: bool) -> None:
    """Show which node the store in DIR belongs to, what it contains and how much space is left."""
    found = inspection.stats(folder)
    if as_json:
        print_json(found.as_fields())
    else:
        print_stats(found)


@store.command("trust-clock")
@_folder_argument
def trust_clock(folder: Path) -> None:
    """Make retention trust this host's clock.

    The node in DIR must not be running; the command takes effect at its next start. A node that was off for a long time
    and has no neighbour to confirm its clock lets retention time pass at twice the speed until it has caught up, and
    retains rows longer in the meantime. If you know that the clock is right, this command ends that at once: rows that
    are too old by this clock are removed soon after the start.
    """
    now = datetime.now(UTC)
    set_retention_clock(folder, int(now.timestamp() * 1000))
    click.echo(f"From its next start, the node measures the age of rows by a clock set to {now:%Y-%m-%d %H:%M:%S} UTC.")


def print_report(report: CheckReport) -> None:
    console = Screen()
    table = _table()
    table.add_row("streams", f"{report.streams:,}", "pairs of origin and topic")
    table.add_row("batches", f"{report.batches:,}", f"verified: {report.rows:,} rows, {size_of(report.bytes)}")
    table.add_row("skips", f"{report.skips:,}", "ranges that are recorded as missing")
    table.add_row("staged", f"{report.staged:,}", "payloads that wait for their commit")
    table.add_row("payloads", f"{report.payloads:,}", "stored separately, including staged ones")
    in_use = "a node is running on it, so pages were not verified" if report.in_use else "pages were verified"
    table.add_row("in use", "yes" if report.in_use else "no", in_use)
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
    table.add_row("own batches", f"{owner.origin_batch:,}", "published at this node so far")
    table.add_row(
        "retained",
        f"{content.batches:,}",
        f"batches of {count_of(len(found.streams), 'stream')}, {size_of(content.log_bytes)}",
    )
    in_use = f"{size_of(space.live_bytes)} in use, limit {size_of(space.map_bytes)}"
    table.add_row("file", size_of(space.file_bytes), in_use)
    free = "NEARLY FULL" if space.is_nearly_full else "available"
    table.add_row("free", size_of(space.available_bytes), free)
    table.add_row("deliveries", f"{content.deliveries:,}", "records of batches delivered at this node")
    table.add_row("publishers", f"{content.publishers:,}", "keys")
    table.add_row("staged", f"{content.staged:,}", f"payloads, {size_of(content.staged_bytes)}")
    table.add_row("schemas", f"{content.schemas:,}", "")
    table.add_row("roster", f"{content.roster:,}", "known nodes")
    console.print(table)
    if found.streams:
        listed = Table("topic", "origin", "low", "next", "batches", "size", title="Streams", box=None, pad_edge=False)
        for stream in sorted(found.streams, key=lambda stream: (stream.topic, stream.origin)):
            numbers = (f"{number:,}" for number in (stream.low, stream.next, stream.batches))
            listed.add_row(stream.topic, stream.origin[:8], *numbers, size_of(stream.bytes))
        console.print(listed)
    if found.readers:
        readers = Table("name", "lease ends in", "lag, rows", "cut, rows", title="Readers", box=None, pad_edge=False)
        now_ms = time.time_ns() // 1_000_000
        for reader in found.readers:
            left_ms = reader.lease_until_ms - now_ms
            lease = age_of(left_ms) if left_ms > 0 else "expired"
            readers.add_row(reader.name, lease, f"{reader.lag_rows:,}", f"{reader.cut_rows:,}")
        console.print(readers)


def _table() -> Table:
    return Table("", "", "meaning", box=None, pad_edge=False)
