"""Snapshot: write the rows of a topic once, as Parquet files, so that they can be read many times.

    m4cast snapshot orders --node 127.0.0.1:7501 --to /data/orders

    found = m4cast.snapshot(spark, "orders", "/data/orders", nodes="127.0.0.1:7501")
    spark.read.parquet(found.folder)

Spark's tasks read the rows from the nodes and write the files themselves, as the direct engine of ingest does. The
folder gets its name when it is complete: it never contains only a part of the rows, or files of a failed task.
`_snapshot.json` in the folder describes its contents.
"""

import json
import shutil
import uuid
from collections.abc import Mapping
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
    from pyspark.sql import SparkSession

    from m4cast.jobs.direct.data_file import DataFile
    from m4cast.jobs.direct.layout import FileLayout

DESCRIPTION = "_snapshot.json"
"""Readers of Parquet folders ignore names that begin with an underscore."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    folder: str
    topic: str
    rows: int
    files: int
    bytes: int
    start: dict[str, dict[str, int]]
    """The frontier where it begins."""
    end: dict[str, dict[str, int]]
    """The frontier where it ends: the next row of each stream."""


def snapshot(
    spark: "SparkSession", topic: str, to: str | Path, *, nodes: str, source_options: Mapping[str, str] | None = None
) -> Snapshot:
    """Write the current rows of a topic to the folder `to`, which must not exist.

    `source_options`: more options of `format("m4cast")`, such as `startingTimestamp` or `token`.
    """
    from pyspark.errors import PySparkException

    from m4cast.jobs.direct.engine import codec_of
    from m4cast.jobs.direct.layout import FileLayout
    from m4cast.jobs.feeds.feed import reason_of

    folder = Path(to).resolve()
    if folder.exists():
        raise M4castError(f"{folder} exists: name a new folder, or remove it")
    planned, columns, start, end = _plan({**(source_options or {}), "nodes": nodes, "topic": topic})
    unfinished = folder.with_name(f"{folder.name}.unfinished-{uuid.uuid4().hex[:8]}")
    unfinished.mkdir(parents=True)
    layout = FileLayout(folder=str(unfinished), columns=columns, statistics=(), codec=codec_of(spark))
    try:
        files = _written(spark, layout, planned)
        done = Snapshot(
            folder=str(folder),
            topic=topic,
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.bytes for file in files),
            start=start,
            end=end,
        )
        _remove_others(unfinished, {file.name for file in files})
        (unfinished / DESCRIPTION).write_text(json.dumps(asdict(done)))
        unfinished.rename(folder)
    except PySparkException as error:
        raise M4castError(f"{topic}: {reason_of(error)}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return done


def _plan(given: Mapping[str, str]) -> tuple[dict[str, str], Any, Any, Any]:
    """The options of the source with a fixed start and end, the columns, and the start and end themselves."""
    from pyspark.sql.types import NullType, StructType

    from m4cast.spark_connector.options import parse, read_options
    from m4cast.spark_connector.source.rows import schema_of
    from m4cast.spark_connector.source.topics import SourceTopics

    checked = read_options(parse(given), streaming=False)
    # A column that is null in every row has no type, and Parquet has no columns without a type.
    columns = StructType([field for field in schema_of(checked) if field.dataType != NullType()])
    start, end = SourceTopics(checked).range()
    others = {name: text for name, text in given.items() if not name.lower().startswith(("starting", "ending"))}
    edges = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    return {**others, **edges}, columns, start, end


def _written(spark: "SparkSession", layout: "FileLayout", planned: Mapping[str, str]) -> "list[DataFile]":
    from m4cast.jobs.direct.data_file import DataFile
    from m4cast.jobs.direct.engine import check_visible
    from m4cast.jobs.direct.source import LAYOUT_OPTION, ROWS_PER_FILE, FileSource

    spark.dataSource.register(FileSource)
    given = {**ROWS_PER_FILE, **planned, LAYOUT_OPTION: layout.to_json()}
    files = spark.read.format(FileSource.name()).options(**given).load()
    written = [DataFile(**row.asDict()) for row in files.collect()]
    for file in written:
        check_visible(layout, file)
    return written


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove what repeated tasks have written."""
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


# ---- the command


@options.command("snapshot")
@click.argument("topic")
@click.option("--to", required=True, metavar="FOLDER", help="A new folder, on a file system that all machines mount.")
@options.pairs_option("--option", "others", help="An option of the source (see docs/SPARK.md).")
@access_options(FAIL_OVER)
@command.spark_options
@options.json_option
def main(access: NodeAccess, topic: str, to: str, others: dict[str, str], as_json: bool, **settings: Any) -> None:
    """Write the current rows of a topic to Parquet files in a new folder."""
    if Path(to).exists():
        raise click.UsageError(f"{to} exists: name a new folder, or remove it")
    given = {**command.source_options(access.resolved()), **others}
    spark = command.session_of("m4cast snapshot", settings)
    done = snapshot(spark, topic, to, nodes=given.pop("nodes"), source_options=given)
    if as_json:
        print_json(asdict(done))
    else:
        click.echo(f"{done.rows:,} rows of {topic} in {done.files:,} files ({done.bytes:,} bytes) in {done.folder}")


if __name__ == "__main__":
    as_script(main)
