"""`m4cast publish` and `m4cast tail`: move rows into and out of a channel through the door of a node.

Both can be interrupted at any time. `tail` prints one JSON object per line.
"""

import csv
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import click
import pyarrow as pa

from m4cast.cli.topics.filters import filter_options, warn_of_unknown
from m4cast.console.access import FAIL_OVER, PUBLISH, channel_options
from m4cast.console.errors import EXIT_CODE_INTERRUPTED, warn
from m4cast.console.interruption import LISTEN_S, interruptible
from m4cast.console.options import command, count_option, json_option, seconds_option
from m4cast.console.quantities import count_of
from m4cast.console.screen import print_json
from m4cast.overlay.client import Channel
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.tail import RowFilter, Start, Subscription, Tail, filter_of, start_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.row_files.blocks import FORMATS, Block, blocks_of
from m4cast.row_files.column_types import ColumnTypes
from m4cast.schemas.json_text import json_of

LOOK_S = 1.0
"""Interval at which to look for new topics that match a pattern. Guess."""
TOPICS_MAX = 1_000
"""Limit of a node on the topics that one call follows."""
CLOSE_S = 1.0
"""Time that an ending tail waits for its call to end, since the node may not be answering. Guess."""


@command()
@click.option("--topic", default="default", show_default=True, help="Topic of the rows; created if it does not exist.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Format of the rows; by default that of the file's extension, or jsonl.",
)
@click.option(
    "--columns",
    metavar="NAME,NAME...",
    help="Publish only these columns, in this order; with --no-header, the names of the columns.",
)
@click.option("--no-header", is_flag=True, help="The csv has no line of column names; give --columns.")
@count_option(
    "--acks",
    high=64,
    help="Number of other nodes that must have the rows on disk; by default, the node's setting.",
)
@channel_options(PUBLISH)
@json_option
@click.argument("file", default="-", metavar="[FILE]", type=click.Path(path_type=Path))
def publish(
    channel: Channel,
    topic: str,
    kind: str | None,
    columns: str | None,
    no_header: bool,
    acks: int | None,
    as_json: bool,
    file: Path,
) -> None:
    """Publish the rows of FILE, or of standard input, at a node.

    The command ends when the rows are on the node's disk, and on those of as many other nodes as --acks asks for.
    Delivery is at least once: when a connection breaks, unacknowledged rows are sent to the next --node, although they
    may have been published already.

    jsonl has one object per line; one array of objects, as in .json files, is accepted as well. In --columns, quote a
    name that contains a comma, as in csv.

    The input is read and published in blocks: 4 MiB of jsonl or csv, or what has arrived when the input pauses for a
    second. After an error or Ctrl-C, the blocks published so far stay published, and the message states how many rows
    that is. If a line cannot be read, no row of its block is published.

    A column that the topic already has keeps its type. Otherwise parquet and arrow files define the types, and those of
    jsonl and csv are inferred from the first block with values in the column and apply to the rest of the input. In
    jsonl, strings stay strings even if they look like times, numbers are int64 or double, and lists and objects that
    are always empty are null. In csv, integers, decimals, booleans, dates and times are recognised; everything else is
    a string.
    """
    ending = file.suffix.removeprefix(".")
    kind = kind or (ending if ending in FORMATS else "jsonl")
    chosen = _columns(columns, kind, no_header)
    publication = Publication(channel, topic, acks)
    try:
        for block in publication.blocks(file, kind, chosen, has_header=not no_header):
            publication.publish(block)
    except KeyboardInterrupt:
        warn(f"interrupted; {publication.so_far(is_answered=False)}")
        raise SystemExit(EXIT_CODE_INTERRUPTED) from None
    except M4castError as error:
        publication.failed(error)
    if as_json:
        ranges = [{"topic": r.topic, "origin": r.origin, "first": r.first, "next": r.next} for r in publication.ranges]
        print_json({"rows": publication.rows, "ranges": ranges})
    else:
        where = ", ".join(f"{r.first} to {r.next - 1} of {r.topic} at {r.origin[:8]}" for r in publication.ranges)
        click.echo(f"published {count_of(publication.rows, 'row')}" + (f": {where}" if where else ""))


def _columns(text: str | None, kind: str, no_header: bool) -> list[str]:
    """The distinct names of the columns; empty for all columns."""
    if no_header and kind != "csv":
        raise click.UsageError(f"--no-header is only for csv, not for {kind}: remove it")
    if no_header and text is None:
        raise click.UsageError("--no-header needs --columns with the names of the columns")
    names = [] if text is None else [name for record in csv.reader([text]) for name in record]
    if text is not None and not (names and all(names)):
        raise click.BadParameter(
            f"{text!r} has an empty column name: remove the comma, or name the column", param_hint="--columns"
        )
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{text!r} has {name!r} twice: name each column once", param_hint="--columns")
    return names


NO_ANSWER = ("timeout", "unacknowledged", "internal")
"""Codes of refusals after which it is unknown whether the rows were published."""


class Publication:
    """The rows that one run of the command publishes."""

    def __init__(self, channel: Channel, topic: str, acks: int | None) -> None:
        self._channel = channel
        self._topic = topic
        self._acks = acks
        self._types = ColumnTypes()
        self._has_asked = False
        self.rows = 0
        self.until = ""
        """The place in the input at which the published rows end."""
        self._under_way = 0
        """Rows that were sent and are not acknowledged yet."""
        self.ranges: list[RowRange] = []

    def blocks(self, file: Path, kind: str, columns: list[str], *, has_header: bool) -> Iterator[Block]:
        return blocks_of(file, kind, self._types, columns, has_header=has_header)

    def publish(self, block: Block) -> None:
        rows = block.table()
        try:
            self._publish(rows)
        except RefusedError as error:
            if error.code != "schema-conflict" or self._has_asked:
                raise
            # Not requested before, because the right to publish to a topic does not include the right to read it.
            self._has_asked = True
            if not self._learn():
                raise
            rows = block.table()
            self._publish(rows)
        self._under_way = 0
        self.rows += rows.num_rows
        self.until = block.until

    def _publish(self, rows: pa.Table) -> None:
        self._under_way = rows.num_rows
        for each in interruptible(lambda: self._channel.publish(self._topic, rows, acks=self._acks)):
            last = self.ranges[-1] if self.ranges else None
            if last is not None and (last.topic, last.origin, last.next) == (each.topic, each.origin, each.first):
                self.ranges[-1] = RowRange(last.topic, last.origin, last.first, each.next)
            else:
                self.ranges.append(each)

    def _learn(self) -> bool:
        """Adopt the types of the topic's columns. Returns whether the node reports them."""
        try:
            schema = interruptible(lambda: self._channel.schema(self._topic))
        except RefusedError:
            return False
        self._types.learn(schema)
        return True

    def so_far(self, *, is_answered: bool) -> str:
        """A text about the rows that were published, and those that may have been if the last were not acknowledged."""
        before = "nothing was published before that"
        if self.rows:
            until = f", up to {self.until}" if self.until else ""
            before = f"{count_of(self.rows, 'row')} {'was' if self.rows == 1 else 'were'} published before that{until}"
        if is_answered or not self._under_way:
            return before
        return f"{before}; {count_of(self._under_way, 'row')} may have been, but without acknowledgement"

    def failed(self, error: M4castError) -> NoReturn:
        """Raise the same error, with what was published before it."""
        match error:
            case RefusedError():
                so_far = self.so_far(is_answered=error.code not in NO_ANSWER)
                raise RefusedError(error.code, f"{error.detail}; {so_far}") from error
            case UnreachableError() if not error.is_sent and not self.rows:
                raise error  # it already implies that nothing was published
            case UnreachableError():
                so_far = self.so_far(is_answered=not error.is_sent)
                raise UnreachableError(f"{error}; {so_far}", is_sent=error.is_sent) from error
            case _:
                raise M4castError(f"{error}; {self.so_far(is_answered=True)}") from error


@command()
@click.option("--topic", "topics", multiple=True, help="Exact name of a topic; `default` by default. Can be repeated.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Follow all topics that match, as in 'orders.*', and topics created later from their beginning. System topics "
    "(_...) match only patterns that begin with _. Can be repeated.",
)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Where to start. A time is ISO 8601 with a zone, as in 2026-01-31T12:00:00Z, or milliseconds since 1970 UTC.",
)
@filter_options("Print only rows that satisfy this, as in \"price > 100 AND country = 'PL'\" (docs/FILTERS.md).")
@count_option("--max-rows", low=1, help="End after this many rows.")
@seconds_option("--idle-s", low=0.001, help="End when no row, matching or not, has arrived for this long.")
@channel_options(FAIL_OVER)
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
def tail(
    channel: Channel,
    topics: tuple[str, ...],
    patterns: tuple[str, ...],
    start: str,
    where: str | None,
    language: str | None,
    max_rows: int | None,
    idle_s: float | None,
) -> None:
    """Print rows as they arrive, one JSON object per line, until Ctrl-C.

    If a topic does not exist yet, the command waits for it and reports that on stderr.

    Times are ISO 8601, with Z if their type has a time zone; bytes are base64, decimals and durations are strings.
    Numbers that JSON cannot represent (NaN, infinity) are null.
    """
    left = max_rows
    since = _start(start)
    wanted = Wanted(topics or (() if patterns else ("default",)), patterns)
    row_filter = filter_of(where, language)
    try:
        for row in _tailed(channel, wanted, since, idle_s, row_filter):
            click.echo(json_of(row))
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except KeyboardInterrupt:
        pass


class Wanted:
    """The topics to follow: those that are named, and those that match a pattern."""

    def __init__(self, names: tuple[str, ...], patterns: tuple[str, ...]) -> None:
        self._names = names
        self.patterns = patterns

    def of(self, existing: list[str]) -> list[str]:
        """The topics to follow when these topics exist."""
        found = [topic for topic in existing if any(_matches(topic, pattern) for pattern in self.patterns)]
        wanted = sorted({*self._names, *found})
        if len(wanted) > TOPICS_MAX:
            raise M4castError(
                f"{len(wanted):,} topics are named or match a pattern, but at most {TOPICS_MAX:,} can be followed: "
                "name fewer topics, or narrow the pattern"
            )
        return wanted

    def report_missing(self, existing: list[str]) -> None:
        for name in self._names:
            if name not in existing:
                warn(f"topic {name!r} does not exist yet: waiting for it")
        for pattern in self.patterns:
            if not any(_matches(topic, pattern) for topic in existing):
                warn(f"no topic matches {pattern!r} yet: waiting for one")


def _matches(topic: str, pattern: str) -> bool:
    return fnmatchcase(topic, pattern) and (pattern.startswith("_") or not topic.startswith("_"))


def _tailed(
    channel: Channel, wanted: Wanted, start: Start, idle_s: float | None, row_filter: RowFilter | None
) -> Iterator[dict[str, Any]]:
    """Rows as they arrive. They are read on another thread, at most a few batches ahead; this one handles Ctrl-C."""
    existing = interruptible(channel.topics)
    wanted.report_missing(existing)
    ended = threading.Event()
    deadline = None if idle_s is None else time.monotonic() + idle_s
    while not (topics := wanted.of(existing)):
        if deadline is not None and time.monotonic() > deadline:
            return
        ended.wait(LOOK_S if idle_s is None else min(idle_s, LOOK_S))
        existing = interruptible(channel.topics)
        start = start if isinstance(start, int) else "earliest"  # what was published meanwhile is new
    where, language = row_filter or (None, None)
    if where is not None:
        _warn_of_unknown(channel, topics, where, language)
    followed = channel.tail(topics, start, idle_s=idle_s, where=where, language=language)
    subscription = Subscription(followed, None, lambda error: None)  # `acquire` raises the error
    interruptible(subscription.start)
    if wanted.patterns:
        threading.Thread(target=_follow_new, args=(channel, wanted, followed, ended), daemon=True).start()
    try:
        while True:
            is_open = subscription.is_open  # read first: once it is closed, no more rows arrive
            batch = subscription.acquire(LISTEN_S if is_open else 0)
            if batch is not None:
                yield from batch.to_pylist()
            elif not is_open:
                return
    finally:
        ended.set()
        with suppress(TimeoutError):
            interruptible(subscription.close, CLOSE_S)


def _warn_of_unknown(channel: Channel, topics: list[str], where: str, language: str | None) -> None:
    """Warn of columns that a topic lacks: they are null, so a misspelt name looks like a filter without matches."""
    for topic in topics:
        try:
            explained = interruptible(lambda topic=topic: channel.explain(topic, where, language=language, rows=0))  # type: ignore[misc]
        except RefusedError as error:
            if error.code == "bad-request":
                raise
            continue  # the topic does not exist yet, or the node is older
        warn_of_unknown(topic, explained)


def _follow_new(channel: Channel, wanted: Wanted, followed: Tail, ended: threading.Event) -> None:
    """Make the tail follow new topics that match a pattern."""
    while not ended.wait(LOOK_S):
        try:
            followed.follow(wanted.of(channel.topics()))
        except (RefusedError, UnreachableError):
            pass  # the tail meets the same error and reports it
        except M4castError as error:
            warn(f"new topics are not followed: {error}")
            return


def _start(text: str) -> Start:
    try:
        return start_of(text)
    except LocalProtocolError as error:
        raise click.BadParameter(str(error), param_hint="--from") from None
