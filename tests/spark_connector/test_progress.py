"""The progress of queries as a Delta table: what is made of Spark's words, and that it is written."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from m4cast.cluster.local import LocalCluster
from m4cast.schemas.tables.query_progress import QUERY_PROGRESS
from m4cast.spark_connector.offsets import StreamName
from m4cast.spark_connector.progress import DeltaProgressListener, row_of
from tests.processes.clusters import until
from tests.spark_connector.test_stream import run, source

A, B = "a" * 32, "b" * 32


def told(*sources: dict[str, Any]) -> StreamingQueryProgress:
    """A progress report in Spark's form."""
    return StreamingQueryProgress.fromJson(
        {
            "id": str(UUID(int=1)),
            "runId": str(UUID(int=2)),
            "name": "orders",
            "timestamp": "2026-01-02T03:04:05.678Z",
            "batchId": 7,
            "batchDuration": 120,
            "durationMs": {"addBatch": 90, "triggerExecution": 120},
            "eventTime": {},
            "stateOperators": [],
            "sources": [
                {"description": "", "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {}, **each}
                for each in sources
            ],
            "sink": {"description": "", "numOutputRows": -1, "metrics": {}},
            "numInputRows": sum(each["numInputRows"] for each in sources),
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {},
        }
    )


def named(progress: StreamingQueryProgress, **more: Any) -> dict[str, Any]:
    row = row_of(progress, **more)
    return dict(zip([column.name for column in QUERY_PROGRESS.columns], row, strict=True))


def test_backlog_and_what_was_passed_over_follow_from_offsets() -> None:
    channel = {
        "startOffset": {"t": {A: 11}},
        "endOffset": {"t": {A: 21, B: 6}, "": {"t": {A: [12, 15]}}},
        "latestOffset": {"t": {A: 31, B: 6}},
        "numInputRows": 12,
    }
    files = {"startOffset": {"logOffset": 1}, "endOffset": {"logOffset": 2}, "latestOffset": None, "numInputRows": 5}
    sizes = {StreamName("t", A): 100.0, StreamName("t", B): 10.0}
    assert named(told(channel, files), row_bytes=sizes) == {
        "query_id": str(UUID(int=1)),
        "run_id": str(UUID(int=2)),
        "query_name": "orders",
        "batch_id": 7,
        "started_at": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
        "row_count": 17,
        "payload_bytes": 1_050,
        "rows_behind": 10,
        "rows_skipped": 3,
        "publish_ms": 90,
        "trigger_ms": 120,
        "rows_tested": None,
        "rows_filtered": None,
    }


def test_what_was_filtered_is_not_what_was_skipped() -> None:
    filtered = {"where": "id > 5", "whereLanguage": "sql"}
    channel = {
        "startOffset": {"t": {A: 11}, "": {"": filtered}},
        "endOffset": {"t": {A: 21, B: 6}, "": {"t": {A: [12, 15]}, "": filtered}},
        "latestOffset": {"t": {A: 31, B: 6}},
        "numInputRows": 2,
    }
    found = named(told(channel))
    counts = ("row_count", "rows_skipped", "rows_tested", "rows_filtered", "rows_behind")
    assert [found[name] for name in counts] == [2, 3, 12, 10, 10]


def test_queries_that_do_not_read_a_channel_have_no_backlog() -> None:
    found = named(told({"startOffset": None, "endOffset": 5, "latestOffset": 5, "numInputRows": 5}))
    assert (found["row_count"], found["rows_behind"], found["rows_skipped"], found["payload_bytes"]) == (
        5,
        None,
        None,
        None,
    )


def test_a_table_of_an_earlier_version_is_upgraded(spark: SparkSession, tmp_path: Path) -> None:
    before = replace(QUERY_PROGRESS, columns=QUERY_PROGRESS.columns[:11], version=1)
    spark.sql(before.create_statement(str(tmp_path)))
    listener = DeltaProgressListener(str(tmp_path), every_s=0)
    offsets = {"startOffset": {"t": {A: 1}}, "endOffset": {"t": {A: 3}}, "latestOffset": {"t": {A: 3}}}
    for _ in range(2):
        listener.onQueryProgress(QueryProgressEvent(told({**offsets, "numInputRows": 2})))
    rows = spark.read.format("delta").load(QUERY_PROGRESS.path(str(tmp_path))).collect()
    assert [(row.row_count, row.rows_tested) for row in rows] == [(2, None)] * 2


def test_every_trigger_is_a_row_of_the_table(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    cluster.channel("n1").publish(topic, [{"id": number} for number in range(150)], acks=1)
    listener = DeltaProgressListener(str(tmp_path / "tables"), nodes=nodes, every_s=3_600)
    spark.streams.addListener(listener)
    try:
        stream = source(spark, nodes, topic=topic, maxRowsPerTrigger="60")
        query = run(stream, "parquet", checkpoint, path=str(tmp_path / "table"))
        path = Path(QUERY_PROGRESS.path(str(tmp_path / "tables")))
        until((path / "_delta_log" / f"{1:020}.json").exists, "what was gathered is written at the end")
    finally:
        spark.streams.removeListener(listener)
    rows = spark.read.format("delta").load(str(path)).orderBy("batch_id").collect()
    assert {row.query_id for row in rows} == {query.id}
    assert [(row.row_count, row.rows_skipped, row.rows_behind) for row in rows] == [
        (60, None, 90),
        (60, 0, 30),
        (30, 0, 0),
    ]
    assert [row.payload_bytes is None for row in rows] == [True, False, False], "Spark does not tell where it began"
    assert all(0 < row.publish_ms <= row.trigger_ms for row in rows)
