"""A folder of Delta tables: creates, upgrades and reads the tables that `m4cast.schemas.tables` defines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.session import DELTA_PACKAGE, S3_SETTINGS
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import CUT, TOPIC_PROPERTY, events_table
from m4cast.schemas.tables.table import VERSION_PROPERTY, Table, sql_name

T = TypeVar("T")

CHANGES_MAX = 10
"""Attempts to change rows of a table while others append to it. Guess."""
S3_SCHEMES = ("s3", "s3a", "s3n")
APPENDED = "DELTA_CONCURRENT_APPEND"
"""Delta's name of that conflict."""
HELD_ROWS_MAX = 20_000
HELD_BYTES_MAX = 1 << 20
"""Files of a table that is read into memory as a whole: about 50,000 delivery records. Guess."""


class TableError(M4castError):
    """A table is missing, is not one of m4cast's, or has a later version. The text has its location and the fix."""


def despite_appends(change: Callable[[], T], table: str, doing: str) -> T:
    """Change or delete rows. Delta refuses this if rows were appended to the table meanwhile, whatever they are; then
    it is repeated. `doing` says for messages what is done with rows, as in "delete old ones"."""
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


def file_system_of(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Hadoop's path and its file system, which may be storage that is not mounted."""
    jvm: Any = spark.sparkContext._jvm
    try:
        path = jvm.org.apache.hadoop.fs.Path(place)
        return path, path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        problem = str(error.java_exception.getMessage()).partition("\n")[0]
        scheme = place.partition("://")[0]
        fix = f"add the jars for it, --spark-conf spark.jars.packages={DELTA_PACKAGE},..."
        if scheme in S3_SCHEMES:
            settings = " ".join(f"--spark-conf {name}={value}" for name, value in S3_SETTINGS.items())
            fix = f"begin it with s3a://, and add {settings}"
        raise TableError(f"Spark cannot use the location {place} ({problem}): {fix}") from error


class Held(NamedTuple):
    """Rows that are read several times."""

    rows: DataFrame
    is_small: bool
    """They are few, and in the driver's memory: what uses them does not read the table."""


def held_if_few(rows: DataFrame) -> Held:
    """At most a few rows of each file are read to decide this."""
    found = rows.limit(HELD_ROWS_MAX + 1).toArrow()
    if found.num_rows > HELD_ROWS_MAX:
        return Held(rows, is_small=False)
    return Held(rows.sparkSession.createDataFrame(found, rows.schema), is_small=True)


def held_if_small(table: DataFrame) -> Held:
    """The rows of a whole table: decided by the size of its files."""
    plan: Any = table._jdf.queryExecution().analyzed()
    if int(plan.stats().sizeInBytes()) > HELD_BYTES_MAX:
        return Held(table, is_small=False)
    return held_if_few(table)


@dataclass(frozen=True)
class TableFolder:
    spark: SparkSession
    folder: str
    """Any URI that Spark can write to; each table is in it under its name."""

    def has(self, table: Table) -> bool:
        return self._is_table(table.path(self.folder))

    def _is_table(self, place: str) -> bool:
        """Asking Delta takes long, since it opens the table. So Delta is asked only about a log that has lost its
        beginning and has no checkpoint either."""
        path, files = file_system_of(self.spark, f"{place}/_delta_log")
        found = (f"{path.toString()}/{name}" for name in (f"{0:020}.json", "_last_checkpoint"))
        if any(self.exists(each) for each in found):
            return True
        return bool(files.exists(path)) and DeltaTable.isDeltaTable(self.spark, place)

    def exists(self, file: str) -> bool:
        path, files = file_system_of(self.spark, file)
        return bool(files.exists(path))

    def topics(self) -> list[str]:
        """The topics that have an events table."""
        path, files = file_system_of(self.spark, f"{self.folder}/events")
        if not files.exists(path):
            return []
        found = (self._topic_in(each.getPath().getName()) for each in files.listStatus(path))
        return sorted(topic for topic in found if topic and self.has(events_table(topic, StructType())))

    def _topic_in(self, name: str) -> str:
        """The topic whose table is in a folder of this name; empty if it is not a table of m4cast."""
        if CUT not in name:
            return unquote(name)
        place = f"{self.folder}/events/{name}"
        if not self._is_table(place):
            return ""
        return unquote(self.properties(f"delta.{sql_name(place)}").get(TOPIC_PROPERTY, ""))

    def properties(self, quoted: str) -> dict[str, str]:
        """The properties of the table with this name in Spark SQL."""
        return {row["key"]: row["value"] for row in self.spark.sql(f"SHOW TBLPROPERTIES {quoted}").collect()}

    def ensure(self, table: Table, log: TableLog | None = None) -> None:
        """Create the table if it is missing, upgrade it if it is older. Its `log`, if the caller has it, saves time."""
        place = table.path(self.folder)
        if not self.has(table):
            is_mounted = file_system_of(self.spark, self.folder)[1].getUri().getScheme() == "file"
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
        if TableLog.is_available(self.spark):
            return TableLog(self.spark, table.path(self.folder)).state()
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
