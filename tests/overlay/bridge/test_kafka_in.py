"""kafka-in without a broker: what is taken for one commit, and partitions that come and go.

The stub consumer keeps its assignment in kafka-python's own `SubscriptionState`, so that it minds what the real one
minds. Writers run at once, in the bridge's thread.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.consumer.subscription_state import SubscriptionState
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import MemberState

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs.raw_codec import RawCodec
from m4cast.overlay.bridge.kafka_in.bridge import USE_S, KafkaIn
from m4cast.overlay.bridge.kafka_in.group_consumer import POLL_MS, GroupConsumer
from m4cast.overlay.bridge.kafka_in.partition_feed import PartitionFeed
from m4cast.overlay.bridge.kafka_in.positions import Position
from m4cast.overlay.bridge.kafka_in.writer import RecordBatch
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.errors import RefusedError, UnreachableError
from tests.overlay.bridge.test_records import KafkaRecord

PARTITION = TopicPartition("t", 0)
POLLED = 500
VALUE = b"x" * 100


class StubConsumer:
    """One partition with the records before `end`. `happenings` are done in a poll each, before it reads."""

    def __init__(self, end: int) -> None:
        self.state = SubscriptionState()
        self.state.subscribe(topics=["t"])
        self.happenings: list[Callable[[], None]] = []
        self.waits_ms = -1
        self._end = end
        self._fetcher = SimpleNamespace(_next_partition_records=None)

    def group_metadata(self) -> Any:
        return SimpleNamespace(state=MemberState.STABLE)

    def assignment(self) -> set[Any]:
        return set(self.state.assigned_partitions())

    def paused(self) -> set[Any]:
        return set(self.state.paused_partitions())

    def pause(self, partition: Any) -> None:
        self.state.pause(partition)

    def resume(self, partition: Any) -> None:
        self.state.resume(partition)

    def seek(self, partition: Any, offset: int) -> None:
        if partition not in self.assignment():
            raise ValueError("Unassigned partition")
        self.state.seek(partition, offset)

    def beginning_offsets(self, _: object) -> dict[Any, int]:
        return {PARTITION: 0}

    def end_offsets(self, _: object) -> dict[Any, int]:
        return {PARTITION: self._end}

    def poll(self, timeout_ms: int) -> dict[Any, list[KafkaRecord]]:
        self.waits_ms = timeout_ms
        if self.happenings:
            self.happenings.pop(0)()
        if PARTITION not in self.assignment() or self.state.is_paused(PARTITION):
            return {}
        at = self.state.assignment[PARTITION].position.offset
        until = min(self._end, at + POLLED)
        self.state.seek(PARTITION, until)
        return {PARTITION: [KafkaRecord(VALUE, offset=offset) for offset in range(at, until)]}


class StubChannel:
    """One key. The answer to the first commit is lost, if so told."""

    nodes = ("n:1",)

    def __init__(self, *, loses_answer: bool = False) -> None:
        self._loses_answer = loses_answer
        self.stands_at: str | None = None
        self.asked_for: list[str] = []
        self.is_away = False

    def position(self, key: str) -> str | None:
        if self.is_away:
            raise UnreachableError("nobody answers")
        self.asked_for.append(key)
        return self.stands_at

    def commit(self, _: list[str], *, key: str, next: str) -> None:
        self.stands_at = next
        if self._loses_answer:
            self._loses_answer = False
            raise UnreachableError("the connection broke when the commit was done")


class StubWriter:
    """`refuses`: what the node says to every batch."""

    def __init__(self, channel: StubChannel) -> None:
        self._channel = channel
        self.refuses: RefusedError | None = None
        self.written: list[tuple[int, int]] = []

    def write(self, batch: RecordBatch) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert batch.expect == self._channel.stands_at
        self._channel.stands_at = batch.next
        self.written.append((batch.records[0].offset, batch.records[-1].offset))


class AtOnce:
    """A pool whose work is done when it is submitted; or never, while the node is slow."""

    def __init__(self, *, is_slow: bool) -> None:
        self._is_slow = is_slow

    def submit(self, work: Callable[[RecordBatch], None], batch: RecordBatch) -> "Future[None]":
        future: Future[None] = Future()
        if not self._is_slow:
            try:
                work(batch)
            except RefusedError as error:
                future.set_exception(error)
            else:
                future.set_result(None)
        return future


class Bridge(KafkaIn):
    """Up to where it has connected."""

    def __init__(self, channel: StubChannel, end: int, *, is_slow: bool = False, **settings: Any) -> None:
        made = KafkaInSettings(brokers=("b:1",), topics=("t",), linger_ms=0, **settings)
        brokers = cast("Brokers", SimpleNamespace(addresses="b:1"))
        super().__init__(
            made, brokers, cast("Any", channel), RawCodec(), BridgeMetrics("kafka-in", "b"), threading.Event()
        )
        self.consumer = StubConsumer(end)
        described = {"name": "t", "topic_id": "ID", "error_code": 0, "partitions": [{"partition_index": 0}]}
        admin = SimpleNamespace(describe_topics=lambda _: [described])
        self.writer = StubWriter(channel)
        self.group = GroupConsumer(self.consumer, admin, "c", frozenset(["t"]))
        self._begin(self.group, cast("Any", self.writer), cast("Any", AtOnce(is_slow=is_slow)))
        self._looked_at = float("inf")  # not in these tests

    def gets(self) -> None:
        """The partition, as kafka-python says it."""
        self.consumer.state.assign_from_subscribed([PARTITION])
        self.group.assigned([PARTITION])

    def stalled(self) -> float:
        return float(
            self._metrics.registry.get_sample_value(
                "m4cast_bridge_stalled_partitions", {"direction": "kafka-in", "bridge": "b", "topic": "t"}
            )
            or 0
        )

    def loses(self) -> None:
        self.group.revoked([PARTITION])
        self.consumer.state.assign_from_subscribed([])

    def steps(self, *happenings: Callable[[], None], more: int = 0) -> None:
        self.consumer.happenings = list(happenings)
        for _ in range(len(happenings) + more):
            self._step()


# ---- what is taken for one commit


def feed_of(records: Iterable[KafkaRecord]) -> PartitionFeed:
    feed = PartitionFeed(PARTITION, "k", "T", position=Position(0, "id"))
    feed.add(list(records))
    return feed


def taken(feed: PartitionFeed, batch_bytes: int) -> list[int]:
    counts = []
    while feed.records:
        batch = feed.take("p", batch_bytes)
        assert batch.next == f"{batch.records[-1].offset + 1}@id/p"
        counts.append(len(batch.records))
    assert (feed.bytes, feed.sizes) == (0, [])
    return counts


def test_a_commit_takes_batch_bytes_of_what_waits_in_order() -> None:
    feed = feed_of(KafkaRecord(b"x" * 968, None, offset=at) for at in range(10))
    assert feed.bytes == 10_000
    assert feed.take("p", 2_000).records == [KafkaRecord(b"x" * 968, None, offset=at) for at in range(2)]
    assert feed.bytes == 8_000
    assert taken(feed, 2_999) == [2, 2, 2, 2]


def test_a_commit_takes_one_record_at_least_and_all_that_fit() -> None:
    assert taken(feed_of(KafkaRecord(bytes(5_000), offset=at) for at in range(3)), 1_000) == [1, 1, 1]
    assert taken(feed_of(KafkaRecord(b"x", offset=at) for at in range(100)), 1 << 20) == [100]


def test_headers_count_in_batch_bytes() -> None:
    headers = (("trace", b"y" * 1_000),)
    assert taken(feed_of(KafkaRecord(b"x", offset=at, headers=headers) for at in range(4)), 2_500) == [2, 2]


def test_a_backlog_is_carried_in_batches() -> None:
    channel = StubChannel()
    bridge = Bridge(channel, 2 * POLLED, batch_bytes=10_000)
    bridge.steps(bridge.gets, more=40)
    assert channel.stands_at is not None and channel.stands_at.startswith("1000@ID/")
    first, last = zip(*bridge.writer.written, strict=True)
    assert first == (0, *(each + 1 for each in last[:-1]))
    assert max(end - begin for begin, end in bridge.writer.written) < 10_000 // len(VALUE)


def test_a_batch_that_is_ready_waits_for_its_writer_and_not_for_kafka() -> None:
    bridge = full()
    assert bridge.consumer.waits_ms == 0
    bridge._feeds[PARTITION].drop()
    bridge.consumer.state.pause(PARTITION)
    bridge.steps(lambda: None)
    assert bridge.consumer.waits_ms == POLL_MS


def test_the_key_of_a_partition_without_records_is_used_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = StubChannel()
    bridge = Bridge(channel, 0)
    bridge.steps(bridge.gets, more=3)
    assert len(channel.asked_for) == 1, "to begin with, and not with every step"
    bridge._used_at -= USE_S
    channel.is_away = True
    monkeypatch.setattr(bridge._troubles.node, "wait", lambda error: None)
    bridge.steps(more=1)
    channel.is_away = False
    bridge.steps(more=3)
    (key,) = set(channel.asked_for)
    assert (key, len(channel.asked_for)) == ("kafka-in/bridge/t/0", 2)


# ---- partitions that come and go


def full(**settings: Any) -> Bridge:
    """A bridge whose node is slow, with as much as it may read of its partition."""
    bridge = Bridge(StubChannel(), 10**6, is_slow=True, batch_bytes=1_024, **settings)
    bridge.steps(bridge.gets, more=3)
    assert bridge.consumer.paused() == {PARTITION}
    return bridge


def test_a_partition_with_a_backlog_may_be_taken_away() -> None:
    bridge = full()
    bridge.steps(bridge.loses)
    assert bridge._feeds == {}, "nothing more is done for it"


def test_a_partition_revoked_after_the_poll_does_not_stop_the_bridge() -> None:
    """The bridge hears of it only in its next round."""
    bridge = full()
    resumed = bridge._feeds[PARTITION]
    bridge.consumer.state.assign_from_subscribed([])
    bridge.steps(lambda: None)
    resumed.drop()
    bridge.steps(lambda: None)
    bridge.steps(bridge.loses, bridge.gets)
    assert bridge.consumer.paused() == {PARTITION}, "what was being written of it is waited for"


def test_lost_offsets_of_a_revoked_partition_do_not_stop_the_bridge() -> None:
    bridge = full()

    def happens() -> None:
        bridge.loses()
        raise OffsetOutOfRangeError({PARTITION: 0})

    bridge.steps(happens, more=1)
    assert bridge._feeds == {}


def test_consumer_errors_of_assigned_partitions_are_reported() -> None:
    bridge = full()
    with pytest.raises(ValueError, match="no such thing"):
        bridge.group.steer(_fails, PARTITION)


def _fails(_: object) -> None:
    raise ValueError("no such thing")


@pytest.mark.parametrize("loses_answer", [False, True])
def test_latest_begins_at_the_end_though_the_answer_to_its_commit_is_lost(loses_answer: bool) -> None:
    channel = StubChannel(loses_answer=loses_answer)
    bridge = Bridge(channel, 1_000, start="latest")
    bridge.steps(bridge.gets, more=4)
    assert bridge.writer.written == [] and channel.stands_at is not None
    assert Position.parse(channel.stands_at).offset == 1_000
    bridge.consumer._end = 1_001
    bridge.steps(more=2)
    assert bridge.writer.written == [(1_000, 1_000)]


def test_a_partition_whose_rows_are_refused_waits_and_goes_on_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Others go on, so the bridge must not end."""
    channel = StubChannel()
    bridge = Bridge(channel, 10)
    bridge.writer.refuses = RefusedError("bad-topic", "topic 'x' is too long")
    with caplog.at_level(logging.INFO, "m4cast.bridge"):
        bridge.steps(bridge.gets, more=5)
        feed = bridge._feeds[PARTITION]
        assert feed.position is None and bridge.consumer.paused() == {PARTITION} and channel.stands_at is None
        assert bridge.stalled() == 1
        for _ in range(2):  # tried again, and refused again
            feed.stalled_until = 0.0
            bridge.steps(more=5)
        assert bridge.stalled() == 1
        bridge.writer.refuses = None
        feed.stalled_until = 0.0
        bridge.steps(more=5)
    assert bridge.writer.written == [(0, 9)] and bridge.stalled() == 0
    said = [each.message for each in caplog.records if "refuse" in each.message or "accepts" in each.message]
    assert len(said) == 2 and "bad-topic: topic 'x' is too long" in said[0] and "again" in said[1]


def test_a_kafka_topic_is_not_carried_into_the_topic_of_the_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    """It would give it other columns, and no dead letter could be written there any more."""
    bridge = Bridge(StubChannel(), 10, dead_letters="t")
    bridge.steps(bridge.gets, bridge.loses, bridge.gets, more=3)
    assert bridge.writer.written == [] and bridge.consumer.paused() == {PARTITION}
    assert len([each for each in caplog.records if "'t' is left out" in each.message]) == 1
