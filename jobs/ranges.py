"""Arithmetic of ranges `first .. last`, by column expressions.

`islands` works on rows, for ranges that may be many: it sorts each line once. The others work on arrays of ranges in
one row, for the few that are left of a line then.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


def length() -> Column:
    return F.col("last") - F.col("first") + 1


def islands(ranges: DataFrame, keys: Sequence[str], *measures: Column) -> DataFrame:
    """The union of the ranges of each line, as few ranges as can be, with `measures` over what each is made of."""
    by_start = Window.partitionBy(*keys).orderBy("first", "last")
    before = by_start.rowsBetween(Window.unboundedPreceding, -1)
    so_far = by_start.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    reached = F.max("last").over(before)
    is_new = F.when(F.col("first") <= reached + 1, 0).otherwise(1)
    numbered = ranges.withColumn("_is_new", is_new).withColumn("_island", F.sum("_is_new").over(so_far))
    ends = F.min("first").alias("first"), F.max("last").alias("last")
    return numbered.groupBy(*keys, "_island").agg(*ends, *measures).drop("_island")


def spans(*arrays: Column) -> Column:
    """One array of the ranges of several, without their other fields."""

    def bare(each: Column) -> Column:
        return F.struct(each["first"].alias("first"), each["last"].alias("last"))

    return F.concat(*(F.transform(array, bare) for array in arrays))


def meets(one: Column, other: Column) -> Column:
    return (one["first"] <= other["last"]) & (other["first"] <= one["last"])


def touches(one: Column, other: Column) -> Column:
    """They meet, or one ends where the other begins: together they are one range."""
    return (one["first"] <= other["last"] + 1) & (other["first"] <= one["last"] + 1)


def outside(ranges: Column, cut: Column) -> Column:
    """What is left of an array of ranges outside of one range; their other fields stay."""

    def left_of(each: Column) -> Column:
        before = each.withField("last", F.least(each["last"], cut["first"] - 1))
        behind = each.withField("first", F.greatest(each["first"], cut["last"] + 1))
        return F.filter(F.array(before, behind), lambda piece: piece["first"] <= piece["last"])

    untouched = F.filter(ranges, lambda each: ~meets(each, cut))
    touched = F.filter(ranges, lambda each: meets(each, cut))
    return F.concat(untouched, F.flatten(F.transform(touched, left_of)))


def outside_all(ranges: Column, cuts: Column) -> Column:
    """What is left of an array of ranges outside of another."""
    return F.aggregate(cuts, ranges, outside)


def between(ranges: Column, end: Column) -> Column:
    """The holes between ranges that do not overlap, and from the last of them to `end`, as an array of ranges."""
    in_order = F.array_sort(spans(ranges))
    starts = F.transform(in_order, lambda each: each["first"])
    following = F.concat(F.slice(starts, 2, F.size(starts)), F.array(end + 1))
    holes = F.zip_with(
        in_order,
        following,
        lambda each, start: F.struct((each["last"] + 1).alias("first"), (start - 1).alias("last")),
    )
    return F.filter(holes, lambda hole: hole["first"] <= hole["last"])
