"""A streaming query that selects 1 % of rows of 100 bytes and a number, all columns, to Spark's noop sink (local[2],
one node): `option("where", ...)`, with which the node filters, beside `.filter()`, with which Spark does. Before
anything is measured, both select the same rows."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from m4cast.spark_connector.option_values import CHANNEL_COLUMNS
from tests.bench.comparison import Bench, Side
from tests.bench.references import ROW_BYTES, bench_cluster, pids
from tests.bench.spark import PARTITIONS, PAYLOAD, bench_session, jvm_pid, timed

ROWS = 64_000_000
"""So many that the start of a query, 1.2 s, weighs little."""
QUICK_ROWS = 200_000
WRITE_ROWS = 2_000_000
"""Rows of one write. The node stages it in memory and on disk."""
KINDS = 100
WHERE = "kind = 7"
BAR = 5.0


def measure(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder, bench_session() as spark, bench_cluster(1) as cluster:
        case = Selection(spark, cluster.node("n1").door, Path(folder), bench.of(ROWS, QUICK_ROWS))
        processes = {**pids(cluster), "Spark": jvm_pid(spark)}
        by_option = Side("where", timed(case.by_option), processes)
        by_spark = Side(".filter()", timed(case.by_spark), processes)
        what = f"stream, 1 in {KINDS} rows, all columns, to noop"
        gb = case.rows * ROW_BYTES / 1e9
        bench.compare(what, "rows/s", by_option, by_spark, amount=case.rows, gb=gb, bar=BAR)


class Selection:
    """One topic, and both ways to select from it."""

    def __init__(self, spark: SparkSession, nodes: str, folder: Path, rows: int) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"nodes": nodes, "topic": "read", "metadata": ",".join(CHANNEL_COLUMNS)}
        self.rows = rows
        for first in range(0, rows, WRITE_ROWS):
            made = spark.range(first, min(first + WRITE_ROWS, rows), 1, PARTITIONS)
            made = made.selectExpr(f"id % {KINDS} AS kind", f"{PAYLOAD} AS value")
            made.write.format("m4cast").mode("append").options(nodes=nodes, topic="read").save()
        one = self._table(where=WHERE).select("_origin", "_sequence")
        other = self._table().filter(WHERE).select("_origin", "_sequence")
        assert one.exceptAll(other).isEmpty() and other.exceptAll(one).isEmpty(), "the results differ"
        assert one.count() == rows // KINDS

    def by_option(self, name: str) -> None:
        self._run(name, self._options | {"where": WHERE}, lambda rows: rows)

    def by_spark(self, name: str) -> None:
        self._run(name, self._options, lambda rows: rows.filter(WHERE))

    def _table(self, **more: str) -> DataFrame:
        return self._spark.read.format("m4cast").options(**self._options, **more).load()

    def _run(self, name: str, options: dict[str, str], selected: Callable[[DataFrame], DataFrame]) -> None:
        stream = self._spark.readStream.format("m4cast").options(**options, startingOffsets="earliest")
        stream = stream.option("minPartitions", str(PARTITIONS))
        query = (
            selected(stream.load())
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
