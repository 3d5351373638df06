"""Fresh batches: the newest small batches of the topics that somebody follows, in memory, in the order of each stream.

Followers that are up to date get their rows from here, on the loop: no thread, no transaction, and rows are decoded
and written as JSON once for all of them. Whoever lags behind, filters, or meets a batch that is not here reads the
store.

While the store syncs a batch its rows are made in the forms that its followers want (`committing`): when they are on
disk they only have to be sent.

A batch is kept from the moment the node gives it to its store. Before it is synced here it is for *early* followers
only, and only if it comes from another node: it left its origin when it was on disk there, so it cannot be lost, though
this node may lose it once more and fetch it again. What this node numbers itself is on no disk before that.
"""

import asyncio
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.web.quick_json import json_of
from m4cast.overlay.door.web.texts import dicts_of
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, AppendBatch
from m4cast.overlay.protocol.wire.batch import Batch, StoredPayload
from m4cast.schemas.json_text import json_value

BATCH_BYTES_MAX = 64 << 10
"""Larger batches are read from the store: to write their rows would hold the loop."""
BYTES_MAX = 2 << 20
"""All batches that are kept. Higher: followers may lag further behind before they read the store. Guess."""
FOLLOWERS_MAX = 32
"""A topic with more followers is read and written by threads for each: one row would hold the loop. Guess."""
ROWS_MAX = 768
"""Rows that are written on the loop at a time, counted once for each follower of their topic: all of them are woken
together. As JSON, 100 rows of a few columns take 0.23 ms (measured); more would hold the loop for over 2 ms."""
ROW_VALUES = 8
"""A row with more values, the channel's columns and those in lists included, counts as several."""
SCHEMAS_MAX = 256
UNMADE_MAX = 64
"""Batches that wait for a commit to have their rows made. Of more than these, followers make the rows themselves."""
Form = Literal["arrow", "objects", "json"]
"""The form in which a follower wants rows: one of the properties of `SeenRows`."""
FORMS: tuple[Form, ...] = ("arrow", "objects", "json")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SeenRows:
    """Rows as readers see them, with the channel's columns: as Arrow, and as JSON. Each is made once, when somebody
    wants it."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.count: int = rows.num_rows
        self._rows = rows

    @property
    def columns(self) -> pa.Schema:
        """Rows of a stream that have the same can share a frame."""
        return self._rows.schema

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        return self._rows

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        return dicts_of(self._rows)

    @cached_property
    def json(self) -> str:
        """The objects, with commas between them."""
        return json_of(self.objects)[1:-1]


class FreshRows(SeenRows):
    """The same of a batch that was decoded. Its few rows get the channel's columns without Arrow, which takes as long
    for one row as for a thousand."""

    def __init__(self, batch: Batch, rows: pa.RecordBatch) -> None:
        super().__init__(rows)
        self._batch = batch

    def values(self, *, are_flat: bool) -> int:
        """The values of the rows. Flat: they are in columns of their own, and need not be counted."""
        rows = self._rows
        own = self.count * rows.num_columns if are_flat else sum(map(_values, rows.columns))
        return own + self.count * len(payload.SYSTEM_FIELDS)

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        seen = payload.seen_schema(self._rows.schema)
        return payload.seen_rows(self._batch, self._rows, self._batch.first_sequence, seen)

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        batch = self._batch
        topic, origin, sequence, published = (field.name for field in payload.SYSTEM_FIELDS)
        same = {topic: batch.stream.topic, origin: payload.origin_text(batch.stream.origin)}
        published_at = json_value(_EPOCH + timedelta(milliseconds=batch.published_at_ms))
        objects = dicts_of(self._rows)
        for at, each in enumerate(objects, batch.first_sequence):
            each.update(same)
            each[sequence] = at
            each[published] = published_at
        return objects


def _values(column: pa.Array) -> int:
    """The values of a column, with those that are in lists and structs."""
    type_ = column.type
    if types.is_struct(type_):
        return len(column) + sum(map(_values, column.flatten()))
    if types.is_map(type_):
        return len(column) + _values(column.keys) + _values(column.items)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return len(column) + _values(column.flatten())
    return len(column)


class FollowedRows(NamedTuple):
    """Rows of one stream, which continues at `next`."""

    rows: SeenRows
    stream: StreamId
    next: int


class KnownSchema(NamedTuple):
    schema: pa.Schema
    is_flat: bool
    """It has no lists, structs or maps."""


class FreshBatch:
    __slots__ = ("_rows", "_weight", "batch", "is_own", "size")

    def __init__(self, batch: Batch, *, is_own: bool) -> None:
        self.batch = batch
        self.is_own = is_own
        self.size = len(batch.content)
        self._rows: FreshRows | None = None
        self._weight: int | None = None

    def weight(self, schemas: dict[int, KnownSchema]) -> int:
        """The number of rows with few values that take as long to write. Rows that cannot be read are endless: whoever
        wants them is told by the store's reader what is wrong."""
        if self._weight is None:
            try:
                rows = self.rows(schemas)
                known = schemas.get(self.batch.schema_id)
                values = rows.values(are_flat=known is not None and known.is_flat)
                self._weight = max(rows.count, values // ROW_VALUES)
            except (ValueError, OSError, pa.ArrowException):
                self._weight = sys.maxsize
        return self._weight

    def rows(self, schemas: dict[int, KnownSchema]) -> FreshRows:
        """Its rows with the channel's columns. `ValueError` or `ArrowException` if they cannot be read."""
        if self._rows is None:
            batch = self.batch
            known = schemas.get(batch.schema_id)
            if known is None:
                _, schema = payload.schema_of(batch.content, batch.schema_id)
                if (why := payload.unreadable(schema)) is not None:
                    raise ValueError(why)
                known = KnownSchema(schema, is_flat=not any(map(types.is_nested, schema.types)))
                if len(schemas) < SCHEMAS_MAX:
                    schemas[batch.schema_id] = known
            self._rows = FreshRows(batch, payload.decode(batch, known.schema, to_cut=False))
        return self._rows


class FreshBatches:
    """Used on the loop. `own` is this node's id, and `ring` wakes the followers of a topic."""

    def __init__(self, own: Callable[[], NodeId], ring: Callable[[str], None]) -> None:
        self._own = own
        self._ring = ring
        self._followers: Counter[str] = Counter()
        self._early: Counter[str] = Counter()
        self._batches: OrderedDict[tuple[StreamId, int], FreshBatch] = OrderedDict()
        self._bytes = 0
        self._streams: dict[str, dict[StreamId, None]] = {}
        self._schemas: dict[int, KnownSchema] = {}
        self._forms: Counter[tuple[str, Form]] = Counter()
        self._unmade: deque[FreshBatch] = deque(maxlen=UNMADE_MAX)
        """Batches that the store has, whose rows nobody has made yet."""
        self._loop = asyncio.get_running_loop()

    def follow(self, topic: str, form: Form, *, early: bool) -> None:
        self._followers[topic] += 1
        self._early[topic] += early
        self._forms[topic, form] += 1

    def leave(self, topic: str, form: Form, *, early: bool) -> None:
        self._followers[topic] -= 1
        self._early[topic] -= early
        self._forms[topic, form] -= 1
        if not self._forms[topic, form]:
            del self._forms[topic, form]
        if not self._followers[topic]:
            del self._followers[topic], self._early[topic]
            self._streams.pop(topic, None)
            for key in [key for key in self._batches if key[0].topic == topic]:
                self._drop(key)

    def appended(self, append: Append) -> None:
        """Add the batches that the node gives to its store."""
        for write in append.writes if self._followers else ():
            if isinstance(write, AppendBatch) and write.batch.stream.topic in self._followers:
                self._add(write.batch)

    def committing(self) -> None:
        """The store is about to sync what it was given. On its thread, which waits for the disk next."""
        if self._unmade:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._make)

    def _make(self) -> None:
        """Make rows as their followers want them."""
        left = ROWS_MAX
        while self._unmade:
            fresh = self._unmade.popleft()
            topic = fresh.batch.stream.topic
            if not 0 < self._followers[topic] <= FOLLOWERS_MAX or fresh.batch.row_count > left:
                continue
            left -= fresh.weight(self._schemas) * self._followers[topic]
            if left < 0:
                continue
            with suppress(ValueError, OSError, pa.ArrowException):  # whoever takes it is told
                rows = fresh.rows(self._schemas)
                for form in FORMS:
                    if (topic, form) in self._forms:
                        getattr(rows, form)

    def _add(self, batch: Batch) -> None:
        if isinstance(batch.payload, StoredPayload) or len(batch.payload) > BATCH_BYTES_MAX:
            return
        stream = batch.stream
        fresh = FreshBatch(batch, is_own=stream.origin == self._own())
        key = (stream, batch.first_sequence)
        if key in self._batches:  # the store had no space for it
            self._drop(key)
        self._batches[key] = fresh
        self._bytes += fresh.size
        self._streams.setdefault(stream.topic, {})[stream] = None
        while self._bytes > BYTES_MAX:
            self._drop(next(iter(self._batches)))
        if self._early[stream.topic] and not fresh.is_own:
            self._ring(stream.topic)
        else:
            self._unmade.append(fresh)

    def take(self, topic: str, at: Frontier, until: Frontier, *, early: bool) -> list[FollowedRows]:
        """Some rows after the position `at`: none unless the next batch of every stream of `until` is here. `until` has
        the streams that are further on disk. Early: also what is not on disk yet."""
        if self._followers[topic] > FOLLOWERS_MAX or not all(self._is_few(s, at.get(s, 1)) for s in until):
            return []
        found: list[FollowedRows] = []
        left = BATCH_BYTES_MAX
        left_rows = self._rows_max(topic)
        for stream in self._streams.get(topic, ()) if early else until:
            for fresh in self._next(stream, at.get(stream, 1), until.get(stream, 0), early=early):
                weight = fresh.weight(self._schemas)
                if left <= 0 or weight > left_rows:
                    break
                found.append(FollowedRows(fresh.rows(self._schemas), stream, fresh.batch.next_sequence))
                left -= fresh.size
                left_rows -= weight
        return found

    def has_early(self, topic: str, at: Frontier) -> bool:
        """True if there are rows after the position that are not on disk yet."""
        return self._followers[topic] <= FOLLOWERS_MAX and any(
            (fresh := self._batches.get((stream, at.get(stream, 1)))) is not None
            and not fresh.is_own
            and fresh.weight(self._schemas) <= self._rows_max(topic)
            for stream in self._streams.get(topic, ())
        )

    def _is_few(self, stream: StreamId, at: int) -> bool:
        """True if the next batch of a stream is here, and a follower may be given it on the loop."""
        fresh = self._batches.get((stream, at))
        return fresh is not None and fresh.weight(self._schemas) <= self._rows_max(stream.topic)

    def _rows_max(self, topic: str) -> int:
        """The rows of a topic that one of its followers may be given on the loop at a time."""
        return ROWS_MAX // max(self._followers[topic], 1)

    def _drop(self, key: tuple[StreamId, int]) -> None:
        self._bytes -= self._batches.pop(key).size

    def _next(self, stream: StreamId, at: int, until: int, *, early: bool) -> Iterator[FreshBatch]:
        while (fresh := self._batches.get((stream, at))) is not None:
            at = fresh.batch.next_sequence
            if at > until and not (early and not fresh.is_own):
                return
            yield fresh
