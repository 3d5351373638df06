"""The option `where` through Spark: the rows that `.filter()` selects, whatever the session is set to, and offsets that
advance over the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from m4cast.schemas.tables.query_progress import QUERY_PROGRESS
from m4cast.spark_connector.progress import DeltaProgressListener
from tests.overlay.door.served import serving
from tests.processes.clusters import until
from tests.spark_connector.test_batch import read, write
from tests.spark_connector.test_stream import run, source

FILTERS = [
    "id = 5 OR id > 90.5",
    "id IN (1, 2, 300) AND NOT (price < 10)",
    "price > 1e1 AND price <> double('NaN')",
    "price >= double('NaN')",
    "total BETWEEN 1.25 AND 20",
    "what = 'tea' OR what LIKE 'c%'",
    "lower(what) = 'coffee' AND what <> 'coffee'",
    "what IS NULL",
    "what NOT IN ('tea', 'milk')",
    "what <=> 'milk'",
    "NOT (what <=> NULL)",
    "is_paid",
    "NOT is_paid OR raw = X'05'",
    "day = '2026-03-29' OR day < DATE '2026-01-10'",
    "at > '2026-03-29 01:30:00Z' AND at <= TIMESTAMP '2026-03-29 03:30:00+01:00'",
    "local >= '2026-03-29 02:30:00' OR local = '2026-01-05'",
    "place.city = 'Oslo' AND place.zip > 50",
    "place.city IS NULL",
    "TRUE",
    "FALSE",
]
SETTINGS: list[dict[str, str]] = [
    {},
    {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"},
    {
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.caseSensitive": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.python.filterPushdown.enabled": "true",
    },
]


@contextmanager
def set_to(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, str(former))


def every_type(spark: SparkSession) -> DataFrame:
    """A hundred rows; every seventh has nulls."""
    id_, hours = F.col("id"), F.make_dt_interval(hours=(F.col("id") % 7).cast("int"))
    columns = {
        "price": F.when(id_ % 11 == 0, F.lit(float("nan"))).otherwise(id_ / 4),
        "total": (id_ / 8).cast("decimal(12,3)"),
        "what": F.element_at(
            F.array(*map(F.lit, ("tea", "coffee", "Coffee", "cocoa", "milk"))), (id_ % 5 + 1).cast("int")
        ),
        "raw": F.unhex(F.lpad(F.hex(id_), 2, "0")),
        "is_paid": id_ % 2 == 0,
        "day": F.date_add(F.lit("2026-01-01").cast("date"), id_.cast("int")),
        "at": F.lit("2026-03-29T00:00:00Z").cast("timestamp") + hours,
        "local": F.lit("2026-03-29T00:00:00").cast("timestamp_ntz") + hours,
        "place": F.struct(F.when(id_ % 3 == 0, "Oslo").alias("city"), id_.cast("int").alias("zip")),
    }
    made = [F.when(id_ % 7 != 0, column).alias(name) for name, column in columns.items()]
    return spark.range(0, 100, 1, 2).select("id", *made)


def found(rows: DataFrame) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in rows.select("_origin", "_sequence", "id", F.hash("what", "at", "place")).collect()}


@pytest.mark.parametrize("settings", SETTINGS, ids=["as it is", "west, not ANSI", "east, other defaults"])
def test_the_rows_are_those_of_filter_under_any_settings(
    spark: SparkSession, nodes: str, topic: str, settings: dict[str, str]
) -> None:
    write(every_type(spark), nodes, topic=topic)
    with set_to(spark, settings):
        everything = read(spark, nodes, topic=topic).localCheckpoint()  # a cached one loses rows with NaN
        for where in FILTERS:
            assert found(read(spark, nodes, topic=topic, where=where)) == found(everything.filter(where)), where


def test_columns_that_are_not_read_can_be_tested(spark: SparkSession, nodes: str, topic: str) -> None:
    write(every_type(spark), nodes, topic=topic)
    expected = {number for number in range(100) if number % 7 and number % 5 == 0}
    chosen = spark.read.schema("id long").format("m4cast").options(nodes=nodes, topic=topic, where="what = 'tea'")
    assert {row.id for row in chosen.load().collect()} == expected
    pruned = read(spark, nodes, topic=topic, where="what = 'tea'", metadata="_sequence")
    assert pruned.count() == len(expected)
    assert {row._sequence - 1 for row in pruned.select("_sequence").collect()} == expected
    in_json = read(spark, nodes, topic=topic, where='{"exact": {"what": "tea"}}', whereLanguage="json")
    assert in_json.filter("id < 50").count() == len([number for number in expected if number < 50])


def test_every_column_of_the_channel_comes_with_the_rows(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    names = "_channel,_topic,_origin,_sequence,_published_at,_delivered_at,_hops,_node"
    for first in (0, 10, 20):
        cluster.channel("n1").publish(topic, [{"id": number} for number in range(first, first + 10)], acks=1)
    whole = read(spark, nodes, topic=topic, metadata=names).filter("id IN (3, 17, 18, 29)").collect()
    assert read(spark, nodes, topic=topic, metadata=names, where="id IN (3, 17, 18, 29)").collect() == whole


def test_mistakes_are_reported_when_the_frame_is_made(spark: SparkSession, nodes: str, topic: str) -> None:
    write(spark.range(3), nodes, topic=topic)
    for where, problem in (
        ("id > 5 AND", r"M4CAST_BAD_OPTION.*at character "),
        ("ID > 5", r"M4CAST_BAD_OPTION.*names ID, which does not exist.*did you mean id\?"),
        ("id = 'five'", r"M4CAST_BAD_OPTION.*compares id .bigint. with 'five'"),
    ):
        with pytest.raises(PySparkException, match=problem):
            read(spark, nodes, topic=topic, where=where)
    chosen = spark.read.schema("id long").format("m4cast").options(nodes=nodes, topic=topic, where="id = 'five'").load()
    with pytest.raises(PySparkException, match=r"compares id .bigint. with 'five'"):
        chosen.collect()


def test_a_stream_advances_over_rows_that_do_not_match(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    table, tables = str(tmp_path / "table"), str(tmp_path / "tables")
    channel = cluster.channel("n1")
    (written,) = channel.publish(topic, [{"id": number, "kind": number % 100} for number in range(300)], acks=1)
    listener = DeltaProgressListener(tables, every_s=3_600)
    spark.streams.addListener(listener)
    try:
        rows = source(spark, nodes, topic=topic, where="kind = 7", maxRowsPerTrigger="90")
        query = run(rows, "parquet", checkpoint, path=table)
        path = Path(QUERY_PROGRESS.path(tables))
        until((path / "_delta_log" / f"{1:020}.json").exists, "what was gathered is written at the end")
    finally:
        spark.streams.removeListener(listener)
    assert [progress.numInputRows for progress in query.recentProgress] == [1, 1, 1, 0]
    assert f'"{written.origin}": 301' in query.lastProgress.sources[0].endOffset  # type: ignore[union-attr]
    told = spark.read.format("delta").load(str(path)).orderBy("batch_id")
    columns = ("row_count", "rows_tested", "rows_filtered", "rows_skipped", "rows_behind")
    assert [tuple(row) for row in told.select(*columns).collect()] == [
        (1, None, None, None, 210),
        (1, 90, 89, 0, 120),
        (1, 90, 89, 0, 30),
        (0, 30, 30, 0, 0),
    ]
    channel.publish(topic, [{"id": 300, "kind": 7}], acks=1)
    run(source(spark, nodes, topic=topic, where="kind = 7"), "parquet", checkpoint, path=table)
    assert sorted(row.id for row in spark.read.parquet(table).collect()) == [7, 107, 207, 300]


def test_another_filter_applies_to_rows_that_were_not_planned_yet(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": number} for number in range(10)], acks=1)
    batches: dict[int, list[int]] = {}

    def gather(batch: DataFrame, number: int) -> None:
        batches[number] = sorted(row.id for row in batch.collect())

    def run_with(where: str | None) -> None:
        options = {} if where is None else {"where": where}
        rows = source(spark, nodes, topic=topic, **options)
        stream = rows.writeStream.foreachBatch(gather).option("checkpointLocation", str(checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(120)

    run_with("id < 3")
    assert batches == {0: [0, 1, 2]}
    # As if the driver had died before Spark's commit: the micro-batch is replayed as it was planned.
    for log in (checkpoint / "commits" / "0", checkpoint / "commits" / ".0.crc"):
        log.unlink(missing_ok=True)
    batches.clear()
    channel.publish(topic, [{"id": number} for number in range(10, 20)], acks=1)
    run_with("id > 15")
    assert batches == {0: [0, 1, 2], 1: [16, 17, 18, 19]}
    run_with("id = 0")
    assert sorted(batches) == [0, 1], "rows that were read are not read again"
    channel.publish(topic, [{"id": 20}], acks=1)
    run_with(None)
    assert batches[2] == [20]


def test_a_token_with_a_filter_reads_such_rows_alone(spark: SparkSession, checkpoint: Path, tmp_path: Path) -> None:
    rights = {"all": 'publish = ["*"]', "some": "where = { orders = \"country = 'PL'\" }"}
    written = [f'[[token]]\nname = "{name}"\nsecret = "the secret of {name}"\nread = ["*"]\n' for name in rights]
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("\n".join(token + right for token, right in zip(written, rights.values(), strict=True)))
    with serving(tmp_path / "node", 1, None, f"file:{tokens}") as served:
        nodes, table = served.addresses[0], str(tmp_path / "table")
        channel = Channel(served.addresses, token="the secret of all")
        channel.publish(
            "orders", [{"id": number, "country": "PL" if number % 3 == 0 else "DE"} for number in range(90)]
        )
        some = {"topic": "orders", "token": "the secret of some"}
        polish = set(range(0, 90, 3))
        assert {row.id for row in read(spark, nodes, **some).collect()} == polish
        assert {row.id for row in read(spark, nodes, where="id < 30", **some).collect()} == set(range(0, 30, 3))
        assert read(spark, nodes, where="country = 'DE'", **some).count() == 0
        query = run(
            source(spark, nodes, where="id >= 30", maxRowsPerTrigger="50", **some), "parquet", checkpoint, path=table
        )
        assert '": 91' in query.lastProgress.sources[0].endOffset  # type: ignore[union-attr]
        assert {row.id for row in spark.read.parquet(table).collect()} == set(range(30, 90, 3))
