"""The writer: publishes records of one partition as rows, in one commit that also moves the partition's position.

Rows, and dead letters of records that cannot be rows, enter the channel together or not at all, and the publisher key
of the partition moves with them. A commit without an answer is repeated; the node knows whether it was done before
(PROTOCOL.md section 10, rule 4). `FencedError`: the key has moved, so another bridge carries this partition.

A batch that the node refuses because of its content is written in halves, each with its own move of the key, until the
faulty record is isolated and becomes a dead letter.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from m4cast.overlay.bridge.codecs.codec import Codec, Decoded, Problem
from m4cast.overlay.bridge.codecs.registry import RegistryError
from m4cast.overlay.bridge.errors import FencedError, StoppedError
from m4cast.overlay.bridge.kafka_in.fitting import fit
from m4cast.overlay.bridge.kafka_in.positions import Position
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import (
    LETTER_BYTES_MAX,
    OddName,
    dead_letters,
    is_reserved,
    row_name_of,
    with_record_columns,
)
from m4cast.overlay.bridge.settings import KafkaInSettings
from m4cast.overlay.bridge.trouble import TRY_AGAIN, Trouble, Troubles
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")
T = TypeVar("T")

UNFIT = frozenset({"schema-conflict", "bad-schema", "bad-rows", "reserved-column"})
OF_RECORDS = frozenset({"too-large", "bad-schema", "bad-rows"})
"""Refusals because of records. A persistent `schema-conflict` is not among them: fitted records do not conflict, so it
is a column of the bridge that does, and then no record fits."""
FITTINGS_MAX = 3
"""Attempts with freshly read columns, since another publisher may add columns meanwhile."""
BAD_HEADER = Problem("bad-header", "the name of a header is not UTF-8")


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one partition, and the move of its key."""

    records: Sequence[Any]
    target: str
    key: str
    expect: str | None
    next: str

    def halves(self) -> "tuple[RecordBatch, RecordBatch]":
        """Two batches that have the same effect, one after the other."""
        half = len(self.records) // 2
        between = str(replace(Position.parse(self.next), offset=self.records[half].offset))
        return (
            replace(self, records=self.records[:half], next=between),
            replace(self, records=self.records[half:], expect=between),
        )


class RecordWriter:
    """Several threads may `write` at the same time, each for another partition. `cluster` names the Kafka cluster."""

    def __init__(
        self,
        channel: Channel,
        codec: Codec,
        settings: KafkaInSettings,
        cluster: str,
        metrics: BridgeMetrics,
        troubles: Troubles,
    ) -> None:
        self._channel = channel
        self._codec = codec
        self._failed_by = f"kafka-in/{settings.name}"
        self._cluster = cluster
        self._dead_letters = settings.dead_letters
        self._acks = None if settings.acks < 0 else settings.acks
        self._metrics = metrics
        self._troubles = troubles
        self._columns: dict[str, pa.Schema] = {}
        self._origins: dict[str, frozenset[str]] = {}

    def write(self, batch: RecordBatch) -> None:
        """Returns once the batch is committed, however long the node or the registry is down."""
        records = self._without_echoes(batch)
        decoded = self._decoded(records)
        refused: RefusedError | None = None
        problems: list[tuple[Any, Problem]] = []
        for _ in range(FITTINGS_MAX):
            # A copy of the problems: a record that does not fit the present columns may fit those of the next attempt.
            fitted = replace(decoded, problems=dict(decoded.problems))
            rows, problems = self._rows(records, fitted, batch.target)
            try:
                self._commit(batch, rows, problems)
            except RefusedError as error:
                refused = error
                if error.code not in UNFIT:
                    break
                self._columns.pop(batch.target, None)
                continue
            self._count(batch, records, problems)
            return
        assert refused is not None
        if refused.code not in OF_RECORDS or not records:
            raise refused
        if len(batch.records) > 1:
            for half in batch.halves():
                self.write(half)
        else:
            self._give_up(batch, problems[0][1] if problems else Problem(refused.code, refused.detail))

    def _give_up(self, batch: RecordBatch, problem: Problem) -> None:
        """Publish a dead letter for the only record of the batch; without its content if the channel's batch limit is
        smaller than the letter."""
        problems = [(batch.records[0], problem)]
        try:
            self._commit(batch, None, problems)
        except RefusedError as error:
            if error.code != "too-large":
                raise
            self._commit(batch, None, problems, letter_bytes_max=0)
        self._count(batch, batch.records, problems)

    # ---- records to rows

    def _decoded(self, records: Sequence[Any]) -> Decoded:
        while True:
            try:
                decoded = self._codec.decode(records) if records else Decoded()
            except RegistryError as error:
                self._wait(self._troubles.registry, error)
                continue
            self._troubles.registry.over()
            return decoded

    def _rows(
        self, records: Sequence[Any], decoded: Decoded, target: str
    ) -> tuple[pa.Table | None, list[tuple[Any, Problem]]]:
        good, table = fit(decoded, self._known_columns(target))
        odd = [
            at for at, each in enumerate(good) if any(isinstance(name, OddName) for name, _ in records[each].headers)
        ]
        if odd:
            decoded.problems.update((good[at], BAD_HEADER) for at in odd)
            left = sorted(set(range(len(good))).difference(odd))
            good, table = [good[at] for at in left], table.take(pa.array(left, pa.int64()))
        problems = [(records[at], problem) for at, problem in sorted(decoded.problems.items())]
        if not good:
            return None, problems
        kept = records if len(good) == len(records) else [records[at] for at in good]
        return with_record_columns(table, kept, self._cluster, self._codec.consumed_headers), problems

    def _known_columns(self, topic: str) -> pa.Schema:
        known = self._columns.get(topic)
        if known is None:
            known = self._columns[topic] = self._patiently(lambda: self._asked_columns(topic))
        return known

    def _asked_columns(self, topic: str) -> pa.Schema:
        try:
            schema = self._channel.schema(topic)
        except RefusedError as error:
            if error.code != "unknown-topic":
                raise
            return pa.schema([])
        return pa.schema([field for field in schema if not is_reserved(field.name)])

    def _without_echoes(self, batch: RecordBatch) -> Sequence[Any]:
        """The records, without those that kafka-out made from rows of the target topic itself."""
        echoes = set()
        for at, record in enumerate(batch.records):
            row = row_name_of(record.headers) if record.headers else None
            if row is not None and row.topic == batch.target and self._is_origin(row.topic, row.origin):
                echoes.add(at)
        if not echoes:
            return batch.records
        return [record for at, record in enumerate(batch.records) if at not in echoes]

    def _is_origin(self, topic: str, origin: str) -> bool:
        """True if the topic has such a stream here: the header may come from another channel."""
        if origin not in self._origins.get(topic, ()):
            frontier = self._patiently(lambda: self._channel.frontier(topic))
            self._origins[topic] = frozenset(frontier.get(topic, ()))
        return origin in self._origins[topic]

    # ---- rows to the channel

    def _commit(
        self,
        batch: RecordBatch,
        rows: pa.Table | None,
        problems: list[tuple[Any, Problem]],
        letter_bytes_max: int = LETTER_BYTES_MAX,
    ) -> None:
        try:
            if rows is None or problems:
                self._patiently(lambda: self._stage_and_commit(batch, rows, problems, letter_bytes_max))
            else:
                move = {"key": batch.key, "expect": batch.expect, "next": batch.next}
                self._patiently(lambda: self._channel.publish(batch.target, rows, acks=self._acks, **move))
        except RefusedError as error:
            if error.code == "wrong-position":
                raise FencedError(
                    f"{batch.key} was moved by another bridge of this name: run only one ({error.detail})"
                ) from None
            raise

    def _stage_and_commit(
        self, batch: RecordBatch, rows: pa.Table | None, problems: list[tuple[Any, Problem]], letter_bytes_max: int
    ) -> None:
        """Commit rows and dead letters together. The key moves even if there are neither."""
        ids = [] if rows is None else self._channel.stage(batch.target, rows)
        if problems:
            letters = dead_letters(problems, self._failed_by, batch.target, bytes_max=letter_bytes_max)
            ids += self._stage_letters(letters)
        self._channel.commit(ids, key=batch.key, expect=batch.expect, next=batch.next, acks=self._acks)

    def _stage_letters(self, letters: pa.Table) -> list[str]:
        try:
            return self._channel.stage(self._dead_letters, letters)
        except RefusedError as error:
            if error.code in TRY_AGAIN or error.code == "too-large":
                raise
            detail = (
                f"topic {self._dead_letters!r} refuses dead letters: {error.detail}; set dead_letters to another topic"
            )
            raise RefusedError(error.code, detail) from None

    def _patiently(self, call: Callable[[], T]) -> T:
        while True:
            try:
                answer = call()
            except RefusedError as error:
                if error.code not in TRY_AGAIN:
                    raise
                self._wait(self._troubles.node, error)
                continue
            except UnreachableError as error:
                self._wait(self._troubles.node, error)
                continue
            self._troubles.node.over()
            return answer

    def _wait(self, trouble: Trouble, error: Exception) -> None:
        if self._troubles.stop.is_set():
            raise StoppedError(str(error))
        trouble.wait(error)

    def _count(self, batch: RecordBatch, records: Sequence[Any], problems: list[tuple[Any, Problem]]) -> None:
        topic = batch.records[0].topic
        self._metrics.records(topic=topic).inc(len(records) - len(problems))
        self._metrics.bytes(topic=topic).inc(sum(len(record.value or b"") for record in records))
        self._metrics.echoes(topic=topic).inc(len(batch.records) - len(records))
        self._metrics.commits().inc()
        self._metrics.committed_at().set_to_current_time()
        if problems:
            first, problem = problems[0]
            log.warning(
                "%d of %d records of %s/%d became dead letters in %s; the first: offset %d, %s: %s",
                len(problems),
                len(records),
                topic,
                first.partition,
                self._dead_letters,
                first.offset,
                problem.reason,
                problem.detail[:300],
            )
            for _, each in problems:
                self._metrics.dead_letters(reason=each.reason).inc()
