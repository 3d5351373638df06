"""kafka-out: rows of channel topics become records of Kafka topics, in transactions, in the order of each stream.

A transaction contains the records of some rows and the bridge's progress after them (`progress_topic`): a consumer that
reads committed records sees each row once, whichever process is killed at any time. The transactional id is the
bridge's name: of two bridges with one name, or of a bridge that resumes after a pause and its successor, Kafka fences
one, which stops.

At the nodes, the bridge is the reader `kafka-out/NAME`: rows that it has not carried are kept for it. It reads from any
node, since a frontier is valid on every node. Rows that came from the very Kafka topic they would go to are left out.
Dead letters of rows are published before their transaction, at least once.
"""

import logging
import re
import threading
import time
from contextlib import suppress
from typing import Any, Literal

from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs.codec import Codec
from m4cast.overlay.bridge.codecs.registry import RegistryError
from m4cast.overlay.bridge.errors import DataLossError, FencedError
from m4cast.overlay.bridge.kafka_out.progress_topic import ProgressTopic
from m4cast.overlay.bridge.kafka_out.row_letters import RowLetters
from m4cast.overlay.bridge.kafka_out.transactions import Transactions
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import KafkaOutSettings
from m4cast.overlay.bridge.trouble import TRY_AGAIN, Troubles
from m4cast.overlay.client import Channel, Frontier, Subscription
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")

ACQUIRE_S = 0.05
LOOK_S = 5.0
"""Interval at which the bridge looks for new topics, measures lags and renews its lease."""
LEASE_S = 600.0
CLOSE_S = 5.0
"""Time that a producer may take to close."""
KAFKA_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class KafkaOut:
    """`run` it until `stop` is set, or an error ends it."""

    def __init__(
        self,
        settings: KafkaOutSettings,
        brokers: Brokers,
        channel: Channel,
        codec: Codec,
        metrics: BridgeMetrics,
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._channel = channel
        self._metrics = metrics
        self._stop = stop
        self._routes = settings.routes
        self._reader = f"kafka-out/{settings.name}"
        self._progress = ProgressTopic(brokers, settings.progress_topic, settings.name)
        letters = RowLetters(channel, settings.dead_letters, self._reader, metrics)
        self._transactions = Transactions(settings, codec, letters, self._progress, metrics)
        self._troubles = Troubles(brokers.addresses, channel.nodes[0], metrics, stop)
        self._kept: tuple[Frontier, list[str]] | None = None
        """The frontier and the topics of the last lease."""
        self._first: Frontier | None = None
        """The position at which this bridge began, if it had carried nothing before."""
        self._left_out: set[str] = set()
        """Topics whose names Kafka does not allow, and were logged as such."""
        self._looked_at = 0.0

    def run(self) -> None:
        """After a failure, start again from what Kafka has committed."""
        while not self._stop.is_set():
            producer = None
            close_s = CLOSE_S
            try:
                producer = self._connected_producer()
                frontier = self._progress.read()
                self._troubles.kafka.over()
                self._carry(frontier)
            except KafkaError as error:
                if _is_fenced(error):
                    raise FencedError(
                        f"{self._reader}: another bridge of this name took over, or a transaction took longer than "
                        f"Kafka allows ({error}): run only one, or lower transaction_rows"
                    ) from None
                if producer is not None and self._transactions.note_refused():
                    close_s = 0.0  # there is nothing to wait for
                    continue
                self._keep_rows_meanwhile()
                self._troubles.kafka.wait(error)
            except RegistryError as error:
                self._keep_rows_meanwhile()
                self._troubles.registry.wait(error)
            except UnreachableError as error:
                self._troubles.node.wait(error)
            except RefusedError as error:
                if error.code == "missing":
                    raise DataLossError(f"{error.detail}; to continue anyway, set fail_on_data_loss = false") from None
                if error.code not in TRY_AGAIN:
                    raise
                self._troubles.node.wait(error)
            finally:
                if producer is not None:
                    with suppress(KafkaError):
                        producer.close(timeout=close_s)

    def _connected_producer(self) -> Any:
        """A producer ready for transactions; this aborts any transaction that a predecessor left open."""
        self._transactions.use(None, "")
        admin = self._brokers.admin()
        try:
            cluster = str(admin.describe_cluster()["cluster_id"])
            self._progress.create(admin)
        finally:
            admin.close()
        producer = self._brokers.producer(transactional_id=f"m4cast-{self._settings.name}")
        producer.init_transactions()
        self._transactions.use(producer, cluster)
        return producer

    # ---- carrying

    def _carry(self, committed: Frontier | None) -> None:
        frontier = self._beginning() if committed is None else committed
        while not self._stop.is_set():
            topics = self._topics()
            frontier = self._with_new_topics(frontier, topics)
            if not topics:
                self._stop.wait(1)
                continue
            self._keep_rows(frontier, topics)
            self._troubles.node.over()
            on_missing: Literal["fail", "skip"] = "fail" if self._settings.fail_on_data_loss else "skip"
            with self._channel.subscribe(
                topics, None, frontier, on_missing=on_missing, on_error=lambda _: None
            ) as subscription:
                frontier = self._carry_topics(frontier, topics, subscription)

    def _beginning(self) -> Frontier:
        """Return the position at which a bridge begins that has carried nothing. "latest" is committed at once, so that
        a bridge that ends before its first row continues from there."""
        if self._settings.start == "earliest":
            return {}
        if self._first is None:
            topics = self._topics()
            self._first = self._channel.frontier(topics) if topics else {}
            self._keep_rows(self._first, topics)
        self._transactions.begin()
        self._commit(self._first)
        return _copied(self._first)

    def _topics(self) -> list[str]:
        known = [topic for topic in self._channel.topics() if not topic.startswith("_")]
        targets = {topic: target for topic in known if (target := self._routes.target(topic)) is not None}
        for topic, target in targets.items():
            if not KAFKA_NAME.fullmatch(target) and topic not in self._left_out:
                self._left_out.add(topic)
                log.error(
                    "topic %r is left out: Kafka does not allow the name %r; route it to another name", topic, target
                )
        return sorted(topic for topic, target in targets.items() if KAFKA_NAME.fullmatch(target))

    def _with_new_topics(self, frontier: Frontier, topics: list[str]) -> Frontier:
        """The frontier with the topics that it lacks: they are new, and carried from their beginning."""
        new = [topic for topic in topics if topic not in frontier]
        return {**frontier, **self._channel.earliest(new)} if new else frontier

    def _keep_rows(self, frontier: Frontier, topics: list[str]) -> None:
        self._looked_at = time.monotonic()
        self._kept = (_copied(frontier), topics)
        known = {topic: origins for topic, origins in frontier.items() if topic in topics}
        try:
            self._channel.lease(self._reader, known, topics=topics, ttl_s=LEASE_S)
        except RefusedError as error:
            if error.code != "reader-cut":
                raise
            self._channel.release(self._reader)  # reading will show what is gone

    def _keep_rows_meanwhile(self) -> None:
        """While Kafka or the registry is down: a lease that is not renewed expires."""
        if self._kept is not None and time.monotonic() - self._looked_at > LEASE_S / 4:
            with suppress(M4castError):
                self._keep_rows(*self._kept)

    def _carry_topics(self, committed: Frontier, topics: list[str], subscription: Subscription) -> Frontier:
        """Carry these topics until the topics to carry change; returns the new frontier."""
        frontier = _copied(committed)
        transactions = self._transactions
        rows, began = 0, 0.0
        while not self._stop.is_set():
            batch = subscription.acquire(ACQUIRE_S)
            while batch is not None and batch.num_rows:
                if not rows:
                    transactions.begin()
                    began = time.monotonic()
                some, batch = batch.slice(0, transactions.rows_max), batch.slice(transactions.rows_max)
                transactions.send(some, frontier)
                rows += some.num_rows
                if rows >= transactions.rows_max:
                    self._commit(frontier)
                    rows = 0
            is_due = (time.monotonic() - began) * 1000 >= self._settings.linger_ms
            if rows and (is_due or self._stop.is_set()):
                self._commit(frontier)
                rows = 0
            if not rows and time.monotonic() - self._looked_at > LOOK_S:
                self._keep_rows(frontier, topics)
                self._measure_lag(frontier, topics)
                if self._topics() != topics:
                    break
        if rows:
            self._commit(frontier)
        return frontier

    def _commit(self, frontier: Frontier) -> None:
        self._transactions.commit(frontier)
        self._troubles.kafka.over()
        self._troubles.registry.over()

    def _measure_lag(self, frontier: Frontier, topics: list[str]) -> None:
        for topic, origins in self._channel.frontier(topics).items():
            carried = frontier.get(topic, {})
            self._metrics.lag(topic=topic).set(sum(at - carried.get(origin, 1) for origin, at in origins.items()))


def _copied(frontier: Frontier) -> Frontier:
    return {topic: dict(origins) for topic, origins in frontier.items()}


def _is_fenced(error: KafkaError) -> bool:
    """True if the producer was fenced, even if kafka-python only names that in the text of another error, as it does
    after the first time."""
    fenced = (ProducerFencedError, InvalidProducerEpochError)
    return isinstance(error, fenced) or any(each.__name__ in repr(error.args) for each in fenced)
