"""The broker that other tests stand on is a real one, and keeps what it has when it is killed."""

import uuid

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tests.kafka_broker import KafkaBroker


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
