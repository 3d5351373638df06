"""`m4cast publish` and `m4cast tail`: rows in and out of a channel, through the door of a node.

Both can be interrupted at any time. What a tail prints is JSON, line by line.
"""

import base64
import csv
import datetime
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import click
import pyarrow as pa

from m4cast.console.access import FAIL_OVER, PUBLISH, client_options
from m4cast.console.interruption import EXIT_CODE_INTERRUPTED, LISTEN_S, interruptible
from m4cast.overlay.client import Channel
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.tail import Start, Subscription, Tail, start_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.row_files.blocks import FORMATS, Block, blocks_of
from m4cast.row_files.column_types import ColumnTypes

LOOK_S = 1.0
"""How often topics that match a pattern are looked for. Guess."""
TOPICS_MAX = 1_000
"""What a node follows in one call."""
CLOSE_S = 1.0
"""How long a tail that ends waits for its call to end, which may be to a node that does not answer. Guess."""
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP_NAMES)
@client_options(PUBLISH)
@click.option("--topic", default="default", show_default=True, help="Where the rows go; it need not be there yet.")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="Of the rows; by the file's ending, else jsonl, if not given."
)
@click.option(
    "--columns",
    metavar="NAME,NAME...",
    help="Publish these columns alone, in this order; with --no-header, what the columns of a csv are called.",
)
@click.option("--no-header", is_flag=True, help="The csv begins with rows, and has no line of names: give --columns.")
@click.option(
    "--acks",
    type=click.IntRange(0, 64),
    help="Other nodes' disks to wait for; as the node is configured, if not given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
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

    It ends when the rows are on the node's disk, and on as many others as --acks says. At least once: when a connection
    breaks, the next --node is given the rows that were under way, which may be published already.

    jsonl is one object a line, or one array of objects, as in .json files. A name in --columns that has a comma is put
    in quotes, as in csv.

    The input is read and published block by block: 4 MiB of jsonl or csv, or what is there when it pauses for a second.
    After an error or Ctrl-C, what was published before stays, and it is said how much that is. Of a block with a line
    that cannot be read, nothing is published.

    Types: a column that the topic has keeps its type. Else parquet and arrow files have their own, and those of jsonl
    and csv are guessed from the first block with values in the column, and hold for what follows. In jsonl text stays
    text, also if it looks like a time, numbers are int64 or double, and lists and objects that are empty everywhere are
    null. In csv whole numbers, decimal ones, truth, dates and times are recognised, and all else is text.
    """
    ending = file.suffix.removeprefix(".")
    kind = kind or (ending if ending in FORMATS else "jsonl")
    chosen = _columns(columns, kind, no_header)
    publication = Publication(channel, topic, acks)
    try:
        for block in publication.blocks(file, kind, chosen, has_header=not no_header):
            publication.publish(block)
    except KeyboardInterrupt:
        click.echo(f"m4cast: {publication.interrupted()}", err=True)
        raise SystemExit(EXIT_CODE_INTERRUPTED) from None
    except M4castError as error:
        publication.failed(error)
    if as_json:
        said = [{"topic": r.topic, "origin": r.origin, "first": r.first, "next": r.next} for r in publication.ranges]
        click.echo(json.dumps({"rows": publication.rows, "ranges": said}))
    else:
        where = ", ".join(f"{r.first} to {r.next - 1} of {r.topic} at {r.origin[:8]}" for r in publication.ranges)
        click.echo(f"published {_rows(publication.rows)}: {where or 'none'}")


def _columns(text: str | None, kind: str, no_header: bool) -> list[str]:
    """The names, of which none is there twice; none: all columns."""
    if no_header and kind != "csv":
        raise click.UsageError(f"--no-header is for csv, and this is {kind}")
    if no_header and text is None:
        raise click.UsageError("--no-header needs --columns: what the columns are called")
    names = [] if text is None else [name for record in csv.reader([text]) for name in record]
    if text is not None and not (names and all(names)):
        raise click.BadParameter(f"{text!r} names no column, or one without a name", param_hint="--columns")
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{text!r} names {name!r} twice", param_hint="--columns")
    return names


NO_ANSWER = ("timeout", "unacknowledged", "internal")
"""Codes that leave open whether the rows are published."""


class Publication:
    """What one command publishes."""

    def __init__(self, channel: Channel, topic: str, acks: int | None) -> None:
        self._channel = channel
        self._topic = topic
        self._acks = acks
        self._types = ColumnTypes()
        self._has_asked = False
        self.rows = 0
        self.until = ""
        """Where in the input these rows end."""
        self._under_way = 0
        """Rows that the node was given, and has not answered for."""
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
            # Not asked for before, since who may publish to a topic need not have the right to read it.
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
        """The types that the topic has; whether it tells."""
        try:
            schema = interruptible(lambda: self._channel.schema(self._topic))
        except RefusedError:
            return False
        self._types.learn(schema)
        return True

    def interrupted(self) -> str:
        return f"interrupted; {self.so_far(is_answered=False)}"

    def so_far(self, *, is_answered: bool) -> str:
        """What is published, and, if the node did not answer for the last of it, what may be."""
        before = "nothing was published before"
        if self.rows:
            until = f", up to {self.until}" if self.until else ""
            before = f"{_rows(self.rows)} {'was' if self.rows == 1 else 'were'} published before{until}"
        if is_answered or not self._under_way:
            return before
        return f"{before}, and {_rows(self._under_way)} may be: the node has not answered yet"

    def failed(self, error: M4castError) -> NoReturn:
        """The same error, with what was published before it."""
        match error:
            case RefusedError():
                so_far = self.so_far(is_answered=error.code not in NO_ANSWER)
                raise RefusedError(error.code, f"{error.detail}; {so_far}") from error
            case UnreachableError() if not error.is_sent and not self.rows:
                raise error  # it says that nothing was published
            case UnreachableError():
                so_far = self.so_far(is_answered=not error.is_sent)
                raise UnreachableError(f"{error}; {so_far}", is_sent=error.is_sent) from error
            case _:
                raise M4castError(f"{error}; {self.so_far(is_answered=True)}") from error


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


@click.command(context_settings=_HELP_NAMES)
@client_options(FAIL_OVER)
@click.option(
    "--topic", "topics", multiple=True, help="Its exact name; several are possible. `default`, if none is named."
)
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="All topics that match, as in 'orders.*', also those that come later, from their beginning; several are "
    "possible. System topics (_...) match only patterns that begin with _.",
)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Where to begin; a time is ISO 8601 with a zone, as in 2026-01-31T12:00:00Z, or milliseconds since 1970 UTC.",
)
@click.option("--max-rows", type=click.IntRange(1), help="End after this many rows.")
@click.option("--idle-s", type=click.FloatRange(0.001), help="End when no row came for this long.")
@click.option("--json", is_flag=True, expose_value=False, help="Changes nothing: what it prints is JSON.")
def tail(
    channel: Channel,
    topics: tuple[str, ...],
    patterns: tuple[str, ...],
    start: str,
    max_rows: int | None,
    idle_s: float | None,
) -> None:
    """Print rows as they come, one JSON object a line, until Ctrl-C.

    A topic that is not there yet is waited for, and stderr says so.

    Times are ISO 8601, with Z where their type has a zone; bytes are base64, decimals and durations text. Numbers that
    JSON has not got (NaN, infinity) are null.
    """
    left = max_rows
    since = _start(start)
    wanted = Wanted(topics or (() if patterns else ("default",)), patterns)
    try:
        for row in _tailed(channel, wanted, since, idle_s):
            click.echo(json_of(row))
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except KeyboardInterrupt:
        pass


class Wanted:
    """The topics that are to be followed: by name, and all that match a pattern."""

    def __init__(self, names: tuple[str, ...], patterns: tuple[str, ...]) -> None:
        self._names = names
        self.patterns = patterns

    def of(self, there: list[str]) -> list[str]:
        """What is followed when these topics are there."""
        found = [topic for topic in there if any(_matches(topic, pattern) for pattern in self.patterns)]
        wanted = sorted({*self._names, *found})
        if len(wanted) > TOPICS_MAX:
            raise M4castError(f"{len(wanted):,} topics are named or match, at most {TOPICS_MAX:,} can be followed")
        return wanted

    def say_what_is_not_there(self, there: list[str]) -> None:
        for name in self._names:
            if name not in there:
                click.echo(f"m4cast: topic {name!r} is not there yet: waiting for it", err=True)
        for pattern in self.patterns:
            if not any(_matches(topic, pattern) for topic in there):
                click.echo(f"m4cast: no topic matches {pattern!r} yet: waiting for one", err=True)


def _matches(topic: str, pattern: str) -> bool:
    return fnmatchcase(topic, pattern) and (pattern.startswith("_") or not topic.startswith("_"))


def _tailed(channel: Channel, wanted: Wanted, start: Start, idle_s: float | None) -> Iterator[dict[str, Any]]:
    """Rows, waited for where Ctrl-C is heard; those that come are read on a thread, a few batches ahead at most."""
    there = interruptible(channel.topics)
    wanted.say_what_is_not_there(there)
    ended = threading.Event()
    deadline = None if idle_s is None else time.monotonic() + idle_s
    while not (topics := wanted.of(there)):
        if deadline is not None and time.monotonic() > deadline:
            return
        ended.wait(LOOK_S if idle_s is None else min(idle_s, LOOK_S))
        there = interruptible(channel.topics)
        start = start if isinstance(start, int) else "earliest"  # what came meanwhile is new
    followed = channel.tail(topics, start, idle_s=idle_s)
    subscription = Subscription(followed, None, lambda error: None)  # `acquire` raises it
    interruptible(subscription.start)
    if wanted.patterns:
        threading.Thread(target=_follow_new, args=(channel, wanted, followed, ended), daemon=True).start()
    try:
        while True:
            is_open = subscription.is_open  # before it is asked: what came until then is all there is
            batch = subscription.acquire(LISTEN_S if is_open else 0)
            if batch is not None:
                yield from batch.to_pylist()
            elif not is_open:
                return
    finally:
        ended.set()
        with suppress(TimeoutError):
            interruptible(subscription.close, CLOSE_S)


def _follow_new(channel: Channel, wanted: Wanted, followed: Tail, ended: threading.Event) -> None:
    """Have the tail follow topics that come and match."""
    while not ended.wait(LOOK_S):
        try:
            followed.follow(wanted.of(channel.topics()))
        except (RefusedError, UnreachableError):
            pass  # the tail meets the same trouble, and says it
        except M4castError as error:
            click.echo(f"m4cast: topics that came since are not followed: {error}", err=True)
            return


def json_of(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_json_value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), default=_json_value)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():  # of pairs, where the type is a map
            return [_finite(each) for each in value]
        case _:
            return value


def _json_value(value: object) -> str:
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return base64.b64encode(value).decode()
        case _:  # decimals, durations
            return str(value)


def _start(text: str) -> Start:
    try:
        return start_of(text)
    except LocalProtocolError as error:
        raise click.BadParameter(str(error), param_hint="--from") from None
