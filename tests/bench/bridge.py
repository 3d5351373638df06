"""The Kafka bridge beside bare kafka-python loops: a consumer that reads the same records and decodes
them the same way, and a producer that encodes the same rows and sends them. A ratio of 1 means that the bridge costs
nothing besides Kafka's own client. One broker, one node, one partition, records of about 100 bytes."""

import io
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from m4cast.cli.rows.bridge import bridge_of, codec_of
from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs.codec import Codec, Problem, RowSource
from m4cast.overlay.bridge.kafka_in.group_consumer import POLL_RECORDS
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import Direction, load_settings
from m4cast.overlay.client import Channel
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.references import pids
from tests.kafka_broker import running_broker
from tests.overlay.bridge.kafka_side import KafkaSide, Sent, SmallRegistry
from tests.processes.clusters import running_cluster

RECORDS = 60_000
RECORD_BYTES = 100
ROUNDS = 2
LOOK_S = 0.01
TIMEOUT_S = 120.0
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "value", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": "string"},
    ],
}
CODECS = ("raw", "json", "avro", "cloudevents")


def measure(bench: Bench) -> None:
    registry = SmallRegistry()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with (
                running_broker(Path(folder) / "broker", java_options=()) as broker,
                running_cluster(Path(folder) / "cluster", 1) as cluster,
            ):
                records = bench.of(RECORDS, RECORDS // 4)
                processes = {**pids(cluster), "broker": broker.pid}
                carrying = _Carrying(KafkaSide(broker), cluster.channel("n1"), registry, records)
                for codec in CODECS:
                    carrying.measure(bench, codec, processes)
        finally:
            registry.close()


class _Carrying:
    def __init__(self, kafka: KafkaSide, channel: Channel, registry: SmallRegistry, records: int) -> None:
        self._kafka = kafka
        self._channel = channel
        self._registry = registry
        self._number = registry.add(SCHEMA)
        self._records = records

    def measure(self, bench: Bench, codec_name: str, processes: Mapping[str, int]) -> None:
        topic = self._kafka.make_topic()
        self._kafka.send(topic, [self._record(codec_name, at) for at in range(self._records)])
        flags = {"codec": codec_name, **({"registry": self._registry.url} if codec_name == "avro" else {})}
        codec = codec_of(load_settings("kafka-in", None, {"brokers": ["a:1"], "topics": ["x"], **flags}, {})[0])
        carried = ""

        def carry_in(watch: Watch) -> float:
            nonlocal carried
            carried = f"in-{uuid.uuid4().hex[:8]}"
            with watch:
                return self._bridge("kafka-in", f"{topic} -> {carried}", flags)

        def carry_out(watch: Watch) -> float:
            back = self._kafka.make_topic()
            with watch:
                return self._bridge("kafka-out", f"{carried} -> {back}", flags)

        def consume(watch: Watch) -> float:
            with watch:
                return self._consume(topic, codec)

        def produce(watch: Watch) -> float:
            rows, back = self._channel.read(carried), self._kafka.make_topic()
            with watch:
                return self._produce(back, rows, codec)

        gb = self._records * RECORD_BYTES / 1e9
        for way, ours, loop in (("in", carry_in, consume), ("out", carry_out, produce)):
            sides = Side("m4cast bridge", ours, processes), Side("kafka-python loop", loop, processes)
            bench.compare(f"{codec_name} {way}", "records/s", *sides, gb=gb, rounds=ROUNDS, warm_rounds=0)

    def _record(self, codec: str, at: int) -> Sent:
        reading = {"id": at, "value": at / 3, "at": 1_700_000_000_000_000 + at, "note": "x" * 40}
        match codec:
            case "raw":
                return Sent(os.urandom(92) + at.to_bytes(8, "big"), b"%08d" % at)
            case "avro":
                body = io.BytesIO()
                body.write(b"\x00" + self._number.to_bytes(4, "big"))
                fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), reading)
                return Sent(body.getvalue(), b"%08d" % at)
            case "json":
                return Sent(json.dumps(reading).encode(), b"%08d" % at)
            case _:
                headers = (("ce_specversion", b"1.0"), ("ce_id", b"%d" % at), ("ce_source", b"/s"), ("ce_type", b"t"))
                return Sent(json.dumps(reading).encode(), b"%08d" % at, headers)

    def _consume(self, topic: str, codec: Codec) -> float:
        """A loop set up as the bridge is, which only decodes."""
        consumer = KafkaConsumer(
            bootstrap_servers=self._kafka.address,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=POLL_RECORDS,
        )
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        count, progress = 0, _Progress()
        while count < self._records:
            for records in consumer.poll(timeout_ms=100).values():
                codec.decode(records)
                count += len(records)
                progress.at(count)
        consumer.close()
        return progress.rate()

    def _produce(self, topic: str, rows: pa.Table, codec: Codec) -> float:
        payload = [name for name in rows.column_names if not name.startswith("_")]
        started = time.perf_counter()
        with self._kafka.producer() as producer:
            producer.partitions_for(topic)
            started = time.perf_counter()
            for batch in rows.combine_chunks().to_batches(max_chunksize=10_000):
                source = RowSource("t", "ab" * 16, batch["_sequence"].to_pylist(), batch["_published_at"])
                values, headers = codec.encode(batch.select(payload), source, topic)
                for at, (value, key) in enumerate(zip(values, batch["_key"].to_pylist(), strict=True)):
                    assert not isinstance(value, Problem)
                    producer.send(topic, value, key, headers[at] if headers else None)
            producer.flush(timeout=TIMEOUT_S)
            return self._records / (time.perf_counter() - started)

    def _bridge(self, direction: Direction, topic: str, flags: dict[str, Any]) -> float:
        name = f"b-{uuid.uuid4().hex[:8]}"
        settings, kafka = load_settings(
            direction, None, {"brokers": [self._kafka.address], "topics": [topic], "name": name, **flags}, {}
        )
        metrics, stop = BridgeMetrics(direction, name), threading.Event()
        bridge = bridge_of(settings, Brokers(settings.brokers, name, kafka), self._channel, metrics, stop)
        thread = threading.Thread(target=bridge.run)
        thread.start()
        progress, deadline = _Progress(), time.monotonic() + TIMEOUT_S
        try:
            while (count := _carried(metrics)) < self._records:
                assert thread.is_alive() and time.monotonic() < deadline, f"{count} of {self._records} carried"
                progress.at(count)
                time.sleep(LOOK_S)
            progress.at(count)
        finally:
            stop.set()
            thread.join()
        return progress.rate()


def _carried(metrics: BridgeMetrics) -> int:
    """Committed, by either."""
    families = metrics.registry.collect()
    samples = [sample for family in families for sample in family.samples]
    return int(sum(sample.value for sample in samples if sample.name == "m4cast_bridge_records_total"))


class _Progress:
    """Rate from the first records to the last: what it takes to begin is left out, for all alike."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def at(self, count: int) -> None:
        if not count or count == self._last[1]:
            return
        self._last = (time.perf_counter(), count)
        self._first = self._first or self._last

    def rate(self) -> float:
        assert self._first is not None and self._last != self._first, "all of it at once"
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
