"""Both directions with a real broker and a real node: what goes in comes out, and what cannot is told."""

import io
import json
import logging
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from m4cast.overlay.bridge.codecs.avro_codec import fingerprint_of
from m4cast.overlay.bridge.errors import DataLossError, FencedError
from m4cast.overlay.bridge.records import ROW_HEADER
from m4cast.overlay.client import Channel
from tests.overlay.bridge.kafka_side import KafkaSide, Sent, SmallRegistry
from tests.overlay.bridge.running import BridgeThread, bridge_thread
from tests.overlay.bridge.test_codecs import AN_ORDER, EVENT_HEADERS, NULL_ORDER, ORDER, STRUCTURED, written
from tests.processes.clusters import until


def new_name() -> str:
    return f"b-{uuid.uuid4().hex[:8]}"


def rows_of(channel: Channel, topic: str) -> pa.Table:
    return channel.read(topic) if topic in channel.topics() else pa.table({})


def wait_for_rows(channel: Channel, topic: str, count: int) -> list[dict[str, Any]]:
    until(lambda: rows_of(channel, topic).num_rows >= count, f"{count} rows of {topic}")
    rows: list[dict[str, Any]] = rows_of(channel, topic).to_pylist(maps_as_pydicts="strict")
    assert len(rows) == count
    return rows


# ---- there and back


def avro(registry: SmallRegistry) -> tuple[list[Sent], dict[str, Any]]:
    prefix = b"\x00" + registry.add(ORDER).to_bytes(4, "big")
    return [Sent(written(ORDER, each, prefix)) for each in (AN_ORDER, NULL_ORDER)], {"registry": registry.url}


def single(schema_file: Any) -> tuple[list[Sent], dict[str, Any]]:
    schema_file.write_text(json.dumps(ORDER))
    prefix = b"\xc3\x01" + fingerprint_of(ORDER)
    return [Sent(written(ORDER, AN_ORDER, prefix))], {"avro_schemas": [str(schema_file)]}


def given_records(codec: str, registry: SmallRegistry, schema_file: Any) -> tuple[list[Sent], dict[str, Any]]:
    match codec:
        case "raw":
            return [Sent(b"\x00\xff"), Sent(b""), Sent(None, b"gone")], {}
        case "json":
            return [Sent(b'{"id":1,"who":{"name":"Zo\xc3\xab"}}'), Sent(b'{"id":2,"at":"2024-01-01"}')], {}
        case "avro":
            return avro(registry)
        case "avro-single":
            return single(schema_file)
        case "cloudevents":
            return [Sent(b'{"id":1}', headers=EVENT_HEADERS)], {}
        case _:
            structured = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)
            return [Sent(json.dumps(STRUCTURED).encode(), headers=structured)], {}


def comparable(codec: str, value: bytes | None, registry: SmallRegistry) -> object:
    if value is None or codec in ("raw", "cloudevents", "avro-single"):
        return value
    if codec == "avro":
        schema = fastavro.parse_schema(json.loads(registry.schemas[int.from_bytes(value[1:5], "big") - 1]))
        read = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        assert isinstance(read, dict)
        return {**read, "uuid": str(read["uuid"])}  # a channel has UUIDs as text
    return json.loads(value)


@pytest.mark.parametrize("codec", ["raw", "json", "avro", "avro-single", "cloudevents", "cloudevents-structured"])
def test_records_come_back_with_equal_values_keys_headers_and_timestamps(
    codec: str, kafka: KafkaSide, channel: Channel, registry: SmallRegistry, tmp_path: Any
) -> None:
    records, settings = given_records(codec, registry, tmp_path / "order.avsc")
    sent = [
        each._replace(
            key=each.key or (None if at else b"\x00key"),
            headers=(*each.headers, ("trace", b"\x01"), ("trace", b"")) if at != 1 else each.headers,
            timestamp_ms=1_700_000_000_000 + at,
        )
        for at, each in enumerate(records)
    ]
    source, back = kafka.make_topic(), kafka.make_topic()
    kafka.send(source, sent)
    settings |= {"codec": codec, "name": new_name()}
    with bridge_thread("kafka-in", channel, kafka.address, topics=[source], **settings):
        rows = wait_for_rows(channel, source, len(sent))
    assert [row["_kafka"]["offset"] for row in rows] == list(range(len(sent)))
    with bridge_thread("kafka-out", channel, kafka.address, topics=[f"{source} -> {back}"], **settings):
        found = kafka.read(back, len(sent))
    for given, got in zip(sent, found, strict=True):
        assert comparable(codec, got.value, registry) == comparable(codec, given.value, registry)
        assert (got.key, got.timestamp) == (given.key, given.timestamp_ms)
        assert sorted(each for each in got.headers if each[0] != ROW_HEADER) == sorted(given.headers)
        assert dict(got.headers)[ROW_HEADER].endswith(source.encode())


def test_rows_do_not_go_back_where_they_came_from(kafka: KafkaSide, channel: Channel) -> None:
    topic = kafka.make_topic()
    kafka.send(topic, [Sent(b"from kafka")])
    with bridge_thread("kafka-in", channel, kafka.address, topics=[topic], name=new_name()) as inward:
        wait_for_rows(channel, topic, 1)
        channel.publish(topic, [{"value": b"from the channel"}])
        with bridge_thread("kafka-out", channel, kafka.address, topics=[topic], name=new_name()) as outward:
            assert [each.value for each in kafka.read(topic, 2)] == [b"from kafka", b"from the channel"]
            until(lambda: inward.counted("echoes_total") == 1, "the record of the channel is known as its own")
            assert outward.counted("echoes_total") == 1
            kafka.send(topic, [Sent(b"more")])
            assert [row["value"] for row in wait_for_rows(channel, topic, 3)][2] == b"more"


# ---- what cannot be carried


def test_poison_becomes_dead_letters_with_reason_and_offset(
    kafka: KafkaSide, channel: Channel, registry: SmallRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    number = registry.add({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
    prefix = b"\x00" + number.to_bytes(4, "big")
    topic, dead = kafka.make_topic(), f"dead-{uuid.uuid4().hex[:8]}"
    values = [prefix + b"\x02", b"poison", b"\x00\x00\x00\x00\x63x", prefix, prefix + b"\x04"]
    kafka.send(topic, [Sent(value, b"k", (("h", b"v"),)) for value in values])
    settings = {"codec": "avro", "registry": registry.url, "dead_letters": dead, "name": new_name()}
    with (
        caplog.at_level(logging.INFO, "m4cast.bridge"),
        bridge_thread("kafka-in", channel, kafka.address, topics=[topic], **settings),
    ):
        assert [row["a"] for row in wait_for_rows(channel, topic, 2)] == [1, 2]
        letters = wait_for_rows(channel, dead, 3)
    found = [(each["reason"], each["source_position"], each["value"], each["key"]) for each in letters]
    assert found == [
        ("not-avro", 1, b"poison", b"k"),
        ("unknown-schema", 2, values[2], b"k"),
        ("not-avro", 3, prefix, b"k"),
    ]
    assert {(each["source_topic"], each["source_stream"], each["target_topic"]) for each in letters} == {
        (topic, "0", topic)
    }
    assert letters[0]["headers"] == [{"key": "h", "value": b"v"}]
    said = [each.message for each in caplog.records if "became dead letters" in each.message]
    assert len(said) == 1, "one line, not one for each record"


def test_rows_that_are_no_records_go_to_the_dead_letters(kafka: KafkaSide, channel: Channel) -> None:
    topic, back, dead = f"t-{uuid.uuid4().hex[:8]}", kafka.make_topic(), f"dead-{uuid.uuid4().hex[:8]}"
    channel.publish(topic, [{"value": b"x" * (2 << 20)}, {"value": None}, {"value": b"good"}])
    with bridge_thread(
        "kafka-out", channel, kafka.address, topics=[f"{topic} -> {back}"], dead_letters=dead, name=new_name()
    ):
        assert [each.value for each in kafka.read(back, 1)] == [b"good"]
        letters = wait_for_rows(channel, dead, 2)
    assert [(each["reason"], each["source"], each["source_position"]) for each in letters] == [
        ("too-large", "channel", 1),
        ("not-a-record", "channel", 2),
    ]


def test_a_registry_that_is_down_is_waited_for(
    kafka: KafkaSide, channel: Channel, registry: SmallRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    records, settings = avro(registry)
    registry.is_up = False
    topic = kafka.make_topic()
    kafka.send(topic, records)
    with (
        caplog.at_level(logging.INFO, "m4cast.bridge"),
        bridge_thread(
            "kafka-in", channel, kafka.address, topics=[topic], codec="avro", name=new_name(), **settings
        ) as inward,
    ):
        until(lambda: inward.counted("trouble") == 1, "the bridge waits for the registry")
        registry.is_up = True
        wait_for_rows(channel, topic, 2)
        assert inward.counted("dead_letters_total") == 0
    said = [each.message for each in caplog.records if "schema registry" in each.message]
    assert len(said) == 2 and "503" in said[0] and "recovered" in said[1]


# ---- where it begins


def test_new_partitions_and_topics_are_carried_and_latest_means_from_now(kafka: KafkaSide, channel: Channel) -> None:
    prefix = f"p-{uuid.uuid4().hex[:8]}"
    first = kafka.make_topic(2, name=f"{prefix}-1")
    kafka.send(first, [Sent(b"before"), Sent(b"before, too", partition=1)])
    settings = {"topics": [f"{prefix}-(.+) -> {prefix}.all"], "start": "latest", "name": new_name()}
    with bridge_thread("kafka-in", channel, kafka.address, **settings):
        keys = [f"kafka-in/{settings['name']}/{first}/{partition}" for partition in (0, 1)]
        until(lambda: all(channel.position(key) for key in keys), "the beginnings are kept")
    kafka.send(first, [Sent(b"while away")])
    with kafka.admin() as admin:
        admin.create_partitions({first: 3})
    kafka.send(first, [Sent(b"new partition", partition=2)])
    with bridge_thread("kafka-in", channel, kafka.address, **settings):
        wait_for_rows(channel, f"{prefix}.all", 2)
        second = kafka.make_topic(name=f"{prefix}-2")
        kafka.send(second, [Sent(b"new topic")])
        found = {row["value"] for row in wait_for_rows(channel, f"{prefix}.all", 3)}
    assert found == {b"while away", b"new partition", b"new topic"}


def test_a_kafka_out_from_now_on_carries_what_came_while_it_was_away(kafka: KafkaSide, channel: Channel) -> None:
    """The same holds if it had carried nothing when it ended."""
    topic, back = f"t-{uuid.uuid4().hex[:8]}", kafka.make_topic()
    settings = {"topics": [f"{topic} -> {back}"], "start": "latest", "name": new_name()}
    channel.publish(topic, [{"value": b"before"}])
    with bridge_thread("kafka-out", channel, kafka.address, **settings):
        readers = f"kafka-out/{settings['name']}"
        until(lambda: any(each["reader"] == readers for each in channel.readers()), "it has begun")
    channel.publish(topic, [{"value": b"%d" % at} for at in range(10)])
    with bridge_thread("kafka-out", channel, kafka.address, **settings):
        assert [each.value for each in kafka.read(back, 10)] == [b"%d" % at for at in range(10)]


def remake(kafka: KafkaSide, topic: str) -> None:
    with kafka.admin() as admin:
        admin.delete_topics([topic])
        until(lambda: topic not in admin.list_topics(), "the topic is gone")
    kafka.make_topic(name=topic)


def test_a_topic_made_again_is_a_loss_that_stops_the_bridge_unless_it_may_go_on(
    kafka: KafkaSide, channel: Channel
) -> None:
    topic = kafka.make_topic()
    kafka.send(topic, [Sent(b"old 1"), Sent(b"old 2")])
    name = new_name()
    with bridge_thread("kafka-in", channel, kafka.address, topics=[topic], name=name):
        wait_for_rows(channel, topic, 2)
    remake(kafka, topic)
    kafka.send(topic, [Sent(b"new 1"), Sent(b"new 2"), Sent(b"new 3")])
    stopped = BridgeThread("kafka-in", channel, kafka.address, {"topics": [topic], "name": name})
    error = stopped.wait()
    assert isinstance(error, DataLossError) and "created again" in str(error) and topic in str(error)
    with bridge_thread(
        "kafka-in", channel, kafka.address, topics=[topic], name=name, fail_on_data_loss=False
    ) as inward:
        rows = wait_for_rows(channel, topic, 5)
        assert inward.counted("losses_total") == 1
    assert [row["value"] for row in rows] == [b"old 1", b"old 2", b"new 1", b"new 2", b"new 3"]


def test_records_that_kafka_removed_are_a_loss(kafka: KafkaSide, channel: Channel) -> None:
    topic, name = kafka.make_topic(), new_name()
    kafka.send(topic, [Sent(b"%d" % at) for at in range(3)])
    with bridge_thread("kafka-in", channel, kafka.address, topics=[topic], name=name):
        wait_for_rows(channel, topic, 3)
    kafka.send(topic, [Sent(b"%d" % at) for at in range(3, 8)])
    kafka.delete_records(topic, 6)
    stopped = BridgeThread("kafka-in", channel, kafka.address, {"topics": [topic], "name": name})
    assert "offsets 3 to 5" in str(stopped.wait())
    settings = {"topics": [topic], "name": name, "fail_on_data_loss": False}
    with bridge_thread("kafka-in", channel, kafka.address, **settings):
        assert [row["value"] for row in wait_for_rows(channel, topic, 5)][3:] == [b"6", b"7"]


def test_rows_that_the_nodes_removed_are_a_loss(kafka: KafkaSide, channel: Channel) -> None:
    topic, back = f"t-{uuid.uuid4().hex[:8]}", kafka.make_topic()
    settings = {"topics": [f"{topic} -> {back}"], "name": new_name()}
    channel.publish(topic, [{"value": b"1"}])
    with bridge_thread("kafka-out", channel, kafka.address, **settings):
        kafka.read(back, 1)
    channel.publish(topic, [{"value": b"2"}])
    channel.delete_topic(topic)
    channel.publish(topic, [{"value": b"3"}])
    impatient = channel.at(channel.nodes[0], timeout_s=2)
    stopped = BridgeThread("kafka-out", impatient, kafka.address, settings)
    assert isinstance(stopped.wait(), DataLossError)
    with bridge_thread("kafka-out", channel, kafka.address, fail_on_data_loss=False, **settings) as outward:
        assert [each.value for each in kafka.read(back, 2)] == [b"1", b"3"]
        assert outward.counted("losses_total") == 1


# ---- twins


def test_two_bridges_of_one_name_that_race_publish_each_record_once(kafka: KafkaSide, channel: Channel) -> None:
    """They are in groups of their own, so that Kafka does not separate them: the later one stops."""
    topic, name, count = kafka.make_topic(), new_name(), 5_000
    kafka.send(topic, [Sent(b"%d" % at) for at in range(count)])
    settings = {"topics": [topic], "name": name, "batch_bytes": 4096, "linger_ms": 0}
    twins = [BridgeThread("kafka-in", channel, kafka.address, {**settings, "group": f"{name}-{at}"}) for at in (1, 2)]
    try:
        until(lambda: any(each.error for each in twins) or rows_of(channel, topic).num_rows == count, "a winner")
    finally:
        for twin in twins:
            twin.close()
    assert all(twin.error is None or isinstance(twin.error, FencedError) for twin in twins)
    with bridge_thread("kafka-in", channel, kafka.address, topics=[topic], name=name):
        rows = wait_for_rows(channel, topic, count)
    assert [int(row["value"]) for row in rows] == list(range(count))


def test_of_two_kafka_outs_of_one_name_one_stops_and_nothing_is_sent_twice(kafka: KafkaSide, channel: Channel) -> None:
    topic, back, count = f"t-{uuid.uuid4().hex[:8]}", kafka.make_topic(), 1
    settings = {"topics": [f"{topic} -> {back}"], "name": new_name()}
    channel.publish(topic, [{"value": b"1"}])
    twins = [BridgeThread("kafka-out", channel, kafka.address, settings)]
    try:
        kafka.read(back, 1)
        twins.append(BridgeThread("kafka-out", channel, kafka.address, settings))
        while all(twin.error is None for twin in twins):
            count += 1
            assert count < 500, "neither stops"
            channel.publish(topic, [{"value": b"%d" % count}])
            twins[0].stop.wait(0.05)
        found = [int(each.value) for each in kafka.read(back, count)]
    finally:
        for twin in twins:
            twin.close()
    assert sorted(type(twin.error) is FencedError for twin in twins) == [False, True]
    assert found == list(range(1, count + 1))
