"""The proof row by row: agrees with the ranges, and finds what is missing, twice, or in no record."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from m4cast.jobs.gaps.row_proof import prove, row_ranges


def test_rows_and_records_agree(spark: SparkSession, audited: str) -> None:
    proof = prove(spark, audited, "orders")
    assert proof.holds and proof.rows == 2 * 12_000
    assert "each exactly once" in proof.text
    behind = prove(spark, audited, "orders", node_id="n7")
    assert not behind.holds and not behind.missing and behind.extra


def test_ranges_of_rows(spark: SparkSession) -> None:
    """Whole words, torn ones, their edges, and a row that is there twice."""
    numbers = [*range(1, 201), *range(256, 384), 500, 500, 511, 512]
    rows = spark.range(1).select(F.explode(F.array(*(F.lit(each).cast("long") for each in numbers))).alias("_sequence"))
    rows = rows.withColumns({"_origin": F.lit("o"), "_topic": F.lit("t")})
    found = row_ranges(rows).orderBy("first").collect()
    assert [(row["first"], row["last"]) for row in found] == [(1, 200), (256, 383), (500, 500), (511, 512)]
    assert sum(row["rows"] for row in found) == len(numbers)
