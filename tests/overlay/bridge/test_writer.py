"""The writer without Kafka: what becomes of batches with records that the channel does not take."""

import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.bridge.codecs.avro_codec import AvroCodec, fingerprint_of
from m4cast.overlay.bridge.codecs.codec import Codec
from m4cast.overlay.bridge.codecs.json_codec import JsonCodec
from m4cast.overlay.bridge.codecs.raw_codec import RawCodec
from m4cast.overlay.bridge.kafka_in.positions import Position
from m4cast.overlay.bridge.kafka_in.writer import RecordBatch, RecordWriter
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import LETTER_BYTES_MAX, OddName
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.bridge.trouble import Troubles
from m4cast.overlay.client import Channel
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.errors import RefusedError
from tests.overlay.bridge.test_codecs import written
from tests.overlay.bridge.test_records import KafkaRecord

COLUMNS_MAX = 15


class SmallDoor:
    """A channel as the writer uses it: one key, topics, and limits, small ones."""

    nodes = ("door:1",)

    def __init__(self, *, row_bytes_max: int = 100, commit_bytes_max: int = 1_000) -> None:
        self._row_bytes_max = row_bytes_max
        self._commit_bytes_max = commit_bytes_max
        self._staged: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        self.position: str | None = None
        self.columns: pa.Schema | None = None
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def schema(self, topic: str) -> pa.Schema:
        if self.columns is None:
            raise RefusedError("unknown-topic", topic)
        return self.columns

    def frontier(self, topic: str) -> dict[str, dict[str, int]]:
        return {topic: {"o": 1}}

    def publish(self, topic: str, rows: pa.Table, *, key: str, expect: str | None, next: str, acks: int | None) -> None:
        if rows.nbytes > self._commit_bytes_max:
            raise RefusedError("too-large", f"{rows.nbytes} bytes in one commit")
        self.commit(self.stage(topic, rows), key=key, expect=expect, next=next, acks=acks)

    def stage(self, topic: str, rows: pa.Table) -> list[str]:
        if len(rows.schema) > COLUMNS_MAX:
            raise RefusedError("bad-schema", f"{len(rows.schema)} columns")
        try:
            payload.canonical_schema(rows.schema)
        except Refusal as refusal:
            raise RefusedError(refusal.code, refusal.detail) from None
        for at in range(rows.num_rows):
            if sum(len(each) for each in rows.slice(at, 1).to_pylist()[0].values() if isinstance(each, bytes)) > (
                self._row_bytes_max
            ):
                raise RefusedError("too-large", "a row")
        stage = uuid.uuid4().hex
        self._staged[stage] = (topic, rows.to_pylist())
        return [stage]

    def commit(self, ids: list[str], *, key: str, expect: str | None, next: str, acks: int | None) -> None:
        assert expect == self.position
        self.position = next
        for each in ids:
            topic, rows = self._staged[each]
            self.rows.setdefault(topic, []).extend(rows)


def write(channel: Any, codec: Codec, records: Sequence[Any], target: str = "T", dead: str = "dead") -> BridgeMetrics:
    stop, metrics = threading.Event(), BridgeMetrics("kafka-in", "b")
    settings = KafkaInSettings(name="b", brokers=("b:1",), topics=("t",), dead_letters=dead)
    troubles = Troubles("b:1", "the node", metrics, stop)
    writer = RecordWriter(channel, codec, settings, "c", metrics, troubles)
    end = Position(records[-1].offset + 1, "id", process="p")
    writer.write(RecordBatch(records=records, target=target, key=f"kafka-in/{target}/t/0", expect=None, next=str(end)))
    return metrics


def counted(metrics: BridgeMetrics, name: str) -> float:
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"m4cast_bridge_{name}"
    )


def raw(*sizes: int) -> list[KafkaRecord]:
    return [KafkaRecord(bytes(size), None, offset=at) for at, size in enumerate(sizes)]


def test_a_batch_that_is_too_large_is_written_by_halves_in_order() -> None:
    door, records = SmallDoor(), raw(*[50] * 40)
    metrics = write(door, RawCodec(), records)
    assert [row["_kafka"]["offset"] for row in door.rows["T"]] == list(range(40)) and "dead" not in door.rows
    assert door.position == "40@id/p"
    assert counted(metrics, "commits_total") > 1 and counted(metrics, "records_total") == 40


def test_a_call_that_broke_off_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    door = SmallDoor()
    publish, fails = door.publish, [RefusedError("unacknowledged", "the call ended when 0 of 2 rows were acknowledged")]

    def broken_once(*given: Any, **named: Any) -> None:
        if fails:
            raise fails.pop()
        publish(*given, **named)

    monkeypatch.setattr(door, "publish", broken_once)
    write(door, RawCodec(), raw(1, 1))
    assert [row["_kafka"]["offset"] for row in door.rows["T"]] == [0, 1]


def test_an_oversized_record_becomes_a_dead_letter() -> None:
    door = SmallDoor(commit_bytes_max=1 << 20)
    metrics = write(door, RawCodec(), raw(1, 200, 1, 1, 1))
    assert [row["_kafka"]["offset"] for row in door.rows["T"]] == [0, 2, 3, 4]
    assert [(row["reason"], row["source_position"], row["value"]) for row in door.rows["dead"]] == [
        ("too-large", 1, None)  # nor does the door take it in a dead letter
    ]
    assert (counted(metrics, "records_total"), counted(metrics, "dead_letters_total")) == (4, 1)


def test_a_record_that_has_another_problem_keeps_its_reason_when_its_letter_is_too_large() -> None:
    door = SmallDoor()
    write(door, JsonCodec(pa.schema([])), [KafkaRecord(b'{"a":1}'), KafkaRecord(b"x" * 200, offset=1)])
    assert len(door.rows["T"]) == 1
    assert [(row["reason"], row["value"]) for row in door.rows["dead"]] == [("not-json", None)]


def test_a_record_with_more_columns_than_a_topic_may_have_is_a_dead_letter() -> None:
    many = b"{%b}" % b",".join(b'"c%d":1' % at for at in range(COLUMNS_MAX))
    door = SmallDoor()
    write(
        door, JsonCodec(pa.schema([])), [KafkaRecord(each, offset=at) for at, each in enumerate((b"{}", many, b"{}"))]
    )
    assert [row["_kafka"]["offset"] for row in door.rows["T"]] == [0, 2]
    assert [(row["reason"], row["source_position"]) for row in door.rows["dead"]] == [("bad-schema", 1)]


@pytest.mark.parametrize("name", ["_topic", "_Sequence", "_kafka", "_m4cast"])
def test_a_record_with_a_reserved_column_becomes_a_dead_letter(name: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    odd = {**schema, "name": "O", "fields": [{"name": "a", "type": "int"}, {"name": name, "type": "int"}]}
    prefixes = [b"\xc3\x01" + fingerprint_of(each) for each in (schema, odd)]
    avro = [written(each, {"a": at, name: 1}, prefixes[at % 2]) for at, each in enumerate((schema, odd, schema))]
    objects = [b'{"a":0}', b'{"a":1,"%b":1}' % name.encode(), b'{"a":2}']
    for codec, values in ((JsonCodec(pa.schema([])), objects), (AvroCodec(None, [schema, odd]), avro)):
        for order in ((0, 1, 2), (1, 0, 2)):
            door = SmallDoor()
            write(door, codec, [KafkaRecord(values[each], offset=at) for at, each in enumerate(order)])
            assert [row["a"] for row in door.rows["T"]] == [0, 2]
            (letter,) = door.rows["dead"]
            assert (letter["reason"], letter["source_position"]) == ("reserved-column", order.index(1))
            assert repr(name) in letter["detail"] and door.position == "3@id/p"


def test_refused_dead_letters_are_reported_by_name() -> None:
    class OtherLetters(SmallDoor):
        def stage(self, topic: str, rows: pa.Table) -> list[str]:
            if topic == "dead":
                raise RefusedError("schema-conflict", "column 'reason' is int64")
            return super().stage(topic, rows)

    door = OtherLetters()
    with pytest.raises(RefusedError, match=r"topic 'dead' refuses dead letters.*set dead_letters to another topic"):
        write(door, JsonCodec(pa.schema([])), [KafkaRecord(b'{"a":1}'), KafkaRecord(b"poison", offset=1)])
    assert door.rows == {} and door.position is None


def test_records_without_any_column_are_rows() -> None:
    values = (None, b"{}", b'{"a":null}', b'{"a":[]}')
    for value in values:
        door = SmallDoor()
        write(door, JsonCodec(pa.schema([])), [KafkaRecord(value)])
        assert [row["_kafka"]["tombstone"] for row in door.rows["T"]] == [value is None]


def test_a_record_is_a_row_or_a_dead_letter_when_columns_come_meanwhile() -> None:
    class BusyDoor(SmallDoor):
        """Another writer was first, and the column is text."""

        def stage(self, topic: str, rows: pa.Table) -> list[str]:
            if self.columns is None:
                self.columns = pa.schema([("a", pa.string())])
                raise RefusedError("schema-conflict", "column 'a' is string")
            return super().stage(topic, rows)

    door = BusyDoor()
    write(door, JsonCodec(pa.schema([])), [KafkaRecord(b'{"a":1}'), KafkaRecord(b'{"a":"x"}', offset=1)])
    assert [row["a"] for row in door.rows["T"]] == ["x"]
    assert [(row["reason"], row["source_position"]) for row in door.rows["dead"]] == [("schema-conflict", 0)]


def test_odd_headers_and_timestamps_do_not_stop_the_bridge() -> None:
    records = [
        KafkaRecord(b'{"a":1}', timestamp=1_700_000_000_000_000_000),
        KafkaRecord(b"poison", timestamp=1_700_000_000_000_000, offset=1),
        KafkaRecord(b'{"a":2}', headers=(("m4cast", b"o/%b/T" % (b"9" * 5_000)),), offset=2),
        KafkaRecord(b'{"a":3}', headers=(("m4cast", b"o/1/T"),), offset=3),
    ]
    door = SmallDoor(row_bytes_max=1 << 20)
    metrics = write(door, JsonCodec(pa.schema([])), records)
    assert [row["a"] for row in door.rows["T"]] == [1, 2], "and the last is an echo"
    assert [row["source_position"] for row in door.rows["dead"]] == [1]
    assert counted(metrics, "echoes_total") == 1 and door.position == "4@id/p"


def test_echoes_are_counted_once_when_a_batch_is_halved() -> None:
    echo = KafkaRecord(b"x", headers=(("m4cast", b"o/1/T"),), offset=20)
    door = SmallDoor()
    metrics = write(door, RawCodec(), [*raw(*[50] * 20), echo])
    assert counted(metrics, "echoes_total") == 1 and len(door.rows["T"]) == 20


def test_a_node_takes_what_it_can_of_a_batch_beyond_its_limits(channel: Channel) -> None:
    """33 MiB in one commit, a row beyond 16 MiB, and values so deep that Flight itself refuses the schema."""
    target, dead = f"t-{uuid.uuid4().hex[:8]}", f"dead-{uuid.uuid4().hex[:8]}"
    write(channel, RawCodec(), raw(11 << 20, 11 << 20, 17 << 20, 11 << 20), target, dead)
    rows = channel.read(target).select(["_kafka"]).to_pylist()
    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 3]
    letter = channel.read(dead).to_pylist()[0]
    assert (letter["reason"], letter["source_position"], letter["value"]) == ("too-large", 2, None)
    assert channel.position(f"kafka-in/{target}/t/0") == "4@id/p"
    values = (b'{"a":1}', b'{"a":' * 100 + b"1" + b"}" * 100, b'{"a":2}')
    records = [KafkaRecord(value, offset=at) for at, value in enumerate(values)]
    write(channel, JsonCodec(pa.schema([])), records, f"{target}-json", dead)
    assert channel.read(f"{target}-json")["a"].to_pylist() == [1, 2]
    assert channel.read(dead)["source_position"].to_pylist() == [2, 1]
    assert LETTER_BYTES_MAX < 11 << 20


def test_a_header_whose_name_is_not_utf_8_is_a_dead_letter() -> None:
    odd = ((OddName(r"h\xff"), b"1"), ("Zo\u00eb", b"2"))
    records = [
        KafkaRecord(b"a", headers=(("Zo\u00eb", b"2"),)),
        KafkaRecord(b"b", headers=odd, offset=1),
        KafkaRecord(b"c", offset=2),
    ]
    door = SmallDoor(row_bytes_max=1 << 20, commit_bytes_max=1 << 20)
    write(door, RawCodec(), records)
    assert [(row["value"], row["_headers"]) for row in door.rows["T"]] == [
        (b"a", [{"key": "Zo\u00eb", "value": b"2"}]),
        (b"c", None),
    ]
    (letter,) = door.rows["dead"]
    assert (letter["reason"], letter["source_position"]) == ("bad-header", 1)
    assert [each["key"] for each in letter["headers"]] == [r"h\xff", "Zo\u00eb"]
