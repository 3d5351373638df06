"""Engines: which one fills a table, and how the files of the direct one look.

A table can change engines from one run to the next: its rows say where the other one stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.layout import FileLayout, columns_in, has_columns
from m4cast.jobs.direct.source import LAYOUT_OPTION, ROWS_PER_FILE, FileSource
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds.feed import OBSERVED_ROWS, started
from m4cast.jobs.table_folder import TableFolder, file_system_of
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.table import Table

if TYPE_CHECKING:
    from m4cast.jobs.ingest import Engine, Ingest

CODEC_SETTING = "spark.sql.parquet.compression.codec"
CODECS = frozenset({"none", "uncompressed", "snappy", "gzip", "brotli", "lz4", "lz4_raw", "zstd"})
"""Spark's names of the codecs that Arrow has as well."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    engine: "Engine"
    reason: str | None = None
    """Why it is not the direct one, unless the user asked for it."""


def chosen_engine(
    tables: TableFolder,
    table: Table,
    wanted: "Engine | None",
    why_not: str | None = None,
    log: TableLog | None = None,
) -> EngineChoice:
    """The engine for a table that exists: the wanted one, or the direct one where it is possible.

    `why_not`: a reason against the direct engine that the caller knows. `log`: the table's, if the caller has it.
    """
    if wanted == "spark":
        return EngineChoice("spark")
    why_not = why_not or _why_not(tables, table, log)
    if why_not is None:
        return EngineChoice("direct")
    if wanted == "direct":
        raise M4castError(
            f"the direct engine cannot fill {table.name}: {why_not}; leave out --engine, or use --engine spark"
        )
    return EngineChoice("spark", why_not)


def _why_not(tables: TableFolder, table: Table, log: TableLog | None) -> str | None:
    scheme = place_of(tables.spark, table.path(tables.folder))[0]
    if scheme != "file":
        return f"its folder is on {scheme}, and Python writes to mounted file systems only"
    codec = codec_of(tables.spark)
    if codec not in CODECS:
        return f"Arrow does not support {CODEC_SETTING} = {codec}"
    if not TableLog.is_available(tables.spark):
        return "Delta Kernel is not on the driver's class path"
    log = log or TableLog(tables.spark, table.path(tables.folder))
    why_not = log.why_not(table.partition_by, table.schema.names)
    return None if why_not is None else f"Delta Kernel cannot write to it ({why_not})"


def codec_of(spark: SparkSession) -> str:
    """The codec that Spark is set to compress Parquet files with."""
    return str(spark.conf.get(CODEC_SETTING)).lower()


def place_of(spark: SparkSession, folder: str) -> tuple[str, str]:
    """The scheme of a folder's file system, and the folder's path on it."""
    path, files = file_system_of(spark, folder)
    return str(files.getUri().getScheme()), str(path.toUri().getPath())


# ---- files


def layout_of(tables: TableFolder, table: Table, log: TableLog) -> FileLayout:
    """The layout of the files of a table, which exists; columns that it lacks are added."""
    form = log.form()
    if not has_columns(form.columns, table.schema):
        tables.add_columns(table)
        log.refresh()
        form = log.form()
    return FileLayout(
        folder=place_of(tables.spark, table.path(tables.folder))[1],
        columns=columns_in(form.columns, table.schema),
        statistics=form.statistics,
        codec=codec_of(tables.spark),
        partition=form.partitions[0] if form.partitions else None,
    )


def start_direct(tables: TableFolder, ingest: "Ingest", table: Table, options: Mapping[str, str]) -> StreamingQuery:
    """A query that fills one table, which exists, with records. Its checkpoint fits both engines."""
    spark = tables.spark
    log = TableLog(spark, table.path(tables.folder))
    layout = layout_of(tables, table, log)
    spark.dataSource.register(FileSource)
    given = {**ROWS_PER_FILE, **options, LAYOUT_OPTION: layout.to_json()}
    files = spark.readStream.format(FileSource.name()).options(**given).load()
    files = files.observe(OBSERVED_ROWS, F.sum("rows").alias("rows"))
    writer = files.writeStream.foreachBatch(partial(_commit, log, layout))
    return started(writer, ingest, table.name, ingest.checkpoint(table))


def _commit(log: TableLog, layout: FileLayout, files: DataFrame, micro_batch: int) -> None:
    query = files.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query, "Spark sets it while a micro-batch is written"
    log.confirm()
    if log.has(query, micro_batch):
        return
    written = [DataFile(**row.asDict()) for row in files.collect()]
    for file in written:
        check_visible(layout, file)
    if written:
        log.append(written, layout, query, micro_batch)
        log.confirm()


def check_visible(layout: FileLayout, file: DataFile) -> None:
    """A worker on another machine may have written to a folder of its own."""
    path = Path(layout.folder) / file.name
    if not path.exists() or path.stat().st_size != file.bytes:
        raise M4castError(
            f"[M4CAST_FOLDER_NOT_SHARED] a worker wrote {path}, but the driver does not see it: use a folder that all "
            "machines share"
        )
