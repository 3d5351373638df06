"""The broker that other tests stand on is a real one, and keeps what it has when it is killed."""

import uuid
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tests.kafka_broker import KafkaBroker, running_brokers


@pytest.mark.soak
def test_the_broker_keeps_records_and_address_when_it_is_killed_and_started_again(kafka_broker: KafkaBroker) -> None:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address)
    producer.send(topic, b"value", key=b"key").get(timeout=30)
    producer.close()

    kafka_broker.kill()
    assert not kafka_broker.is_running()
    kafka_broker.start()

    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka_broker.address, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    record = next(consumer)
    consumer.close()
    assert (record.key, record.value, record.offset) == (b"key", b"value", 0)


@pytest.mark.soak
def test_three_brokers_are_one_cluster(tmp_path: Path) -> None:
    with running_brokers(tmp_path, 3) as brokers:
        admin = KafkaAdminClient(bootstrap_servers=brokers[0].address)
        admin.create_topics({"orders": {"num_partitions": 1, "replication_factor": 3}})
        (topic,) = admin.describe_topics(["orders"])
        admin.close()
        assert len(topic["partitions"][0]["replica_nodes"]) == 3
        producer = KafkaProducer(bootstrap_servers=brokers[1].address, acks="all")
        producer.send("orders", b"value").get(timeout=30)
        producer.close()
        consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=brokers[2].address,
            auto_offset_reset="earliest",
            consumer_timeout_ms=60_000,
        )
        record = next(consumer)
        consumer.close()
        assert record.value == b"value"
