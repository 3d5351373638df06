"""Filters as bounds: streams, sequences and times; and a batch reader that reads less by them, also through Spark."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StructType

from m4cast.local_cluster import LocalCluster
from m4cast.spark_connector.filters import bounds_of
from m4cast.spark_connector.offsets import Frontier
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source import FilteredReader

A, B = "a" * 32, "b" * 32
END: Frontier = {"orders": {A: 11, B: 21}, "returns": {A: 6}}


def left(*filters: Filter) -> tuple[Frontier, Frontier]:
    return bounds_of(filters).narrowed({"orders": {A: 3}}, END)


def test_topics_and_origins_choose_streams() -> None:
    assert left(EqualTo(("_topic",), "returns")) == ({"returns": {A: 1}}, {"returns": {A: 6}})
    assert left(In(("_origin",), (B, "x")))[1] == {"orders": {B: 21}}
    assert left(StringStartsWith(("_topic",), "ord"), EqualTo(("_origin",), A))[1] == {"orders": {A: 11}}


def test_sequences_narrow_every_stream() -> None:
    assert left(GreaterThan(("_sequence",), 4), LessThanOrEqual(("_sequence",), 7)) == (
        {"orders": {A: 5, B: 5}, "returns": {A: 5}},
        {"orders": {A: 8, B: 8}, "returns": {A: 6}},
    )
    assert left(EqualTo(("_sequence",), 5))[1] == {"orders": {A: 6, B: 6}, "returns": {A: 6}}
    assert left(LessThan(("_sequence",), -5))[1] == {"orders": {A: 1, B: 1}, "returns": {A: 1}}


def test_what_is_not_understood_narrows_nothing() -> None:
    assert left(IsNotNull(("_topic",)), EqualTo(("price",), 3), EqualTo(("a", "_topic"), "x"))[1] == END
    assert bounds_of([GreaterThan(("_published_at",), datetime(2026, 1, 1))]).from_ms is None, "of no known zone"


def test_times_are_compared_by_the_millisecond() -> None:
    exact, between = (datetime(1970, 1, 1, 0, 0, 1, micros, tzinfo=UTC) for micros in (5_000, 5_001))
    column = ("_published_at",)
    found = [
        (type(each), each.value.microsecond, bounds_of([each]).from_ms, bounds_of([each]).before_ms)
        for value in (exact, between)
        for each in (
            GreaterThan(column, value),
            GreaterThanOrEqual(column, value),
            LessThan(column, value),
            LessThanOrEqual(column, value),
            EqualTo(column, value),
        )
    ]
    assert found == [
        (GreaterThan, 5_000, 1_006, None),
        (GreaterThanOrEqual, 5_000, 1_005, None),
        (LessThan, 5_000, None, 1_005),
        (LessThanOrEqual, 5_000, None, 1_006),
        (EqualTo, 5_000, 1_005, 1_006),
        (GreaterThan, 5_001, 1_006, None),
        (GreaterThanOrEqual, 5_001, 1_006, None),
        (LessThan, 5_001, None, 1_006),
        (LessThanOrEqual, 5_001, None, 1_006),
        (EqualTo, 5_001, 1_006, 1_006),
    ]


def test_a_batch_reads_only_what_can_pass(topic: str, nodes: str, cluster: LocalCluster) -> None:
    channel = cluster.channel("n1")
    for number in range(3):
        channel.publish(topic, [{"id": number}])
    times = channel.read(topic)["_published_at"].to_pylist()
    options = read_options(parse({"nodes": nodes, "topic": topic}), streaming=False)
    schema = StructType().add("id", LongType())

    def read(*filters: Filter) -> list[int]:
        reader = FilteredReader(options, schema, drop_others=True)
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark evaluates them again"
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        return [number for batch in batches for number in batch.column("id").to_pylist()]

    assert read() == [0, 1, 2]
    assert read(GreaterThan(("_sequence",), 1)) == [1, 2]
    assert read(EqualTo(("_topic",), "other")) == []
    later = [number for number in range(3) if times[number] > times[0]]
    assert read(GreaterThan(("_published_at",), times[0])) == later
    assert read(LessThan(("_published_at",), times[2])) == [n for n in range(3) if times[n] < times[2]]
    assert read(LessThanOrEqual(("_published_at",), times[2])) == [0, 1, 2]


def test_sparks_filters_narrow_the_plan_and_change_no_row(
    spark: SparkSession, topic: str, nodes: str, cluster: LocalCluster
) -> None:
    for number in range(4):
        cluster.channel("n1").publish(topic, [{"id": number}])
    options = {"nodes": nodes, "topic": topic, "maxRowsPerPartition": "1"}
    found = []
    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        some = spark.read.format("m4cast").options(**options).load().where("_sequence > 2 and id < 9")
        found.append((some.rdd.getNumPartitions(), [row.id for row in some.collect()]))
    assert found == [(2, [2, 3]), (4, [2, 3])]
