"""Selective topics through Spark: a writer makes one, and a reader's node fetches the rows that it filters for."""

from pathlib import Path

from pyspark.sql import SparkSession

from m4cast.cluster.local import LocalCluster
from tests.spark_connector.test_batch import read, write
from tests.spark_connector.test_stream import run, source


def test_rows_go_where_a_query_filters_for_them(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    first, second = nodes.split(",")
    spread = {"spread": "selective", "keepers": "0", "routeBy": "country"}
    for country, begin in (("PL", 0), ("DE", 10), ("PL", 20)):
        rows = spark.createDataFrame([(begin + number, country) for number in range(10)], "id int, country string")
        write(rows.coalesce(1), first, topic=topic, **spread)
    polish = [*range(10), *range(20, 30)]
    found = read(spark, f"{second},{first}", topic=topic, where="country = 'PL'").select("id").collect()
    assert sorted(row.id for row in found) == polish
    table = str(tmp_path / "table")
    stream = source(spark, f"{second},{first}", topic=topic, where="country = 'PL'")
    run(stream, "parquet", tmp_path / "checkpoint", path=table)
    assert sorted(row.id for row in spark.read.parquet(table).collect()) == polish
    (stored,) = cluster.channel("n2").describe(topic)["streams"].values()
    assert stored["batches"] == 2, "the other country's rows are not at this node"
