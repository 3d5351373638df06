"""Rows of 100 bytes, published from Spark (local[2]) until three have them: three nodes, `acks = 2`, all with fsync,
beside three Kafka brokers with 3 replicas and acks=all (no fsync), by Spark's own connector (lz4, 256 KB batches)."""

import tempfile
import uuid
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.references import ROW_BYTES, bench_cluster, pids
from tests.bench.spark import BROKER, PARTITIONS, PRODUCER, QUICK_ROWS, ROWS, bench_session, jvm_pid, rows_in_memory
from tests.kafka_broker import running_brokers

COPIES = 3


def measure(bench: Bench) -> None:
    count = bench.of(ROWS, QUICK_ROWS)
    replicated = {**BROKER, "min.insync.replicas": str(COPIES), "default.replication.factor": str(COPIES)}
    with (
        tempfile.TemporaryDirectory() as folder,
        bench_session() as spark,
        bench_cluster(COPIES) as cluster,
        running_brokers(Path(folder), COPIES, replicated, java_options=()) as brokers,
    ):
        rows = rows_in_memory(spark, count)
        addresses = [broker.address for broker in brokers]
        jvm = {"Spark": jvm_pid(spark)}

        def publish(watch: Watch) -> None:
            options = {"nodes": cluster.node("n1").door, "topic": "rows", "acks": str(COPIES - 1)}
            with watch:
                rows.write.format("m4cast").mode("append").options(**options).save()

        def produce(watch: Watch) -> None:
            topic = uuid.uuid4().hex
            admin = KafkaAdminClient(bootstrap_servers=addresses)
            admin.create_topics([NewTopic(topic, PARTITIONS, COPIES)])
            options = {"kafka.bootstrap.servers": ",".join(addresses), "topic": topic, **PRODUCER, "kafka.acks": "all"}
            with watch:
                rows.write.format("kafka").options(**options).save()
            admin.delete_topics([topic])
            admin.close()

        theirs = {f"broker {number}": broker.pid for number, broker in enumerate(brokers, start=1)}
        bench.compare(
            "publish to three",
            "rows/s",
            Side("m4cast, acks = 2", publish, {**pids(cluster), **jvm}),
            Side("Kafka, RF 3, acks=all", produce, {**theirs, **jvm}),
            amount=count,
            gb=count * ROW_BYTES / 1e9,
            bar=1.0,
        )
