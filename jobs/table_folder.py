"""A folder of Delta tables: creates, upgrades and reads the tables that `m4cast.schemas.tables` defines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from m4cast.jobs.direct.table_log import TableLog
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import CUT, TOPIC_PROPERTY, events_table
from m4cast.schemas.tables.table import VERSION_PROPERTY, Table, sql_name

T = TypeVar("T")

CHANGES_MAX = 10
"""Attempts to change rows of a table while others append to it. Guess."""
APPENDED = "DELTA_CONCURRENT_APPEND"
"""Delta's name of that conflict."""


class TableError(M4castError):
    """A table is missing, is not one of m4cast's, or has a later version. The text has its location and the fix."""


def despite_appends(change: Callable[[], T], table: str, doing: str) -> T:
    """Change or delete rows. Delta refuses it if somebody appended to the table meanwhile, whatever the new rows are;
    then it is repeated. `doing`: what it does with rows, as in "delete old ones"."""
    for _ in range(CHANGES_MAX):
        try:
            return change()
        except PySparkException as error:
            if APPENDED not in str(error):
                raise
    raise TableError(
        f"{table}: rows were appended during each of {CHANGES_MAX} attempts to {doing}: repeat it, or let ingest "
        "commit less often (--interval-s)"
    )


def frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """A few rows as a DataFrame, through Arrow: for a plain list, Spark would start Python workers."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), to_arrow_schema(schema, timezone="UTC")), schema)


@dataclass(frozen=True)
class TableFolder:
    spark: SparkSession
    folder: str
    """Any URI that Spark can write to; each table is in it under its name."""

    def has(self, table: Table) -> bool:
        return DeltaTable.isDeltaTable(self.spark, table.path(self.folder))

    def exists(self, file: str) -> bool:
        path, files = self._on_disk(file)
        return bool(files.exists(path))

    def _on_disk(self, file: str) -> tuple[Any, Any]:
        """Hadoop's path and file system."""
        jvm: Any = self.spark.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(file)
        return path, path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())

    def topics(self) -> list[str]:
        """The topics that have an events table."""
        path, files = self._on_disk(f"{self.folder}/events")
        if not files.exists(path):
            return []
        found = (self._topic_in(each.getPath().getName()) for each in files.listStatus(path))
        return sorted(topic for topic in found if topic and self.has(events_table(topic, StructType())))

    def _topic_in(self, name: str) -> str:
        """The topic whose table is in a folder of this name; empty if it is not a table of m4cast."""
        if CUT not in name:
            return unquote(name)
        place = f"{self.folder}/events/{name}"
        if not DeltaTable.isDeltaTable(self.spark, place):
            return ""
        return unquote(self.properties(f"delta.{sql_name(place)}").get(TOPIC_PROPERTY, ""))

    def properties(self, quoted: str) -> dict[str, str]:
        """The properties of the table with this name in Spark SQL."""
        return {row["key"]: row["value"] for row in self.spark.sql(f"SHOW TBLPROPERTIES {quoted}").collect()}

    def ensure(self, table: Table, log: TableLog | None = None) -> None:
        """Create the table if it is missing, upgrade it if it is older. Its `log`, if the caller has it, saves time."""
        place = table.path(self.folder)
        if not self.has(table):
            is_mounted = self._on_disk(self.folder)[1].getUri().getScheme() == "file"
            by_kernel = is_mounted and TableLog.is_available(self.spark)
            if not (by_kernel and (log or TableLog(self.spark, place)).create(table)):
                self.spark.sql(table.create_statement(self.folder))
            return
        if TableLog.is_available(self.spark):
            properties = (log or TableLog(self.spark, place)).properties()
        else:
            properties = self.properties(table.quoted(self.folder))
        if VERSION_PROPERTY not in properties:
            raise TableError(f"{place} is a Delta table, but not the table {table.name} of m4cast: use another folder")
        found = int(properties[VERSION_PROPERTY])
        if found > table.version:
            raise TableError(
                f"{place} has version {found} of the table {table.name}, but this m4cast supports {table.version}: "
                "use the m4cast that wrote it, or a later one"
            )
        for statement in table.upgrade_statements(self.folder, found):
            self.spark.sql(statement)
            if log is not None:
                log.refresh()

    def read(self, table: Table) -> DataFrame:
        self._demand(table)
        return self.spark.read.format("delta").load(table.path(self.folder))

    def read_at(self, table: Table, version: int) -> DataFrame:
        """The table at one of Delta's versions, unaffected by later writes."""
        self._demand(table)
        return self.spark.read.format("delta").option("versionAsOf", version).load(table.path(self.folder))

    def changes(self, table: Table, after: int, until: int) -> DataFrame:
        """Rows that were added after Delta's version `after`, up to `until`."""
        return self._changed("insert", table, after, until)

    def deleted(self, table: Table, after: int, until: int) -> DataFrame:
        """Rows that were removed after Delta's version `after`, up to `until`."""
        return self._changed("delete", table, after, until)

    def _changed(self, how: str, table: Table, after: int, until: int) -> DataFrame:
        if after >= until:
            return frame(self.spark, [], table.schema)
        feed = self.spark.read.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", after + 1).option("endingVersion", until)
        return feed.load(table.path(self.folder)).where(f"_change_type = '{how}'").select(table.selected)

    def version(self, table: Table) -> tuple[str, int]:
        """Delta's id and current version of the table."""
        self._demand(table)
        name = table.quoted(self.folder)
        detail: Any = self.spark.sql(f"DESCRIBE DETAIL {name}").select("id").collect()[0]
        last: Any = self.spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()[0]
        return str(detail["id"]), int(last["version"])

    def append(self, table: Table, rows: DataFrame) -> None:
        rows.select(table.selected).write.format("delta").mode("append").save(table.path(self.folder))

    def add_columns(self, table: Table) -> None:
        """Add the columns that it lacks, by an append without rows, which also checks the types of the others."""
        empty = frame(self.spark, [], table.schema).write.format("delta").mode("append")
        empty.option("mergeSchema", "true").save(table.path(self.folder))

    def delta(self, table: Table) -> DeltaTable:
        self._demand(table)
        return DeltaTable.forPath(self.spark, table.path(self.folder))

    def _demand(self, table: Table) -> None:
        if not self.has(table):
            raise TableError(
                f"folder {self.folder} contains no table {table.name}: give the folder that ingest writes to"
            )
