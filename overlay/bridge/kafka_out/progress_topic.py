"""The progress of kafka-out: a compacted Kafka topic, written in the same transaction as the records.

Each transaction adds one record: the key is the bridge's name, the value its frontier as JSON. The last committed one
counts.
"""

import json
from contextlib import suppress
from typing import Any

from kafka import TopicPartition
from kafka.errors import TopicAlreadyExistsError

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.client import Frontier
from m4cast.overlay.errors import M4castError

RECENT = 1_000
"""Records at the end that are read first. They include records of other bridges and transaction markers."""
POLL_MS = 200
TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}


class ProgressTopic:
    def __init__(self, brokers: Brokers, topic: str, name: str) -> None:
        self._brokers = brokers
        self._name = name.encode()
        self._topic = topic

    def create(self, admin: Any) -> None:
        if self._topic in admin.list_topics():
            return
        with suppress(TopicAlreadyExistsError):  # another bridge was faster
            admin.create_topics({self._topic: {"num_partitions": 1, "configs": TOPIC_SETTINGS}})

    def send(self, producer: Any, frontier: Frontier) -> None:
        """Add the frontier to the producer's transaction."""
        producer.send(self._topic, key=self._name, value=json.dumps(frontier).encode(), partition=0)

    def read(self) -> Frontier | None:
        """The committed frontier; None if the bridge has committed nothing. Call it while no transaction is open."""
        partition = TopicPartition(self._topic, 0)
        consumer = self._brokers.consumer(enable_auto_commit=False, isolation_level="read_committed")
        try:
            consumer.assign([partition])
            low, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
            recent = max(end - RECENT, low)
            found = self._last(consumer, partition, recent, end)
            if found is None and recent > low:
                found = self._last(consumer, partition, low, recent)
        finally:
            consumer.close(timeout_ms=5_000)
        return None if found is None else _frontier(found)

    def _last(self, consumer: Any, partition: Any, first: int, end: int) -> bytes | None:
        found: bytes | None = None
        consumer.seek(partition, first)
        while consumer.position(partition) < end:
            for record in consumer.poll(timeout_ms=POLL_MS).get(partition, ()):
                if record.key == self._name and record.offset < end:
                    found = record.value
        return found


def _frontier(value: bytes) -> Frontier:
    try:
        read = json.loads(value)
        return {str(topic): {str(origin): int(at) for origin, at in origins.items()} for topic, origins in read.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise M4castError(
            f"the progress of this bridge cannot be parsed ({error}): set another progress_topic"
        ) from None
