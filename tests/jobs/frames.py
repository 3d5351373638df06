"""Scenarios as DataFrames with a column `scenario`, and DataFrames as plain values to compare."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from m4cast.jobs.table_folder import frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.roster import ROSTER
from tests.jobs.scenarios import Membership, Record

SCENARIO = StructField("scenario", IntegerType(), False)


def deliveries_frame(spark: SparkSession, records: Iterable[tuple[int, Record]]) -> DataFrame:
    schema = StructType([SCENARIO, *DELIVERIES.schema.fields])
    return frame(spark, [record.as_row(number) for number, record in records], schema)


def roster_frame(spark: SparkSession, roster: Iterable[tuple[int, Membership]]) -> DataFrame:
    schema = StructType([SCENARIO, *ROSTER.schema.fields])
    return frame(spark, [membership.as_row(number) for number, membership in roster], schema)


def values(found: DataFrame, *names: str) -> set[tuple[Any, ...]]:
    """Its rows, with moments in UTC; each only once, or it fails."""
    rows = [
        tuple(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row)
        for row in found.select(*names).collect()
    ]
    assert len(set(rows)) == len(rows), "a row came twice"
    return set(rows)
