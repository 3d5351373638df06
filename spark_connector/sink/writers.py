"""Micro-batches and batch writes, published once, all or nothing (guarantee 5).

Tasks stage their rows at the access point (the first of the nodes), under a separate id for each attempt. The driver
commits what the winning attempts staged, in the order of the partitions, and moves a key in the same transaction:

    stream   key = the sink id (by default the query's id)      position = <query id>/<micro-batch id>
    batch    key = the sink id, or one of a few shared keys     position = write/<id of the write>
    batch with a number (`batchId`)    key = the sink id        position = <query id or "batch">/<number>

A replayed micro-batch finds its position and publishes nothing, even if `nodes` has another order now (`standing`).
Another query's position under the same key is refused, since rows would be lost or duplicated (`expected`). Staged rows
of failed attempts expire at the node. An abort only removes what is still staged, so it has no effect after a commit.

A task holds at most `FLUSH_BYTES` plus one record batch.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from m4cast.overlay.errors import M4castError
from m4cast.overlay.refusals import PASSING
from m4cast.spark_connector.access import as_connector_error, channel_of, patiently
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import WriteOptions
from m4cast.spark_connector.sink.receipts import keep, receipt_of
from m4cast.spark_connector.sink.standing import Standing, home_of, leave, note_left

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel, RowRange

log = logging.getLogger("m4cast.spark")

FLUSH_BYTES = 16 << 20
"""Rows that a task buffers before it stages them. Lower: more waits for the node's disk. Guess."""
SHARED_KEYS = 64
"""Keys of batch writes without a sink id. A node keeps keys for long, so a write does not get its own."""
TOPIC = "_topic"
KEY = "_key"
PUBLISHERS_TYPES = {KEY: ("binary", "string"), "_headers": ("array<struct<key:string,value:binary>>",)}
"""The publisher's columns that have a meaning to the channel, with their Spark types. Keys are sent as binary."""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The rows that one task attempt has staged."""

    stage_ids: tuple[str, ...]
    partition: int
    query_id: str | None
    """The query of a stream, also within `foreachBatch`. Only tasks know it, so they pass it to the driver."""
    bytes_by_topic: Mapping[str, int] = field(default_factory=dict)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    from m4cast.spark_connector.columns import RESERVED

    for name in schema.fieldNames():
        folded = name.casefold()  # reserved in any case
        is_misspelt = folded in (TOPIC, *PUBLISHERS_TYPES) and name != folded
        if (folded in RESERVED and folded != TOPIC) or folded.startswith("_m4cast") or is_misspelt:
            problem = f"column {name!r} is reserved by the channel and cannot be published"
            raise ConnectorError("M4CAST_RESERVED_COLUMN", problem, f'df.drop("{name}"), or rename it')
    for column in schema.fields:
        types = PUBLISHERS_TYPES.get(column.name)
        if types is not None and column.dataType.simpleString() not in types:
            problem = f"column {column.name!r} is {column.dataType.simpleString()}"
            raise ConnectorError("M4CAST_COLUMN_TYPE", problem, f"cast it to {' or '.join(types)}, or rename it")
    if TOPIC not in schema.fieldNames() and options.topic is None:
        raise ConnectorError("M4CAST_NO_TOPIC", "no topic to publish to", 'set option("topic"), or add a column _topic')
    if not set(schema.fieldNames()) - {TOPIC}:
        raise ConnectorError("M4CAST_NO_TOPIC", "there is no column to publish besides _topic", "add one")


# ---- in the tasks


class Staging:
    """Stages the rows of one task attempt at the access point."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._channel = channel_of(options.access, batch_bytes=options.batch_bytes)
        self._attempt = uuid.uuid4().hex
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._flushes = 0
        self.stage_ids: list[str] = []
        self.bytes_by_topic: Counter[str] = Counter()

    def prepare(self) -> None:
        """Make the topic a selective one, if that is asked for; nothing happens if it is one already."""
        spread, topic = self._options.spread, self._options.topic
        if spread is not None and topic is not None:
            patiently(
                lambda: self._channel.create_topic(topic, keepers=spread.keepers, route_by=spread.route_by),
                self._options.access.timeout_s,
            )

    def add(self, rows: "pa.RecordBatch") -> None:
        rows = _with_binary_key(rows)
        for topic, part in self._by_topic(rows):
            self._waiting.setdefault(topic, []).append(part)
            self._waiting_bytes += part.nbytes
            self.bytes_by_topic[topic] += part.nbytes
        if self._waiting_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        for topic, parts in self._waiting.items():
            # Combined, so that small record batches do not become small batches of the channel.
            rows = pa.Table.from_batches(parts).combine_chunks()
            prefix = f"{self._attempt}-{self._flushes}"
            self._flushes += 1
            # Staging the same rows under the same id again has no effect: a retry is harmless.
            self.stage_ids += patiently(
                lambda topic=topic, rows=rows, prefix=prefix: self._channel.stage(topic, rows, prefix),  # type: ignore[misc]
                self._options.access.timeout_s,
            )
        self._waiting = {}
        self._waiting_bytes = 0

    def abandon(self) -> None:
        with suppress(M4castError):
            self._channel.abort(self.stage_ids)

    def _by_topic(self, rows: "pa.RecordBatch") -> Iterator[tuple[str, "pa.RecordBatch"]]:
        import pyarrow.compute as pc

        at = rows.schema.get_field_index(TOPIC)
        if not rows.num_rows:
            return
        if at < 0:
            assert self._options.topic is not None
            yield self._options.topic, rows
            return
        topics = rows.column(at)
        rows = rows.remove_column(at)
        if self._options.topic is not None:
            yield self._options.topic, rows
            return
        if topics.null_count:
            problem = "a row has no topic: its _topic is null"
            raise ConnectorError("M4CAST_NO_TOPIC", problem, 'fill the column, or set option("topic")')
        # One stable sort, then slices, for any number of topics: the rows of a topic keep their order.
        encoded = topics.dictionary_encode()
        counts = pc.value_counts(encoded.indices)
        if len(counts) > 1:
            rows = rows.take(pc.sort_indices(encoded.indices))
        at = 0
        for number, count in sorted((each["values"].as_py(), each["counts"].as_py()) for each in counts):
            yield encoded.dictionary[number].as_py(), rows.slice(at, count)
            at += count


def _with_binary_key(rows: "pa.RecordBatch") -> "pa.RecordBatch":
    at = rows.schema.get_field_index(KEY)
    if at < 0 or rows.schema.field(at).type != "string":
        return rows
    return rows.set_column(at, KEY, rows.column(at).cast("binary"))


def _stage(batches: Iterator["pa.RecordBatch"], options: WriteOptions) -> StagedRows:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    staging = Staging(options)
    try:
        staging.prepare()
        for rows in batches:
            staging.add(rows)
        staging.flush()
    except BaseException:
        staging.abandon()
        raise
    query_id = task.getLocalProperty("sql.streaming.queryId")
    return StagedRows(tuple(staging.stage_ids), task.partitionId(), query_id, dict(staging.bytes_by_topic))


# ---- in the driver


def expected(standing: str | None, query_id: str, batch_id: int, options: WriteOptions) -> str | None:
    """The position from which this query moves its key; an error if another query or write has moved it."""
    if standing is None:
        return None
    query, _, batch = standing.rpartition("/")
    if query == query_id and batch.isdigit():
        if int(batch) == batch_id:
            return None  # already committed: the node answers with the first result
        if int(batch) < batch_id:
            return standing
        problem = f"micro-batch {batch_id} is older than the last one that this query published, {batch}"
        fix = "the checkpoint is outdated: restore the newer one, or start again under another sinkId"
        raise ConnectorError("M4CAST_CHECKPOINT_BEHIND", problem, fix)
    if standing == options.takeover:
        return standing
    problem = f"sink id {options.sink_id!r} is used by another query or write, which has published up to {standing!r}"
    fix = (
        "set another sinkId; or, if the other has ended and this one continues it, set "
        f'option("takeover", "{standing}")'
    )
    raise ConnectorError("M4CAST_SINK_TAKEN", problem, fix)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return _stage(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if not staged:  # no partitions, so no rows: the next micro-batch moves the key
            return
        query_id = staged[0].query_id
        assert query_id, "Spark sets the query id in the tasks of a stream"
        _commit(staged, self._options.sink_id or query_id, _numbered(query_id, batchId, self._options), self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = uuid.uuid4()
        """Created once, when the write is planned: tasks and driver have copies of this object."""

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return _stage(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if not _ids(staged):
            return
        batch_id = self._options.batch_id
        if batch_id is None:
            move = Move(f"write/{self._write_id.hex}", None, self._from)
        else:
            move = _numbered(staged[0].query_id or "batch", batch_id, self._options)
        _commit(staged, self._options.sink_id or f"spark-write-{self._write_id.int % SHARED_KEYS}", move, self._options)

    def _from(self, standing: str | None) -> str | None:
        if standing is not None and not standing.startswith("write/") and standing != self._options.takeover:
            expected(standing, "write", 0, self._options)  # it belongs to a stream
        return None if standing == f"write/{self._write_id.hex}" else standing

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(messages, self._options)


@dataclass(frozen=True)
class Move:
    """The position to which a commit moves its key, and how to find the one that it expects."""

    position: str
    batch_id: int | None
    expect: Callable[[str | None], str | None]


def _numbered(query_id: str, batch_id: int, options: WriteOptions) -> Move:
    return Move(f"{query_id}/{batch_id}", batch_id, lambda standing: expected(standing, query_id, batch_id, options))


def _commit(staged: Sequence[StagedRows], key: str, move: Move, options: WriteOptions) -> None:
    """Read the key's position and move it; retried if it moved in between, so that the check is made again."""
    channel = channel_of(options.access)
    ranges = patiently(
        lambda: _publish(channel, _ids(staged), key, move, options.acks),
        options.access.timeout_s,
        PASSING | {"wrong-position"},
    )
    if options.receipts is not None and ranges:
        bytes_by_topic: Counter[str] = Counter()
        for message in staged:
            bytes_by_topic.update(message.bytes_by_topic)
        receipt = receipt_of(key, move.position, move.batch_id, staged[0].query_id, ranges, bytes_by_topic)
        keep(receipt, options.receipts)


def _publish(channel: "Channel", stage_ids: list[str], key: str, move: Move, acks: int | None) -> list["RowRange"]:
    here = Standing(channel.nodes[0], channel.position(key))
    home = here if move.batch_id is None else home_of(channel, key, here, move.position.rpartition("/")[0])
    is_done = move.expect(home.position) is None and home.position is not None
    if not is_done:
        if home is not here:
            leave(home, channel, key)
        ranges = channel.commit(stage_ids, key=key, expect=here.stored, next=move.position, acks=acks)
        note_left(key, here.node, move.position)
        return ranges
    with suppress(M4castError):  # otherwise it expires
        channel.abort(stage_ids)
    if not home.is_live:
        return []  # the first result is no longer known
    return channel.at(home.node).commit((), key=key, next=move.position, acks=acks)  # the first result again


def _abort(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    stage_ids = _ids(_staged(messages))
    try:
        if stage_ids:
            channel_of(options.access).abort(stage_ids)
    except M4castError as error:
        log.warning(
            "cannot remove staged rows, which will expire: %s", as_connector_error(error, options.access.timeout_s)
        )


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    staged = [message for message in messages if isinstance(message, StagedRows)]
    return sorted(staged, key=lambda message: message.partition)


def _ids(staged: Sequence[StagedRows]) -> list[str]:
    return [stage_id for message in staged for stage_id in message.stage_ids]
