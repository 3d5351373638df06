"""Notified: which clients would have been notified of which rows, by a join of rows with the profiles of clients.

    m4cast notified orders --node 127.0.0.1:7501 --to /data/notified

    rows = spark.read.format("m4cast").option("nodes", nodes).option("topic", "orders").load()
    profiles = spark.read.format("m4cast").option("nodes", nodes).option("read", "clients").option("of", "all").load()
    notified(rows, profiles)

A client is notified of a row if one of its profiles matches the row and begins at or before it. The nodes' own matcher
decides, with the profiles as they are now. Each distinct condition is tested once for each row, for all clients that
have it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m4cast.console import options
from m4cast.console.access import FAIL_OVER, NodeAccess, access_options
from m4cast.console.screen import print_json
from m4cast.jobs import command
from m4cast.jobs.session import as_script
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROW = ("_topic", "_origin", "_sequence")
CONDITIONS_MAX = 100_000
"""Distinct conditions of a topic; each is tested against every row. Guess."""
MATCHES = "_topic string, _origin string, _sequence long, numbers array<int>"


def notified(rows: "DataFrame", profiles: "DataFrame") -> "DataFrame":
    """One row for each client and row that it would have been notified of: `key`, `_topic`, `_origin`, `_sequence`.

    `rows`: rows of one topic, with these columns; `profiles`: `key`, `topic`, `where`, `language` and `begin` (a map
    from origin to sequence; without this column, profiles begin at 1).
    """
    from pyspark.sql import functions as F

    missing = [name for name in ROW if name not in rows.columns]
    if missing:
        raise M4castError(f"the rows have no column {missing[0]}: read them with metadata = {','.join(ROW)}")
    if "begin" not in profiles.columns:
        profiles = profiles.withColumn("begin", F.lit(None).cast("map<string,bigint>"))
    condition = F.col("where"), F.coalesce("language", F.lit("sql")).alias("language")
    wanted = profiles.select("key", F.col("topic").alias("_topic"), *condition, "begin")
    distinct = wanted.select("_topic", "where", "language").distinct().limit(CONDITIONS_MAX + 1).collect()
    if len(distinct) > CONDITIONS_MAX:
        raise M4castError(f"the profiles have more than {CONDITIONS_MAX:,} conditions: ask for fewer clients")
    numbered = [(number, *row) for number, row in enumerate(sorted(distinct, key=str))]
    numbers = rows.sparkSession.createDataFrame(numbered, "number int, _topic string, where string, language string")
    conditions = {number: (topic, where, language) for number, topic, where, language in numbered}
    matched = rows.mapInArrow(_matcher(conditions), MATCHES).select(*ROW, F.explode("numbers").alias("number"))
    same = wanted["where"].eqNullSafe(numbers["where"]) & (wanted["_topic"] == numbers["_topic"])
    by_number = wanted.join(F.broadcast(numbers), same & (wanted["language"] == numbers["language"])).select(
        "key", "begin", "number"
    )
    begun = F.col("_sequence") >= F.coalesce(F.col("begin")[F.col("_origin")], F.lit(1))
    return matched.join(by_number, on="number", how="inner").where(begun).select("key", *ROW).distinct()


def _matcher(conditions: dict[int, tuple[str, str | None, str]]) -> Any:
    """A function for `mapInArrow`: the conditions on its topic that each row satisfies."""

    def match(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from m4cast.jobs.wants import held_conditions
        from m4cast.overlay.profiles import EVERYTHING, parse

        parsed = {
            number: (EVERYTHING if where is None else parse(where, language)).condition
            for number, (_, where, language) in conditions.items()
        }
        for batch in batches:
            for topic in batch.column("_topic").unique().to_pylist():
                part = batch.filter(pc.equal(batch.column("_topic"), topic))
                of_topic = {number: parsed[number] for number, each in conditions.items() if each[0] == topic}
                held = held_conditions(part, of_topic)
                yield pa.RecordBatch.from_arrays([*(part.column(name) for name in ROW), held], names=[*ROW, "numbers"])

    return match


# ---- the command


@dataclass(frozen=True)
class Notified:
    """The result of a run."""

    topic: str
    rows: int
    """Rows that were tested."""
    clients: int
    """Clients that would have been notified of at least one row."""
    notifications: int
    folder: str | None


@options.command("notified")
@click.argument("topic")
@click.option("--client", "keys", multiple=True, metavar="KEY", help="Test only this client. Can be repeated.")
@click.option("--to", metavar="FOLDER", help="Write key, topic, origin and sequence to Parquet files in a new folder.")
@options.pairs_option("--option", "others", help="An option of the source of rows (see docs/SPARK.md).")
@access_options(FAIL_OVER)
@command.spark_options
@options.json_option
def main(
    access: NodeAccess,
    topic: str,
    keys: tuple[str, ...],
    to: str | None,
    others: dict[str, str],
    as_json: bool,
    **settings: Any,
) -> None:
    """Show which clients would have been notified of the rows of a topic, by their present profiles.

    The profiles are read from every node that the first node knows, each at its own door."""
    if to is not None and Path(to).exists():
        raise click.UsageError(f"{to} exists: name a new folder, or remove it")
    spark = command.session_of("m4cast notified", settings)
    from pyspark.sql import functions as F

    source = command.source_options(access.resolved())
    rows = spark.read.format("m4cast").options(**source, topic=topic, **others).load()
    profiles = spark.read.format("m4cast").options(**source, read="clients", of="all").load()
    profiles = profiles.where(F.col("topic") == topic)
    if keys:
        profiles = profiles.where(F.col("key").isin(list(keys)))
    found = notified(rows, profiles).cache()
    try:
        counts = found.groupBy("key").count().orderBy(F.desc("count"), "key")
        if to is not None:
            found.write.parquet(to)
        tested, clients, sent = rows.count(), counts.count(), found.count()
        done = Notified(topic=topic, rows=tested, clients=clients, notifications=sent, folder=to)
        if as_json:
            print_json({**asdict(done), "by_key": {row["key"]: row["count"] for row in counts.limit(1_000).collect()}})
            return
        for row in counts.limit(20).collect():
            click.echo(f"{row['count']:>10,}  {row['key']}")
        click.echo(f"{clients:,} clients would have been notified of {sent:,} of {tested:,} rows of {topic}")
    finally:
        found.unpersist()


if __name__ == "__main__":
    as_script(main)
