"""Selective topics through Spark: a writer makes one, and readers at another node get the rows that they filter for."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from m4cast.overlay.client import Channel
from tests.spark_connector.test_batch import read, write
from tests.spark_connector.test_stream import run, source


def test_queries_at_another_node_get_the_rows_that_they_filter_for(
    spark: SparkSession, nodes: str, topic: str, tmp_path: Path
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
    options = {"topic": topic, "where": "country = 'PL'", "reader": topic, "maxRowsPerTrigger": "10"}
    stream = source(spark, f"{second},{first}", **options)
    run(stream, "parquet", tmp_path / "checkpoint", path=table)
    assert sorted(row.id for row in spark.read.parquet(table).collect()) == polish
    reader = Channel(second)
    assert reader.describe(topic)["rows"] == len(polish), "the node fetched what the queries read, and no more"
    # Killed after its sink had the rows, and before the checkpoint said so: the micro-batch is run again.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) > 1
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    for country, begin in (("DE", 30), ("PL", 40)):
        numbers = pa.array(range(begin, begin + 5), pa.int32())
        Channel(first).publish(topic, pa.table({"id": numbers, "country": [country] * 5}))
    run(source(spark, f"{second},{first}", **options), "parquet", tmp_path / "checkpoint", path=table)
    assert sorted(row.id for row in spark.read.parquet(table).collect()) == [*polish, *range(40, 45)]
    assert reader.describe(topic)["rows"] == len(polish) + 5
