"""Ingest of rows: typed, once, over runs, replays, lost checkpoints, new columns and new topics."""

import json
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds.feed import FeedFailedError, FeedState
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import events_table

TIMEOUT_S = 240.0


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, **more} for number in range(count)]


def events(spark: SparkSession, folder: str, topic: str) -> DataFrame:
    return TableFolder(spark, folder).read(events_table(topic, StructType()))


def counted(spark: SparkSession, folder: str, topic: str) -> tuple[int, int]:
    """Rows, and different ones."""
    found = events(spark, folder, topic)
    return found.count(), found.select("_origin", "_sequence").distinct().count()


@pytest.fixture
def plan(nodes: str, topic: str, folder: str) -> Ingest:
    return Ingest({"nodes": nodes}, folder, topic_pattern=f"{topic}.*", kinds=("events",), max_rows=40)


def test_rows_are_ingested_once_over_runs_with_their_types_and_places(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, rows(70, what="tea", price=1.5), acks=1)
    cluster.channel("n2").publish(topic, rows(30), acks=1)
    summary = run(spark, plan)
    (filled,) = summary.tables
    assert (filled.table, filled.rows, filled.micro_batches, filled.restarts) == (f"events/{topic}", 100, 3, 0)
    cluster.channel("n2").publish(topic, rows(5), acks=1)
    assert run(spark, plan).tables[0].rows == 5
    assert not run(spark, plan).tables[0].rows

    found = events(spark, folder, topic)
    types = dict(found.dtypes)
    assert (types["id"], types["what"], types["price"]) == ("bigint", "string", "double")
    wanted = cluster.channel("n1").read(topic).to_pylist()
    same = [{**row.asDict(), "_published_at": None} for row in found.orderBy("_origin", "_sequence").collect()]
    assert same == [
        {**{name: row.get(name) for name in found.columns}, "_published_at": None}
        for row in sorted(wanted, key=lambda row: (row["_origin"], row["_sequence"]))
    ]


def test_a_feed_restarts_itself_for_new_columns_and_new_topics_appear(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, rows(10), acks=1)
    run(spark, plan)
    stop = threading.Event()
    seen: list[str] = []

    def look(runs: Sequence[FeedState]) -> None:
        """One thing after the other, each when the one before is in its table."""
        done = {run.table: run.rows for run in runs}
        if len(seen) == 0 and f"events/{topic}" in done:
            seen.append("a column")
            channel.publish(topic, [{"id": 10, "total (EUR)": 2.5}])
        elif len(seen) == 1 and done[f"events/{topic}"] == 1:
            seen.append("a topic")
            channel.publish(f"{topic}/späť", [{"id": "x"}])
        elif len(seen) == 2 and done.get(f"events/{topic}/späť") == 1:
            stop.set()

    watchdog = threading.Timer(TIMEOUT_S, stop.set)
    watchdog.start()
    try:
        summary = run(spark, replace(plan, continuous=True, interval_s=0), stop=stop, on_progress=look)
    finally:
        watchdog.cancel()
    assert seen == ["a column", "a topic"]
    filled = {each.table: (each.rows, each.restarts) for each in summary.tables}
    assert filled[f"events/{topic}/späť"] == (1, 0)
    assert filled[f"events/{topic}"][0] == 1
    assert filled[f"events/{topic}"][1] >= 1
    new = events(spark, folder, topic).where("`total (EUR)` = 2.5").collect()
    assert [row["id"] for row in new] == [10]
    assert counted(spark, folder, topic) == (11, 11)
    assert TableFolder(spark, folder).topics() == [topic, f"{topic}/späť"]


def test_a_replayed_micro_batch_is_not_written_again(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, rows(50), acks=1)
    run(spark, plan)
    checkpoint = Path(plan.shared_checkpoint)
    # As if the driver had died after Delta's commit and before Spark's.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    cluster.channel("n1").publish(topic, rows(7), acks=1)
    (filled,) = run(spark, plan).tables
    assert filled.rows == 7, "the other rows of the micro-batch are there, and not read again"
    assert counted(spark, folder, topic) == (57, 57)


def test_a_lost_checkpoint_loses_and_doubles_nothing(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, rows(30), acks=1)
    run(spark, plan)
    shutil.rmtree(plan.checkpoints)
    cluster.channel("n1").publish(topic, rows(10), acks=1)
    cluster.channel("n2").publish(topic, rows(5), acks=1)
    (filled,) = run(spark, plan).tables
    assert filled.rows == 15
    assert counted(spark, folder, topic) == (45, 45)


def test_a_lost_table_is_said(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(f"{topic}/eu", rows(3), acks=1)
    run(spark, plan)
    shutil.rmtree(f"{folder}/events")
    with pytest.raises(M4castError, match=rf"events/{topic}%2Feu is missing, but .* remove the checkpoint"):
        run(spark, plan)


def test_a_column_may_have_any_name_and_no_type_yet(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    row = {"id": 1, "http.status": 200, "http": {"status": "fine"}, "a`b": True}
    cluster.channel("n1").publish(topic, [{**row, "note": None}], acks=1)
    run(spark, plan)
    (found,) = events(spark, folder, topic).collect()
    assert {name: found.asDict(recursive=True)[name] for name in row} == row
    assert "note" not in found, "it comes when it has a type"
    cluster.channel("n1").publish(topic, [{**row, "note": "tea"}], acks=1)
    run(spark, plan)
    assert {each["note"] for each in events(spark, folder, topic).collect()} == {None, "tea"}


def test_raw_mode_goes_on_behind_rows_that_were_cut_off_in_the_middle_of_a_batch(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, rows(10), acks=1)
    run(spark, plan)
    raw = replace(plan, raw=True)
    with pytest.raises(
        M4castError, match=rf"events/{topic} has a checkpoint .* without --raw .* remove .*_checkpoints/direct/topics/"
    ):
        run(spark, raw)
    # As if --max-rows had ended a micro-batch there; then the way is changed as the error says.
    spark.sql(f"DELETE FROM {events_table(topic, StructType()).quoted(folder)} WHERE _sequence > 4")
    shutil.rmtree(plan.checkpoints)
    run(spark, raw)
    assert counted(spark, folder, topic) == (10, 10)
    with pytest.raises(M4castError, match=r"has a checkpoint .* with --raw .* remove .*_checkpoints/raw/events"):
        run(spark, plan)


def test_a_topic_that_fails_is_said_when_the_others_are_there(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(f"{topic}-a", rows(3), acks=1)
    cluster.channel("n1").publish(f"{topic}-b", rows(3), acks=1)
    spark.range(1).write.format("delta").save(f"{folder}/events/{topic}-a")
    with pytest.raises(FeedFailedError, match=rf"^events/{topic}-a: .* is a Delta table, but not the table events/"):
        run(spark, plan)
    assert counted(spark, folder, f"{topic}-b") == (3, 3)


def test_every_topic_has_its_rows_in_a_table_of_its_own(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, folder: str
) -> None:
    """Too long for a folder's name, spaces at the edges, what looks like a list, a tag or a variable."""
    names = [topic, f"{topic} ", f"{topic},b", f"{topic}'[/]`${{env:HOME}}", topic + "語" * 62]
    for number, name in enumerate(names):
        cluster.channel("n1").publish(name, [{"id": number}], acks=1)
    run(spark, replace(plan, topics=tuple(names)))
    assert TableFolder(spark, folder).topics() == sorted(names)
    for number, name in enumerate(names):
        assert [(row["_topic"], row["id"]) for row in events(spark, folder, name).collect()] == [(name, number)]
    assert not any(filled.rows for filled in run(spark, plan).tables), "by a pattern they are found at their places"


def test_the_command_tells_what_it_did(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    cluster.channel("n1").publish(topic, rows(4), acks=1)
    words = ["ingest", "--node", nodes, "--tables", folder, "--topic", topic, "--only", "events"]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.output
    (filled,) = json.loads(result.stdout)["tables"]
    assert (filled["table"], filled["rows"], filled["behind"]) == (f"events/{topic}", 4, 0)
    result = CliRunner().invoke(main, words)
    assert f"events/{topic}" in result.stdout and folder in result.stdout
    result = CliRunner().invoke(main, [*words[:-3], "no-such-topic", "--only", "events"])
    assert result.exit_code == 2
    assert "M4CAST_UNKNOWN_TOPIC" in result.stderr


@pytest.mark.parametrize(
    ("place", "fix"),
    [
        ("s3a://lake/tables", r"begin it with s3a://, and add --spark-conf .*packages=io\.delta:.*:hadoop-aws:"),
        ("s3://lake/tables", r"begin it with s3a://"),
        ("gs://lake/tables", r"add the jars for it, --spark-conf spark\.jars\.packages=io\.delta:"),
    ],
)
def test_storage_that_spark_has_no_jars_for_is_said(spark: SparkSession, nodes: str, place: str, fix: str) -> None:
    with pytest.raises(M4castError, match=rf"cannot use the location {place}/_checkpoints \(.+\): {fix}"):
        run(spark, Ingest({"nodes": nodes}, place, ("orders",)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no node is named"),
        (["--node", "h:1", "--topic", "a", "--topic-pattern", "b"], "give --topic or --topic-pattern, not both"),
        (["--node", "h:1", "--columns", "id long"], "--columns needs --raw or --replay"),
        (["--node", "h:1", "--where", "a"], "'a' is not TOPIC=CONDITION"),
        (["--node", "h:1", "--topic", "a", "--where", "b=id > 1"], "--where names topic 'b', which is not ingested"),
        (
            ["--node", "h:1", "--where", "b=id > 1", "--option", "where=id > 1"],
            "or --option where=... for all, not both",
        ),
        (["--node", "h:1", "--option", "x"], "'x' is not NAME=VALUE"),
        (["--node", "h:1", "--spark-conf", "=x"], "'=x' is not KEY=VALUE"),
    ],
)
def test_what_makes_no_sense_is_said(words: list[str], said: str, folder: str) -> None:
    result = CliRunner().invoke(main, ["ingest", "--tables", folder, *words])
    assert result.exit_code == 2
    assert said in result.output
