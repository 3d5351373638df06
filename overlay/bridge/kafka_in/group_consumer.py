"""The consumer of kafka-in in its Kafka group, with an admin client beside it.

Kafka assigns and revokes partitions on a thread of kafka-python's own. A partition is paused as soon as it is assigned,
and the changes wait in a queue (`changes`) for the bridge's thread.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Literal, NamedTuple

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.structs import MemberState

from m4cast.overlay.bridge.brokers import Brokers

POLL_MS = 100
JOIN_MS = 1_000
POLL_RECORDS = 10_000
CLOSE_MS = 5_000


class DescribedTopic(NamedTuple):
    id: str
    partitions: set[int]


class GroupChange(NamedTuple):
    kind: Literal["assigned", "revoked"]
    partitions: list[Any]


class GroupConsumer:
    def __init__(self, consumer: Any, admin: Any, cluster: str, topics_at_start: frozenset[str]) -> None:
        self._consumer = consumer
        self._admin = admin
        self._changes: deque[GroupChange] = deque()
        self.cluster = cluster
        self.topics_at_start = topics_at_start

    @classmethod
    def connect(cls, brokers: Brokers, group: str) -> "GroupConsumer":
        """Raises `KafkaError` if Kafka cannot be reached."""
        admin = brokers.admin()
        try:
            cluster = str(admin.describe_cluster()["cluster_id"])
            topics = frozenset(admin.list_topics())
            consumer = brokers.consumer(
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                max_poll_records=POLL_RECORDS,
            )
        except BaseException:
            admin.close()
            raise
        return cls(consumer, admin, cluster, topics)

    def close(self) -> None:
        self._consumer.close(timeout_ms=CLOSE_MS)
        self._admin.close()

    # ---- the group

    def subscribe(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=pattern, listener=_Rebalance(self))

    def assigned(self, partitions: list[Any]) -> None:
        """Called on Kafka's thread. Nothing is read from the partitions yet."""
        for partition in partitions:
            self.hold(partition)
        self._changes.append(GroupChange("assigned", partitions))

    def revoked(self, partitions: list[Any]) -> None:
        """Called on Kafka's thread."""
        self._changes.append(GroupChange("revoked", partitions))

    def changes(self) -> Iterator[GroupChange]:
        """The changes since the last call, oldest first."""
        while self._changes:
            yield self._changes.popleft()

    def owns(self, partition: Any) -> bool:
        return partition in self._consumer.assignment()

    # ---- reading

    def poll(self, writing: Sequence["Future[None]"]) -> dict[Any, list[Any]]:
        """The next records. `writing`: the pending writes of partitions whose next batch is ready.

        Works around two faults of kafka-python 3.0. It forgets an assignment that arrives after a poll has ended, if
        new topics or partitions caused it: until the bridge is settled in its group, it asks to rejoin. And it returns
        to the fetched records of a paused partition only when it holds none of another partition, but it counts an
        exhausted one as held: without this, a partition could wait for ever."""
        fetcher = self._consumer._fetcher
        if not fetcher._next_partition_records:
            fetcher._next_partition_records = None
        if self._consumer.group_metadata().state == MemberState.STABLE:
            return self._poll_settled(writing)
        self._consumer._coordinator.request_rejoin()
        return self._consumer.poll(timeout_ms=JOIN_MS)  # type: ignore[no-any-return]

    def _poll_settled(self, writing: Sequence["Future[None]"]) -> dict[Any, list[Any]]:
        """Polled records by partition. While a batch is being written, this waits for its writer and not in the poll:
        the poll would sleep while all partitions are paused, and the writer would idle."""
        polled: dict[Any, list[Any]] = self._consumer.poll(timeout_ms=0 if writing else POLL_MS)
        if writing and not polled:
            wait(writing, POLL_MS / 1000, FIRST_COMPLETED)
        return polled

    def hold(self, partition: Any) -> None:
        """Read nothing from the partition until its position is known."""
        self.steer(self._consumer.seek, partition, 0)
        self.steer(self._consumer.pause, partition)

    def begin(self, partition: Any, offset: int) -> bool:
        """Move to an offset; False if the partition was revoked."""
        return self.steer(self._consumer.seek, partition, offset)

    def throttle(self, partition: Any, *, is_full: bool) -> None:
        """Pause the partition if its feed is full, else resume it."""
        is_paused = partition in self._consumer.paused()
        if is_full and not is_paused:
            self.steer(self._consumer.pause, partition)
        elif not is_full and is_paused:
            self.steer(self._consumer.resume, partition)

    def steer(self, act: Callable[..., None], partition: Any, *arguments: int) -> bool:
        """Pause, resume or seek; False if the partition was revoked. Checking before the call would not do, since
        kafka-python revokes partitions on a thread of its own."""
        try:
            act(partition, *arguments)
        except (KeyError, ValueError):
            if self.owns(partition):
                raise
            return False
        return True

    # ---- what Kafka has

    def extent(self, partition: Any) -> tuple[int, int]:
        """The first offset that Kafka keeps, and the next one to be written."""
        low = self._consumer.beginning_offsets([partition])[partition]
        return low, self._consumer.end_offsets([partition])[partition]

    def end(self, partition: Any) -> int | None:
        """The next offset to be written, as of the last fetch; None if it is not known."""
        return self._consumer.highwater(partition) if self.owns(partition) else None

    def described(self, topics: Sequence[str]) -> dict[str, DescribedTopic]:
        """The topics that exist, among these."""
        return {
            each["name"]: DescribedTopic(
                str(each["topic_id"]), {partition["partition_index"] for partition in each["partitions"]}
            )
            for each in self._admin.describe_topics(list(topics))
            if not each["error_code"]
        }


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python ships no types
    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: list[Any]) -> None:
        self._consumer.assigned([TopicPartition(*each) for each in assigned])

    def on_partitions_revoked(self, revoked: list[Any]) -> None:
        self._consumer.revoked([TopicPartition(*each) for each in revoked])
