"""The writer: records of one partition become rows of the channel, in one commit that moves the partition's position.

Rows, and dead letters of records that could not be rows, enter the channel together or not at all, and the publisher
key of the partition moves with them. When no answer comes the same is asked again; the node knows whether it was done
(PROTOCOL.md section 10, rule 4). `FencedError`: the key stands elsewhere, so another bridge carries this partition.

A batch that the node does not take for what is in it is written by halves, each with a move of its own, until the
record at fault stands alone and goes to the dead letters.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from m4cast.overlay.bridge.codecs import Codec, Decoded, Problem
from m4cast.overlay.bridge.fitting import fit, is_reserved
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.positions import Position
from m4cast.overlay.bridge.records import OddName, dead_letters, row_name_of, with_record_columns
from m4cast.overlay.bridge.registry import RegistryError
from m4cast.overlay.bridge.trouble import Trouble
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

log = logging.getLogger("m4cast.bridge")
T = TypeVar("T")

TRY_AGAIN = frozenset(
    {
        "busy",
        "not-ready",
        "leaving",
        "stopping",
        "store",
        "store-full",
        "timeout",
        "unacknowledged",
        "internal",
        "missing-stage",
    }
)
"""Refusals that pass."""
UNFIT = frozenset({"schema-conflict", "bad-schema", "bad-rows", "reserved-column"})
OF_RECORDS = frozenset({"too-large", "bad-schema", "bad-rows"})
"""Refusals of what records are. A `schema-conflict` that stays is none: fitted records do not conflict, but columns of
the bridge may, and then no record fits."""
FITTINGS_MAX = 3
"""How often columns are looked up anew, since another publisher may add some meanwhile."""
BAD_HEADER = Problem("bad-header", "the name of a header is not UTF-8")
LETTER_BYTES_MAX = 8 << 20
"""Of a record that is kept in its dead letter: half of what a batch of the channel may have by default."""


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

    def halves(self) -> "tuple[Batch, Batch]":
        """Two batches that do the same one after the other."""
        half = len(self.records) // 2
        between = str(replace(Position.parse(self.next), offset=self.records[half].offset))
        return (
            replace(self, records=self.records[:half], next=between),
            replace(self, records=self.records[half:], expect=between),
        )


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
        problems: list[tuple[Any, Problem]] = []
        for _ in range(FITTINGS_MAX):
            # With problems of its own: what does not fit the columns of now may fit those of the next time.
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

    def _give_up(self, batch: Batch, problem: Problem) -> None:
        """The one record of the batch. If its dead letter is too large, for a channel that has small batches, it goes
        there without its content."""
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
                self._wait(self._registry, error)
                continue
            self._registry.over()
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

    def _without_echoes(self, batch: Batch) -> Sequence[Any]:
        """Without records that kafka-out made of rows of the very topic that they would come back to."""
        echoes = set()
        for at, record in enumerate(batch.records):
            row = row_name_of(record.headers) if record.headers else None
            if row is not None and row.topic == batch.target and self._is_origin(row.topic, row.origin):
                echoes.add(at)
        if not echoes:
            return batch.records
        return [record for at, record in enumerate(batch.records) if at not in echoes]

    def _is_origin(self, topic: str, origin: str) -> bool:
        """Whether the topic of this channel has such a stream: the same header may come from another channel."""
        if origin not in self._origins.get(topic, ()):
            frontier = self._patiently(lambda: self._channel.frontier(topic))
            self._origins[topic] = frozenset(frontier.get(topic, ()))
        return origin in self._origins[topic]

    # ---- rows to the channel

    def _commit(
        self,
        batch: Batch,
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
                    f"{batch.key}: another bridge moved it; one of this name is enough ({error.detail})"
                ) from None
            raise

    def _stage_and_commit(
        self, batch: Batch, rows: pa.Table | None, problems: list[tuple[Any, Problem]], letter_bytes_max: int
    ) -> None:
        """Rows and dead letters in one commit; with neither, the key is moved all the same."""
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
                f"dead letters into topic {self._dead_letters!r}: {error.detail}; set dead_letters to another topic"
            )
            raise RefusedError(error.code, detail) from None

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
        self._metrics.echoes(topic=topic).inc(len(batch.records) - len(records))
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


def _has_odd_name(record: Any) -> bool:
    return any(isinstance(name, OddName) for name, _ in record.headers)
