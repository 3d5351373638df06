"""100-byte rows from one publisher to 1, 3, 5 and 9 sites, until all have them on disk. m4cast: as many nodes, one of
which is published at. Kafka: one broker (no fsync) and as many Java consumers that write to a file and sync it every
4 MB; lz4. 200 MB, of five sites 1 GB; MB/s are those of one site."""

import tempfile
import uuid
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from tests.bench.channel import Rows
from tests.bench.comparison import Bench, Side
from tests.bench.kafka_client import running_clients
from tests.bench.processes import Watch
from tests.bench.references import BATCH_BYTES, ROW_BYTES, ROWS, bench_cluster, pids
from tests.kafka_broker import running_broker

SITES = (1, 3, 5, 9)
BATCHES = 200
BATCHES_OF_FIVE = 1_000
ROUNDS = 3
BROKER = {"num.network.threads": "2", "num.io.threads": "2", "message.max.bytes": str(8 << 20)}


def measure(bench: Bench) -> None:
    for sites in SITES if not bench.quick else SITES[1:2]:
        _compare(bench, sites, bench.of(BATCHES_OF_FIVE if sites == 5 else BATCHES, 50))


def _compare(bench: Bench, sites: int, batches: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        bench_cluster(sites, retention_bytes=2 * BATCHES * BATCH_BYTES) as cluster,
        running_broker(Path(folder) / "broker", BROKER, java_options=()) as broker,
        running_clients([broker.address], sites + 1, acks="1") as (producer, *consumers),
    ):
        rows = Rows(cluster)

        def by_kafka(watch: Watch) -> None:
            topic = uuid.uuid4().hex
            admin = KafkaAdminClient(bootstrap_servers=broker.address)
            admin.create_topics([NewTopic(topic, 1, 1)])
            with watch:
                for number, consumer in enumerate(consumers):
                    consumer.tell("receive", topic, batches * ROWS, Path(folder) / f"received-{number}")
                producer.tell("send", topic, batches * ROWS, ROW_BYTES)
                for client in (producer, *consumers):
                    client.wait()
            admin.delete_topics([topic])
            admin.close()

        clients = {f"consumer {number}": consumer.pid for number, consumer in enumerate(consumers, start=1)}
        bench.compare(
            f"{sites} sites, {batches * BATCH_BYTES / 1e9:g} GB",
            "MB/s",
            Side("m4cast", lambda watch: rows.publish(batches, watch), pids(cluster)),
            Side("Kafka, consumers sync", by_kafka, {"broker": broker.pid, "producer": producer.pid, **clients}),
            amount=batches * BATCH_BYTES / 1e6,
            gb=batches * BATCH_BYTES / 1e9,
            bar=1.0 if sites == 5 else None,
            rounds=ROUNDS,
        )
