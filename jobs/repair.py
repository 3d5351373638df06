"""Repair: put rows that no node retains any more back into a node's store, from the Delta tables.

    m4cast repair --from-tables /data/m4cast --node 127.0.0.1:7501 --topic orders

The table `deliveries` has, for each batch, the facts that its checksum covers besides its rows; `events/<topic>` has
the rows. Together they give the bytes that were published, which the checksum proves: the node encodes the rows again
and accepts them only if their checksum is the same. Batches of a stream are restored from the newest to the oldest,
each before the rows that the node retains, so a stream never gets a hole; skips there are filled. The node holds the
batches for a day.

A batch that cannot be restored is named, with the reason. Older batches of the same stream are then left alone.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table as Shown
from rich.text import Text

from m4cast.console import options
from m4cast.console.access import ACCESS_POINT, NodeAccess, access_options
from m4cast.console.screen import Screen, print_json
from m4cast.jobs import command
from m4cast.jobs.session import as_script
from m4cast.jobs.steps import Steps
from m4cast.overlay.errors import M4castError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from m4cast.jobs.table_folder import TableFolder

BATCHES_MAX = 100_000
"""Batches that one run looks at, the newest first. Higher: more memory."""
CHUNK_BYTES = 32 << 20
"""Payload whose rows are read from a table at a time. Higher: fewer queries, more memory."""
REFUSED_ROWS = frozenset({"not-restored", "too-large", "bad-rows", "cut-off"})
"""Codes of refusals that concern one batch. Any other refusal ends the run."""
FACTS = ("origin_incarnation", "schema_id", "publisher", "position", "part", "parts", "previous_checksum", "extensions")


@dataclass(frozen=True, slots=True)
class LeftRows:
    """Rows of a stream that were not restored."""

    topic: str
    origin: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Repaired:
    node: str
    """The node whose store the rows are in now."""
    rows: int
    batches: int
    left: tuple[LeftRows, ...]
    unasked: tuple[str, ...]
    """Nodes that did not answer, and may still retain rows that were restored."""


@dataclass(slots=True)
class _LostStream:
    """A stream at the node, and its batches in the tables that the node lacks, from the newest on."""

    topic: str
    origin: str
    low: int
    batches: list[Any] = field(default_factory=list)


def run(
    spark: "SparkSession",
    folder: str,
    access: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    since: datetime | None = None,
    on_step: Callable[[str], None] = lambda doing: None,
) -> Repaired:
    """Restore, at the first node, rows of these topics (none: all in the folder), published at `since` or later."""
    from m4cast.jobs.table_folder import TableFolder
    from m4cast.schemas.tables.deliveries import DELIVERIES
    from m4cast.spark_connector.options import parse, read_options
    from m4cast.spark_connector.source.nodes import Nodes
    from m4cast.spark_connector.source.topics import SourceTopics

    tables = TableFolder(spark, folder)
    records = tables.read(DELIVERIES)
    lacking = [name for name in FACTS if name not in records.columns]
    if lacking:
        raise M4castError(
            f"{DELIVERIES.path(folder)} lacks the column {lacking[0]}: run `m4cast ingest` on it, which adds what is "
            "needed to rebuild rows that are ingested from then on"
        )
    chosen = read_options(parse({**access, "read": "deliveries", "of": "all"}), streaming=False)
    channel = SourceTopics(chosen).channel()
    target = channel.at(channel.nodes[0])
    on_step("asking the nodes what they keep")
    node_id = target.status()["node_id"]
    nodes = Nodes(chosen)
    others = [node for node in nodes.wanted() if node.is_here and node.node_id != node_id]
    answers = nodes.ask(others, lambda other: other.extents(), is_patient=True)
    kept = {node.name: answers[node.node_id] for node in others if node.node_id in answers}
    wanted = set(topics) or set(tables.topics())
    here = {topic: origins for topic, origins in target.extents().items() if topic in wanted}
    if unknown := sorted(set(topics) - set(here)):
        raise M4castError(f"node {channel.nodes[0]} does not know topic {unknown[0]!r}: check the name")
    on_step("looking for lost batches in the table of deliveries")
    streams = _lost(records, node_id, here)
    left: list[LeftRows] = []
    restored: list[int] = []
    for stream in streams:
        on_step(f"restoring {stream.topic} of {stream.origin[:8]}")
        found = _whole(stream, kept, since, left)
        _restore(tables, partial(target.restore, stream.topic), stream, found, restored, left)
    unasked = tuple(node.name for node in others if node.node_id not in answers)
    return Repaired(channel.nodes[0], sum(restored), len(restored), tuple(left), unasked)


def _lost(records: "DataFrame", node_id: str, here: Mapping[str, Mapping[str, Sequence[int]]]) -> list[_LostStream]:
    """The streams of the node, with the batches in the tables that it does not retain: those that are older than the
    ones it has, and those that it skipped."""
    from pyspark.sql import functions as F

    from m4cast.jobs.table_folder import frame
    from m4cast.schemas.tables.deliveries import DELIVERIES

    streams = {
        (topic, origin): _LostStream(topic, origin, ends[0])
        for topic, origins in sorted(here.items())
        for origin, ends in sorted(origins.items())
    }
    columns = ["topic", "origin", "first_sequence", "last_sequence"]
    schema = type(DELIVERIES.schema)([each for each in DELIVERIES.schema if each.name in columns])
    before = [
        {"topic": each.topic, "origin": each.origin, "first_sequence": 1, "last_sequence": each.low - 1}
        for each in streams.values()
        if each.low > 1
    ]
    mine = records.where((F.col("node_id") == node_id) & F.col("topic").isin(sorted(here)))
    skipped = mine.where((F.col("kind") == "skip") & F.col("reason").isin("expired", "lost")).select(columns)
    filled = mine.where(F.col("how") == "filled").select(columns)
    ranges = frame(records.sparkSession, before, schema).unionByName(skipped)
    ranges = ranges.withColumnsRenamed({"first_sequence": "from", "last_sequence": "until"})
    batches = records.where(F.col("kind") == "batch").join(F.broadcast(ranges), ["topic", "origin"])
    batches = batches.where((F.col("first_sequence") >= F.col("from")) & (F.col("last_sequence") <= F.col("until")))
    batches = batches.join(filled, columns, "left_anti")
    facts = ["row_count", "payload_bytes", "origin_batch", "published_at", "spread", *FACTS]
    one = batches.groupBy(*columns, "checksum").agg(*(F.max(name).alias(name) for name in facts))
    newest = one.orderBy(F.desc("published_at"), F.desc("first_sequence")).limit(BATCHES_MAX)
    for row in newest.collect():
        streams[row["topic"], row["origin"]].batches.append(row)
    for stream in streams.values():
        stream.batches.sort(key=lambda row: -row["first_sequence"])
    return [stream for stream in streams.values() if stream.batches or stream.low > 1]


def _whole(stream: _LostStream, kept: Mapping[str, Any], since: datetime | None, left: list[LeftRows]) -> list[Any]:
    """The batches that can be restored, from the newest on. The first that cannot be is named, and ends the list."""
    found: list[Any] = []
    expected = stream.low
    for row in stream.batches:
        first, last = row["first_sequence"], row["last_sequence"]
        is_before = first < stream.low
        why = None
        if is_before and last + 1 != expected:
            left.append(_left(stream, 1, expected - 1, f"the tables have no record of row {expected - 1}"))
            return found
        for name, extents in kept.items():
            low, until = extents.get(stream.topic, {}).get(stream.origin, (0, 0))
            if is_before and low <= first < until:
                why = f"node {name} keeps them: read them there, or repair into it"
        if since is not None and row["published_at"].timestamp() < since.timestamp():
            why = why or "they are older than --since"
        if row["spread"] is not None:
            why = why or "their topic is selective"
        if any(row[name] is None for name in FACTS):
            why = why or "they were ingested before deliveries had what is needed, or after the nodes had dropped them"
        if why is not None:
            left.append(_left(stream, 1 if is_before else first, last, why))
            if is_before:
                return found
            continue
        found.append(row)
        expected = first if is_before else expected
    if expected > 1:
        left.append(_left(stream, 1, expected - 1, f"the tables have no record of row {expected - 1}"))
    return found


def _left(stream: _LostStream, first: int, last: int, reason: str) -> LeftRows:
    return LeftRows(stream.topic, stream.origin, first, last, reason)


def _restore(
    tables: "TableFolder",
    send: Callable[["pa.Table", dict[str, object]], bool],
    stream: _LostStream,
    batches: Sequence[Any],
    restored: list[int],
    left: list[LeftRows],
) -> None:
    for chunk in _chunks(batches):
        rows = _rows(tables, stream, chunk[-1]["first_sequence"], chunk[0]["last_sequence"])
        for batch in chunk:
            first, last = batch["first_sequence"], batch["last_sequence"]
            why = None
            mine = rows.filter(_between(rows, first, last)).drop_columns(["_sequence"])
            if mine.num_rows != batch["row_count"]:
                why = f"the table has {mine.num_rows} of these {batch['row_count']} rows"
            else:
                try:
                    if send(mine, _facts(batch)):
                        restored.append(mine.num_rows)
                except RefusedError as error:
                    if error.code not in REFUSED_ROWS:
                        raise
                    why = error.detail
            if why is not None:
                is_before = first < stream.low
                left.append(_left(stream, 1 if is_before else first, last, why))
                if is_before:
                    return


def _chunks(batches: Sequence[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    size = 0
    for batch in batches:
        if chunk and (
            size + batch["payload_bytes"] > CHUNK_BYTES or batch["last_sequence"] + 1 != chunk[-1]["first_sequence"]
        ):
            yield chunk
            chunk, size = [], 0
        chunk.append(batch)
        size += batch["payload_bytes"]
    if chunk:
        yield chunk


def _rows(tables: "TableFolder", stream: _LostStream, first: int, last: int) -> "pa.Table":
    """The rows of a stream that the table has, in order: the payload's columns, and the sequence."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from m4cast.schemas.tables.events import CHANNEL_COLUMNS, events_table

    rows = tables.read(events_table(stream.topic, StructType()))
    mine = rows.where((F.col("_origin") == stream.origin) & F.col("_sequence").between(first, last))
    others = [column.name for column in CHANNEL_COLUMNS if column.name != "_sequence"]
    return mine.drop(*others).orderBy("_sequence").toArrow()


def _between(rows: "pa.Table", first: int, last: int) -> Any:
    import pyarrow.compute as pc

    return pc.and_(pc.greater_equal(rows["_sequence"], first), pc.less_equal(rows["_sequence"], last))


def _facts(batch: Any) -> dict[str, object]:
    """Return the facts that the node needs besides the rows."""
    names = ("origin", "first_sequence", "origin_batch", "checksum", *FACTS)
    return {
        **{name: batch[name] for name in names},
        "published_at_ms": round(batch["published_at"].timestamp() * 1000),
        "extensions": base64.b64encode(batch["extensions"]).decode(),
    }


# ---- the command


@options.command("repair")
@click.option(
    "--from-tables",
    required=True,
    metavar="PATH",
    envvar="M4CAST_TABLES",
    show_envvar=True,
    help="Location of the Delta tables that ingest fills: a folder, or any URL that Spark can read.",
)
@click.option("--topic", "topics", multiple=True, help="A topic; all topics of the tables by default. Can be repeated.")
@options.moment_option("--since", help="Restore only rows that were published then or later (UTC).")
@access_options(ACCESS_POINT)
@command.spark_options
@options.json_option
def main(
    access: NodeAccess,
    from_tables: str,
    topics: tuple[str, ...],
    since: datetime | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Put rows that no node retains any more back into a node's store, from the Delta tables, for a day.

    Rows are restored only if their bytes prove to be those that were published. If some cannot be restored, they are
    listed, and the exit code is 1.
    """
    from m4cast.schemas.tables.deliveries import DELIVERIES

    folder = command.filled_folder_of(from_tables, DELIVERIES.name)
    given = command.source_options(access.resolved())
    spark = command.session_of("m4cast repair", settings)
    steps = Steps.on_stderr()
    done = run(spark, folder, given, topics=topics, since=since, on_step=steps.step)
    steps.done()
    if as_json:
        print_json(asdict(done))
    else:
        print_summary(done, Screen())
    if done.left:
        raise click.exceptions.Exit(1)


def print_summary(done: Repaired, console: Screen) -> None:
    console.print(f"{done.rows:,} rows in {done.batches:,} batches are back at {done.node}, for a day", markup=False)
    if done.unasked:
        said = f"not asked, since they do not answer: {', '.join(done.unasked)}. They may keep rows that were restored"
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    if not done.left:
        return
    shown = Shown("topic", "origin", "rows", "not restored", box=None, pad_edge=False)
    for each in done.left:
        shown.add_row(Text(each.topic), each.origin[:8], f"{each.first:,} to {each.last:,}", Text(each.reason))
    console.print(shown)


if __name__ == "__main__":
    as_script(main)
