"""Raw mode: what does not fit becomes a dead letter, the rest is ingested, and dead letters can be tried again."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from click.testing import CliRunner
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds.dead_letters import replay
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Table
from tests.processes.clusters import until

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def plan(nodes: str, topic: str, folder: str) -> Ingest:
    columns = "id long, price double"
    return Ingest({"nodes": nodes}, folder, (topic,), kinds=("events",), raw=True, columns=columns)


def test_what_does_not_fit_waits_and_is_tried_again(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    first, second = cluster.channel("n1"), cluster.channel("n2")
    first.publish(topic, [{"id": 1, "price": "1.5", "note": "dropped"}, {"id": 2, "price": "2.5"}], acks=1)
    second.publish(topic, [{"id": 3, "price": "much"}, {"id": 4, "price": "7"}], acks=1)
    second.publish(topic, [{"id": 5, "price": "9.5"}], acks=1)
    until(lambda: sum(first.frontier(topic)[topic].values()) == 7, "all rows are at n1")
    tables, events = TableFolder(spark, folder), events_table(topic, StructType())

    for _ in range(2):  # a second time there is nothing new
        summary = run(spark, plan)
        assert summary.dead_letters == 1
        rows = {(row["id"], row["price"]) for row in tables.read(events).collect()}
        assert rows == {(1, 1.5), (2, 2.5), (5, 9.5)}
    (letter,) = tables.read(DEAD_LETTERS).collect()
    assert (letter["failed_by"], letter["source"], letter["source_topic"]) == ("ingest", "channel", topic)
    assert (letter["source_stream"], letter["source_position"]) == (second.status()["node_id"], 1)
    assert letter["reason"] == "M4CAST_COLUMN_TYPE" and "'price'" in letter["detail"]

    assert replay(spark, folder).left == 1, "the same columns do not fit either"
    result = CliRunner().invoke(main, ["ingest", "--replay", "--tables", folder, "--columns", "id long", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"letters": 1, "rows": 2, "left": 0}
    found = {(row["_origin"], row["_sequence"], row["id"], row["price"]) for row in tables.read(events).collect()}
    assert {(letter["source_stream"], 1, 3, None), (letter["source_stream"], 2, 4, None)} < found
    assert len(found) == tables.read(events).count() == 5
    assert replay(spark, folder).letters == 0

    shutil.rmtree(plan.checkpoints)
    assert run(spark, plan).dead_letters == 0, "a letter that was replayed is known"
    assert tables.read(events).count() == 5
    assert tables.read(DEAD_LETTERS).count() == 1


def test_raw_mode_learns_new_columns_if_none_are_chosen(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    plan = replace(plan, columns=None)
    cluster.channel("n1").publish(topic, [{"id": 1, "what": None, "a.b": 7}], acks=1)
    run(spark, plan)
    cluster.channel("n1").publish(topic, [{"id": 2, "what": "tea", "a.b": 8}], acks=1)
    run(spark, plan)
    rows = TableFolder(spark, folder).read(events_table(topic, StructType())).collect()
    assert sorted((row["id"], row["what"], row["a.b"]) for row in rows) == [(1, None, 7), (2, "tea", 8)]


def test_a_letter_that_comes_during_a_replay_waits_for_the_next(
    spark: SparkSession, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = TableFolder(spark, folder)
    events = events_table("orders", StructType([StructField("a.b", LongType())]))
    for table in (events, DEAD_LETTERS):
        tables.ensure(table)
    letters = StructType(DEAD_LETTERS.schema.fields)

    def come(position: int) -> None:
        batch = pa.record_batch({"a.b": [position]})
        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            value = sink.getvalue().to_pybytes()
        letter = {"failed_at": NOW, "failed_by": "ingest", "reason": "M4CAST_COLUMN_TYPE", "source": "channel"}
        place = {"source_topic": "orders", "source_stream": "0" * 32, "source_position": position}
        row = {**letter, **place, "detail": "", "target_topic": "orders", "timestamp": NOW, "value": value}
        tables.append(DEAD_LETTERS, frame(spark, [row], letters))

    come(1)
    delta = TableFolder.delta

    def another_comes(self: TableFolder, table: Table) -> DeltaTable:
        if table is DEAD_LETTERS:
            come(2)
        return delta(self, table)

    monkeypatch.setattr(TableFolder, "delta", another_comes)
    assert replay(spark, folder).rows == 1
    monkeypatch.undo()
    again = replay(spark, folder)
    assert (again.letters, again.rows) == (1, 1)
    assert {row["a.b"] for row in tables.read(events).collect()} == {1, 2}


def test_columns_that_are_none_are_said(spark: SparkSession, plan: Ingest) -> None:
    with pytest.raises(M4castError, match=r"'id lnog' is not a list of columns .*'id long, price double'"):
        run(spark, replace(plan, columns="id lnog"))
