"""kafka-in: records of Kafka topics become rows of channel topics, exactly once, in the order of each partition.

The position of a partition is not Kafka's: it is the publisher key `kafka-in/NAME/TOPIC/PARTITION` at the access point
(`positions`), and moves in the commit that publishes the rows (`writer`). The Kafka group only says which bridge of a
name carries which partition. A bridge that was taken for dead and is not (a paused process) finds its key elsewhere
when it commits, and stops; nothing of its is published twice.

One thread reads from Kafka; writers decode and publish, one batch of a partition at a time. What is read and not
written is bounded: a partition that has enough is paused. New partitions, and those that come by a rebalance, begin
where the access point says, and only after it was asked.
"""

import logging
import threading
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError
from kafka.structs import MemberState

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs import Codec
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.positions import Position, beginning, key_of
from m4cast.overlay.bridge.records import sizes
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.bridge.trouble import Trouble
from m4cast.overlay.bridge.writer import TRY_AGAIN, Batch, FencedError, StoppedError, Writer
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")

POLL_MS = 100
JOIN_MS = 1_000
POLL_RECORDS = 10_000
WAITING_BATCHES = 2
"""Batches of a partition that wait for its writer; then it is paused."""
LOOK_S = 5.0
"""How often Kafka is asked for lags and ids of topics, which also shows whether it is there."""
USE_S = 24 * 3600.0
"""How often positions are asked for that may not move for months: a publisher key that is not used expires."""
STALL_S = 30.0
"""How long a partition waits whose rows the channel refuses. Lower: more of the same questions. Guess."""
STOP_S = 20.0
"""How long a bridge that stops waits for what is being written."""


class DataLossError(M4castError):
    """Records are gone that were not carried."""


class DescribedTopic(NamedTuple):
    id: str
    partitions: set[int]


@dataclass(slots=True)
class Feed:
    """One partition of this bridge: what was read of it, and how far it is written."""

    partition: Any
    key: str
    target: str
    expect: str | None = None
    """Where the key stands."""
    position: Position | None = None
    """Where the next record to be read stands; None until the access point was asked."""
    records: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    bytes: int = 0
    since: float = 0.0
    writing: "Future[None] | None" = None
    written: Position | None = None
    """Where it is when what is being written is done."""
    is_fresh: bool = True
    """Nothing of it was committed here yet: the key may be moved once by a predecessor's last commit."""
    is_stalled: bool = False
    """Its last rows were refused, whatever they are."""
    stalled_until: float = 0.0

    def add(self, records: list[Any]) -> None:
        if not self.records:
            self.since = time.monotonic()
        added = sizes(records)
        self.records.extend(records)
        self.sizes.extend(added)
        self.bytes += sum(added)

    def take(self, process: str, batch_bytes: int) -> Batch:
        """The first records, as many as have about so many bytes; at least one."""
        assert self.position is not None
        count = len(self.records)
        if self.bytes > batch_bytes:
            count = max(bisect_right(list(accumulate(self.sizes)), batch_bytes), 1)
        records, self.records = self.records[:count], self.records[count:]
        self.bytes -= sum(self.sizes[:count])
        del self.sizes[:count]
        self.written = replace(self.position, offset=records[-1].offset + 1, process=process)
        return Batch(records, self.target, self.key, self.expect, str(self.written))

    def drop(self) -> None:
        self.records, self.sizes, self.bytes = [], [], 0


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
        self._feeds: dict[Any, Feed] = {}
        self._left: dict[Any, Future[None]] = {}
        self._changes: deque[tuple[str, list[Any]]] = deque()
        self._kafka = Trouble("kafka", f"Kafka at {brokers.addresses}", metrics, stop)
        self._node = Trouble("node", f"node {channel.nodes[0]}", metrics, stop)
        self._topics_at_start: frozenset[str] = frozenset()
        self._first_seen: dict[str, set[int]] = {}
        """Partitions that were there before anything of their topic was carried."""
        self._left_out: set[str] = set()
        """Kafka topics that are not carried, and of which that was said."""
        self._looked_at = 0.0
        self._used_at = time.monotonic()

    def run(self) -> None:
        connected = self._connected()
        if connected is None:
            return
        self._consumer, self._admin, cluster = connected
        self._writer = Writer(
            self._channel,
            self._codec,
            name=self._settings.name,
            cluster=cluster,
            dead_letters=self._settings.dead_letters,
            acks=None if self._settings.acks < 0 else self._settings.acks,
            node=self._node,
            metrics=self._metrics,
            stop=self._stop,
        )
        with ThreadPoolExecutor(self._settings.writers, "m4cast-bridge") as self._pool:
            try:
                self._consumer.subscribe(pattern=self._routes.pattern, listener=_Rebalance(self))
                while not self._stop.is_set():
                    self._step()
            finally:
                self._stop.set()
                self._wait_for_writers(list(self._feeds.values()))
                self._consumer.close(timeout_ms=5_000)
                self._admin.close()

    # ---- Kafka

    def _connected(self) -> tuple[Any, Any, str] | None:
        """A consumer, an admin client and the name of the Kafka cluster, as soon as there is one."""
        while not self._stop.is_set():
            admin = None
            try:
                admin = self._brokers.admin()
                cluster = str(admin.describe_cluster()["cluster_id"])
                self._topics_at_start = frozenset(admin.list_topics())
                consumer = self._brokers.consumer(
                    group_id=self._settings.group or f"m4cast-{self._settings.name}",
                    enable_auto_commit=False,
                    auto_offset_reset="none",
                    isolation_level="read_committed",
                    max_poll_records=POLL_RECORDS,
                )
            except KafkaError as error:
                if admin is not None:
                    admin.close()
                self._kafka.wait(error)
                continue
            self._kafka.over()
            return consumer, admin, cluster
        return None

    # ---- one round

    def _step(self) -> None:
        self._follow_group()
        self._place_new()
        try:
            polled = self._poll()
        except (OffsetOutOfRangeError, LogTruncationError):
            for feed in self._feeds.values():
                self._unplace(feed)
            return
        except KafkaError as error:
            self._kafka.wait(error)
            return
        self._follow_group()  # the poll is where most changes come: nothing more is done for what it took away
        for partition, records in polled.items():
            fed = self._feeds.get(partition)
            if fed is not None and fed.position is not None:
                fed.add(records)
        for feed in list(self._feeds.values()):
            self._collect(feed)
            self._hand_over(feed)
            self._throttle(feed)
        if time.monotonic() - self._looked_at > LOOK_S:
            self._look()
        if time.monotonic() - self._used_at > USE_S:
            self._use_keys()

    def _poll(self) -> dict[Any, list[Any]]:
        """kafka-python 3.0 forgets an assignment that came after its poll had ended, if new topics or partitions were
        the reason for it: as long as the bridge is not settled in its group, it is told to join. And it brings back
        what it had fetched of a paused partition only when it has nothing of another one in hand, for which it takes
        one that is used up, too: without this, a partition could wait for ever."""
        fetcher = self._consumer._fetcher
        if not fetcher._next_partition_records:
            fetcher._next_partition_records = None
        if self._consumer.group_metadata().state == MemberState.STABLE:
            return self._poll_settled()
        self._consumer._coordinator.request_rejoin()
        return self._consumer.poll(timeout_ms=JOIN_MS)  # type: ignore[no-any-return]

    def _poll_settled(self) -> dict[Any, list[Any]]:
        """When a partition has its next batch ready, what is waited for is its writer: a poll would sleep as long as
        all are paused, and the writer would be idle meanwhile."""
        ready = [feed for feed in self._feeds.values() if feed.bytes >= self._settings.batch_bytes]
        writing = [feed.writing for feed in ready if feed.writing is not None]
        polled: dict[Any, list[Any]] = self._consumer.poll(timeout_ms=0 if writing else POLL_MS)
        if writing and not polled:
            wait(writing, POLL_MS / 1000, FIRST_COMPLETED)
        return polled

    def _hand_over(self, feed: Feed) -> None:
        """To a writer, when there is enough or it has waited long enough."""
        if feed.writing is not None or not feed.records:
            return
        waited_ms = (time.monotonic() - feed.since) * 1000
        if feed.bytes >= self._settings.batch_bytes or waited_ms >= self._settings.linger_ms:
            batch = feed.take(self._process, self._settings.batch_bytes)
            feed.writing = self._pool.submit(self._writer.write, batch)

    def _collect(self, feed: Feed) -> None:
        """What became of the last batch."""
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
            log.info("%s was moved since it was asked for, by a bridge that is gone or another; asking again", feed.key)
            feed.is_fresh = False
            self._unplace(feed)
            return
        except RefusedError as error:
            self._stall(feed, error)
            return
        if feed.is_stalled:
            feed.is_stalled = False
            self._count_stalled(feed.partition.topic)
            log.info("rows of Kafka topic %r, partition %d, are taken again", *feed.partition)
        assert feed.written is not None
        feed.expect, feed.is_fresh = str(feed.written), False

    def _stall(self, feed: Feed, error: RefusedError) -> None:
        """The channel does not take rows of this topic, whatever they are: its name, or its columns. That is nothing to
        stop the others for. It may be put right, so it is tried again."""
        if not feed.is_stalled:
            feed.is_stalled = True
            self._count_stalled(feed.partition.topic)
            log.error(
                "the channel refuses the rows of Kafka topic %r, partition %d, for %r: %s; it waits, and is tried "
                "again every %.0f s; the others go on",
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

    def _throttle(self, feed: Feed) -> None:
        if feed.position is None:
            return
        is_full = feed.bytes >= WAITING_BATCHES * self._settings.batch_bytes
        if is_full and feed.partition not in self._consumer.paused():
            self._steer(self._consumer.pause, feed.partition)
        elif not is_full and feed.partition in self._consumer.paused():
            self._steer(self._consumer.resume, feed.partition)

    def _steer(self, act: Callable[..., None], partition: Any, *arguments: int) -> bool:
        """Pause, resume or seek; False if the partition is not this bridge's any more. It is tried and not looked up
        before, since kafka-python takes partitions away on a thread of its own."""
        try:
            act(partition, *arguments)
        except (KeyError, ValueError):
            if partition in self._consumer.assignment():
                raise
            return False
        return True

    # ---- where a partition begins

    def assigned(self, partitions: list[Any]) -> None:
        """Kafka's thread says so; nothing is read of them yet."""
        for partition in partitions:
            self._hold(partition)
        self._changes.append(("assigned", partitions))

    def revoked(self, partitions: list[Any]) -> None:
        self._changes.append(("revoked", partitions))

    def _follow_group(self) -> None:
        """What is being written of a partition that was taken away is left to itself: if the next one to carry it is
        quicker, the commit fails there, and nothing is lost or doubled."""
        while self._changes:
            change, partitions = self._changes.popleft()
            for partition in partitions:
                left = self._feeds.pop(partition, None)
                if left is not None and left.writing is not None:
                    self._left[partition] = left.writing
                if left is not None and left.is_stalled:
                    self._count_stalled(partition.topic)
                if change == "assigned":
                    self._feed(partition)

    def _feed(self, partition: Any) -> None:
        target = self._routes.target(partition.topic)
        assert target is not None, f"{partition.topic} was not asked for"
        if target == self._settings.dead_letters:
            if partition.topic not in self._left_out:
                self._left_out.add(partition.topic)
                log.error(
                    "Kafka topic %r is left out: it would go into the topic of the dead letters; change topics, or set "
                    "dead_letters to another name",
                    partition.topic,
                )
            return  # it stays paused
        key = key_of(self._settings.name, partition.topic, partition.partition)
        self._feeds[partition] = Feed(partition, key, target)

    def _is_left_to_end(self, partition: Any) -> bool:
        """Whether this bridge still writes what it had of the partition before it came back."""
        left = self._left.get(partition)
        if left is None or not left.done():
            return left is not None
        del self._left[partition]
        if isinstance(error := left.exception(), Exception):
            log.info("%s/%d was given up while it was being written: %s", *partition, error)
        return False

    def _hold(self, partition: Any) -> None:
        """No record of it until it is known where it begins."""
        self._steer(self._consumer.seek, partition, 0)
        self._steer(self._consumer.pause, partition)

    def _unplace(self, feed: Feed) -> None:
        self._hold(feed.partition)
        feed.drop()
        feed.position = None

    def _place_new(self) -> None:
        for feed in list(self._feeds.values()):
            if feed.stalled_until > time.monotonic():
                continue
            if feed.position is None and feed.writing is None and not self._is_left_to_end(feed.partition):
                try:
                    self._place(feed)
                    self._node.over()
                except KafkaError as error:
                    self._kafka.wait(error)
                    return
                except UnreachableError as error:
                    self._node.wait(error)
                    return
                except RefusedError as error:
                    if error.code not in TRY_AGAIN:
                        raise
                    self._node.wait(error)
                    return

    def _place(self, feed: Feed) -> None:
        topic, partition = feed.partition
        stored = self._channel.position(feed.key)
        described = self._described([topic]).get(topic)
        if described is None:
            self._stop.wait(POLL_MS / 1000)  # deleted meanwhile: it will be revoked
            return
        low = self._consumer.beginning_offsets([feed.partition])[feed.partition]
        end = self._consumer.end_offsets([feed.partition])[feed.partition]
        start = self._settings.start
        if stored is None and start == "latest" and self._is_new(feed.partition, described):
            start = "earliest"  # all of it came since the bridge began
        begins = beginning(None if stored is None else Position.parse(stored), described.id, low, end, start)
        if begins.loss:
            self._lose(feed, begins.loss)
        expect = stored
        if stored is None and start == "latest":
            # So that a bridge that ends before the first record does not miss it when it comes back.
            expect = str(replace(begins.position, process=self._process))
            self._channel.commit([], key=feed.key, next=expect)
        if not self._steer(self._consumer.seek, feed.partition, begins.position.offset):
            return
        # Not before: whatever fails above, the feed has no position and is asked for again.
        feed.expect, feed.position = expect, begins.position
        self._steer(self._consumer.resume, feed.partition)
        log.info("%s/%d -> %s from offset %d", topic, partition, feed.target, begins.position.offset)

    def _is_new(self, partition: Any, described: DescribedTopic) -> bool:
        """Of a topic that was not there when this bridge began, or one that its topic got after it was carried."""
        topic = partition.topic
        if topic not in self._first_seen:
            keys = [key_of(self._settings.name, topic, each) for each in sorted(described.partitions)]
            was_carried = any(self._channel.position(key) is not None for key in keys)
            is_old = topic in self._topics_at_start and not was_carried
            self._first_seen[topic] = described.partitions if is_old else set()
        return partition.partition not in self._first_seen[topic]

    def _lose(self, feed: Feed, loss: str) -> None:
        topic, partition = feed.partition
        self._metrics.losses(topic=topic).inc()
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                f"Kafka topic {topic!r}, partition {partition}, {loss}; to go on without, set fail_on_data_loss = false"
            )
        log.error("Kafka topic %r, partition %d, %s; going on without", topic, partition, loss)

    # ---- looking

    def _described(self, topics: list[str]) -> dict[str, DescribedTopic]:
        return {
            each["name"]: DescribedTopic(
                str(each["topic_id"]), {partition["partition_index"] for partition in each["partitions"]}
            )
            for each in self._admin.describe_topics(topics)
            if not each["error_code"]
        }

    def _look(self) -> None:
        """Lags, and topics that were made anew under the same name."""
        self._looked_at = time.monotonic()
        placed = {each.partition: each for each in self._feeds.values() if each.position is not None}
        try:
            described = self._described(sorted({partition.topic for partition in placed}))
        except KafkaError as error:
            self._kafka.wait(error)
            return
        self._kafka.over()
        lags: dict[str, int] = {}
        for partition, feed in placed.items():
            assert feed.position is not None
            end = self._consumer.highwater(partition) if partition in self._consumer.assignment() else None
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
        """Ask for the position of every feed. If the node is away, all of it is done again later."""
        try:
            for feed in list(self._feeds.values()):
                self._channel.position(feed.key)
        except UnreachableError as error:
            self._node.wait(error)
            return
        except RefusedError as error:
            if error.code not in TRY_AGAIN:
                raise
            self._node.wait(error)
            return
        self._used_at = time.monotonic()

    def _wait_for_writers(self, feeds: list[Feed]) -> None:
        wait([feed.writing for feed in feeds if feed.writing is not None], STOP_S)


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python ships no types
    def __init__(self, bridge: KafkaIn) -> None:
        self._bridge = bridge

    def on_partitions_assigned(self, assigned: list[Any]) -> None:
        self._bridge.assigned([TopicPartition(*each) for each in assigned])

    def on_partitions_revoked(self, revoked: list[Any]) -> None:
        self._bridge.revoked([TopicPartition(*each) for each in revoked])
