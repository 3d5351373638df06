"""The writer: records of one partition become rows of the channel, in one commit that moves the partition's position.

Rows, and dead letters of records that could not be rows, enter the channel together or not at all, and the publisher
key of the partition moves with them. When no answer comes the same is asked again; the node knows whether it was done
(PROTOCOL.md section 10, rule 4). `FencedError`: the key stands elsewhere, so another bridge carries this partition.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from m4cast.overlay.bridge.codecs import Codec, Decoded, Problem
from m4cast.overlay.bridge.fitting import OWN, RESERVED, fit
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import dead_letters, row_name_of, with_record_columns
from m4cast.overlay.bridge.registry import RegistryError
from m4cast.overlay.bridge.trouble import Trouble
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")
T = TypeVar("T")

TRY_AGAIN = frozenset(
    {"busy", "not-ready", "leaving", "stopping", "store", "store-full", "timeout", "internal", "missing-stage"}
)
"""Refusals that pass."""
UNFIT = frozenset({"schema-conflict", "bad-schema", "bad-rows", "reserved-column"})
FITTINGS_MAX = 3
"""How often columns are looked up anew, since another publisher may add some meanwhile."""
VALUE_BYTES_MAX = 8 << 20
"""Of a row in one batch, and of a dead letter: half of what a batch of the channel may have by default."""


class FencedError(M4castError):
    """Another bridge carries the partition."""


class StoppedError(M4castError):
    """The bridge was told to stop while it waited."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition, and the move of its key."""

    records: Sequence[Any]
    target: str
    key: str
    expect: str | None
    next: str


class Writer:
    """Several threads may `write`, each another partition."""

    def __init__(
        self,
        channel: Channel,
        codec: Codec,
        *,
        name: str,
        cluster: str,
        dead_letters: str,
        acks: int | None,
        node: Trouble,
        metrics: BridgeMetrics,
        stop: threading.Event,
    ) -> None:
        self._node = node
        self._registry = Trouble("registry", "schema registry", metrics, stop)
        self._channel = channel
        self._codec = codec
        self._failed_by = f"kafka-in/{name}"
        self._cluster = cluster
        self._dead_letters = dead_letters
        self._acks = acks
        self._metrics = metrics
        self._stop = stop
        self._columns: dict[str, pa.Schema] = {}
        self._origins: dict[str, frozenset[str]] = {}

    def write(self, batch: Batch) -> None:
        """Until it is committed, however long the node or the registry is away."""
        records = self._without_echoes(batch)
        decoded = self._decoded(records)
        refused: RefusedError | None = None
        for _ in range(FITTINGS_MAX):
            rows, problems = self._rows(records, decoded, batch.target)
            try:
                self._commit(batch, rows, problems)
            except RefusedError as error:
                if error.code == "too-large":
                    self._give_up_large(records, decoded, error)
                elif error.code not in UNFIT:
                    raise
                self._columns.pop(batch.target, None)
                refused = error
                continue
            self._count(batch, records, problems)
            return
        assert refused is not None
        raise refused

    # ---- records to rows

    def _decoded(self, records: Sequence[Any]) -> Decoded:
        while True:
            try:
                decoded = self._codec.decode(records) if records else Decoded()
            except RegistryError as error:
                self._wait(self._registry, error)
                continue
            self._registry.over()
            return decoded

    def _rows(
        self, records: Sequence[Any], decoded: Decoded, target: str
    ) -> tuple[pa.Table | None, list[tuple[Any, Problem]]]:
        good, table = fit(decoded, self._known_columns(target))
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
        return pa.schema([field for field in schema if field.name not in (*RESERVED, *OWN)])

    def _without_echoes(self, batch: Batch) -> Sequence[Any]:
        """Without records that kafka-out made of rows of the very topic that they would come back to."""
        echoes = set()
        for at, record in enumerate(batch.records):
            row = row_name_of(record.headers) if record.headers else None
            if row is not None and row.topic == batch.target and self._is_origin(row.topic, row.origin):
                echoes.add(at)
        if not echoes:
            return batch.records
        self._metrics.echoes(topic=batch.records[0].topic).inc(len(echoes))
        return [record for at, record in enumerate(batch.records) if at not in echoes]

    def _is_origin(self, topic: str, origin: str) -> bool:
        """Whether the topic of this channel has such a stream: the same header may come from another channel."""
        if origin not in self._origins.get(topic, ()):
            frontier = self._patiently(lambda: self._channel.frontier(topic))
            self._origins[topic] = frozenset(frontier.get(topic, ()))
        return origin in self._origins[topic]

    def _give_up_large(self, records: Sequence[Any], decoded: Decoded, error: RefusedError) -> None:
        large = [at for at, record in enumerate(records) if len(record.value or b"") > VALUE_BYTES_MAX]
        if not large:
            raise error
        decoded.problems.update((at, Problem("too-large", error.detail)) for at in large)
        for number, piece in enumerate(decoded.pieces):
            left = [at for at, record in enumerate(piece.records) if record not in decoded.problems]
            decoded.pieces[number] = piece._replace(
                records=[piece.records[at] for at in left], rows=piece.rows.take(pa.array(left, pa.int64()))
            )

    # ---- rows to the channel

    def _commit(self, batch: Batch, rows: pa.Table | None, problems: list[tuple[Any, Problem]]) -> None:
        try:
            if rows is None or problems:
                self._patiently(lambda: self._stage_and_commit(batch, rows, problems))
            else:
                move = {"key": batch.key, "expect": batch.expect, "next": batch.next}
                self._patiently(lambda: self._channel.publish(batch.target, rows, acks=self._acks, **move))
        except RefusedError as error:
            if error.code == "wrong-position":
                raise FencedError(
                    f"{batch.key}: another bridge moved it; one of this name is enough ({error.detail})"
                ) from None
            raise

    def _stage_and_commit(self, batch: Batch, rows: pa.Table | None, problems: list[tuple[Any, Problem]]) -> None:
        """Rows and dead letters in one commit; with neither, the key is moved all the same."""
        ids = [] if rows is None else self._channel.stage(batch.target, rows)
        if problems:
            letters = dead_letters(problems, self._failed_by, batch.target, value_bytes_max=VALUE_BYTES_MAX)
            ids += self._channel.stage(self._dead_letters, letters)
        self._channel.commit(ids, key=batch.key, expect=batch.expect, next=batch.next, acks=self._acks)

    def _patiently(self, call: Callable[[], T]) -> T:
        while True:
            try:
                answer = call()
            except RefusedError as error:
                if error.code not in TRY_AGAIN:
                    raise
                self._wait(self._node, error)
                continue
            except UnreachableError as error:
                self._wait(self._node, error)
                continue
            self._node.over()
            return answer

    def _wait(self, trouble: Trouble, error: Exception) -> None:
        if self._stop.is_set():
            raise StoppedError(str(error))
        trouble.wait(error)

    def _count(self, batch: Batch, records: Sequence[Any], problems: list[tuple[Any, Problem]]) -> None:
        topic = batch.records[0].topic
        self._metrics.records(topic=topic).inc(len(records) - len(problems))
        self._metrics.bytes(topic=topic).inc(sum(len(record.value or b"") for record in records))
        self._metrics.commits().inc()
        self._metrics.committed_at().set_to_current_time()
        if problems:
            first, problem = problems[0]
            log.warning(
                "%d of %d records of %s/%d went to %s; the first: offset %d, %s: %s",
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
