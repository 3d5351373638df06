"""DoPut: a client's record batches become batches of the channel.

Keyed: all record batches of the call are one commit, answered once. Unkeyed: each record batch is published by
itself, or, when it is small, together with others that came while those before them waited for the disk; the client
hears cumulative acknowledgements while it writes. Staged: each is kept under an id of its own,
for a commit.

A too-fast publisher is slowed: the call reads no further while its own unanswered batches, or those of all calls
together, are at their limit. Acknowledgements never hold up publishing: they are sent by a thread of the call's own,
and what is not sent yet is added up. So a client may write everything first and listen afterwards.

An error that comes while the call waits for the client's next batch is sent as an acknowledgement with `error`; the
call itself ends with that error as soon as the client writes or is done.
"""

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from m4cast.overlay.door import payload
from m4cast.overlay.door.asking import Asking, answered, timed_out
from m4cast.overlay.door.catalogue import Catalogue, Span
from m4cast.overlay.door.progress import Progress
from m4cast.overlay.door.refusals import Refusal, as_json
from m4cast.overlay.door.requests import Put, StagedCommit, ranges_json
from m4cast.overlay.net.driver import Answer
from m4cast.overlay.protocol.effects import Abort, Commit, Publish, Range, Stage, Staged

CALL_BATCHES_MAX = 64
"""Batches of one call that wait for their answer. Higher: more memory; lower: more waiting for the disk. Guess."""
FEW_BYTES_MAX = 256 << 10
"""Small record batches are put together up to this. Higher: fewer batches and later answers. Guess."""
FEW_BATCHES_MAX = 4_096
"""As many of them at most: each costs about 1 KB of memory beside its rows."""


class Room:
    """Unanswered payload of all calls together, counted."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_s: float) -> None:
        """Wait for room. One that is larger than all of it gets it alone."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._bytes_max, timeout_s):
                detail = f"{self._taken} bytes of publishes wait for the disk and the neighbours: try again"
                raise Refusal("busy", detail)
            self._taken += size

    def give_back(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


class Agreement:
    """Keeps the columns of a topic to their types: a schema is compared with all of the topic that is known here, and
    with those that are being published at the same time. (Elsewhere, another may be published meanwhile: that shows
    when both are read.)"""

    def __init__(self, catalogue: Catalogue, progress: Progress) -> None:
        self._catalogue = catalogue
        self._progress = progress
        self._lock = threading.Lock()
        self._agreed: dict[str, dict[int, pa.Schema]] = {}
        self._pending: dict[str, Counter[int]] = {}

    @contextmanager
    def admitted(self, topic: str, schema_id: int, schema: pa.Schema) -> Iterator[None]:
        """While rows of this schema are being published."""
        with self._lock:
            agreed = self._agreed.setdefault(topic, {})
            pending = self._pending.setdefault(topic, Counter())
            if schema_id not in agreed:
                spans = [Span(stream, 1, until) for stream, until in self._progress.positions((topic,)).items()]
                try:
                    known = self._catalogue.merged(spans)
                except Refusal:  # origins that disagree already; to refuse more would help nobody
                    known = pa.schema([])
                payload.merged(
                    [
                        ("in this topic", known),
                        *(("in a publish under way", other) for other in agreed.values()),
                        ("here", schema),
                    ]
                )
                agreed[schema_id] = schema
            pending[schema_id] += 1
        try:
            yield
        finally:
            with self._lock:
                pending[schema_id] -= 1
                if not pending[schema_id]:
                    # What was published is in the catalogue from now on; what was refused must not stay.
                    del pending[schema_id]
                    del agreed[schema_id]
                    if not pending:
                        del self._agreed[topic], self._pending[topic]


class Publishing:
    """What the door does for DoPut, and for the actions that belong to it."""

    def __init__(
        self,
        asking: Asking,
        catalogue: Catalogue,
        progress: Progress,
        *,
        batch_bytes_max: int,
        commit_bytes_max: int,
        queue_bytes_max: int,
        timeout_s: float,
    ) -> None:
        self._asking = asking
        self._catalogue = catalogue
        self._agreement = Agreement(catalogue, progress)
        self._room = Room(queue_bytes_max)
        self._batch_bytes_max = batch_bytes_max
        self._commit_bytes_max = commit_bytes_max
        self._timeout_s = timeout_s

    def put(self, put: Put, reader: Any, writer: Any) -> None:
        schema = payload.canonical_schema(reader.schema)
        written = payload.schema_bytes(schema)
        schema_id = payload.fingerprint(written)
        encode = _Encoder(put.topic, schema, written, schema_id, self._batch_bytes_max)
        with self._agreement.admitted(put.topic, schema_id, schema):
            self._catalogue.keep(schema_id, written, schema)
            if put.stage is not None:
                self._stage(put, put.stage, encode, reader, writer)
            elif put.moves:
                self._commit_all(put, encode, reader, writer)
            else:
                self._publish_each(put, encode, reader, writer)

    def _publish_each(self, put: Put, encode: "_Encoder", reader: Any, writer: Any) -> None:
        few = _Few()

        def publish(rows: pa.RecordBatch) -> None:
            staged = encode(rows)
            self._send(acks, staged, put.timeout_s, lambda n: Publish(n, (staged,), (), put.acks))

        def publish_few() -> None:
            with few.lock:
                if few.batches:
                    publish(few.take())

        acks = AckStream(writer, put.timeout_s or self._timeout_s, publish_few)
        try:
            for rows in _record_batches(reader):
                canonical = payload.canonical_rows(rows, encode.schema)
                if few.takes(canonical):
                    if few.is_full() or acks.is_idle():
                        publish_few()
                else:
                    publish_few()
                    publish(canonical)
            publish_few()
        finally:
            acks.finish()
        acks.raise_failure()

    def _stage(self, put: Put, stage: str, encode: "_Encoder", reader: Any, writer: Any) -> None:
        acks = AckStream(writer, put.timeout_s or self._timeout_s)
        try:
            for number, rows in enumerate(_record_batches(reader)):
                stage_id, staged = f"{stage}/{number}", encode(payload.canonical_rows(rows, encode.schema))
                acks.stage_ids.append(stage_id)
                self._send(acks, staged, put.timeout_s, lambda n, i=stage_id, s=staged: Stage(n, i, s))  # type: ignore[misc]
        finally:
            acks.finish()
        acks.raise_failure()

    def _send(
        self, acks: "AckStream", staged: Staged, timeout_s: float | None, make: Callable[[int], Publish | Stage]
    ) -> None:
        """One request of a call, when there is room for it; the room is free again when it is answered."""
        timeout_s = timeout_s or self._timeout_s
        acks.wait_for_room(timeout_s)
        size = len(staged.payload)
        self._room.take(size, timeout_s)
        try:
            answer = self._asking.request(make)
        except BaseException:
            self._room.give_back(size)
            raise
        answer.add_done_callback(lambda _: self._room.give_back(size))
        acks.add(answer, staged.row_count)

    def _commit_all(self, put: Put, encode: "_Encoder", reader: Any, writer: Any) -> None:
        timeout_s = put.timeout_s or self._timeout_s
        payloads: list[Staged] = []
        taken = 0
        try:
            for rows in _record_batches(reader):
                staged = encode(payload.canonical_rows(rows, encode.schema))
                size = len(staged.payload)
                if taken + size > self._commit_bytes_max:
                    detail = (
                        f"more than {self._commit_bytes_max} bytes in one keyed publish: split it into several "
                        "positions, or stage it and commit"
                    )
                    raise Refusal("too-large", detail)
                self._room.take(size, timeout_s)
                taken += size
                payloads.append(staged)
            everything = tuple(payloads)
            answer = self._asking.request(lambda n: Publish(n, everything, put.moves, put.acks))
            said = answered(answer, timeout_s)
        finally:
            self._room.give_back(taken)
        assert said is not None
        rows_count = sum(staged.row_count for staged in payloads)
        writer.write(json.dumps({"rows": rows_count, "ranges": ranges_json(said.ranges)}).encode())

    def commit(self, commit: StagedCommit) -> dict[str, object]:
        answer = self._asking.request(lambda n: Commit(n, commit.stage_ids, commit.moves, commit.acks))
        said = answered(answer, commit.timeout_s or self._timeout_s)
        assert said is not None
        return {"ranges": ranges_json(said.ranges)}

    def abort(self, stage_ids: tuple[str, ...]) -> dict[str, object]:
        self._asking.tell(Abort(stage_ids))
        return {}


@dataclass(frozen=True, slots=True)
class _Encoder:
    topic: str
    schema: pa.Schema
    written: bytes
    schema_id: int
    batch_bytes_max: int

    def __call__(self, rows: pa.RecordBatch) -> Staged:
        """`rows` are canonical."""
        if rows.nbytes > self.batch_bytes_max:  # about; exactly below
            raise self._too_large(rows.num_rows, rows.nbytes)
        encoded = payload.encode(self.written, rows)
        if len(encoded) > self.batch_bytes_max:
            raise self._too_large(rows.num_rows, len(encoded))
        return Staged(self.topic, rows.num_rows, self.schema_id, encoded)

    def _too_large(self, rows: int, size: int) -> Refusal:
        detail = (
            f"a record batch of {rows} rows has {size} bytes, at most {self.batch_bytes_max}: send fewer rows in each"
        )
        return Refusal("too-large", detail)


def _record_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """What the client writes, without the empty ones."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is not None and chunk.data.num_rows:
            yield chunk.data


class _Few:
    """Small record batches of one call that go out together as soon as those before them are answered."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def takes(self, rows: pa.RecordBatch) -> bool:
        size = rows.nbytes
        if size > FEW_BYTES_MAX // 4:
            return False
        with self.lock:
            self.batches.append(rows)
            self._bytes += size
        return True

    def is_full(self) -> bool:
        return self._bytes >= FEW_BYTES_MAX or len(self.batches) >= FEW_BATCHES_MAX

    def take(self) -> pa.RecordBatch:
        taken, self.batches, self._bytes = self.batches, [], 0
        return taken[0] if len(taken) == 1 else pa.concat_batches(taken)


class AckStream:
    """Tells one client, in the order of its batches, which of its rows are safe; on a thread of its own.

    `when_idle` is called on that thread when everything that was sent is answered.
    """

    def __init__(self, writer: Any, timeout_s: float, when_idle: Callable[[], None] = lambda: None) -> None:
        self._when_idle = when_idle
        self.stage_ids: list[str] = []
        self._writer = writer
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._waiting: deque[_Sent] = deque()
        self._unanswered = 0
        self._finished = False
        self._failure: Refusal | None = None
        self._rows = 0
        self._thread: threading.Thread | None = None

    def wait_for_room(self, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._failure is not None or self._unanswered < CALL_BATCHES_MAX, timeout_s
            ):
                raise Refusal("timeout", f"{self._unanswered} batches have no answer within {timeout_s:g} s")
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def add(self, answer: "Future[Answer]", rows: int) -> None:
        with self._changed:
            self._waiting.append(_Sent(answer, rows, time.monotonic() + self._timeout_s))
            self._unanswered += 1
        answer.add_done_callback(self._answered)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="door-acks", daemon=True)
            self._thread.start()

    def is_idle(self) -> bool:
        with self._changed:
            return not self._waiting

    def finish(self) -> None:
        """No more will come; returns when all that was sent is answered and told, or one has failed."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _answered(self, _: object) -> None:
        with self._changed:
            self._unanswered -= 1
            self._changed.notify_all()

    def _run(self) -> None:
        failure: Refusal | None = None
        while failure is None:
            ranges: list[Range] = []
            with self._changed:
                self._changed.wait_for(self._has_work, self._patience_s())
                if self._finished and not self._waiting:
                    return
                told, failure = self._take(ranges)
                self._failure = failure
                self._changed.notify_all()
            if told and not self._tell({"rows": self._rows, "ranges": ranges_json(ranges)}):
                return
            if failure is None and self.is_idle():
                try:
                    self._when_idle()
                except Refusal as refusal:
                    failure = self._failure = refusal
            if failure is not None:
                self._tell({"error": as_json(failure)})

    def _has_work(self) -> bool:
        return self._waiting[0].answer.done() if self._waiting else self._finished

    def _patience_s(self) -> float | None:
        return max(self._waiting[0].deadline - time.monotonic(), 0) if self._waiting else None

    def _take(self, ranges: list[Range]) -> tuple[int, Refusal | None]:
        """Take what is answered off the front, up to the first refusal: how many, and that refusal."""
        taken = 0
        while self._waiting:
            sent = self._waiting[0]
            if not sent.answer.done():
                late = time.monotonic() >= sent.deadline
                return taken, timed_out(self._timeout_s) if late else None
            try:
                said = answered(sent.answer, 0)
            except Refusal as refusal:
                return taken, refusal
            self._waiting.popleft()
            self._rows += sent.rows
            taken += 1
            for rows in said.ranges if said is not None else ():
                if ranges and ranges[-1].stream == rows.stream and ranges[-1].next_sequence == rows.first_sequence:
                    ranges[-1] = Range(rows.stream, ranges[-1].first_sequence, rows.next_sequence)
                else:
                    ranges.append(rows)
        return taken, None

    def _tell(self, message: dict[str, object]) -> bool:
        """Whether the client is still there."""
        if self.stage_ids:
            message["stage_ids"] = list(self.stage_ids)
            message.pop("ranges", None)
        try:
            self._writer.write(json.dumps(message).encode())
        except (OSError, pa.ArrowException) as error:
            with self._changed:
                self._failure = self._failure or Refusal("gone", f"the client does not listen any more: {error}")
                self._changed.notify_all()
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Sent:
    answer: "Future[Answer]"
    rows: int
    deadline: float
