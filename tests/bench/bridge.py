"""The Kafka bridge beside bare kafka-python loops of the same run: a consumer that reads the same records and decodes
them the same way, and a producer that encodes the same rows and sends them. A ratio of 1 means that the bridge costs
nothing besides Kafka's own client. One broker, one node, one partition, records of about 100 bytes."""

import io
import json
import os
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from m4cast.bridge_command import bridge_of, codec_of
from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs import Codec, Problem, RowSource
from m4cast.overlay.bridge.kafka_in import POLL_RECORDS
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import Direction, load_settings
from m4cast.overlay.client import Channel
from tests.kafka_broker import running_broker
from tests.overlay.bridge.kafka_side import KafkaSide, Sent, SmallRegistry
from tests.processes.clusters import running_cluster

RECORDS = 60_000
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


def measure() -> list[dict[str, object]]:
    registry = SmallRegistry()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with (
                running_broker(Path(folder) / "broker", java_options=()) as broker,
                running_cluster(Path(folder) / "cluster", 1) as cluster,
            ):
                bench = _Bench(KafkaSide(broker), cluster.channel("n1"), registry)
                return [row for codec in CODECS for row in bench.measure(codec)]
        finally:
            registry.close()


class _Bench:
    def __init__(self, kafka: KafkaSide, channel: Channel, registry: SmallRegistry) -> None:
        self._kafka = kafka
        self._channel = channel
        self._registry = registry
        self._number = registry.add(SCHEMA)

    def measure(self, codec_name: str) -> list[dict[str, object]]:
        topic = self._kafka.make_topic()
        self._kafka.send(topic, [self._record(codec_name, at) for at in range(RECORDS)])
        flags = {"codec": codec_name, **({"registry": self._registry.url} if codec_name == "avro" else {})}
        codec = codec_of(load_settings("kafka-in", None, {"brokers": ["a:1"], "topics": ["x"], **flags}, {})[0])
        inward: dict[str, list[float]] = {"loop": [], "bridge": []}
        outward: dict[str, list[float]] = {"loop": [], "bridge": []}
        for _ in range(ROUNDS):  # by turns, so that what else the machine does meets both
            inward["loop"].append(self._consume(topic, codec))
            target = f"in-{uuid.uuid4().hex[:8]}"
            inward["bridge"].append(self._bridge("kafka-in", f"{topic} -> {target}", flags))
            rows = self._channel.read(target)
            outward["loop"].append(self._produce(self._kafka.make_topic(), rows, codec))
            back = self._kafka.make_topic()
            outward["bridge"].append(self._bridge("kafka-out", f"{target} -> {back}", flags))
        return [_row(f"{codec_name} in", inward), _row(f"{codec_name} out", outward)]

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
        """As the bridge is set up, and as it decodes: nothing else."""
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
        while count < RECORDS:
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
            return RECORDS / (time.perf_counter() - started)

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
            while (count := _carried(metrics)) < RECORDS:
                assert thread.is_alive() and time.monotonic() < deadline, f"{count} of {RECORDS} carried"
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


def _row(what: str, rates: dict[str, list[float]]) -> dict[str, object]:
    ratios = [bridge / loop for bridge, loop in zip(rates["bridge"], rates["loop"], strict=True)]
    return {
        "what": what,
        "loop records/s": int(statistics.median(rates["loop"])),
        "bridge records/s": int(statistics.median(rates["bridge"])),
        "ratio": round(statistics.median(ratios), 2),
    }
