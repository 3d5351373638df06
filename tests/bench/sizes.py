"""Rows of 100 B, 1 KB and 64 KB, published until all are acknowledged, in MB/s. m4cast: one node with fsync, record
batches of about 1 MB in one DoPut; a Flight server that discards these; a JetStream of one replica (nats-py, a message
for each row, 4,000 or 16 MB under way); a Kafka broker without fsync (its Java producer, lz4, acks=1)."""

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from pyarrow import flight

from tests.bench import nats_server
from tests.bench.comparison import Bench, Missing, Side
from tests.bench.fan_out import BROKER
from tests.bench.kafka_client import KafkaClient, running_clients
from tests.bench.processes import Watch
from tests.bench.references import bench_cluster, discarding_server, flight_client, pids
from tests.kafka_broker import KafkaBroker, running_broker

SIZES = {"100 B": 100, "1 KB": 1_000, "64 KB": 64_000}
TOTAL_BYTES = 200_000_000
MESSAGES_MAX = 10_000
"""To a JetStream: its client is the slowest by far, and what is compared is a rate."""
PENDING_MAX = 4_000
PENDING_BYTES = 16_000_000
"""That a JetStream has not acknowledged: past 128 MB it refuses messages, and nats-py waits for these for ever."""
TIMEOUT_S = 120
BATCH_BYTES = 1_000_000
ROUNDS = 3
Work = Callable[[Watch], float]


def measure(bench: Bench) -> None:
    why = nats_server.missing()
    with (
        tempfile.TemporaryDirectory() as folder,
        discarding_server() as null,
        bench_cluster(1) as cluster,
        running_broker(Path(folder) / "broker", BROKER, java_options=()) as broker,
        running_clients([broker.address], 1, acks="1") as (producer,),
        nats_server.running_servers(Path(folder) / "nats", 0 if why else 1) as servers,
    ):
        total = bench.of(TOTAL_BYTES, TOTAL_BYTES // 5)
        door = cluster.node("n1").door
        for name, size in SIZES.items():
            kafka = {"broker": broker.pid, "producer": producer.pid}
            bench.compare(
                f"rows of {name}",
                "MB/s",
                Side("m4cast", _by_flight(door, size, total), pids(cluster)),
                Side("null Flight server", _by_flight(null.door, size, total), null.processes),
                Side("Kafka, no fsync", _by_kafka(broker, producer, size, total), kafka),
                _by_nats(servers[0], size, total) if servers else Missing("JetStream R1", why or ""),
                gb=total / 1e9,
                rounds=ROUNDS,
            )


def _by_flight(door: str, size: int, total: int) -> Work:
    rows = BATCH_BYTES // size
    batch = pa.record_batch({"v": pa.array([os.urandom(size) for _ in range(rows)])})

    def work(watch: Watch) -> float:
        with flight_client(door, {}) as client, watch:
            writer, _ = client.do_put(flight.FlightDescriptor.for_path(f"rows-{size}"), batch.schema)
            for _ in range(total // BATCH_BYTES):
                writer.write_batch(batch)
            writer.close()
        return total // BATCH_BYTES * rows * size / watch.seconds / 1e6

    return work


def _by_kafka(broker: KafkaBroker, producer: KafkaClient, size: int, total: int) -> Work:
    def work(watch: Watch) -> float:
        topic = uuid.uuid4().hex
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        admin.create_topics([NewTopic(topic, 1, 1)])
        with watch:
            producer.tell("send", topic, total // size, size)
            producer.wait()
        admin.delete_topics([topic])
        admin.close()
        return total / watch.seconds / 1e6

    return work


def _by_nats(server: nats_server.Server, size: int, total: int) -> Side:
    messages = min(total // size, MESSAGES_MAX)

    async def send(watch: Watch) -> None:
        import nats

        client = await nats.connect(f"nats://{server.address}")
        stream = client.jetstream(publish_async_max_pending=min(PENDING_MAX, PENDING_BYTES // size))
        topic = uuid.uuid4().hex
        await nats_server.make_stream(server.address, topic, 1)
        value = os.urandom(size)
        with watch:
            for _ in range(messages):
                await stream.publish_async(topic, value)
            await asyncio.wait_for(stream.publish_async_completed(), TIMEOUT_S)
        await client.close()

    def work(watch: Watch) -> float:
        asyncio.run(send(watch))
        return messages * size / watch.seconds / 1e6

    name = f"JetStream R1, {'sync always' if server.syncs else 'no sync'}"
    return Side(name, work, {server.name: server.pid}, messages * size / 1e9)
