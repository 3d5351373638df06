"""Maintenance: old rows go, small files become few, and nothing else changes."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.cli import main
from m4cast.jobs.maintain import keep_days_of, run
from m4cast.jobs.tables import Tables
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import events_table

EVENTS = events_table("orders/eu", StructType([StructField("id", LongType())]))


@pytest.fixture(scope="module")
def maintained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one table, written in four pieces, one row in each of ten days."""
    folder = str(tmp_path_factory.mktemp("maintained"))
    tables = Tables(spark, folder)
    tables.ensure(EVENTS)
    now = datetime.now(UTC)
    for piece in range(4):
        rows = spark.range(10).select(
            F.lit("orders/eu").alias("_topic"),
            F.lit("0" * 32).alias("_origin"),
            (F.col("id") + 1 + piece * 10).alias("_sequence"),
            (F.lit(now - timedelta(hours=1)) - F.make_dt_interval(F.col("id").cast("int"))).alias("_published_at"),
            "id",
        )
        tables.append(EVENTS, rows)
    return folder


def test_old_rows_go_and_small_files_become_few(spark: SparkSession, maintained: str) -> None:
    names: list[str] = []
    (done,) = run(spark, maintained, keep_days={"events": 5}, told=names.append)
    assert names == ["events/orders%2Feu"]
    assert done.rows_deleted == 20
    assert done.files < done.files_before
    assert done.files_vacuumed == 0, "what was replaced just now may be in use"
    left = Tables(spark, maintained).read(EVENTS)
    assert sorted(row["id"] for row in left.collect()) == sorted([0, 1, 2, 3, 4] * 4)

    result = CliRunner().invoke(main, ["maintain", "--tables", maintained, "--json"])
    assert result.exit_code == 0, result.output
    (again,) = json.loads(result.stdout)["tables"]
    assert (again["rows_deleted"], again["files_before"], again["files"]) == (0, done.files, done.files)


def test_what_is_not_there_is_said(spark: SparkSession, maintained: str, folder: str) -> None:
    with pytest.raises(M4castError, match=f"there is no table in {folder}: name the folder that ingest writes to"):
        run(spark, folder)
    with pytest.raises(M4castError, match=r"there is no table eventz in .*: there are events/orders%2Feu"):
        run(spark, maintained, keep_days={"eventz": 5})
    with pytest.raises(M4castError, match="after 168 hours or more, not after 1"):
        run(spark, maintained, vacuum_hours=1)


@pytest.mark.parametrize(
    ("table", "days"), [("events/a", 30), ("events/b", 90), ("deliveries", 7), ("roster", None), ("eventsx", None)]
)
def test_the_nearest_name_says_how_long_rows_are_kept(table: str, days: float | None) -> None:
    assert keep_days_of(table, {"events": 90, "events/a": 30, "deliveries": 7}) == days


@pytest.mark.parametrize("days", ["0", "-1", "x", "nan"])
def test_days_are_a_number(days: str, folder: str) -> None:
    result = CliRunner().invoke(main, ["maintain", "--tables", folder, "--keep", f"events={days}"])
    assert result.exit_code == 2
    assert "is not a number of days, more than 0" in result.output
