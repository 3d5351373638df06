"""Batch writes and reads through Spark: every type comes back, all or nothing, and errors that say what to do."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from m4cast.cluster.local import LocalCluster

METADATA = ("_topic", "_origin", "_sequence", "_published_at")
NOWHERE = "127.0.0.1:1"

TYPES = {
    "bool": ("boolean", True),
    "byte": ("tinyint", -128),
    "short": ("smallint", 32_767),
    "int": ("int", -(2**31)),
    "long": ("bigint", 2**63 - 1),
    "float": ("float", 1.5),
    "double": ("double", -1e300),
    "decimal": ("decimal(38,10)", Decimal("12345678901234567890.0123456789")),
    "string": ("string", "żółw 🐢"),
    "binary": ("binary", bytearray(b"\x00\xff")),
    "date": ("date", date(1969, 12, 31)),
    "timestamp": ("timestamp", datetime(2026, 3, 29, 1, 30, 0, 123_456, UTC)),
    "ntz": ("timestamp_ntz", datetime(1, 1, 1, 0, 0, 0, 1)),
    "interval": ("interval day to second", timedelta(days=-3, microseconds=1)),
    "array": ("array<array<int>>", [[1, None], [], None]),
    "map": ("map<string,array<bigint>>", {"a": [1, None], "b": None}),
    "struct": ("struct<a:int,b:struct<c:string,d:array<date>>>", (1, ("x", [date(2026, 1, 1), None]))),
}


def write(df: DataFrame, nodes: str, **options: str) -> None:
    df.write.format("m4cast").mode("append").options(nodes=nodes, **options).save()


def read(spark: SparkSession, nodes: str, **options: str) -> DataFrame:
    return spark.read.format("m4cast").options(nodes=nodes, **options).load()


def refused(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


def test_every_type_comes_back_as_it_was(spark: SparkSession, nodes: str, topic: str) -> None:
    columns = ", ".join(f"`{name}` {type_}" for name, (type_, _) in TYPES.items())
    full = tuple(value for _, value in TYPES.values())
    empty = tuple({"string": "", "array": [], "map": {}, "binary": bytearray()}.get(name) for name in TYPES)
    rows = [(0, *full), (1, *empty), (2, *(None for _ in TYPES))]
    df = spark.createDataFrame(rows, f"id int, {columns}")
    write(df, nodes, topic=topic)
    assert_df_equality(read(spark, nodes, topic=topic).drop(*METADATA), df, ignore_nullable=True)


def test_rows_keep_the_order_of_partitions_and_say_where_they_are(spark: SparkSession, nodes: str, topic: str) -> None:
    write(spark.range(0, 1_000, 1, 3), nodes, topic=topic)
    back = read(spark, nodes, topic=topic, minPartitions="4")
    assert back.rdd.getNumPartitions() == 4
    rows = back.collect()
    assert [(row.id, row._sequence) for row in rows] == [(at, at + 1) for at in range(1_000)]
    assert {row._topic for row in rows} == {topic} and len({row._origin for row in rows}) == 1
    assert all(row._published_at is not None for row in rows)


def test_a_large_value_travels(spark: SparkSession, nodes: str, topic: str) -> None:
    text = F.expr("repeat('x', int(10000000 + 0 * id))")  # not a constant, which the plan would carry
    write(spark.range(2).select("id", text.alias("text")), nodes, topic=topic)
    back = read(spark, nodes, topic=topic).select("id", F.length("text").alias("length"))
    assert [tuple(row) for row in back.collect()] == [(0, 10_000_000), (1, 10_000_000)]


def test_rows_go_to_the_topic_that_they_name(spark: SparkSession, nodes: str, topic: str) -> None:
    df = spark.range(10).withColumn("_topic", F.concat(F.lit(f"{topic}-"), F.col("id") % 2))
    write(df, nodes)
    both = read(spark, nodes, topicPattern=f"{topic}-.*")
    assert sorted((row._topic, row.id) for row in both.collect()) == sorted(
        (f"{topic}-{number % 2}", number) for number in range(10)
    )
    odd = read(spark, nodes, topics=f"{topic}-1")
    assert sorted(row.id for row in odd.collect()) == [1, 3, 5, 7, 9]
    with pytest.raises(PySparkException, match="M4CAST_NO_TOPIC"):
        write(spark.range(1).withColumn("_topic", F.lit(None).cast("string")), nodes)


def test_a_write_that_fails_publishes_nothing(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    df = spark.range(0, 100, 1, 4).select(F.expr("if(id = 99, raise_error('no'), id)").cast("long").alias("id"))
    with pytest.raises(PySparkException):
        write(df, nodes, topic=topic)
    assert topic not in cluster.channel("n1").topics()


def test_reads_go_on_at_another_node_and_say_the_same(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    write(spark.range(100), nodes, topic=topic, acks="1")
    first, second = nodes.split(",")
    answers = [read(spark, each, topic=topic).collect() for each in (first, f"{NOWHERE},{second}")]
    assert answers[0] == answers[1] and len(answers[0]) == 100


def test_a_range_is_what_was_asked_for(spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster) -> None:
    (written,) = cluster.channel("n1").publish(topic, [{"id": number} for number in range(10)])
    start = f'{{"{topic}": {{"{written.origin}": 3}}}}'
    end = f'{{"{topic}": {{"{written.origin}": 8}}}}'
    ranged = read(spark, nodes, topic=topic, startingOffsets=start, endingOffsets=end)
    assert [row._sequence for row in ranged.collect()] == [3, 4, 5, 6, 7]
    for time in ("4000000000000", "2096-10-02T07:06:40Z", datetime(2096, 10, 2, 7, 6, 40, tzinfo=UTC)):
        reader = spark.read.format("m4cast").options(nodes=nodes, topic=topic)
        assert reader.option("startingTimestamp", time).load().count() == 0  # type: ignore[arg-type] # Spark takes it


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_of_one_use_do_not_narrow_another(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, enabled: str
) -> None:
    """Spark keeps one reader for all uses of a DataFrame, and with this setting would leave filters in it."""
    cluster.channel("n1").publish(topic, [{"id": number} for number in range(10)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        rows = read(spark, nodes, topic=topic)
        some = rows.where("_sequence > 6")
        frames = (rows, some, rows, some.union(rows), rows.union(some), rows)
        assert [frame.count() for frame in frames] == [10, 4, 10, 14, 14, 10]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_topics_of_any_name_are_published_and_read(spark: SparkSession, nodes: str, topic: str) -> None:
    names = [f"{topic}{end}" for end in ("", " ", ",b", "/../x", '"]', "'", "\\%s{}", ".ß🐢", "*")] + [f" {topic}"]
    rows = [(name, number) for number, name in enumerate(names)]
    write(spark.createDataFrame(rows, "_topic string, id long"), nodes)
    listed = read(spark, nodes, topics=json.dumps(names))
    assert sorted((row._topic, row.id) for row in listed.collect()) == sorted(rows)
    for name in (f"{topic} ", f"{topic},b"):
        write(spark.range(100, 101), nodes, topic=name)
        assert [row._topic for row in read(spark, nodes, topic=name).collect()] == [name, name]


def test_sql_reads_views_and_refuses_tables(spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}])
    using = f"USING m4cast OPTIONS (nodes '{nodes}', topic '{topic}')"
    name = topic.replace("-", "_")
    spark.sql(f"CREATE TEMPORARY VIEW {name}_view {using}")
    assert [row.id for row in spark.sql(f"SELECT id FROM {name}_view").collect()] == [1]
    with pytest.raises(PySparkException, match=r"M4CAST_NO_TABLES.*TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {name} {using}")
    spark.sql(f"CREATE TABLE {name}_columns (id BIGINT) {using}")
    try:
        for statement in (f"INSERT INTO {name}_columns VALUES (2)", f"SELECT * FROM {name}_columns"):
            with pytest.raises(PySparkException, match="m4cast is not a valid Spark SQL Data Source"):
                spark.sql(statement).collect()
        with pytest.raises(PySparkException):
            spark.sql(f"INSERT INTO {name}_view VALUES (2)")
    finally:
        spark.sql(f"DROP TABLE {name}_columns")
    assert cluster.channel("n1").read(topic)["id"].to_pylist() == [1]


def test_the_channels_columns_are_as_chosen(spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster) -> None:
    first, second = nodes.split(",")
    headers = F.expr("array(named_struct('key', 'h', 'value', cast('v' as binary)))")
    keyed = spark.range(1).select("id", F.lit("k").alias("_key"), headers.alias("_headers"))
    write(keyed, nodes, topic=topic, acks="1")
    write(spark.range(1, 2), nodes, topic=topic, acks="1")
    chosen = "_channel,_hops,_node,_delivered_at,_sequence,_headers,_key"
    origin = cluster.channel("n1").status()["node_id"]
    for door, name, hops in ((first, "n1", 0), (second, "n2", 1)):
        one, other = read(spark, door, topic=topic, metadata=chosen).collect()
        node = cluster.channel(name).status()["node_id"]
        assert list(one.asDict()) == ["id", *chosen.split(",")]
        assert (one._channel, one._hops, one._node, one._sequence) == ("m4cast/default", hops, node, 1)
        assert (one._key, one._headers) == (bytearray(b"k"), [("h", bytearray(b"v"))])
        assert (other._key, other._headers, other._sequence) == (None, None, 2)
    few = spark.read.format("m4cast").schema("_origin string, id long").options(nodes=nodes, topic=topic).load()
    assert [tuple(row) for row in few.collect()] == [(origin, 0), (origin, 1)]


def test_raw_batches_are_unopened_and_whole(spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 1}, {"id": 2}])
    channel.publish(topic, [{"id": 3}])
    rows = read(spark, nodes, topic=topic, read="raw").collect()
    assert [(row.first_sequence, row.last_sequence, row._topic) for row in rows] == [(1, 2, topic), (3, 3, topic)]
    opened = [pa.ipc.open_stream(bytes(row.payload)).read_next_batch().to_pydict() for row in rows]
    assert opened == [{"id": [1, 2]}, {"id": [3]}]
    delivered = [record["checksum"] for record in channel.deliveries().to_pylist() if record["topic"] == topic]
    assert [row.checksum for row in rows] == delivered


def test_columns_that_come_later_fail_or_are_dropped(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 1}])
    strict = read(spark, nodes, topic=topic)
    lenient = read(spark, nodes, topic=topic, onNewColumns="ignore")
    chosen = spark.read.format("m4cast").schema("id int, _sequence long").options(nodes=nodes, topic=topic).load()
    channel.publish(topic, [{"id": 2, "new": "x"}])
    with pytest.raises(PySparkException, match=r"M4CAST_NEW_COLUMNS.*new.*onNewColumns"):
        strict.collect()
    assert [row.id for row in lenient.collect()] == [1, 2]
    assert [tuple(row) for row in chosen.collect()] == [(1, 1), (2, 2)]
    assert [row.new for row in read(spark, nodes, topic=topic).collect()] == [None, "x"]


def test_rows_that_nobody_keeps_are_data_loss(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    channel = cluster.channel("n1")
    (gone,) = channel.publish(topic, [{"id": number} for number in range(10)], acks=1)
    for name in cluster.names():
        cluster.channel(name).delete_topic(topic)
    channel.publish(topic, [{"id": 10}], acks=1)
    start = f'{{"{topic}": {{"{gone.origin}": 4}}}}'
    with pytest.raises(PySparkException, match=rf"M4CAST_DATA_LOSS.*{topic}.*{gone.origin}: rows 4 to 10 "):
        read(spark, nodes, topic=topic, startingOffsets=start).collect()
    kept = read(spark, nodes, topic=topic, startingOffsets=start, failOnDataLoss="false")
    assert [(row.id, row._sequence) for row in kept.collect()] == [(10, 11)]


def test_rows_that_are_not_here_yet_are_waited_for(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    (written,) = cluster.channel("n1").publish(topic, pa.table({"id": [1]}))
    end = f'{{"{topic}": {{"{written.origin}": 3}}}}'
    with pytest.raises(PySparkException, match="M4CAST_BEHIND"):
        read(spark, nodes, topic=topic, endingOffsets=end, timeoutMs="300").collect()


def test_invalid_options_fail_when_the_frame_is_made(spark: SparkSession, nodes: str, topic: str) -> None:
    with pytest.raises(PySparkException, match=r"M4CAST_UNKNOWN_OPTION.*did you mean startingOffsets"):
        read(spark, nodes, topic=topic, startingOffset="earliest")
    with pytest.raises(PySparkException, match="M4CAST_CONFLICTING_OPTIONS"):
        read(spark, nodes, topic=topic, topics=topic)
    with pytest.raises(PySparkException, match=rf"M4CAST_UNKNOWN_TOPIC.*{topic}"):
        read(spark, nodes, topic=topic)
    with pytest.raises(PySparkException, match="M4CAST_UNREACHABLE"):
        read(spark, NOWHERE, topic=topic, timeoutMs="300")
    with pytest.raises(PySparkException, match=r"M4CAST_RESERVED_COLUMN.*_sequence"):
        write(spark.range(1).withColumn("_sequence", F.lit(1)), nodes, topic=topic)
    with pytest.raises(PySparkException, match="M4CAST_APPEND_ONLY"):
        spark.range(1).write.format("m4cast").mode("overwrite").options(nodes=nodes, topic=topic).save()


def test_a_write_waits_for_its_access_point_then_fails(spark: SparkSession, nodes: str, topic: str) -> None:
    with pytest.raises(PySparkException, match=rf"M4CAST_UNREACHABLE.*{NOWHERE}"):
        write(spark.range(1), f"{NOWHERE},{nodes}", topic=topic, timeoutMs="300")


def test_a_token_is_in_no_plan(spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}])
    df = read(spark, nodes, topic=topic, token="s3cret")
    assert [row.id for row in df.collect()] == [1]
    plans = df._jdf.queryExecution().toString()
    assert "m4cast" in plans and "s3cret" not in plans


def test_a_table_is_written_as_rows_and_read_as_it_stands(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    columns = "_owner string, _name string, _version struct<session: bigint, counter: bigint>, _removed boolean, n int"
    rows = [("ann", "a", (1, 1), False, 1), ("ann", "a", (1, 2), False, 2), ("ann", "b", (1, 3), False, 3)]
    write(spark.createDataFrame([*rows, ("ann", "b", (2, 1), True, None)], columns), nodes, topic=topic, acks="1")
    found = read(spark, nodes, topic=topic, read="table")
    assert [(row["_name"], row["n"], tuple(row["_version"])) for row in found.collect()] == [("a", 2, (1, 2))]
    asked = read(spark, nodes, topic=topic, scope="channel", where="n >= 2").select("n")
    assert sorted(row["n"] for row in asked.collect()) == [2]
