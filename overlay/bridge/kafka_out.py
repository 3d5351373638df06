"""kafka-out: rows of channel topics become records of Kafka topics, in transactions, in the order of each stream.

A transaction holds the records of some rows and how far the bridge then is (`progress`): who reads committed records
sees each row once, whatever is killed when. The transactional id is the bridge's name: of two bridges of the name, or
one that comes back after a pause and its successor, Kafka fences one, which stops.

At the nodes the bridge is the reader `kafka-out/NAME`: rows that it has not carried are kept for it. It reads wherever
it can: a frontier is valid on every node. Rows that came from the very Kafka topic they would go to are left out.
Dead letters of rows are published before their transaction, at least once.
"""

import datetime
import functools
import logging
import re
import threading
import time
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RecordListTooLargeError,
)
from kafka.partitioner.default import murmur2
from pyarrow import types

from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.codecs import Codec, Header, Problem, RowSource, row_as_json
from m4cast.overlay.bridge.fitting import OWN, RESERVED
from m4cast.overlay.bridge.kafka_in import DataLossError
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.progress import Progress
from m4cast.overlay.bridge.records import KAFKA, letter_content, row_headers, times
from m4cast.overlay.bridge.registry import RegistryError
from m4cast.overlay.bridge.settings import KafkaOutSettings
from m4cast.overlay.bridge.trouble import Trouble
from m4cast.overlay.bridge.writer import LETTER_BYTES_MAX, TRY_AGAIN, FencedError
from m4cast.overlay.client import Channel, Frontier, Subscription
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.schemas.arrow_types import DEAD_LETTER, HEADERS

log = logging.getLogger("m4cast.bridge")

ACQUIRE_S = 0.05
LOOK_S = 5.0
"""How often new topics are looked for, lags told and the lease renewed."""
LEASE_S = 600.0
CLOSE_S = 5.0
"""How long a producer may take to end."""
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
REFUSED = (*TOO_LARGE, InvalidRecordError, InvalidTimestampError, PolicyViolationError)
"""What a broker says of a record that it will never take."""
KAFKA_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
NO_CONTENT = letter_content(None, None, (), 0)
KEYS_KEPT = 65_536
"""Hashes of keys that are remembered, since kafka-python computes them slowly. Memory. Guess."""


class RowKey(NamedTuple):
    """One row of the channel."""

    topic: str
    origin: str
    sequence: int


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
        self._codec = codec
        self._metrics = metrics
        self._stop = stop
        self._routes = settings.routes
        self._reader = f"kafka-out/{settings.name}"
        self._progress = Progress(brokers, settings.progress_topic, settings.name)
        self._kafka = Trouble("kafka", f"Kafka at {brokers.addresses}", metrics, stop)
        self._node = Trouble("node", f"node {channel.nodes[0]}", metrics, stop)
        self._registry = Trouble("registry", "schema registry", metrics, stop)
        self._cluster = ""
        self._kept: tuple[Frontier, list[str]] | None = None
        self._uncounted: list[tuple[str, int, int, int]] = []
        """Of the open transaction: topic, records, bytes, echoes."""
        self._sent: list[tuple[RowKey, Any]] = []
        """Of the open transaction: each row, and what became of its record."""
        self._refused: dict[RowKey, Problem] = {}
        """Rows that the broker did not take when they were sent before."""
        self._rows_max = settings.transaction_rows
        """Rows of the next transaction: fewer while a refused one is looked for."""
        self._first: Frontier | None = None
        """Where this bridge began, if it had carried nothing."""
        self._left_out: set[str] = set()
        """Topics that Kafka has no names for, and of which that was said."""
        self._looked_at = 0.0

    def run(self) -> None:
        """Whatever fails on the way is begun anew from what Kafka has committed."""
        while not self._stop.is_set():
            producer = None
            close_s = CLOSE_S
            self._uncounted.clear()
            self._sent.clear()
            try:
                producer = self._made_producer()
                frontier = self._progress.read()
                self._kafka.over()
                self._carry(producer, frontier)
            except KafkaError as error:
                if _is_fenced(error):
                    raise FencedError(
                        f"{self._reader}: another bridge of this name took over, or a transaction took longer than "
                        f"Kafka allows ({error})"
                    ) from None
                if producer is not None and self._note_refused(producer):
                    close_s = 0.0  # there is nothing to wait for
                    continue
                self._keep_rows_meanwhile()
                self._kafka.wait(error)
            except RegistryError as error:
                self._keep_rows_meanwhile()
                self._registry.wait(error)
            except UnreachableError as error:
                self._node.wait(error)
            except RefusedError as error:
                if error.code == "missing":
                    raise DataLossError(f"{error.detail}; to go on without, set fail_on_data_loss = false") from None
                if error.code not in TRY_AGAIN:
                    raise
                self._node.wait(error)
            finally:
                if producer is not None:
                    with suppress(KafkaError):
                        producer.close(timeout=close_s)

    def _made_producer(self) -> Any:
        """Ready for transactions: what a predecessor left open is aborted by that."""
        admin = self._brokers.admin()
        try:
            self._cluster = str(admin.describe_cluster()["cluster_id"])
            self._progress.make_topic(admin)
        finally:
            admin.close()
        producer = self._brokers.producer(transactional_id=f"m4cast-{self._settings.name}")
        producer.init_transactions()
        return producer

    def _note_refused(self, producer: Any) -> bool:
        """Whether the transaction failed for some of its records. Those that the broker has named are not sent again.

        kafka-python makes an error for each record that is named. The error of the transaction itself is given to the
        refused record if it was not named, but to all that were not sent yet as well: then the rows before the first of
        them are sent, and it is sent alone."""
        failed = [(row, future.exception) for row, future in self._sent if isinstance(future.exception, REFUSED)]
        if not failed:
            return False
        of_all = None if len(self._sent) == 1 else producer._transaction_manager.last_error
        named = [(row, error) for row, error in failed if error is not of_all]
        for row, error in named:
            reason = "too-large" if isinstance(error, TOO_LARGE) else "kafka-refused"
            self._refused[row] = Problem(reason, f"Kafka refuses the record: {error}")
        if not named:
            first = next(at for at, (row, _) in enumerate(self._sent) if row == failed[0][0])
            self._rows_max = max(1, first)  # those before it were taken
        return True

    # ---- carrying

    def _carry(self, producer: Any, committed: Frontier | None) -> None:
        frontier = self._begun(producer) if committed is None else committed
        while not self._stop.is_set():
            topics = self._topics()
            frontier = self._with_beginnings(frontier, topics)
            if not topics:
                self._stop.wait(1)
                continue
            self._keep_rows(frontier, topics)
            self._node.over()
            on_missing: Literal["fail", "skip"] = "fail" if self._settings.fail_on_data_loss else "skip"
            with self._channel.subscribe(
                topics, None, frontier, on_missing=on_missing, on_error=lambda _: None
            ) as subscription:
                frontier = self._carry_topics(producer, frontier, topics, subscription)

    def _begun(self, producer: Any) -> Frontier:
        """Where a bridge begins that has carried nothing. "latest" is committed at once: whatever ends the bridge
        before its first row, it goes on from there."""
        if self._settings.start == "earliest":
            return {}
        if self._first is None:
            topics = self._topics()
            self._first = self._channel.frontier(topics) if topics else {}
            self._keep_rows(self._first, topics)
        producer.begin_transaction()
        self._commit(producer, self._first)
        return _copied(self._first)

    def _topics(self) -> list[str]:
        known = [topic for topic in self._channel.topics() if not topic.startswith("_")]
        targets = {topic: target for topic in known if (target := self._routes.target(topic)) is not None}
        for topic, target in targets.items():
            if not KAFKA_NAME.fullmatch(target) and topic not in self._left_out:
                self._left_out.add(topic)
                log.error("topic %r is left out: Kafka has no topics called %r; give it another name", topic, target)
        return sorted(topic for topic, target in targets.items() if KAFKA_NAME.fullmatch(target))

    def _with_beginnings(self, frontier: Frontier, topics: list[str]) -> Frontier:
        """The frontier with topics that are not in it yet: they are new, and carried whole."""
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
            self._channel.release(self._reader)  # what is gone shows when it is read

    def _keep_rows_meanwhile(self) -> None:
        """While something else is away: a lease ends if nobody renews it."""
        if self._kept is not None and time.monotonic() - self._looked_at > LEASE_S / 4:
            with suppress(M4castError):
                self._keep_rows(*self._kept)

    def _carry_topics(
        self, producer: Any, committed: Frontier, topics: list[str], subscription: Subscription
    ) -> Frontier:
        """Until there are other topics to carry; how far it came."""
        frontier = _copied(committed)
        rows, began = 0, 0.0
        while not self._stop.is_set():
            batch = subscription.acquire(ACQUIRE_S)
            while batch is not None and batch.num_rows:
                if not rows:
                    producer.begin_transaction()
                    began = time.monotonic()
                some, batch = batch.slice(0, self._rows_max), batch.slice(self._rows_max)
                self._send(producer, some, frontier)
                rows += some.num_rows
                if rows >= self._rows_max:
                    self._commit(producer, frontier)
                    rows = 0
            is_due = (time.monotonic() - began) * 1000 >= self._settings.linger_ms
            if rows and (is_due or self._stop.is_set()):
                self._commit(producer, frontier)
                rows = 0
            if not rows and time.monotonic() - self._looked_at > LOOK_S:
                self._keep_rows(frontier, topics)
                self._tell_lag(frontier, topics)
                if self._topics() != topics:
                    break
        if rows:
            self._commit(producer, frontier)
        return frontier

    def _commit(self, producer: Any, frontier: Frontier) -> None:
        self._progress.send(producer, frontier)
        producer.commit_transaction()
        self._kafka.over()
        self._registry.over()
        for topic, records, size, echoes in self._uncounted:
            self._metrics.records(topic=topic).inc(records)
            self._metrics.bytes(topic=topic).inc(size)
            self._metrics.echoes(topic=topic).inc(echoes)
        self._uncounted.clear()
        self._sent.clear()
        self._rows_max = min(2 * self._rows_max, self._settings.transaction_rows)
        if self._refused:
            self._refused = {row: why for row, why in self._refused.items() if not _is_carried(row, frontier)}
        self._metrics.commits().inc()
        self._metrics.committed_at().set_to_current_time()

    # ---- rows to records

    def _send(self, producer: Any, rows: pa.RecordBatch, frontier: Frontier) -> None:
        """Rows of one stream, as a tail gives them. Cost: per row; tests/bench/bridge.py watches it."""
        topic, origin = rows["_topic"][0].as_py(), rows["_origin"][0].as_py()
        sequences = rows["_sequence"].to_pylist()
        self._check_gap(topic, origin, sequences[0], frontier)
        target = self._routes.target(topic)
        assert target is not None
        names = [field.name for field in rows.schema if field.name not in RESERVED and not _is_own(field)]
        source = RowSource(topic, origin, sequences, rows["_published_at"])
        values, own_headers = self._codec.encode(rows.select(names), source, target)
        kafka = _KafkaColumns.of(rows, self._cluster, target, by_source=self._settings.partition_by == "source")
        partitions = _partitions(sorted(producer.partitions_for(target)), origin, kafka)
        row_header = row_headers(origin, topic, sequences)
        problems: list[tuple[int, Problem]] = []
        sent = sent_bytes = 0
        for at, value in enumerate(values):
            if kafka.is_echo[at]:
                continue
            row = RowKey(topic, origin, sequences[at])
            refused = value if isinstance(value, Problem) else self._refused.get(row)
            if refused is not None:
                problems.append((at, refused))
                continue
            if kafka.is_tombstone[at]:
                value = None  # noqa: PLW2901 - what the codec made of nulls
            headers = [*(own_headers[at] if own_headers else ()), *kafka.headers[at], row_header[at]]
            try:
                future = producer.send(target, value, kafka.keys[at], headers, partitions[at], kafka.times_ms[at])
            except MessageSizeTooLargeError as error:
                problems.append((at, Problem("too-large", str(error))))
                continue
            except (ValueError, TypeError, AssertionError) as error:  # neither key nor value; no such partition
                problems.append((at, Problem("not-a-record", str(error))))
                continue
            self._sent.append((row, future))
            sent += 1
            sent_bytes += len(value or b"")
        self._uncounted.append((topic, sent, sent_bytes, sum(kafka.is_echo)))
        if problems:
            self._bury(rows, names, kafka, target, problems)
        frontier.setdefault(topic, {})[origin] = sequences[-1] + 1

    def _check_gap(self, topic: str, origin: str, first: int, frontier: Frontier) -> None:
        expected = frontier.get(topic, {}).get(origin, 1)
        if first == expected:
            return
        self._metrics.losses(topic=topic).inc()
        loss = f"rows {expected} to {first - 1} of topic {topic!r}, origin {origin}, are not kept any more"
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{loss}; to go on without, set fail_on_data_loss = false")
        log.error("%s; going on without", loss)

    def _bury(
        self,
        rows: pa.RecordBatch,
        names: list[str],
        kafka: "_KafkaColumns",
        target: str,
        problems: list[tuple[int, Problem]],
    ) -> None:
        now = datetime.datetime.now(datetime.UTC)
        topic, origin = rows["_topic"][0].as_py(), rows["_origin"][0].as_py()
        payload = rows.select(names)
        letters = [
            {
                "failed_at": now,
                "failed_by": self._reader,
                "reason": problem.reason,
                "detail": problem.detail[:1_000],
                "source": "channel",
                "source_topic": topic,
                "source_stream": origin,
                "source_position": rows["_sequence"][at].as_py(),
                "target_topic": target,
                "timestamp": times([kafka.times_ms[at]])[0],
                **letter_content(
                    kafka.keys[at], row_as_json(payload.slice(at, 1)), kafka.headers[at], LETTER_BYTES_MAX
                ),
            }
            for at, problem in problems
        ]
        self._publish_letters(letters)
        first = problems[0][1]
        for _, problem in problems:
            self._metrics.dead_letters(reason=problem.reason).inc()
        log.warning(
            "%d of %d rows of %s went to %s; the first: sequence %d, %s: %s",
            len(problems),
            rows.num_rows,
            topic,
            self._settings.dead_letters,
            letters[0]["source_position"],
            first.reason,
            first.detail[:300],
        )

    def _publish_letters(self, letters: list[dict[str, Any]]) -> None:
        """By halves, if they are too large; one that is too large alone, on a channel that has small batches, without
        its content."""
        try:
            self._channel.publish(self._settings.dead_letters, pa.Table.from_pylist(letters, schema=DEAD_LETTER))
        except RefusedError as error:
            if error.code != "too-large" or letters == [{**letters[0], **NO_CONTENT}]:
                raise
            half = len(letters) // 2
            for some in (letters[:half], letters[half:]) if half else ([{**letters[0], **NO_CONTENT}],):
                self._publish_letters(some)

    def _tell_lag(self, frontier: Frontier, topics: list[str]) -> None:
        for topic, origins in self._channel.frontier(topics).items():
            carried = frontier.get(topic, {})
            self._metrics.lag(topic=topic).set(sum(at - carried.get(origin, 1) for origin, at in origins.items()))


def _copied(frontier: Frontier) -> Frontier:
    return {topic: dict(origins) for topic, origins in frontier.items()}


def _is_carried(row: RowKey, frontier: Frontier) -> bool:
    return row.sequence < frontier.get(row.topic, {}).get(row.origin, 1)


def _is_own(field: pa.Field) -> bool:
    """Whether the column is the bridge's, and no part of the value. The nodes see to the types of the others; a user's
    `_kafka` of another type is a column like any."""
    return field.name in OWN and (field.name != "_kafka" or field.type == KAFKA)


_hash = functools.lru_cache(KEYS_KEPT)(murmur2)


def _partitions(known: list[int], origin: str, kafka: "_KafkaColumns") -> list[int]:
    """By the key, as Kafka's own clients do; rows without one stay together, by their stream, in its order."""
    count = len(known)
    if count == 1:
        return known * len(kafka.keys)
    home = known[(_hash(origin.encode()) & 0x7FFFFFFF) % count]
    chosen = [home if key is None else known[(_hash(key) & 0x7FFFFFFF) % count] for key in kafka.keys]
    if kafka.partitions is not None:
        there = set(known)
        chosen = [own if own in there else by_key for own, by_key in zip(kafka.partitions, chosen, strict=True)]
    return chosen


def _is_fenced(error: KafkaError) -> bool:
    """Also when kafka-python says so only in the words of another error, as it does after the first time."""
    fenced = (ProducerFencedError, InvalidProducerEpochError)
    return isinstance(error, fenced) or any(each.__name__ in repr(error.args) for each in fenced)


class _KafkaColumns:
    """What records need besides their values, as lists."""

    def __init__(
        self,
        keys: list[bytes | None],
        headers: list[list[Header]],
        times_ms: list[int],
        partitions: list[int] | None,
        is_echo: list[bool],
        is_tombstone: list[bool],
    ) -> None:
        self.keys = keys
        self.headers = headers
        self.times_ms = times_ms
        self.partitions = partitions
        self.is_echo = is_echo
        self.is_tombstone = is_tombstone

    @classmethod
    def of(cls, rows: pa.RecordBatch, cluster: str, target: str, *, by_source: bool) -> "_KafkaColumns":
        count = rows.num_rows
        nobody: list[Any] = [None] * count
        keys = _bytes(rows, "_key") or nobody
        headers = _headers(rows) or [[] for _ in range(count)]
        times = rows["_published_at"].cast(pa.int64())
        partitions, echo, tombstone = None, [False] * count, [False] * count
        if "_kafka" in rows.schema.names and rows["_kafka"].type == KAFKA:
            kafka = rows["_kafka"]
            own = pc.struct_field(kafka, "timestamp").cast(pa.int64())
            times = pc.coalesce(own, times)
            is_here = pc.and_(
                pc.equal(pc.struct_field(kafka, "cluster"), cluster), pc.equal(pc.struct_field(kafka, "topic"), target)
            )
            echo = pc.fill_null(is_here, False).to_pylist()
            tombstone = pc.fill_null(pc.struct_field(kafka, "tombstone"), False).to_pylist()
            if by_source:
                partitions = pc.struct_field(kafka, "partition").to_pylist()
        return cls(keys, headers, pc.divide(times, 1_000).to_pylist(), partitions, echo, tombstone)


def _bytes(rows: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    if name not in rows.schema.names:
        return None
    column = rows[name]
    if not types.is_binary(column.type):
        column = column.cast(pa.string())
    listed: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return listed


def _headers(rows: pa.RecordBatch) -> list[list[Header]] | None:
    if "_headers" not in rows.schema.names:
        return None
    if rows["_headers"].type != HEADERS:
        raise M4castError(
            f"topic {rows['_topic'][0]}: column '_headers' is {rows['_headers'].type}; Kafka's headers are {HEADERS}"
        )
    return [
        [(each["key"], each["value"] or b"") for each in listed] if listed else []
        for listed in rows["_headers"].to_pylist()
    ]
