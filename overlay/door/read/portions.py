"""Batches of a span, as filtered reads take them from the store: whole chunks, and what is not retained."""

from collections.abc import Iterator

from m4cast.overlay.door.quotas import ChunkQuota
from m4cast.overlay.door.read.matching import Portion
from m4cast.overlay.door.read.reading import missing_rows
from m4cast.overlay.door.rows.catalogue import StreamSpan
from m4cast.overlay.store.store import Kept, Store


class PortionReader:
    """Any thread may use it."""

    def __init__(self, store: Store, chunks: ChunkQuota) -> None:
        self._store = store
        self._chunks = chunks

    def read(self, span: StreamSpan, *, skip_missing: bool) -> Iterator[tuple[int, list[Portion]]]:
        """The batches of a span, a chunk at a time, each chunk with the first sequence after it. Rows that are not
        retained are refused, or are a chunk without batches."""
        first = span.first
        with self._chunks.reading():
            while first < span.next:
                batches = self._read_chunk(span, first)
                if not batches:
                    found = self._store.locate(span.stream, first)
                    begins = span.next if found is None else min(found[0], span.next)
                    if begins > first:
                        if not skip_missing:
                            raise missing_rows(span.stream, first, begins)
                        first = begins
                        yield first, []
                        continue
                    assert found is not None
                    batches = self._read_chunk(span, found[0])
                portions = []
                for kept in batches:
                    until = min(kept.batch.next_sequence, span.next)
                    portions.append(Portion(kept, first, until))
                    first = until
                yield first, portions

    def _read_chunk(self, span: StreamSpan, first: int) -> tuple[Kept, ...]:
        return self._store.read_kept(span.stream, first, span.next, self._chunks.bytes_now)
