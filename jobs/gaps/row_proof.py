"""The proof row by row: which sequences of a topic are in its events table, and how many times.

The sequences of a stream are collected in bit sets of 64 before anything is sorted: a hash aggregate that sends 1/64 of
the rows over the network. Bit sets become ranges, which are compared with those of the delivery records.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from m4cast.jobs.ranges import islands, length, outside_all
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS

WORD = 64
STREAM = ("_origin", "_topic")


@dataclass(frozen=True, slots=True)
class Proof:
    topic: str
    rows: int
    """Rows in the events table."""
    duplicates: int
    missing: tuple[tuple[str, int, int], ...]
    """Origin, first, last: ranges in the delivery records, but not in the table."""
    extra: tuple[tuple[str, int, int], ...]
    """Ranges in the table, but in no record."""

    @property
    def text(self) -> str:
        if self.holds:
            return f"{self.topic}: its {self.rows} rows match the delivery records, each exactly once"
        return (
            f"{self.topic}: {self.rows} rows, {self.duplicates} of them duplicates; not in the table: "
            f"{list(self.missing)}; in no record: {list(self.extra)}"
        )

    @property
    def holds(self) -> bool:
        return not (self.duplicates or self.missing or self.extra)


def row_ranges(events: DataFrame, keys: Sequence[str] = STREAM) -> DataFrame:
    """The ranges of sequences per stream, with the number of `rows` in each, including duplicates."""
    position = F.col("_sequence").bitwiseAND(WORD - 1).cast("int")
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), position)  # F.shiftleft takes a constant only
    words = events.groupBy(*keys, F.shiftright("_sequence", 6).alias("_word")).agg(
        F.bit_or(bit).alias("_bits"), F.count("*").alias("rows")
    )
    begin = F.col("_word") * WORD
    is_full = F.col("_bits") == -1
    whole = words.where(is_full).select(*keys, begin.alias("first"), (begin + WORD - 1).alias("last"), "rows")
    bits = F.filter(F.sequence(F.lit(0), F.lit(WORD - 1)), lambda at: F.getbit("_bits", at) == 1)
    torn = words.where(~is_full).select(*keys, begin.alias("_begin"), "rows", F.posexplode(bits).alias("_at", "_bit"))
    number = F.col("_begin") + F.col("_bit")
    # The rows of an incomplete word are counted once, with its first sequence.
    of_word = F.when(F.col("_at") == 0, F.col("rows")).otherwise(0)
    single = torn.select(*keys, number.alias("first"), number.alias("last"), of_word.alias("rows"))
    return islands(whole.unionByName(single), keys, F.sum("rows").alias("rows"))


def prove(spark: SparkSession, folder: str, topic: str, node_id: str = EVERYBODY) -> Proof:
    """Compare the rows of a topic's table with the records of one receiver, or of all receivers combined."""
    tables = TableFolder(spark, folder)
    events = tables.read(events_table(topic, StructType()))
    rows = row_ranges(events).select(F.col("_origin").alias("origin"), "first", "last", "rows").localCheckpoint()
    is_line = (F.col("line") == "stream") & (F.col("node_id") == node_id) & (F.col("topic") == topic)
    held = tables.read(ORDERING_GAPS).where(is_line & (F.col("state") == "HELD")).select("origin", "first", "last")
    total = rows.agg(F.coalesce(F.sum("rows"), F.lit(0)), F.coalesce(F.sum(length()), F.lit(0))).collect()[0]
    return Proof(
        topic=topic,
        rows=total[0],
        duplicates=total[0] - total[1],
        missing=_outside(held, rows),
        extra=_outside(rows, held),
    )


def _outside(ranges: DataFrame, others: DataFrame) -> tuple[tuple[str, int, int], ...]:
    def together(frame: DataFrame, name: str) -> DataFrame:
        return frame.groupBy("origin").agg(F.collect_list(F.struct("first", "last")).alias(name))

    both = together(ranges, "mine").join(together(others, "theirs"), on="origin", how="left")
    nothing = "CAST(array() AS array<struct<first: bigint, last: bigint>>)"
    left = both.select("origin", F.expr(f"inline({outside_all('mine', f'coalesce(theirs, {nothing})')})"))
    return tuple((row["origin"], row["first"], row["last"]) for row in left.orderBy("origin", "first").collect())
