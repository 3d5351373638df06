"""The outcome of the demo: what became of its rows, counted from the Delta tables that it leaves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from m4cast.jobs.table_folder import TableFolder


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The rows that one node received, according to its delivery records."""

    name: str
    delivered: int
    missing: int
    duplicates: int
    p99_ms: float | None
    """Latency of rows from other nodes."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The outcome of all rows."""

    nodes: tuple[NodeOutcome, ...]
    generated: int
    """Rows that the pipelines generated, according to the numbers of the orders."""
    published: int
    """Rows that the nodes assigned sequence numbers."""
    events: int
    """Rows in the events tables."""
    different_events: int
    verdict: str
    """Verdict of the audit."""

    @property
    def is_whole(self) -> bool:
        """True if every generated row is in Delta once and was delivered at every node once."""
        counts = {self.generated, self.published, self.events, self.different_events}
        counts |= {node.delivered for node in self.nodes}
        return len(counts) == 1 and self.published > 0 and not any(n.missing or n.duplicates for n in self.nodes)


def outcome_of(spark: "SparkSession", folder: str, published: int, verdict: str) -> DemoOutcome:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from m4cast.demo.orders import TOPICS, city_of, number_of
    from m4cast.jobs.table_folder import TableFolder
    from m4cast.schemas.tables.events import events_table

    tables = TableFolder(spark, folder)
    columns = ("_topic", "_origin", "_sequence", "order_id")
    orders, returns = (tables.read(events_table(topic, StructType())).select(*columns) for topic in TOPICS)
    of_cities = orders.unionByName(returns).groupBy(city_of(F.col("order_id")))
    counted = of_cities.agg(
        F.count("*").alias("events"),
        F.count_distinct("_topic", "_origin", "_sequence").alias("different"),
        (F.max(number_of(F.col("order_id"))) + 1).alias("generated"),  # they are numbered from 0 without gaps
    )
    sums = counted.agg(F.sum("generated"), F.sum("events"), F.sum("different")).collect()[0]
    generated, events, different = (int(value or 0) for value in sums)
    return DemoOutcome(
        nodes=node_outcomes(tables),
        generated=generated,
        published=published,
        events=events,
        different_events=different,
        verdict=verdict,
    )


def node_outcomes(tables: "TableFolder") -> tuple[NodeOutcome, ...]:
    from pyspark.sql import functions as F

    from m4cast.schemas.tables.deliveries import DELIVERIES
    from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS

    length = F.col("last") - F.col("first") + 1
    lines = tables.read(ORDERING_GAPS).where("line = 'stream'").groupBy("node_id")
    held = lines.agg(
        F.sum(F.when(F.col("state") == "HELD", length).otherwise(0)).alias("delivered"),
        F.sum(F.when(F.col("state") == "MISSING", length).otherwise(0)).alias("missing"),
        F.coalesce(F.sum("duplicates"), F.lit(0)).alias("duplicates"),
    )
    late_ms = F.when(F.col("how") != "published", F.expr("timestampdiff(MILLISECOND, published_at, delivered_at)"))
    records = tables.read(DELIVERIES).where("kind = 'batch'").groupBy("node_id", "node")
    p99 = records.agg(F.percentile(late_ms, 0.99, F.col("row_count")).alias("p99_ms"))
    found = p99.join(held, "node_id", "left").orderBy(F.length("node"), "node").collect()
    return tuple(
        NodeOutcome(
            name=row["node"],
            delivered=row["delivered"] or 0,
            missing=row["missing"] or 0,
            duplicates=row["duplicates"] or 0,
            p99_ms=row["p99_ms"],
        )
        for row in found
    )
