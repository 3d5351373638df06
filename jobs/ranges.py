"""Arithmetic of ranges `first .. last`.

`islands` works on rows, for ranges that may be many: it sorts each line once. The others work on arrays of ranges in
one row, for the few that are left of a line then. They are texts of Spark SQL, from texts: an expression of this size
takes the JVM thousands of calls when it is put together from columns, and seconds.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def length() -> Column:
    return F.col("last") - F.col("first") + 1


def islands(ranges: DataFrame, keys: Sequence[str], *measures: Column) -> DataFrame:
    """The union of the ranges of each line, as few ranges as can be, with `measures` over what each is made of."""
    line = f"PARTITION BY {', '.join(keys)} ORDER BY first, last ROWS"
    reached = f"max(last) OVER ({line} BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    marked = ranges.selectExpr("*", f"if(first <= {reached} + 1, 0, 1) AS _is_new")
    numbered = marked.selectExpr("*", f"sum(_is_new) OVER ({line} UNBOUNDED PRECEDING) AS _island")
    ends = F.min("first").alias("first"), F.max("last").alias("last")
    return numbered.groupBy(*keys, "_island").agg(*ends, *measures).drop("_island")


def spans(*arrays: str) -> str:
    """One array of the ranges of several, without their other fields."""
    bare = (f"transform({array}, span -> struct(span.first AS first, span.last AS last))" for array in arrays)
    return f"concat({', '.join(bare)})"


def meets(one: str, other: str) -> str:
    return f"({one}.first <= {other}.last AND {other}.first <= {one}.last)"


def touches(one: str, other: str) -> str:
    """They meet, or one ends where the other begins: together they are one span."""
    return f"({one}.first <= {other}.last + 1 AND {other}.first <= {one}.last + 1)"


def outside(ranges: str, cut: str, *kept: str) -> str:
    """What is left of an array of ranges outside of one range; their other fields are `kept`."""
    others = "".join(f", span.{name} AS {name}" for name in kept)
    before = f"struct(span.first AS first, least(span.last, {cut}.first - 1) AS last{others})"
    behind = f"struct(greatest(span.first, {cut}.last + 1) AS first, span.last AS last{others})"
    return (
        f"flatten(transform({ranges}, span -> filter(array({before}, {behind}), piece -> piece.first <= piece.last)))"
    )


def outside_all(ranges: str, cuts: str, *kept: str) -> str:
    """What is left of an array of ranges outside of another."""
    return f"aggregate({cuts}, {ranges}, (uncut, cut) -> {outside('uncut', 'cut', *kept)})"


def between(ranges: str, end: str) -> str:
    """The holes between ranges that do not overlap, and from the last of them to `end`, as an array of ranges."""
    in_order = f"array_sort({spans(ranges)})"
    starts = f"transform({in_order}, span -> span.first)"
    following = f"concat(slice({starts}, 2, size({starts})), array({end} + 1))"
    hole = "struct(span.last + 1 AS first, start - 1 AS last)"
    return f"filter(zip_with({in_order}, {following}, (span, start) -> {hole}), hole -> hole.first <= hole.last)"
