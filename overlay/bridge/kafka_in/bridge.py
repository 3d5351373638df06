"""kafka-in: records of Kafka topics become rows of channel topics, exactly once, in the order of each partition.

Kafka does not hold the position of a partition. The position is the publisher key `kafka-in/NAME/TOPIC/PARTITION` at
the access point (`positions`), and it moves in the commit that publishes the rows (`writer`). The Kafka group only
decides which bridge of a name carries which partition. A bridge that was presumed dead and is not (a paused process)
finds that its key has moved when it commits, and stops; it publishes nothing twice.

One thread reads from Kafka; writers decode and publish, one batch of a partition at a time. The amount read and not
written is bounded: a partition that has enough is paused. A newly assigned partition begins at the position that the
access point returns, and nothing is read from it before.
"""

import logging
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs.codec import Codec
from m4cast.overlay.bridge.errors import FencedError, StoppedError
from m4cast.overlay.bridge.kafka_in.group_consumer import POLL_MS, GroupConsumer
from m4cast.overlay.bridge.kafka_in.partition_feed import PartitionFeed
from m4cast.overlay.bridge.kafka_in.placement import Placement
from m4cast.overlay.bridge.kafka_in.positions import Position, key_of
from m4cast.overlay.bridge.kafka_in.writer import RecordWriter
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.bridge.trouble import TRY_AGAIN, Troubles
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")

WAITING_BATCHES = 2
"""Batches of a partition that wait for its writer before the partition is paused."""
LOOK_S = 5.0
"""Interval at which Kafka is asked for lags and topic ids, which also detects that it is down."""
USE_S = 24 * 3600.0
"""Interval at which the positions of idle partitions are read: an unused publisher key expires."""
STALL_S = 30.0
"""Wait of a partition whose rows the channel refuses. Lower: more retries in vain. Guess."""
STOP_S = 20.0
"""Time that a stopping bridge waits for pending writes."""


class KafkaIn:
    """`run` it until `stop` is set, or an error ends it."""

    def __init__(
        self,
        settings: KafkaInSettings,
        brokers: Brokers,
        channel: Channel,
        codec: Codec,
        metrics: BridgeMetrics,
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._channel = channel
        self._codec = codec
        self._metrics = metrics
        self._stop = stop
        self._routes = settings.routes
        self._process = uuid.uuid4().hex[:12]
        self._feeds: dict[Any, PartitionFeed] = {}
        self._orphans: dict[Any, Future[None]] = {}
        """Pending writes of partitions that were revoked."""
        self._troubles = Troubles(brokers.addresses, channel.nodes[0], metrics, stop)
        self._left_out: set[str] = set()
        """Kafka topics that are not carried, and were logged as such."""
        self._looked_at = 0.0
        self._used_at = time.monotonic()

    def run(self) -> None:
        consumer = self._connected()
        if consumer is None:
            return
        writer = RecordWriter(
            self._channel, self._codec, self._settings, consumer.cluster, self._metrics, self._troubles
        )
        with ThreadPoolExecutor(self._settings.writers, "m4cast-bridge") as pool:
            try:
                self._begin(consumer, writer, pool)
                consumer.subscribe(self._routes.pattern)
                while not self._stop.is_set():
                    self._step()
            finally:
                self._stop.set()
                wait([feed.writing for feed in self._feeds.values() if feed.writing is not None], STOP_S)
                consumer.close()

    def _connected(self) -> GroupConsumer | None:
        """A consumer, as soon as Kafka can be reached; None if the bridge is stopped before."""
        group = self._settings.group or f"m4cast-{self._settings.name}"
        while not self._stop.is_set():
            try:
                consumer = GroupConsumer.connect(self._brokers, group)
            except KafkaError as error:
                self._troubles.kafka.wait(error)
                continue
            self._troubles.kafka.over()
            return consumer
        return None

    def _begin(self, consumer: GroupConsumer, writer: RecordWriter, pool: ThreadPoolExecutor) -> None:
        self._consumer = consumer
        self._writer = writer
        self._pool = pool
        self._placement = Placement(self._settings, self._channel, consumer, self._metrics, self._process)

    # ---- one round

    def _step(self) -> None:
        self._follow_group()
        self._place_new()
        try:
            polled = self._consumer.poll(self._pending_writes())
        except (OffsetOutOfRangeError, LogTruncationError):
            for feed in self._feeds.values():
                self._unplace(feed)
            return
        except KafkaError as error:
            self._troubles.kafka.wait(error)
            return
        self._follow_group()  # most changes happen in the poll: do nothing more for partitions that it revoked
        for partition, records in polled.items():
            fed = self._feeds.get(partition)
            if fed is not None and fed.position is not None:
                fed.add(records)
        for feed in list(self._feeds.values()):
            self._collect(feed)
            self._hand_over(feed)
            if feed.position is not None:
                is_full = feed.bytes >= WAITING_BATCHES * self._settings.batch_bytes
                self._consumer.throttle(feed.partition, is_full=is_full)
        if time.monotonic() - self._looked_at > LOOK_S:
            self._look()
        if time.monotonic() - self._used_at > USE_S:
            self._use_keys()

    def _pending_writes(self) -> list["Future[None]"]:
        """Writes that a batch waits for."""
        ready = [feed for feed in self._feeds.values() if feed.bytes >= self._settings.batch_bytes]
        return [feed.writing for feed in ready if feed.writing is not None]

    def _hand_over(self, feed: PartitionFeed) -> None:
        """Start a write if the feed has a whole batch, or has waited for `linger_ms`."""
        if feed.writing is not None or not feed.records:
            return
        waited_ms = (time.monotonic() - feed.since) * 1000
        if feed.bytes >= self._settings.batch_bytes or waited_ms >= self._settings.linger_ms:
            batch = feed.take(self._process, self._settings.batch_bytes)
            feed.writing = self._pool.submit(self._writer.write, batch)

    def _collect(self, feed: PartitionFeed) -> None:
        """Handle the result of the last write, if it has ended."""
        if feed.writing is None or not feed.writing.done():
            return
        writing, feed.writing = feed.writing, None
        try:
            writing.result()
        except StoppedError:
            return
        except FencedError:
            if not feed.is_fresh:
                raise
            log.info("%s was moved by another bridge after it was read; reading it again", feed.key)
            feed.is_fresh = False
            self._unplace(feed)
            return
        except RefusedError as error:
            self._stall(feed, error)
            return
        if feed.is_stalled:
            feed.is_stalled = False
            self._count_stalled(feed.partition.topic)
            log.info("the channel accepts rows of Kafka topic %r, partition %d, again", *feed.partition)
        assert feed.written is not None
        feed.expect, feed.is_fresh = str(feed.written), False

    def _stall(self, feed: PartitionFeed, error: RefusedError) -> None:
        """The channel refuses all rows of this topic, because of its name or its columns. Other partitions continue.
        An operator may fix the cause, so the partition is retried."""
        if not feed.is_stalled:
            feed.is_stalled = True
            self._count_stalled(feed.partition.topic)
            log.error(
                "the channel refuses the rows of Kafka topic %r, partition %d, for topic %r: %s; retrying every %.0f s "
                "while the other partitions continue",
                *feed.partition,
                feed.target,
                error,
                STALL_S,
            )
        feed.stalled_until = time.monotonic() + STALL_S
        self._unplace(feed)

    def _count_stalled(self, topic: str) -> None:
        stalled = sum(each.is_stalled for each in self._feeds.values() if each.partition.topic == topic)
        self._metrics.stalled(topic=topic).set(stalled)

    # ---- partitions that are assigned and revoked

    def _follow_group(self) -> None:
        """Pending writes of a revoked partition are left to finish: if its next owner is faster, they fail to commit,
        and nothing is lost or duplicated."""
        for change in self._consumer.changes():
            for partition in change.partitions:
                revoked = self._feeds.pop(partition, None)
                if revoked is not None and revoked.writing is not None:
                    self._orphans[partition] = revoked.writing
                if revoked is not None and revoked.is_stalled:
                    self._count_stalled(partition.topic)
                if change.kind == "assigned":
                    self._feed(partition)

    def _feed(self, partition: Any) -> None:
        target = self._routes.target(partition.topic)
        assert target is not None, f"{partition.topic} was not subscribed to"
        if target == self._settings.dead_letters:
            if partition.topic not in self._left_out:
                self._left_out.add(partition.topic)
                log.error(
                    "Kafka topic %r is left out: its target is the topic of the dead letters; change topics, or set "
                    "dead_letters to another name",
                    partition.topic,
                )
            return  # it stays paused
        key = key_of(self._settings.name, partition.topic, partition.partition)
        self._feeds[partition] = PartitionFeed(partition, key, target)

    def _has_orphan(self, partition: Any) -> bool:
        """True if this bridge still writes what it had read of the partition before it was revoked."""
        orphan = self._orphans.get(partition)
        if orphan is None or not orphan.done():
            return orphan is not None
        del self._orphans[partition]
        if isinstance(error := orphan.exception(), Exception):
            log.info("%s/%d was revoked during a write, which failed: %s", *partition, error)
        return False

    def _unplace(self, feed: PartitionFeed) -> None:
        self._consumer.hold(feed.partition)
        feed.drop()
        feed.position = None

    def _place_new(self) -> None:
        for feed in list(self._feeds.values()):
            if feed.stalled_until > time.monotonic():
                continue
            if feed.position is None and feed.writing is None and not self._has_orphan(feed.partition):
                try:
                    if not self._placement.place(feed):
                        self._stop.wait(POLL_MS / 1000)
                    self._troubles.node.over()
                except KafkaError as error:
                    self._troubles.kafka.wait(error)
                    return
                except (UnreachableError, RefusedError) as error:
                    self._wait_for_node(error)
                    return

    # ---- now and then

    def _look(self) -> None:
        """Measure lags, and detect topics that were deleted and created again."""
        self._looked_at = time.monotonic()
        placed = {each.partition: each for each in self._feeds.values() if each.position is not None}
        try:
            described = self._consumer.described(sorted({partition.topic for partition in placed}))
        except KafkaError as error:
            self._troubles.kafka.wait(error)
            return
        self._troubles.kafka.over()
        lags: dict[str, int] = {}
        for partition, feed in placed.items():
            assert feed.position is not None
            end = self._consumer.end(partition)
            if end is None or partition.topic not in described:
                continue
            if described[partition.topic].id != feed.position.topic_id:
                self._unplace(feed)
                continue
            carried = feed.position.offset if feed.expect is None else Position.parse(feed.expect).offset
            lags[partition.topic] = lags.get(partition.topic, 0) + max(end - carried, 0)
        for topic, lag in lags.items():
            self._metrics.lag(topic=topic).set(lag)

    def _use_keys(self) -> None:
        """Read the position of every feed. If the node cannot be reached, all of them are read again later."""
        try:
            for feed in list(self._feeds.values()):
                self._channel.position(feed.key)
        except (UnreachableError, RefusedError) as error:
            self._wait_for_node(error)
            return
        self._used_at = time.monotonic()

    def _wait_for_node(self, error: UnreachableError | RefusedError) -> None:
        if isinstance(error, RefusedError) and error.code not in TRY_AGAIN:
            raise error
        self._troubles.node.wait(error)
