"""Placement: finds where a partition begins, from the access point's position and what Kafka still keeps."""

import logging
from dataclasses import replace

from m4cast.overlay.bridge.errors import DataLossError
from m4cast.overlay.bridge.kafka_in.group_consumer import DescribedTopic, GroupConsumer
from m4cast.overlay.bridge.kafka_in.partition_feed import PartitionFeed
from m4cast.overlay.bridge.kafka_in.positions import Position, beginning, key_of
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.client import Channel

log = logging.getLogger("m4cast.bridge")


class Placement:
    """`process` names the bridge's process in the positions that it writes."""

    def __init__(
        self,
        settings: KafkaInSettings,
        channel: Channel,
        consumer: GroupConsumer,
        metrics: BridgeMetrics,
        process: str,
    ) -> None:
        self._settings = settings
        self._channel = channel
        self._consumer = consumer
        self._metrics = metrics
        self._process = process
        self._first_seen: dict[str, set[int]] = {}
        """Partitions that existed before anything of their topic was carried."""

    def place(self, feed: PartitionFeed) -> bool:
        """Start reading the partition; False if its topic was deleted meanwhile, and the partition will be revoked."""
        topic, partition = feed.partition
        stored = self._channel.position(feed.key)
        described = self._consumer.described([topic]).get(topic)
        if described is None:
            return False
        low, end = self._consumer.extent(feed.partition)
        start = self._settings.start
        if stored is None and start == "latest" and self._is_new(topic, partition, described):
            start = "earliest"  # everything in it was written since the bridge began
        begins = beginning(None if stored is None else Position.parse(stored), described.id, low, end, start)
        if begins.loss:
            self._lose(topic, partition, begins.loss)
        expect = stored
        if stored is None and start == "latest":
            # Committed at once: a bridge that ends before its first record continues from here.
            expect = str(replace(begins.position, process=self._process))
            self._channel.commit([], key=feed.key, next=expect)
        if not self._consumer.begin(feed.partition, begins.position.offset):
            return True
        # Set last: if anything above fails, the feed has no position and is placed again.
        feed.expect, feed.position = expect, begins.position
        self._consumer.throttle(feed.partition, is_full=False)
        log.info("%s/%d -> %s from offset %d", topic, partition, feed.target, begins.position.offset)
        return True

    def _is_new(self, topic: str, partition: int, described: DescribedTopic) -> bool:
        """True if the topic was created after the bridge began, or the partition after its topic was first carried."""
        if topic not in self._first_seen:
            keys = [key_of(self._settings.name, topic, each) for each in sorted(described.partitions)]
            was_carried = any(self._channel.position(key) is not None for key in keys)
            is_old = topic in self._consumer.topics_at_start and not was_carried
            self._first_seen[topic] = described.partitions if is_old else set()
        return partition not in self._first_seen[topic]

    def _lose(self, topic: str, partition: int, loss: str) -> None:
        self._metrics.losses(topic=topic).inc()
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                f"Kafka topic {topic!r}, partition {partition}, {loss}; to continue anyway, set "
                "fail_on_data_loss = false"
            )
        log.error("Kafka topic %r, partition %d, %s; continuing", topic, partition, loss)
