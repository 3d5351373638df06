"""Progress: how far kafka-out has come, kept in Kafka itself, in the same transaction as the records.

One record for each transaction in a compacted topic: the key is the bridge's name, the value its frontier as JSON.
What counts is the last one that was committed.
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
"""Records at the end that are looked at first: transactions of other bridges, and marks, are among them."""
POLL_MS = 200
TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}


class Progress:
    def __init__(self, brokers: Brokers, topic: str, name: str) -> None:
        self._brokers = brokers
        self._name = name.encode()
        self.topic = topic

    def make_topic(self, admin: Any) -> None:
        if self.topic in admin.list_topics():
            return
        with suppress(TopicAlreadyExistsError):  # another bridge was quicker
            admin.create_topics({self.topic: {"num_partitions": 1, "configs": TOPIC_SETTINGS}})

    def send(self, producer: Any, frontier: Frontier) -> None:
        """As part of the producer's transaction."""
        producer.send(self.topic, key=self._name, value=json.dumps(frontier).encode(), partition=0)

    def read(self) -> Frontier | None:
        """None for a bridge that has not committed anything. Ask it when no transaction of the bridge is open."""
        partition = TopicPartition(self.topic, 0)
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
            f"the progress of this bridge cannot be read ({error}): choose another progress_topic"
        ) from None
