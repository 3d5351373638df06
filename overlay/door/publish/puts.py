"""DoPut: a client's record batches become batches of the channel.

Keyed: all record batches of the call are one commit, answered once. Unkeyed: each record batch is published by itself,
or, if it is small, coalesced with others (`coalescing`); the client receives cumulative acknowledgements while it
writes (`acks`). Staged: each record batch is stored under its own id, for a commit.

A publisher that is too fast is slowed down: the call is not read while its own unanswered batches, those of its client,
or those of all clients together, are at their limit. What keyed calls have written has a separate limit (`KeyedQuota`):
it waits for its client, and other publishes should not.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.admin.status import acks_max_of
from m4cast.overlay.door.fields import Fields, ranges_json
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.node_handle import NodeHandle, NodeRequest, answered
from m4cast.overlay.door.publish.acks import AckStream, AckThreads
from m4cast.overlay.door.publish.agreement import SchemaAgreement
from m4cast.overlay.door.publish.coalescing import Coalescing, Encoder, SmallBatches
from m4cast.overlay.door.publish.gathering import Gatherer, Gathering
from m4cast.overlay.door.publish.posted import PostedRows
from m4cast.overlay.door.publish.restoring import Restoring
from m4cast.overlay.door.quotas import ByteQuota, KeyedCall, KeyedQuota
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import ACKS_MAX, Put
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.routed import split_rows
from m4cast.overlay.door.rows.summaries import Summaries
from m4cast.overlay.door.rows.table_rows import VERSION, refuse_unversioned
from m4cast.overlay.protocol.effects import Abort, Commit, KeyMove, Publish, Stage, Staged
from m4cast.overlay.store.store import Store

log = logging.getLogger("m4cast.door")

PUT_ROWS_MAX = 256 * payload.BATCH_ROWS_MAX
"""Rows of a record batch that a client writes. Any number of nulls takes few bytes; they become as many batches as
needed. Guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit:
    """Publish what is staged under these ids, and move keys."""

    stage_ids: tuple[str, ...]
    moves: tuple[KeyMove, ...]
    acks: int | None = None
    """None: the node's setting."""
    timeout_s: float | None = None


def parse_commit(fields: Fields) -> StagedCommit:
    return StagedCommit(
        stage_ids=parse_stage_ids(fields),
        moves=fields.moves(),
        acks=fields.whole("acks", 0, ACKS_MAX),
        timeout_s=fields.seconds("timeout_ms"),
    )


def parse_stage_ids(fields: Fields) -> tuple[str, ...]:
    return fields.texts("stage_ids")


class PutService:
    """Performs DoPut, and the actions `commit` and `abort`."""

    def __init__(
        self,
        store: Store,
        node: NodeHandle,
        catalogue: Catalogue,
        frontiers: Frontiers,
        summaries: Summaries,
        limits: DoorLimits,
    ) -> None:
        self._restoring = Restoring(store, node, catalogue, limits)
        self._node = node
        self._summaries = summaries
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._agreement = SchemaAgreement(catalogue, frontiers)
        self._timeout_s = limits.timeout_ms / 1000
        self._quota = ByteQuota(limits.queue_bytes_max)
        self._collecting = KeyedQuota(limits.queue_bytes_max // 2, self._timeout_s)
        self._coalescing = Coalescing(node, self._quota, limits.linger_ms / 1000)
        self._batch_bytes_max = limits.batch_bytes_max
        self._commit_bytes_max = limits.commit_bytes_max
        self._acks = limits.acks
        self._acks_most = 0
        """The number of other nodes that could acknowledge when this was last looked up."""
        self._threads = AckThreads()
        self.gathering = Gathering(node.later)
        self._linger_s = limits.linger_ms / 1000

    def _acks_of(self, asked: Put | StagedCommit) -> int:
        """The number of acknowledgements, refused if there are too few nodes: the call would wait in vain. The node is
        asked only if the number exceeds the last answer."""
        acks = self._acks if asked.acks is None else asked.acks
        if acks > self._acks_most:
            self._acks_most = self._node.look(acks_max_of, self._timeout_s)
        most = self._acks_most
        if acks > most:
            detail = (
                f"acks is {acks}, but at most {most} other node{'' if most == 1 else 's'} can acknowledge what is "
                "published at this one: ask for fewer, or start more nodes (the channel's degree is the limit)"
            )
            raise Refusal("too-few-nodes", detail)
        return acks

    def close(self) -> None:
        self._coalescing.close()
        self._threads.close()
        with suppress(Refusal):  # the loop is closed
            self.gathering.close()

    def put(self, put: Put, reader: Any, writer: Any, caller: Caller) -> None:
        if put.restore is not None:
            self._restoring.put(put.restore, put.rows, reader, writer, caller)
            return
        acks_count = 0 if put.stage is not None else self._acks_of(put)
        encode = self._encoder(put.topic, reader.schema)
        with self._agreement.admitted(put.topic, encode.schema_id, encode.schema):
            self._catalogue.keep(encode.schema_id, encode.written, encode.schema)
            if put.moves:
                self._commit_all(put, acks_count, encode, reader, writer, caller)
                return
            acks = AckStream(writer, put.timeout_s or self._timeout_s, caller.is_cancelled, self._threads)
            try:
                if put.stage is not None:
                    rows_count = self._stage(put, put.stage, encode, reader, acks, caller)
                else:
                    rows_count = self._publish_each(put, acks_count, encode, reader, acks, caller)
            finally:
                acks.finish()
            acks.raise_failure()
            if acks.rows != rows_count:  # whatever the reason: a call that ends well has published all rows
                log.error("%d rows of %d were acknowledged to %s", acks.rows, rows_count, caller.name)
                raise Refusal("internal", f"{acks.rows} of {rows_count} rows are safe: see the node's log")

    def put_small(
        self, put: Put, rows: pa.RecordBatch, caller: Caller, after: PostedRows | None = None
    ) -> PostedRows | None:
        """Send one small record batch without a key. Nobody has to wait for its answer on a thread: that is a future.
        None: the rows are not small, and nothing was sent. `after`: rows that these must not overtake."""
        if put.topic in self._summaries.route_by:
            return None  # it is split, and not put together with rows of others
        acks_count = self._acks_of(put)
        encode = self._encoder(put.topic, rows.schema)
        if encode.is_table:
            refuse_unversioned(rows := payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max))
        elif encode.expands:
            rows = payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max)
        size = max(rows.get_total_buffer_size(), rows.num_rows)
        posted = PostedRows()
        with ExitStack() as stack:
            stack.enter_context(self._agreement.admitted(put.topic, encode.schema_id, encode.schema))
            self._catalogue.keep(encode.schema_id, encode.written, encode.schema)
            coalescer = stack.enter_context(self._coalescing.joined(encode, acks_count))
            if size > coalescer.few_bytes_max or rows.num_rows > payload.BATCH_ROWS_MAX:
                return None
            few = SmallBatches(posted, caller.name, put.timeout_s or self._timeout_s, caller.is_cancelled)
            posted.way = coalescer
            posted.send_now = lambda: coalescer.send_now(few)
            if after is not None and after.way is not coalescer:
                after.hurry()
            try:
                coalescer.add(few, rows, size)
            except BaseException:
                coalescer.leave(few)
                raise
            posted.holds(stack.pop_all(), lambda: coalescer.leave(few))
        return posted

    def gather(self, put: Put, schema: pa.Schema) -> None:
        """Rows of this schema were published. From now on they may be gathered on the loop, if they are plain."""
        if put.topic in self._summaries.route_by:
            return
        acks_count = self._acks_of(put)
        encode = self._encoder(put.topic, schema)
        with ExitStack() as stack:
            stack.enter_context(self._agreement.admitted(put.topic, encode.schema_id, encode.schema))
            gatherer = Gatherer(encode, acks_count, self._node, self._quota, self._timeout_s, stack)
            if gatherer.columns.are_plain and self._linger_s:
                gatherer.held = stack.pop_all()
                self.gathering.opened(gatherer)

    def gatherer(self, put: Put) -> Gatherer | None:
        """The gatherer for such publishes, used on the loop; None for those with keys or time-outs of their own, which
        are left to the threads."""
        if put.moves or put.timeout_s is not None:
            return None
        return self.gathering.find(put.topic, self._acks if put.acks is None else put.acks)

    def known_columns(self, topic: str) -> pa.Schema:
        """The columns that the topic has at this node; none if its origins contradict each other."""
        spans = [StreamSpan(stream, 1, until) for stream, until in self._frontiers.positions((topic,)).items()]
        try:
            return self._catalogue.merged(spans)
        except Refusal:
            return pa.schema([])

    def _encoder(self, topic: str, received: pa.Schema) -> Encoder:
        schema = payload.canonical_schema(received)
        written = payload.schema_bytes(schema)
        return Encoder(
            topic=topic,
            topic_hash=xxh3_64_intdigest(topic.encode()),
            schema=schema,
            written=written,
            schema_id=payload.fingerprint(written),
            batch_bytes_max=self._batch_bytes_max,
            expands=payload.expands(received),
            summaries=self._summaries,
            is_table=VERSION in schema.names,
        )

    def _publish_each(
        self, put: Put, acks_count: int, encode: Encoder, reader: Any, acks: AckStream, caller: Caller
    ) -> int:
        """Returns the number of rows."""
        rows_count = 0
        few = SmallBatches(acks, caller.name, put.timeout_s or self._timeout_s, caller.is_cancelled)
        with self._coalescing.joined(encode, acks_count) as coalescer:
            few_bytes_max = 0 if put.topic in self._summaries.route_by else coalescer.few_bytes_max
            try:
                for received in _record_batches(reader, self._summaries.route_by.get(put.topic)):
                    acks.raise_failure()
                    rows_count += received.num_rows
                    rows = received
                    if encode.expands:
                        rows = payload.canonical_rows(received, encode.schema, encode.batch_bytes_max)
                    if encode.is_table:  # before it is put together with rows of others
                        refuse_unversioned(payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max))
                    # 20 times as fast as nbytes, and about the same. A row counts, even one of nulls without bytes.
                    size = max(rows.get_total_buffer_size(), rows.num_rows)
                    if size <= few_bytes_max:
                        coalescer.add(few, rows, size)
                        continue
                    coalescer.send_now(few)
                    staged = encode(payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max))
                    self._send(
                        acks,
                        staged,
                        put,
                        caller,
                        lambda n, staged=staged: Publish(n, (staged,), (), acks_count, caller.name),  # type: ignore[misc]
                    )
                coalescer.drain(few)
            finally:
                coalescer.leave(few)
        return rows_count

    def _stage(self, put: Put, stage: str, encode: Encoder, reader: Any, acks: AckStream, caller: Caller) -> int:
        """Returns the number of rows."""
        rows_count = 0
        for number, rows in enumerate(_record_batches(reader, self._summaries.route_by.get(put.topic))):
            rows_count += rows.num_rows
            stage_id = f"{stage}/{number}"
            staged = encode(payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max))
            acks.stage_ids.append(stage_id)
            self._send(acks, staged, put, caller, lambda n, i=stage_id, s=staged: Stage(n, i, s))  # type: ignore[misc]
        return rows_count

    def _send(
        self, acks: AckStream, staged: Staged, put: Put, caller: Caller, make: Callable[[int], Publish | Stage]
    ) -> None:
        """Send one request of a call, within the quota. Its bytes are freed when it is answered."""
        timeout_s = put.timeout_s or self._timeout_s
        acks.wait_for_room(timeout_s)
        size = len(staged.payload)
        self._quota.take(caller.name, size, timeout_s, caller.is_cancelled)
        try:
            asked = self._node.request(make)
        except BaseException:
            self._quota.give_back(caller.name, size)
            raise
        asked.answer.add_done_callback(lambda _: self._quota.give_back(caller.name, size))
        acks.add(asked, staged.row_count)

    def _commit_all(self, put: Put, acks_count: int, encode: Encoder, reader: Any, writer: Any, caller: Caller) -> None:
        timeout_s = put.timeout_s or self._timeout_s
        rows_count = 0
        with self._collecting.call(caller.name) as collected:
            for rows in _record_batches(reader, self._summaries.route_by.get(put.topic)):
                staged = encode(payload.canonical_rows(rows, encode.schema, encode.batch_bytes_max))
                if collected.size + len(staged.payload) > self._commit_bytes_max:
                    detail = (
                        f"a keyed publish has more than {self._commit_bytes_max} bytes: split it into several "
                        "positions, or stage and commit"
                    )
                    raise Refusal("too-large", detail)
                self._collecting.add(collected, staged, timeout_s, caller.is_cancelled)
                rows_count += staged.row_count
            # In Flight, a call that broke off looks like one that ended.
            if rows_count != put.rows:
                raise Refusal(
                    "cut-off", f"{rows_count} of {put.rows} rows arrived, and nothing was published: repeat the call"
                )
            answer = answered(self._ask_all(put, acks_count, collected, caller.name), timeout_s, caller.is_cancelled)
        assert answer is not None
        writer.write(json.dumps({"rows": rows_count, "ranges": ranges_json(answer.ranges)}).encode())

    def _ask_all(self, put: Put, acks_count: int, collected: KeyedCall, owner: str) -> NodeRequest:
        payloads = self._collecting.complete(collected)
        return self._node.request(lambda n: Publish(n, payloads, put.moves, acks_count, owner))

    def commit(self, commit: StagedCommit, caller: Caller) -> dict[str, object]:
        acks_count = self._acks_of(commit)
        asked = self._node.request(lambda n: Commit(n, commit.stage_ids, commit.moves, acks_count, caller.name))
        answer = answered(asked, commit.timeout_s or self._timeout_s, caller.is_cancelled)
        assert answer is not None
        return {"ranges": ranges_json(answer.ranges)}

    def abort(self, stage_ids: tuple[str, ...]) -> dict[str, object]:
        self._node.notify(Abort(stage_ids))
        return {}


def _record_batches(reader: Any, route_by: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
    """The record batches that the client writes, without empty ones, split to what a batch may have, and by the values
    of the columns that the topic is routed by."""
    while True:
        try:
            rows = reader.read_chunk().data
        except StopIteration:
            return
        count = 0 if rows is None else rows.num_rows
        if count and route_by:
            payload.checked(rows, full=True)
        if count <= payload.BATCH_ROWS_MAX:
            if count and route_by:
                yield from split_rows(rows, route_by)
            elif count:
                yield rows
            continue
        if count > PUT_ROWS_MAX:
            raise Refusal("too-large", f"a record batch has {count} rows: send at most {PUT_ROWS_MAX} in each")
        for at in range(0, count, payload.BATCH_ROWS_MAX):
            part = rows.slice(at, payload.BATCH_ROWS_MAX)
            yield from split_rows(part, route_by) if route_by else (part,)
