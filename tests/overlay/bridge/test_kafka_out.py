"""kafka-out without a broker: rows that are odd, in their columns or in those that the bridge looks at."""

import datetime
import json
import threading
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from kafka.errors import KafkaConnectionError

from m4cast.overlay.bridge.codecs.codec import Codec
from m4cast.overlay.bridge.codecs.json_codec import JsonCodec
from m4cast.overlay.bridge.codecs.raw_codec import RawCodec
from m4cast.overlay.bridge.kafka_out.bridge import KafkaOut
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import KAFKA, LETTER_BYTES_MAX
from m4cast.overlay.bridge.settings import KafkaOutSettings
from m4cast.overlay.errors import RefusedError
from tests.overlay.bridge.test_codecs import FAR, KEY_TWICE

PUBLISHED = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
PUBLISHED_MS = int(PUBLISHED.timestamp() * 1000)
JSON = JsonCodec(pa.schema([]))


class StubChannel:
    """Takes dead letters, whose values have up to so many bytes."""

    nodes = ("n:1",)

    def __init__(self, value_bytes_max: int) -> None:
        self._value_bytes_max = value_bytes_max
        self.letters: list[dict[str, Any]] = []

    def publish(self, topic: str, rows: pa.Table) -> None:
        listed = rows.to_pylist()
        if any(len(each["value"] or b"") > self._value_bytes_max for each in listed):
            raise RefusedError("too-large", "a row")
        self.letters += listed


class StubProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def partitions_for(self, _: str) -> set[int]:
        return {0}

    def send(self, *record: Any) -> None:
        self.sent.append(record)


def carried(
    codec: Codec, columns: dict[str, Any], *, value_bytes_max: int = LETTER_BYTES_MAX
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """The records that were sent, as (topic, value, key, headers, partition, timestamp), and the dead letters."""
    rows = pa.record_batch(columns)
    count = rows.num_rows
    of_channel = {
        "_topic": pa.array(["t"] * count),
        "_origin": pa.array(["ab" * 16] * count),
        "_sequence": pa.array(range(1, count + 1), pa.int64()),
        "_published_at": pa.array([PUBLISHED] * count, pa.timestamp("us", "UTC")),
    }
    channel, producer = StubChannel(value_bytes_max), StubProducer()
    settings = KafkaOutSettings(brokers=("b:1",), topics=("t",))
    brokers = cast("Any", SimpleNamespace(addresses="b:1"))
    bridge = KafkaOut(
        settings, brokers, cast("Any", channel), codec, BridgeMetrics("kafka-out", "b"), threading.Event()
    )
    bridge._transactions.use(producer, "")
    bridge._transactions.send(pa.record_batch({**of_channel, **columns}), {})
    return producer.sent, channel.letters


@pytest.mark.parametrize("column", [FAR, KEY_TWICE], ids=["after 9999", "a key twice"])
def test_a_row_that_cannot_be_written_goes_to_the_dead_letters_with_what_can(column: pa.Array) -> None:
    sent, letters = carried(JSON, {"id": [1, 2, 3], "x": column})
    assert [json.loads(record[1])["id"] for record in sent] == [1, 3]
    assert [(each["reason"], each["source_position"], each["value"]) for each in letters] == [
        ("not-encodable", 2, b'{"id":2}')
    ]
    assert "column 'x'" in letters[0]["detail"] and letters[0]["timestamp"] == PUBLISHED


def test_a_users_column_of_the_name_kafka_is_a_column_like_any() -> None:
    sent, letters = carried(JSON, {"id": [1], "_kafka": ["mine"]})
    assert [json.loads(record[1]) for record in sent] == [{"id": 1, "_kafka": "mine"}] and not letters
    sent, _ = carried(RawCodec(), {"value": [b"x"], "_kafka": [{"topic": "b", "cluster": 1}]})
    assert [(record[1], record[5]) for record in sent] == [(b"x", PUBLISHED_MS)]


def test_the_bridges_own_column_is_no_part_of_the_value() -> None:
    kafka = {"cluster": "c", "topic": "t", "partition": 0, "offset": 0, "timestamp": 7_000, "tombstone": False}
    sent, _ = carried(JSON, {"id": [1, 2], "_kafka": pa.array([kafka, None], KAFKA)})
    assert [(json.loads(record[1]), record[5]) for record in sent] == [({"id": 1}, 7), ({"id": 2}, PUBLISHED_MS)]
    sent, _ = carried(JSON, {"id": [1], "_kafka": pa.nulls(1)})
    assert [json.loads(record[1]) for record in sent] == [{"id": 1}]


def test_dead_letters_are_as_large_as_the_channel_takes() -> None:
    odd = FAR.slice(1, 1)
    _, letters = carried(JSON, {"text": ["x" * LETTER_BYTES_MAX], "at": odd})
    assert [(each["reason"], each["value"]) for each in letters] == [("not-encodable", None)]
    far = pa.concat_arrays([odd, odd, odd])
    _, letters = carried(JSON, {"text": ["a", "b" * 100, "c"], "at": far}, value_bytes_max=50)
    assert [each["value"] for each in letters] == [b'{"text":"a"}', None, b'{"text":"c"}']


class BusyChannel(StubChannel):
    """One topic, which gets rows all the time."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rows = 5
        self.leases: list[Any] = []

    def topics(self) -> list[str]:
        return ["t", "not for kafka/"]

    def frontier(self, topics: list[str]) -> dict[str, dict[str, int]]:
        self.rows += 1
        return {topic: {"o": self.rows} for topic in topics}

    def lease(self, _: str, frontier: Any, *, topics: list[str], ttl_s: float) -> None:
        self.leases.append((frontier, topics, ttl_s))


class FailingProducer:
    """Commits the second time."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.failures = 1

    def begin_transaction(self) -> None:
        self.sent.clear()

    def send(self, topic: str, *, key: bytes, value: bytes, partition: int) -> None:
        self.sent.append((topic, key, json.loads(value), partition))

    def commit_transaction(self) -> None:
        if self.failures:
            self.failures -= 1
            raise KafkaConnectionError("gone")


def test_latest_is_where_the_bridge_began_though_kafka_was_away_then(caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaOutSettings(brokers=("b:1",), topics=(".*",), start="latest")
    channel, producer = BusyChannel(), FailingProducer()
    brokers = cast("Any", SimpleNamespace(addresses="b:1"))
    bridge = KafkaOut(settings, brokers, cast("Any", channel), JSON, BridgeMetrics("kafka-out", "b"), threading.Event())
    bridge._transactions.use(producer, "")
    with pytest.raises(KafkaConnectionError):
        bridge._beginning()
    assert bridge._beginning() == {"t": {"o": 6}}
    assert [record[2] for record in producer.sent] == [{"t": {"o": 6}}], "committed before any row"
    assert [each[:2] for each in channel.leases] == [({"t": {"o": 6}}, ["t"])]
    said = [each.message for each in caplog.records if "left out" in each.message]
    assert len(said) == 1 and "'not for kafka/'" in said[0]
