"""The job that tells who would have been notified, against what clients get at the doors."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import m4cast
from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs.audit.notified import notified
from m4cast.overlay.client import Client
from m4cast.overlay.errors import M4castError

SECRET = "a-secret-of-this-test"
CONDITIONS = (None, "id < 5", "id >= 5 AND kind = 'a'", "kind IS NULL", "id IN (2, 11)")


def test_the_job_says_what_the_doors_give(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    rows = [{"id": number, "kind": "ab"[number % 2] if number % 3 else None} for number in range(12)]
    cluster.channel("n1").publish(topic, rows[:6], acks=1)
    wishes = [
        {"key": f"{topic}-{number}", "credential": SECRET, "topic": topic, "where": where}
        for number, where in enumerate(CONDITIONS)
    ]
    frame = spark.createDataFrame(wishes, "key string, credential string, topic string, where string")
    first, second = nodes.split(",")
    assert m4cast.subscribe_all(frame.limit(3), nodes=[first], start="earliest").created == 3
    deadline = time.monotonic() + 60
    while any(cluster.channel("n2").finger(f"{topic}-{number}") is None for number in range(3)):
        assert time.monotonic() < deadline, "the other node does not hear of the clients"
    done_there = m4cast.subscribe_all(frame, nodes=second)
    assert (done_there.created, done_there.changed) == (2, 2), "the others, at the other node, from now on"
    cluster.channel("n2").publish(topic, rows[6:], acks=1)

    done = CliRunner().invoke(
        main, ["notified", topic, "--node", first, "--json", "--to", str(tmp_path / "found")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    given = {}
    for number in range(len(CONDITIONS)):
        client = Client([first, second], key=f"{topic}-{number}", credential=SECRET)
        client.connect()
        got = [each for batch in client.notifications(idle_s=0.5) for each in batch.to_pylist()]
        given[client.key] = sorted((each["_origin"], each["_sequence"]) for each in got)
        client.disconnect()
    assert given[f"{topic}-0"] and said["by_key"] == {key: len(each) for key, each in given.items() if each}
    found: dict[str, list[tuple[str, int]]] = {}
    for row in spark.read.parquet(said["folder"]).collect():
        found.setdefault(row.key, []).append((row._origin, row._sequence))
    assert {key: sorted(each) for key, each in found.items()} == {key: each for key, each in given.items() if each}

    again = CliRunner().invoke(main, ["notified", topic, "--node", first, "--to", str(tmp_path)])
    assert again.exit_code == 2 and "exists: name a new folder" in again.output
    with pytest.raises(M4castError, match="the rows have no column _topic"):
        notified(frame.select("key"), frame)
    with pytest.raises(m4cast.ConnectorError, match=r"M4CAST_CLIENT.*row 0 .*where: "):
        m4cast.subscribe_all([{**wishes[0], "where": "id <"}], nodes=first)
    with pytest.raises(m4cast.ConnectorError, match=r"M4CAST_CLIENT.*column 'price'.*select"):
        m4cast.subscribe_all(frame.withColumnRenamed("where", "price"), nodes=first)
