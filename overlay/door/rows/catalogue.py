"""The catalogue: which schemas the batches of a topic have, found by reading the head of each batch once.

A schema is known by its id: from memory, from the store (which keeps schemas for ever), or from the first payload that
has it. Readers get the merge of the schemas in their range (`payload.merged`), so it depends on the range alone and not
on the node. A batch that cannot be decoded adds no columns. It is refused where a read reaches it, so that rows after
it can be read.

Cost: about 2 us per batch of a topic at the first use after a start, then only for new batches.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.ids import StreamId, short_id
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.store.store import Store


class StreamSpan(NamedTuple):
    """Rows `first .. next - 1` of a stream."""

    stream: StreamId
    first: int
    next: int


@dataclass(slots=True)
class _Runs:
    """The places where the schema of a stream changes, as far as its batches were examined."""

    next: int = 1
    firsts: list[int] = field(default_factory=list)
    schema_ids: list[int] = field(default_factory=list)


class Catalogue:
    """Any thread may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._schemas: dict[int, pa.Schema] = {}
        self._unreadable: dict[int, str] = {}
        """Why rows of these schemas cannot be read."""
        self._runs: dict[StreamId, _Runs] = {}

    def keep(self, schema_id: int, written: bytes, schema: pa.Schema) -> None:
        """Add a schema. It is on disk before anything that is appended from now on."""
        if schema_id in self._schemas:
            return
        self._remember(schema_id, schema)
        if self._store.schema(schema_id) is None:
            self._store.save_schema(schema_id, written)

    def merged(self, spans: Iterable[StreamSpan], *, passes_unreadable: bool = True) -> pa.Schema:
        """The columns of these rows. Unreadable rows have none, or are refused."""
        schemas: dict[int, tuple[str, pa.Schema]] = {}
        for span in spans:
            for first, schema_id in self._look(span):
                if schema_id not in schemas:
                    whose = f"at origin {short_id(span.stream.origin)} ({span.stream.origin.hex()})"
                    try:
                        schema = self._schema_at(span.stream, first, schema_id)
                    except Refusal:
                        if not passes_unreadable:
                            raise
                        schema = pa.schema([])
                    schemas[schema_id] = (whose, schema)
        return payload.merged(schemas.values())

    def decoded(self, batch: Batch, *, to_cut: bool) -> pa.RecordBatch:
        try:
            return payload.decode(batch, self._schema(batch), to_cut=to_cut)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise not_arrow(batch.stream, batch.first_sequence, error) from error

    def _look(self, span: StreamSpan) -> list[tuple[int, int]]:
        """(First sequence, schema id) of the runs that the span touches."""
        with self._lock:
            runs = self._runs.setdefault(span.stream, _Runs())
            if runs.next < span.next:
                for first, schema_id in self._store.schema_runs(span.stream, runs.next, span.next):
                    if not runs.schema_ids or runs.schema_ids[-1] != schema_id:
                        runs.firsts.append(first)
                        runs.schema_ids.append(schema_id)
                runs.next = span.next
            begin = max(bisect_right(runs.firsts, span.first) - 1, 0)
            end = bisect_left(runs.firsts, span.next)
            return list(zip(runs.firsts[begin:end], runs.schema_ids[begin:end], strict=True))

    def _schema_at(self, stream: StreamId, first: int, schema_id: int) -> pa.Schema:
        schema = self.known(schema_id)
        why = self._unreadable.get(schema_id)
        if why is not None:
            raise not_arrow(stream, first, why)
        if schema is not None:
            return schema
        found = self._store.locate(stream, first)
        if found is None:  # removed since it was examined
            return pa.schema([])
        batches = self._store.read_range(stream, found[0], found[1], 1)
        return self._schema(batches[0]) if batches else pa.schema([])

    def _schema(self, batch: Batch) -> pa.Schema:
        schema = self.known(batch.schema_id)
        if schema is None:
            try:
                written, schema = payload.schema_of(batch.content, batch.schema_id)
            except (ValueError, OSError, pa.ArrowException) as error:
                raise not_arrow(batch.stream, batch.first_sequence, error) from error
            self.keep(batch.schema_id, written, schema)
        why = self._unreadable.get(batch.schema_id)
        if why is not None:
            raise not_arrow(batch.stream, batch.first_sequence, why)
        return schema

    def _remember(self, schema_id: int, schema: pa.Schema) -> None:
        why = payload.unreadable(schema)
        with self._lock:
            if why is not None:
                self._unreadable[schema_id] = why
            self._schemas[schema_id] = schema

    def forget(self, stream: StreamId) -> None:
        """Batches were added before others: examine the stream again."""
        with self._lock:
            self._runs.pop(stream, None)

    def known(self, schema_id: int) -> pa.Schema | None:
        """The schema with this id, from memory or from the store."""
        with self._lock:
            schema = self._schemas.get(schema_id)
        if schema is None:
            written = self._store.schema(schema_id)
            if written is None:
                return None
            schema = pa.ipc.read_schema(pa.py_buffer(written))
            self._remember(schema_id, schema)
        return schema


def not_arrow(stream: StreamId, sequence: int, why: object) -> Refusal:
    detail = (
        f"topic {stream.topic!r}, origin {stream.origin.hex()}, batch at {sequence} cannot be read as Arrow ({why}): "
        "start after it, or delete the topic at this node"
    )
    return Refusal("not-arrow", detail)
