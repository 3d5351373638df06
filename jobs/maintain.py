"""Maintain: keep the tables fast and small.

    m4cast maintain --tables /data/m4cast --keep events=90 --keep deliveries=30

For each table: rows older than `--keep` are deleted (none without it), small files are combined and clustered
(OPTIMIZE), and files that no recent version needs are removed (VACUUM). It can run while ingest and audits run, and can
be repeated.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table as Shown

from m4cast.console import options
from m4cast.console.screen import Screen, print_json
from m4cast.jobs import command
from m4cast.jobs.session import as_script
from m4cast.jobs.steps import Steps
from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from m4cast.jobs.table_folder import TableFolder
    from m4cast.schemas.tables.table import Table

EVENTS = "events"
"""The name in `--keep` of all events tables that are not named themselves."""
VACUUM_HOURS_MIN = 168
"""A week, as in Delta: long queries and lagging streams only read files that are younger."""
DAYS_MAX = 36_500
"""A hundred years: more must be a mistake."""
LOG_HOURS_MIN = 30 * 24
"""Delta's default. Versions must be listed for as long as their files are kept."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of maintaining one table."""

    table: str
    rows_deleted: int
    files_before: int
    files: int
    bytes: int
    files_vacuumed: int


def run(
    spark: "SparkSession",
    folder: str,
    *,
    keep_days: Mapping[str, float] | None = None,
    vacuum_hours: float = VACUUM_HOURS_MIN,
    on_table: Callable[[str], None] = lambda table: None,
) -> list[Maintained]:
    """Maintain every table in the folder. `on_table` is called with the name of each table before its turn."""
    from m4cast.jobs.table_folder import TableFolder

    if not VACUUM_HOURS_MIN <= vacuum_hours <= 24 * DAYS_MAX:
        raise M4castError(
            f"vacuum_hours = {vacuum_hours:g} is not allowed: give {VACUUM_HOURS_MIN} to {24 * DAYS_MAX} hours"
        )
    tables = TableFolder(spark, folder)
    found = list(_tables(tables))
    if not found:
        raise M4castError(f"folder {folder} contains no table: give the folder that ingest writes to")
    unknown = set(keep_days or {}) - {table.name for table in found} - {EVENTS}
    if unknown:
        names = ", ".join(table.name for table in found)
        raise M4castError(
            f"folder {folder} contains no table {min(unknown)}: use one of {names}, or {EVENTS} for all events tables"
        )
    done = []
    for table in found:
        on_table(table.name)
        done.append(_maintain(tables, table, keep_days_of(table.name, keep_days or {}), vacuum_hours))
    return done


def keep_days_of(table: str, keep_days: Mapping[str, float]) -> float | None:
    """The number of days for which rows of the table are kept; None: for ever."""
    general = EVENTS if table.startswith(f"{EVENTS}/") else table
    return keep_days.get(table, keep_days.get(general))


def _tables(tables: "TableFolder") -> Iterator["Table"]:
    from pyspark.sql.types import StructType

    from m4cast.schemas.tables import (
        audit_runs,
        dead_letters,
        deliveries,
        delivery_audit,
        interest,
        ordering_gaps,
        roster,
    )
    from m4cast.schemas.tables.events import events_table

    yield from (events_table(topic, StructType()) for topic in tables.topics())
    fixed = (
        deliveries.DELIVERIES,
        roster.ROSTER,
        interest.INTEREST,
        ordering_gaps.ORDERING_GAPS,
        delivery_audit.DELIVERY_AUDIT,
    )
    yield from (each for each in (*fixed, audit_runs.AUDIT_RUNS, dead_letters.DEAD_LETTERS) if tables.has(each))


def _maintain(tables: "TableFolder", table: "Table", keep_days: float | None, vacuum_hours: float) -> Maintained:
    name = table.quoted(tables.folder)
    spark = tables.spark
    deleted = 0
    if keep_days is not None:
        before = datetime.now(UTC) - timedelta(days=keep_days)
        old = f"{table.time} < TIMESTAMP '{before.isoformat(sep=' ')}'"
        kept = _out_of_order(tables, old) if table.name == "deliveries" else ""
        deleted = _delete(spark, name, f"{old}{kept}")
    files_before = _detail(spark, name)["numFiles"]
    spark.sql(f"OPTIMIZE {name}").collect()
    _keep_replaced_files(tables, name, vacuum_hours)
    before_vacuum = tables.version(table)[1]
    spark.sql(f"VACUUM {name}").collect()
    vacuumed = _vacuumed(spark, name, tables.version(table)[1] - before_vacuum)
    after = _detail(spark, name)
    return Maintained(
        table=table.name,
        rows_deleted=deleted,
        files_before=files_before,
        files=after["numFiles"],
        bytes=after["sizeInBytes"],
        files_vacuumed=vacuumed,
    )


def _vacuumed(spark: "SparkSession", name: str, versions: int) -> int:
    """The number of files that were removed, as one of the latest versions says: others may have followed it."""
    if not versions:
        return 0
    for row in spark.sql(f"DESCRIBE HISTORY {name} LIMIT {versions}").collect():
        if row["operation"] == "VACUUM END":
            return int((row["operationMetrics"] or {}).get("numDeletedFiles", 0))
    return 0


def _delete(spark: "SparkSession", name: str, condition: str) -> int:
    from m4cast.jobs.table_folder import despite_appends

    statement = f"DELETE FROM {name} WHERE {condition}"
    return despite_appends(lambda: int(spark.sql(statement).collect()[0][0]), name, "delete old ones")


def _out_of_order(tables: "TableFolder", old: str) -> str:
    """A condition that keeps old delivery records that follow younger ones of a node whose clock was turned back.

    So the remaining records of a node have no hole, which audits would count as missing rows.
    """
    from pyspark.sql import functions as F

    from m4cast.schemas.tables.deliveries import DELIVERIES

    records = tables.read(DELIVERIES).select("node_id", "delivery", F.expr(old).alias("is_old"))
    young = records.where("NOT is_old").groupBy("node_id").agg(F.min("delivery").alias("first"))
    after = records.where("is_old").join(young, "node_id").where("delivery > first")
    found = after.select("node_id", "first").distinct().collect()
    return "".join(f" AND NOT (node_id = '{row['node_id']}' AND delivery > {row['first']})" for row in found)


def _keep_replaced_files(tables: "TableFolder", name: str, hours: float) -> None:
    """Set how long replaced files and the versions that need them are kept, unless they are set already.

    Delta 4.4 goes by these properties; it ignores `VACUUM ... RETAIN n HOURS` unless n is 0.
    """
    wanted = {
        "delta.deletedFileRetentionDuration": f"interval {_seconds(hours)} seconds",
        "delta.logRetentionDuration": f"interval {_seconds(max(hours, LOG_HOURS_MIN))} seconds",
    }
    if wanted.items() <= tables.properties(name).items():
        return
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
    tables.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})")


def _seconds(hours: float) -> int:
    return round(hours * 3_600)


def _detail(spark: "SparkSession", name: str) -> Any:
    return spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]


# ---- the command


@options.command("maintain")
@command.tables_option
@options.pairs_option(
    "--keep",
    "keep",
    metavar="TABLE=DAYS",
    help="Delete rows of a table that are older than this; `events` stands for all events tables. By default, none is.",
)
@click.option(
    "--vacuum-hours",
    type=click.FloatRange(VACUUM_HOURS_MIN),
    metavar="HOURS",
    default=VACUUM_HOURS_MIN,
    show_default=True,
    help="Remove files that were replaced longer ago than this. Streams and long queries need them for up to a week.",
)
@command.spark_options
@options.json_option
def maintain(keep: dict[str, str], vacuum_hours: float, as_json: bool, **settings: Any) -> None:
    """Keep the tables fast and small: delete old rows, merge small files, and remove files that no version needs."""
    days = {table: _days(text) for table, text in keep.items()}
    tables = command.filled_folder_of(settings["tables"])
    spark = command.session_of("m4cast maintain", settings)
    steps = Steps() if as_json else Steps.on_stderr()
    done = run(spark, tables, keep_days=days, vacuum_hours=vacuum_hours, on_table=steps.step)
    steps.done()
    if as_json:
        print_json({"tables": [asdict(each) for each in done]})
        return
    shown = Shown("table", box=None, pad_edge=False)
    for name in ("rows deleted", "files before", "files", "bytes", "files vacuumed"):
        shown.add_column(name, justify="right")
    for each in done:
        counts = (each.rows_deleted, each.files_before, each.files, each.bytes, each.files_vacuumed)
        shown.add_row(each.table, *(f"{count:,}" for count in counts))
    Screen().print(shown)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0
    if not 0 < days <= DAYS_MAX:
        raise click.BadParameter(
            f"{text!r} is not a number of days: give more than 0 and at most {DAYS_MAX}", param_hint="--keep"
        )
    return days


if __name__ == "__main__":
    as_script(maintain)
