"""Arithmetic of ranges `first .. last`.

`islands` works on rows, for many ranges: it sorts each line once. The others work on arrays of ranges in one row, for
the few that remain of a line. They build Spark SQL text, because building expressions of this size from columns takes
thousands of JVM calls, and seconds.

A range may end at the highest possible number (a skip of "everything from here on"), where adding 1 overflows. So 1 is
subtracted from firsts, and added to lasts only if something follows them.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

NUMBER_MAX = (1 << 63) - 1


def length() -> Column:
    return F.col("last") - F.col("first") + 1


def total(numbers: Column) -> Column:
    """The sum, or 0 without rows; limited to the largest number of Spark."""
    exact = F.coalesce(F.sum(numbers.cast("decimal(38, 0)")), F.lit(0))
    return F.least(exact, F.lit(NUMBER_MAX).cast("decimal(38, 0)")).cast("long")


def islands(ranges: DataFrame, keys: Sequence[str], *measures: Column) -> DataFrame:
    """The union of the ranges of each line in as few ranges as possible, with `measures` over the parts of each."""
    line = f"PARTITION BY {', '.join(keys)} ORDER BY first, last ROWS"
    reached = f"max(last) OVER ({line} BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    marked = ranges.selectExpr("*", f"if(first - 1 <= {reached}, 0, 1) AS _is_new")
    numbered = marked.selectExpr("*", f"sum(_is_new) OVER ({line} UNBOUNDED PRECEDING) AS _island")
    ends = F.min("first").alias("first"), F.max("last").alias("last")
    return numbered.groupBy(*keys, "_island").agg(*ends, *measures).drop("_island")


def spans(*arrays: str) -> str:
    """One array of the ranges of several arrays, without their other fields."""
    bare = (f"transform({array}, span -> struct(span.first AS first, span.last AS last))" for array in arrays)
    return f"concat({', '.join(bare)})"


def meets(one: str, other: str) -> str:
    return f"({one}.first <= {other}.last AND {other}.first <= {one}.last)"


def touches(one: str, other: str) -> str:
    """True if the ranges overlap, or one ends where the other begins, so that together they form one span."""
    return f"({one}.first - 1 <= {other}.last AND {other}.first - 1 <= {one}.last)"


def outside(ranges: str, cut: str, *kept: str) -> str:
    """The parts of an array of ranges outside of one range, with the fields `kept`."""
    others = "".join(f", span.{name} AS {name}" for name in kept)
    before = f"struct(span.first AS first, least(span.last, {cut}.first - 1) AS last{others})"
    next_first = f"if({cut}.last < span.last, greatest(span.first, {cut}.last + 1), NULL)"
    after = f"struct({next_first} AS first, span.last AS last{others})"
    return f"flatten(transform({ranges}, span -> filter(array({before}, {after}), piece -> piece.first <= piece.last)))"


def outside_all(ranges: str, cuts: str, *kept: str) -> str:
    """The parts of an array of ranges outside of all ranges of another."""
    return f"aggregate({cuts}, {ranges}, (uncut, cut) -> {outside('uncut', 'cut', *kept)})"


def between(ranges: str, end: str) -> str:
    """The holes between ranges that do not overlap, and from the last of them to `end`, as an array of ranges."""
    in_order = f"array_sort({spans(ranges)})"
    befores = f"transform({in_order}, span -> span.first - 1)"
    until = f"concat(slice({befores}, 2, size({befores})), array({end}))"
    hole = "struct(if(span.last < until, span.last + 1, NULL) AS first, until AS last)"
    return f"filter(zip_with({in_order}, {until}, (span, until) -> {hole}), hole -> hole.first <= hole.last)"


def rows_within(ranges: str) -> Column:
    """The number of rows of `first .. last` in an array of disjoint ranges."""
    met = f"filter({ranges}, span -> span.first <= last AND first <= span.last)"
    rows = "rows + (least(span.last, last) - greatest(span.first, first) + 1)"
    return F.expr(f"coalesce(aggregate({met}, CAST(0 AS bigint), (rows, span) -> {rows}), 0)")
