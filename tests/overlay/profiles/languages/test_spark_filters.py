"""Spark's filter classes, recognised without importing Spark."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import datasource as spark

from m4cast.overlay.profiles.condition import DEPTH_MAX, TERMS_MAX, FilterError, terms_of, text_of
from m4cast.overlay.profiles.languages.spark_filters import condition_of

A = ("a",)


@pytest.mark.parametrize(
    ("filters", "canonical"),
    [
        ([], "TRUE"),
        ([spark.EqualTo(A, 1), spark.GreaterThan(("b", "c"), 2.5)], "`a` = 1 AND `b`.`c` > 2.5"),
        ([spark.GreaterThanOrEqual(A, Decimal("1.50"))], "`a` >= 1.5"),
        ([spark.LessThan(A, date(2026, 1, 1))], "`a` < TIMESTAMP '2026-01-01 00:00:00Z'"),
        ([spark.LessThanOrEqual(A, datetime(2026, 1, 1, 12))], "`a` <= TIMESTAMP '2026-01-01 12:00:00Z'"),
        ([spark.EqualTo(A, None)], "FALSE"),
        ([spark.EqualNullSafe(A, None)], "`a` IS NULL"),
        ([spark.Not(spark.EqualNullSafe(A, 1))], "`a` != 1 OR `a` IS NULL"),
        ([spark.In(A, ("x", "y"))], "`a` IN ('x', 'y')"),
        ([spark.Not(spark.In(A, ("x", None)))], "FALSE"),
        ([spark.In(A, ())], "FALSE"),
        ([spark.IsNull(A)], "`a` IS NULL"),
        ([spark.IsNotNull(A)], "`a` IS NOT NULL"),
        ([spark.Not(spark.IsNotNull(A))], "`a` IS NULL"),
        ([spark.StringStartsWith(A, "50%")], "`a` LIKE '50\\\\%%'"),
        ([spark.StringEndsWith(A, "_x")], "`a` LIKE '%\\\\_x'"),
        ([spark.Not(spark.StringContains(A, "x"))], "`a` NOT LIKE '%x%'"),
        ([spark.StringContains(A, "")], "`a` LIKE '%'"),
        ([spark.EqualTo(A, float("nan"))], "`a` = double('NaN')"),
        ([spark.EqualTo(A, b"\x01")], "`a` = X'01'"),
    ],
)
def test_filters_become_conditions(filters: list[Any], canonical: str) -> None:
    assert text_of(condition_of(filters)) == canonical


@dataclass
class Unheard:
    attribute: tuple[str, ...] = A


@pytest.mark.parametrize("odd", [Unheard(), object(), spark.EqualTo((), 1)])
def test_what_is_no_filter_is_refused(odd: Any) -> None:
    with pytest.raises(FilterError, match=r"apply it with DataFrame\.filter"):
        condition_of([odd])


def test_the_limit_of_depth() -> None:
    nested: Any = spark.IsNull(A)
    for _ in range(DEPTH_MAX - 1):
        nested = spark.Not(nested)
    assert text_of(condition_of([nested])) == "`a` IS NOT NULL"
    with pytest.raises(FilterError, match="nested deeper"):
        condition_of([spark.Not(nested)])


def test_the_limit_of_terms() -> None:
    filters = [spark.IsNull((f"c{at}",)) for at in range(TERMS_MAX + 1)]
    assert len(list(terms_of(condition_of(filters[:TERMS_MAX])))) == TERMS_MAX
    with pytest.raises(FilterError, match="more than 256 terms"):
        condition_of(filters)


def test_profiles_do_not_import_spark() -> None:
    program = "import sys, m4cast.overlay.profiles; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
