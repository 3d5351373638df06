"""Repair from tables: rows that no node keeps come back as they were, and the others are named."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs import ingest, repair
from m4cast.jobs.ingest import Ingest
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table


def table_of(count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "text": [f"text {number % 7}" if number % 3 else None for number in range(count)],
            "at": pa.array(range(count), pa.timestamp("us", "UTC")),
            "in": [{"x": number, "y": [str(number)] * (number % 3)} for number in range(count)],
        }
    )


def test_rows_that_no_node_keeps_come_back_as_they_were(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str, tmp_path: Path
) -> None:
    """Three batches at one node, one at the other. Then nobody has them; what changed in the table cannot come back."""
    first, second = cluster.channel("n1"), cluster.channel("n2")
    for number in range(3):
        first.publish(topic, table_of(40 + number), acks=1)
    second.publish(topic, table_of(100), acks=1)
    order = [("_origin", "ascending"), ("_sequence", "ascending")]
    published = first.read(topic).sort_by(order)
    origins = {channel.status()["node_id"]: channel for channel in (first, second)}
    here = first.status()["node_id"]
    plan = Ingest({"nodes": nodes}, folder, (topic,), kinds=("events", "deliveries"))
    ingest.run(spark, plan)
    access = {"nodes": nodes}

    first.delete_topic(topic)
    kept = repair.run(spark, folder, access, topics=[topic])
    assert (kept.rows, {left.reason for left in kept.left}) == (
        0,
        {"node n2 keeps them: read them there, or repair into it"},
    )
    second.delete_topic(topic)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    assert {left.reason for left in repair.run(spark, folder, access, topics=[topic], since=later).left} == {
        "they are older than --since"
    }
    assert first.read(topic).num_rows == 0, "nothing came back so far"

    events = TableFolder(spark, folder).delta(events_table(topic, StructType()))
    events.update((F.col("_origin") == here) & (F.col("_sequence") == 60), {"text": F.lit("changed")})
    words = ["repair", "--from-tables", folder, "--topic", topic, "--node", nodes.split(",", maxsplit=1)[0]]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 1, result.output
    done = json.loads(result.stdout)
    assert (done["rows"], done["batches"], done["unasked"]) == (142, 2, [])
    (left,) = done["left"]
    assert (left["topic"], left["origin"], left["first"], left["last"]) == (topic, here, 1, 81)
    assert "its checksum is" in left["reason"]
    back = first.read(topic).sort_by(order)
    wanted = [row for row in published.to_pylist() if row["_origin"] != here or row["_sequence"] > 81]
    assert back.to_pylist() == wanted
    assert {origin: low for origin, (low, _) in first.extents(topic)[topic].items()} == {
        origin: 82 if origin == here else 1 for origin in origins
    }

    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1
    assert "0 rows in 0 batches are back" in again.stdout and "1 to 81" in again.stdout
    first.publish(topic, table_of(5), acks=1)
    assert ingest.run(spark, plan).tables[0].rows == 5, "nothing is ingested twice"


def test_tables_that_cannot_be_used_are_refused_by_name(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}])
    tables = TableFolder(spark, folder)
    with pytest.raises(M4castError, match="contains no table deliveries"):
        repair.run(spark, folder, {"nodes": nodes})
    old = [column for column in DELIVERIES.schema if column.name not in repair.FACTS]
    spark.createDataFrame([], StructType(old)).write.format("delta").save(DELIVERIES.path(folder))
    with pytest.raises(M4castError, match="lacks the column origin_incarnation: run `m4cast ingest`"):
        repair.run(spark, folder, {"nodes": nodes})
    tables.add_columns(DELIVERIES)
    with pytest.raises(M4castError, match=r"does not know topic 'nothing': check the name"):
        repair.run(spark, folder, {"nodes": nodes}, topics=["nothing"])
    cluster.channel("n1").delete_topic(topic)
    (left,) = repair.run(spark, folder, {"nodes": nodes.split(",", maxsplit=1)[0]}, topics=[topic]).left
    assert (left.first, left.last, left.reason) == (1, 1, "the tables have no record of row 1")
