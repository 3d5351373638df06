"""Tables on disk: created, read back as defined, upgraded, and refused when they are not ours or are too new."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.jobs.table_folder import TableError, TableFolder
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
