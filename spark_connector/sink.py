"""The sink: micro-batches and batch writes, published once, whole or not at all (guarantee 5).

Tasks stage their rows at the access point, the first of the nodes, under an id of their own for each attempt. The
driver commits what the winning attempts staged, in the order of the partitions, and moves a key in the same
transaction:

    stream   key = the sink id (by default the query's id)      position = <query id>/<micro-batch id>
    batch    key = the sink id, or one of a few shared ones     position = write/<id of the write>
    batch with a number (`batchId`)    key = the sink id        position = <query id or "batch">/<number>

A micro-batch that is replayed finds its position there and publishes nothing, also if `nodes` has another order now:
see `standing`. Another query's position under the same key is refused, since it would drop or double rows: see
`expected`. What attempts leave behind expires at the node;
abort removes only what is still staged, so that after a commit it changes nothing.

A task holds at most `FLUSH_BYTES` and the record batch that Spark gives it.
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
from m4cast.spark_connector.access import channel_of, patiently, told
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import WriteOptions
from m4cast.spark_connector.receipts import keep, receipt_of
from m4cast.spark_connector.standing import Standing, home_of, leave, note_left

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel, RowRange

log = logging.getLogger("m4cast.spark")

FLUSH_BYTES = 16 << 20
"""Rows that a task keeps before it stages them. Lower: more waiting for the node's disk. Guess."""
SHARED_KEYS = 64
"""Of batch writes without a sink id. A node keeps every key for ever, so that each write cannot have its own."""
TOPIC = "_topic"
KEY = "_key"
PUBLISHERS_TYPES = {KEY: ("binary", "string"), "_headers": ("array<struct<key:string,value:binary>>",)}
"""What a publisher may say of a row besides its own columns, and as which of Spark's types. Keys travel as binary."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task attempt has staged."""

    stage_ids: tuple[str, ...]
    partition: int
    query_id: str | None
    """Of a stream, also within `foreachBatch`; the driver is not told it otherwise."""
    bytes_by_topic: Mapping[str, int] = field(default_factory=dict)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    from m4cast.spark_connector.columns import RESERVED

    for name in schema.fieldNames():
        folded = name.casefold()  # the channel's names are its own in any spelling
        is_misspelt = folded in (TOPIC, *PUBLISHERS_TYPES) and name != folded
        if (folded in RESERVED and folded != TOPIC) or folded.startswith("_m4cast") or is_misspelt:
            problem = f"column {name!r} is the channel's own and cannot be published"
            raise ConnectorError("M4CAST_RESERVED_COLUMN", problem, f'df.drop("{name}"), or rename it')
    for column in schema.fields:
        types = PUBLISHERS_TYPES.get(column.name)
        if types is not None and column.dataType.simpleString() not in types:
            problem = f"column {column.name!r} is {column.dataType.simpleString()}"
            raise ConnectorError("M4CAST_COLUMN_TYPE", problem, f"cast it to {' or '.join(types)}, or rename it")
    if TOPIC not in schema.fieldNames() and options.topic is None:
        raise ConnectorError("M4CAST_NO_TOPIC", "no topic to publish under", 'give option("topic"), or a column _topic')
    if not set(schema.fieldNames()) - {TOPIC}:
        raise ConnectorError("M4CAST_NO_TOPIC", "no column to publish besides _topic", "add one")


# ---- in the tasks


class Staging:
    """Rows of one task attempt on their way to the access point."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._channel = channel_of(options.access, batch_bytes=options.batch_bytes)
        self._attempt = uuid.uuid4().hex
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._flushes = 0
        self.stage_ids: list[str] = []
        self.bytes_by_topic: Counter[str] = Counter()

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
            # In one piece, so that small record batches do not become small batches of the channel.
            rows = pa.Table.from_batches(parts).combine_chunks()
            prefix = f"{self._attempt}-{self._flushes}"
            self._flushes += 1
            # The same id with the same rows is the same stage: a repeat is harmless.
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
            raise ConnectorError("M4CAST_NO_TOPIC", problem, 'fill it, or give option("topic")')
        # Sorted once and cut, however many topics there are; the sort is stable, so rows keep their order.
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


def _stage(batches: Iterator["pa.RecordBatch"], options: WriteOptions) -> Staged:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    staging = Staging(options)
    try:
        for rows in batches:
            staging.add(rows)
        staging.flush()
    except BaseException:
        staging.abandon()
        raise
    query_id = task.getLocalProperty("sql.streaming.queryId")
    return Staged(tuple(staging.stage_ids), task.partitionId(), query_id, dict(staging.bytes_by_topic))


# ---- in the driver


def expected(standing: str | None, query_id: str, batch_id: int, options: WriteOptions) -> str | None:
    """From which position this query's key is moved; an error if it stands where this query has not left it."""
    if standing is None:
        return None
    query, _, batch = standing.rpartition("/")
    if query == query_id and batch.isdigit():
        if int(batch) == batch_id:
            return None  # done before: the node sees that, and answers with the result of the first time
        if int(batch) < batch_id:
            return standing
        problem = f"micro-batch {batch_id} was published before: this query has published up to {batch}"
        fix = "the checkpoint is older than that: restore the newer one, or start anew under another sinkId"
        raise ConnectorError("M4CAST_CHECKPOINT_BEHIND", problem, fix)
    if standing == options.takeover:
        return standing
    problem = f"sink id {options.sink_id!r} belongs to another query or write, which has published up to {standing!r}"
    fix = (
        "give this one its own sinkId; or, if the other has ended and this one is to go on after it, "
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
        if not staged:  # no partition, so no rows: the next micro-batch moves the key past it
            return
        query_id = staged[0].query_id
        assert query_id, "Spark tells the tasks of a stream its query"
        _commit(staged, self._options.sink_id or query_id, _numbered(query_id, batchId, self._options), self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = uuid.uuid4()
        """Made once, when the write is planned: tasks and driver have copies of this object."""

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
            expected(standing, "write", 0, self._options)  # it is a stream's
        return None if standing == f"write/{self._write_id.hex}" else standing

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(messages, self._options)


@dataclass(frozen=True)
class Move:
    """To where a commit moves its key, and from where, when it stands somewhere."""

    position: str
    batch_id: int | None
    expect: Callable[[str | None], str | None]


def _numbered(query_id: str, batch_id: int, options: WriteOptions) -> Move:
    return Move(f"{query_id}/{batch_id}", batch_id, lambda standing: expected(standing, query_id, batch_id, options))


def _commit(staged: Sequence[Staged], key: str, move: Move, options: WriteOptions) -> None:
    """Ask where the key stands and move it; again if it moved in between, so that the check decides anew."""
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
        ranges = channel.commit(stage_ids, key=key, expect=here.said, next=move.position, acks=acks)
        note_left(key, here.node, move.position)
        return ranges
    with suppress(M4castError):  # else it expires
        channel.abort(stage_ids)
    if not home.is_live:
        return []  # what it was is not known any more
    return channel.at(home.node).commit((), key=key, next=move.position, acks=acks)  # its answer of the first time


def _abort(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    stage_ids = _ids(_staged(messages))
    try:
        if stage_ids:
            channel_of(options.access).abort(stage_ids)
    except M4castError as error:
        log.warning("what was staged expires by itself: %s", told(error, options.access.timeout_s))


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    return sorted(staged, key=lambda message: message.partition)


def _ids(staged: Sequence[Staged]) -> list[str]:
    return [stage_id for message in staged for stage_id in message.stage_ids]
