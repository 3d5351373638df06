"""A store with Arrow batches and a filtered reading of it, without a node."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from m4cast.overlay.door.access.rights import EVERYTHING, Caller, Rights
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.quotas import ChunkQuota, FilterCpu
from m4cast.overlay.door.read.filtering import FilteredReading
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.read.reading import Reading
from m4cast.overlay.door.read.stream_answer import Piece
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.door.rows.summaries import FilteredColumns
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile, mask, summarise
from m4cast.overlay.profiles.summary_bytes import encode
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Extension, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Store
from tests.overlay.door.read.test_reading import arrow_batch
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id
from tests.overlay.store.store_parts import opened, received, synced

Lost = int
"""So many rows that were lost."""


class FilteredStore:
    """Streams of a store, and how they are read."""

    def __init__(self, store: Store, chunk_bytes: int) -> None:
        self.store = store
        self.frontiers = Frontiers()
        self.catalogue = Catalogue(store)
        self.cpu = FilterCpu()
        self.columns = FilteredColumns()
        chunks = ChunkQuota(chunk_bytes, chunk_bytes)
        self.reading = reading = Reading(store, self.catalogue, self.frontiers, chunks, timeout_s=0.05)
        pacing = Pacing(self.cpu, self.frontiers)
        self.filtered = FilteredReading(
            PortionReader(store, chunks), self.catalogue, self.frontiers, reading, pacing, self.columns
        )
        self._token = 0
        self._next: dict[StreamId, int] = {}
        self.rows: dict[StreamId, list[tuple[int, dict[str, Any]]]] = {}
        """Every row that was ever published, with its sequence."""
        self.batches: dict[StreamId, list[tuple[int, pa.RecordBatch]]] = {}

    def publish(
        self,
        stream: StreamId,
        *contents: pa.RecordBatch | Lost,
        is_seen: bool = True,
        summarised: Iterable[str] = (),
        damaged: bool = False,
    ) -> None:
        """Append batches, or lose rows. `is_seen`: readers hear of them. `summarised`: columns of which batches have a
        summary; `damaged`: one that is not what its origin wrote."""
        for content in contents:
            self._token += 1
            first = self._next.get(stream, 1)
            if isinstance(content, int):
                self._next[stream] = first + content
                skip = Skip(stream, first, first + content - 1, SkipReason.LOST, node_id("n"))
                synced(self.store, append_of(self._token, skips=(skip,)))
                continue
            self._next[stream] = first + content.num_rows
            self.rows.setdefault(stream, []).extend(enumerate(content.to_pylist(), first))
            self.batches.setdefault(stream, []).append((first, content))
            batch = arrow_batch(chain(1, stream=stream)[0], content, first)
            if summarised:
                summary = encode(summarise(content, [(name,) for name in summarised]))
                if damaged:
                    summary = encode(summarise(content.slice(0, 0), [(name,) for name in summarised]))
                extension = Extension(SUMMARY_EXTENSION, must_understand=False, value=summary)
                batch = seal(replace(batch, extensions=(extension,)))
            self.append(batch)
        if is_seen:
            self.frontiers.advance({stream: self._next[stream]})

    def append(self, batch: Batch) -> None:
        self._token += 1
        synced(self.store, received(self._token, batch))

    def matching(self, stream: StreamId, profile: Profile) -> list[int]:
        """The sequences of the rows that match, batch by batch."""
        return [
            first + at
            for first, rows in self.batches.get(stream, [])
            for at, passes in enumerate(mask(profile.condition, rows).tolist())
            if passes
        ]

    def read(self, get: Get, rights: Rights = EVERYTHING) -> tuple[pa.Schema, Iterator[Piece]]:
        assert get.profile is not None
        caller = Caller("someone", rights, lambda: False)
        profiles = dict.fromkeys(get.topics, get.profile)
        return self.filtered.read(get, profiles, caller, {"node_id": "here", "channel": "m4cast/test"})


@contextmanager
def filtered_store(path: Path | None = None, chunk_bytes: int = 1 << 20) -> Iterator[FilteredStore]:
    with tempfile.TemporaryDirectory() as folder, opened(path or Path(folder)) as store:
        yield FilteredStore(store, chunk_bytes)


def where_of(piece: Piece) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(piece[1])
    return found


def sequences_of(pieces: Sequence[Piece]) -> list[int]:
    return [sequence for rows, _ in pieces for sequence in rows["_sequence"].to_pylist()]
