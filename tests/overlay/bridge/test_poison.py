"""One bad record, or row, among a thousand: the others arrive once and in order, and its letter says why and where."""

import io
import json
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from m4cast.overlay.bridge.codecs.avro_codec import fingerprint_of
from m4cast.overlay.client import Channel
from tests.overlay.bridge.kafka_side import KafkaSide, Sent, SmallRegistry
from tests.overlay.bridge.running import bridge_thread, bridge_threads
from tests.overlay.bridge.test_bridges import new_name, rows_of, wait_for_rows
from tests.overlay.bridge.test_codecs import EVENT_HEADERS, STRUCTURED, written
from tests.processes.clusters import until

COUNT, BAD = 1_000, 417
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
JSON_EVENT = (("content-type", b"application/cloudevents+json"),)
FAR = 300_000_000_000_000_000
"""A time in the year 11476, which Python has not."""


class OddName(str):
    """A name of a header that is not UTF-8, as producers in other languages may write it."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff\xfe" + super().encode(encoding, errors)


CODECS = ("raw", "json", "avro", "avro-single", "cloudevents", "cloudevents-structured")


def number_of(codec: str, row: dict[str, Any]) -> int:
    """The good record that a row was made of."""
    match codec:
        case "raw":
            return int(row["value"])
        case "cloudevents" | "cloudevents-structured":
            return int(row["subject"])
        case _:
            return int(row["n"])


def records_of(codec: str, registry: SmallRegistry, folder: Path) -> tuple[list[Sent], str, dict[str, Any]]:
    """A thousand good ones with a bad one among them, why that is bad, and settings."""
    match codec:
        case "json":
            good, bad = [Sent(b'{"n":%d,"x":%d}' % (at, 2**53 + 1)) for at in range(COUNT)], Sent(b'{"n":0.5,"x":0.5}')
            return [*good[:BAD], bad, *good[BAD:]], "not-json", {"columns": ["n int64", "x int64"]}
        case "avro":
            prefix = b"\x00" + registry.add(SCHEMA).to_bytes(4, "big")
            good = [Sent(written(SCHEMA, {"n": at}, prefix)) for at in range(COUNT)]
            return (
                [*good[:BAD], Sent(b"\x00\x00\x00\x00\xff\x00"), *good[BAD:]],
                "unknown-schema",
                {"registry": registry.url},
            )
        case "avro-single":
            (folder / "r.avsc").write_text(json.dumps(SCHEMA))
            prefix = b"\xc3\x01" + fingerprint_of(SCHEMA)
            good = [Sent(written(SCHEMA, {"n": at}, prefix)) for at in range(COUNT)]
            return [*good[:BAD], Sent(prefix), *good[BAD:]], "not-avro", {"avro_schemas": [str(folder / "r.avsc")]}
        case "cloudevents":
            plain = [header for header in EVENT_HEADERS if header[0] != "ce_subject"]
            good = [Sent(b"x", headers=(*plain, ("ce_subject", b"%d" % at))) for at in range(COUNT)]
            return [*good[:BAD], Sent(b"x", headers=(("ce_id", b"\xff"),)), *good[BAD:]], "not-an-event", {}
        case "cloudevents-structured":
            events = [json.dumps({**STRUCTURED, "subject": str(at)}).encode() for at in range(COUNT)]
            good = [Sent(each, headers=JSON_EVENT) for each in events]
            return [*good[:BAD], Sent(b"{", headers=JSON_EVENT), *good[BAD:]], "not-an-event", {}
        case _:
            good = [Sent(b"%d" % at) for at in range(COUNT)]
            return [*good[:BAD], Sent(b"odd", headers=((OddName("x"), b"y"),)), *good[BAD:]], "bad-header", {}


def test_one_bad_record_among_a_thousand(
    kafka: KafkaSide, channel: Channel, registry: SmallRegistry, tmp_path: Path
) -> None:
    cases = {codec: records_of(codec, registry, tmp_path) for codec in CODECS}
    topics = {codec: kafka.make_topic() for codec in CODECS}
    dead = {codec: f"dead-{uuid.uuid4().hex[:8]}" for codec in CODECS}
    all_settings = [
        {**cases[each][2], "codec": each, "name": new_name(), "topics": [topics[each]], "dead_letters": dead[each]}
        for each in CODECS
    ]
    for again in (False, True):
        for codec, (sent, _, _) in cases.items():
            kafka.send(topics[codec], sent[:1] if again else sent)
        with bridge_threads("kafka-in", channel, kafka.address, all_settings):
            for topic in topics.values():
                wait_for_rows(channel, topic, COUNT + again)
    for codec, (sent, reason, _) in cases.items():
        topic, rows = topics[codec], rows_of(channel, topics[codec]).to_pylist()
        assert [number_of(codec, row) for row in rows] == [*range(COUNT), 0], codec
        assert [row["_kafka"]["offset"] for row in rows] == [at for at in range(COUNT + 2) if at != BAD], codec
        (letter,) = rows_of(channel, dead[codec]).to_pylist()
        assert (letter["reason"], letter["source_topic"], letter["source_position"]) == (reason, topic, BAD), codec
        assert letter["value"] == sent[BAD].value and letter["detail"], codec
        if codec == "raw":
            assert letter["headers"] == [{"key": r"\xff\xfex", "value": b"y"}]


def test_topics_that_the_channel_does_not_take_stop_no_others(kafka: KafkaSide, channel: Channel) -> None:
    prefix = f"p-{uuid.uuid4().hex[:8]}"
    long, dead, other = (kafka.make_topic(name=f"{prefix}-{name}") for name in ("x" * 220, "dead", "other"))
    good = kafka.make_topic(name=f"{prefix}-good")
    channel.publish(other, [{"_kafka": 5}])  # a column that the bridge's own does not fit
    for topic in (long, dead, other):
        kafka.send(topic, [Sent(b'{"reason":1}')])
    settings = {"topics": [f"{prefix}.*"], "name": new_name(), "codec": "json", "dead_letters": dead}
    with bridge_thread("kafka-in", channel, kafka.address, **settings) as inward:
        until(lambda: inward.counted("stalled_partitions") == 2, "two of them wait")
        kafka.send(good, [Sent(b'{"n":1}'), Sent(b"poison"), Sent(b'{"n":2}')])
        assert [row["n"] for row in wait_for_rows(channel, good, 2)] == [1, 2]
        (letter,) = wait_for_rows(channel, dead, 1)
    assert letter["source_topic"] == good and rows_of(channel, other).num_rows == 1


# ---- the other way


def rows_with_a_bad_one(codec: str, bad: Any) -> pa.Table:
    numbers = list(range(COUNT))
    numbers.insert(BAD, -1)
    n = pa.array(numbers, pa.int64())
    match codec:
        case "raw":
            return pa.table({"value": [bad if each < 0 else b"%d" % each for each in numbers]})
        case "avro-single":
            return pa.table({"n": pa.array([bad if each < 0 else each for each in numbers], pa.int64())})
        case "avro" | "cloudevents":
            times = pa.array([bad if each < 0 else 0 for each in numbers], pa.int64())
            return pa.table({"n": n, "x": times.cast(pa.timestamp("us", "UTC"))})
        case _:
            return pa.table({"n": n, "x": [bad if each < 0 else 0.5 for each in numbers]})


def number_in(codec: str, value: bytes, registry: SmallRegistry) -> int:
    match codec:
        case "raw":
            return int(value)
        case "avro" | "avro-single":
            schema = json.loads(registry.schemas[int.from_bytes(value[1:5], "big") - 1]) if codec == "avro" else SCHEMA
            body = io.BytesIO(value[5 if codec == "avro" else 10 :])
            return int(fastavro.schemaless_reader(body, fastavro.parse_schema(schema), None)["n"])  # type: ignore[call-overload, index]  # a record is a dict
        case "cloudevents-structured":
            return int(json.loads(value)["data"]["n"])
        case _:
            return int(json.loads(value)["n"])


def test_one_bad_row_among_a_thousand(
    kafka: KafkaSide, channel: Channel, registry: SmallRegistry, tmp_path: Path
) -> None:
    (tmp_path / "r.avsc").write_text(json.dumps(SCHEMA))
    own: dict[str, dict[str, Any]] = {
        "avro": {"registry": registry.url},
        "avro-single": {"avro_schemas": [str(tmp_path / "r.avsc")]},
    }
    bad: dict[str, Any] = {
        "json": float("nan"),
        "cloudevents-structured": float("-inf"),
        "avro": FAR,
        "cloudevents": FAR,
    }
    cases = [
        Outward(rows_with_a_bad_one(codec, bad.get(codec)), kafka.make_topic(), {"codec": codec, **own.get(codec, {})})
        for codec in CODECS
    ]
    carry_out(kafka, channel, cases)
    for codec, case in zip(CODECS, cases, strict=True):
        found = [number_in(codec, each.value, registry) for each in kafka.read(case.back, COUNT + 1)]
        assert found == [*range(COUNT), 0], codec
        (letter,) = rows_of(channel, case.dead).to_pylist()
        place = letter["source_topic"], letter["source_position"]
        reason = "not-a-record" if codec == "raw" else "not-encodable"
        assert (letter["reason"], *place) == (reason, case.topic, BAD + 1), codec


class Outward:
    """Rows of a topic of their own, the Kafka topic that they go to, and settings of their bridge."""

    def __init__(self, rows: pa.Table, back: str, settings: dict[str, Any]) -> None:
        self.rows = rows
        self.back = back
        self.topic, self.dead = f"t-{uuid.uuid4().hex[:8]}", f"dead-{uuid.uuid4().hex[:8]}"
        routes = [f"{self.topic} -> {back}"]
        self.settings = {**settings, "name": new_name(), "topics": routes, "dead_letters": self.dead}


def carry_out(kafka: KafkaSide, channel: Channel, cases: list[Outward]) -> None:
    """All rows, and after a restart the first of them again."""
    for again in (False, True):
        for case in cases:
            channel.publish(case.topic, case.rows.slice(0, 1) if again else case.rows)
        with bridge_threads("kafka-out", channel, kafka.address, [case.settings for case in cases]):
            for case in cases:
                kafka.read(case.back, COUNT + again)
                wait_for_rows(channel, case.dead, 1)


def test_one_row_that_the_broker_refuses_among_a_thousand(kafka: KafkaSide, channel: Channel) -> None:
    numbers = list(range(COUNT))
    numbers.insert(BAD, -1)
    keyless = pa.table(
        {"value": [b"%d" % each for each in numbers], "_key": [None if each < 0 else b"k" for each in numbers]}
    )
    large = pa.table({"value": [b"x" * 5_000 if each < 0 else b"%d" % each for each in numbers]})
    compacted = Outward(keyless, kafka.make_topic(configs={"cleanup.policy": "compact"}), {})
    limited = Outward(large, kafka.make_topic(configs={"max.message.bytes": "2000"}), {})
    carry_out(kafka, channel, [compacted, limited])
    for case, reason, detail in (
        (compacted, "kafka-refused", "key"),
        (limited, "too-large", "Kafka refuses the record"),
    ):
        assert [int(each.value) for each in kafka.read(case.back, COUNT + 1)] == [*range(COUNT), 0], reason
        (letter,) = rows_of(channel, case.dead).to_pylist()
        assert (letter["reason"], letter["source_position"]) == (reason, BAD + 1) and detail in letter["detail"]
