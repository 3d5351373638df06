"""Snapshots: all rows of a topic in a folder of Parquet files, or no folder."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import m4cast
from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.errors import M4castError


def test_a_snapshot_has_the_rows_of_all_streams_as_they_were(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    first, second = cluster.channel("n1"), cluster.channel("n2")
    first.publish(topic, [{"id": number, "in": {"a.b": number}, "none": None} for number in range(5)], acks=1)
    second.publish(topic, [{"id": number, "what": "tea"} for number in range(3)], acks=1)
    found = m4cast.snapshot(spark, topic, tmp_path / "new" / "rows", nodes=nodes)
    wanted = first.read(topic).sort_by([("_origin", "ascending"), ("_sequence", "ascending")])
    rows = pq.read_table(found.folder).sort_by([("_origin", "ascending"), ("_sequence", "ascending")])
    names = [name for name in wanted.column_names if name != "none"]
    assert sorted(rows.column_names) == sorted(names)
    assert rows.select(names).to_pylist() == wanted.select(names).to_pylist()
    assert spark.read.parquet(found.folder).count() == found.rows == 8
    assert found.files == 2
    origins = {channel.status()["node_id"]: next_ for channel, next_ in ((first, 6), (second, 4))}
    assert found.end == {topic: origins}
    assert json.loads((Path(found.folder) / "_snapshot.json").read_text())["end"] == found.end
    assert [path.name for path in Path(found.folder).parent.iterdir()] == ["rows"]

    with pytest.raises(M4castError, match=r"rows exists: name a new folder, or remove it"):
        m4cast.snapshot(spark, topic, found.folder, nodes=nodes)


def test_a_snapshot_may_begin_and_end_anywhere(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    channel = cluster.channel("n1")
    origin = channel.status()["node_id"]
    channel.publish(topic, [{"id": number} for number in range(9)], acks=1)
    edges = {"startingOffsets": json.dumps({topic: {origin: 3}}), "endingOffsets": json.dumps({topic: {origin: 6}})}
    given = {**edges, "maxRowsPerPartition": "2"}
    found = m4cast.snapshot(spark, topic, tmp_path / "rows", nodes=nodes, source_options=given)
    assert sorted(pq.read_table(found.folder)["_sequence"].to_pylist()) == [3, 4, 5]
    assert (found.files, found.start) == (2, {topic: {origin: 3}})


def test_a_snapshot_that_fails_leaves_nothing(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 1}], acks=1)
    later = {topic: {channel.status()["node_id"]: 5}}
    given = {"endingOffsets": json.dumps(later), "timeoutMs": "1000"}
    with pytest.raises(M4castError, match=r"\[M4CAST_"):
        m4cast.snapshot(spark, topic, tmp_path / "rows", nodes=nodes, source_options=given)
    assert not list(tmp_path.iterdir())


def test_the_command(spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}, {"id": 2}], acks=1)
    words = ["snapshot", topic, "--node", nodes, "--to", str(tmp_path / "rows")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert f"2 rows of {topic} in 1 files" in result.stdout
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 2
    assert "exists: name a new folder, or remove it" in again.stderr
    words[-1] = str(tmp_path / "more")
    assert json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["rows"] == 2
