"""Rows of other channels: what was published there, to be compared with what arrived here.

Delivery records show what arrived at the nodes of a channel. A row of another channel that no node here received has no
record here, but its origin has one. `take_over` copies the origins' records of the rows that they published from the
other channels' folders, for the topics that are received here: gaps and audit then know what should have arrived.

A topic is received here if a node of the roster has a record of one of its rows whose origin is on no roster here.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.roster import ROSTER


def take_over(tables: TableFolder, beyond: Sequence[str]) -> int:
    """Append what is new in these folders, and return how many records that is."""
    if not beyond:
        return 0
    own = F.broadcast(tables.read(ROSTER).select("node_id").distinct())
    records = tables.read(DELIVERIES).where(F.col("kind") == "batch")
    here = records.join(own, on="node_id", how="left_semi")
    foreign = here.join(own.withColumnRenamed("node_id", "origin"), on="origin", how="left_anti")
    topics = [row["topic"] for row in foreign.select("topic").distinct().collect()]
    if not topics:
        return 0
    taken = 0
    for folder in beyond:
        # Read anew for each folder: one may have taken over the records of another.
        known = tables.read(DELIVERIES).join(own, on="node_id", how="left_anti").select(*DELIVERIES.key)
        new = _published(TableFolder(tables.spark, folder), topics).join(own, on="node_id", how="left_anti")
        new = new.join(known, on=list(DELIVERIES.key), how="left_anti").localCheckpoint()
        if count := new.count():
            tables.append(DELIVERIES, new.orderBy("node_id", "delivery"))
            taken += count
    return taken


def _published(tables: TableFolder, topics: Sequence[str]) -> DataFrame:
    """The records of rows at the nodes that published them."""
    found = tables.read(DELIVERIES).where((F.col("kind") == "batch") & F.col("topic").isin(list(topics)))
    found = found.where((F.col("how") == "published") & (F.col("node_id") == F.col("origin")))
    empty = frame(tables.spark, [], DELIVERIES.schema)
    return empty.unionByName(
        found.select(*(name for name in empty.columns if name in found.columns)), allowMissingColumns=True
    )
