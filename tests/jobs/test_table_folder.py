"""Tables on disk: created, read back as defined, upgraded, and refused when they are not ours or are too new."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.jobs import table_folder
from m4cast.jobs.table_folder import TableError, TableFolder, held_if_few, held_if_small
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Column
from tests.schemas.tables.test_definitions import TABLES


def test_every_table_is_created_as_defined(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableFolder(spark, str(tmp_path))
    for table in TABLES:
        tables.ensure(table)
        tables.ensure(table)
        found = tables.read(table).schema
        assert [(each.name, each.dataType, each.nullable) for each in found] == [
            (each.name, each.type, each.nullable) for each in table.columns
        ]
        comments = {
            row["col_name"]: row["comment"]
            for row in spark.sql(f"DESCRIBE TABLE {table.quoted(tables.folder)}").collect()
        }
        assert {each.name: comments[each.name] for each in table.columns} == {
            each.name: each.comment for each in table.columns
        }


def test_a_table_is_known_by_its_log(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableFolder(spark, str(tmp_path))
    log = Path(DELIVERIES.path(tables.folder)) / "_delta_log"
    assert not tables.has(DELIVERIES)
    log.mkdir(parents=True)
    assert not tables.has(DELIVERIES), "it was never created"
    (log / "_last_checkpoint").touch()
    assert tables.has(DELIVERIES), "the beginning of its log is gone"
    (log / "_last_checkpoint").unlink()
    tables.ensure(DELIVERIES)
    assert tables.has(DELIVERIES)


def test_an_older_table_gains_the_columns_it_lacks(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableFolder(spark, str(tmp_path))
    first = events_table("t", StructType([StructField("n", LongType())]))
    tables.ensure(first)
    spark.sql(f"INSERT INTO {first.quoted(tables.folder)} VALUES ('t', 'o', 1, current_timestamp(), 7)")
    later = replace(first, version=2, columns=(*first.columns, Column("why", StringType(), "new in 2", since=2)))
    tables.ensure(later)
    assert tables.read(later).select("n", "why").collect() == [(7, None)]
    with pytest.raises(TableError, match=r"has version 2 of the table events/t, but this m4cast supports 1"):
        tables.ensure(first)


def test_what_is_not_there_or_not_ours_is_said(spark: SparkSession, tmp_path: Path) -> None:
    tables = TableFolder(spark, str(tmp_path))
    with pytest.raises(TableError, match=r"no table deliveries: give the folder that ingest writes to"):
        tables.read(DELIVERIES)
    spark.range(1).write.format("delta").save(DELIVERIES.path(tables.folder))
    with pytest.raises(TableError, match="not the table deliveries of m4cast: use another folder"):
        tables.ensure(DELIVERIES)


@pytest.mark.parametrize(("most", "bytes_most", "is_small"), [(3, 1 << 20, True), (2, 1 << 20, False), (3, 1, False)])
def test_a_small_table_is_held(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, bytes_most: int, is_small: bool
) -> None:
    """Up to a number of rows, and a number of bytes; the rows are the same, and their types."""
    monkeypatch.setattr(table_folder, "HELD_ROWS_MAX", most)
    monkeypatch.setattr(table_folder, "HELD_BYTES_MAX", bytes_most)
    tables = TableFolder(spark, str(tmp_path))
    events = events_table("t", StructType([StructField("n", LongType())]))
    tables.ensure(events)
    name = events.quoted(tables.folder)
    spark.sql(f"INSERT INTO {name} SELECT 't', 'o', id, timestamp_micros(id), id FROM range(3)")
    table = tables.read(events)
    held = held_if_small(table)
    assert held.is_small == is_small
    assert held_if_few(table).is_small == (most == 3)
    assert held.rows.schema == table.schema
    assert sorted(held.rows.collect()) == sorted(table.collect())
    spark.sql(f"DELETE FROM {name}")
    plan: Any = held.rows._jdf.queryExecution()
    assert ("parquet" not in plan.toString().lower()) == is_small, "what is held does not read the table"
