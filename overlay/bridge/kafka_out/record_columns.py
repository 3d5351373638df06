"""Parts of Kafka records besides their values: keys, headers, times and partitions, from the columns of rows."""

import functools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka.partitioner.default import murmur2
from pyarrow import types

from m4cast.overlay.bridge.codecs.codec import Header
from m4cast.overlay.bridge.records import KAFKA, OWN, RESERVED
from m4cast.overlay.errors import M4castError
from m4cast.schemas.arrow_types import HEADERS

KEYS_KEPT = 65_536
"""Hashes of keys that are cached, since kafka-python computes them slowly. Memory. Guess."""
_hash = functools.lru_cache(KEYS_KEPT)(murmur2)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """One entry for each row in each list."""

    keys: list[bytes | None]
    headers: list[list[Header]]
    times_ms: list[int]
    sources: list[int] | None
    """Partitions that the rows came from, if records go to the same ones."""
    is_echo: list[bool]
    """The row came from the very topic that it would go to."""
    is_tombstone: list[bool]

    @classmethod
    def of(cls, rows: pa.RecordBatch, cluster: str, target: str, *, by_source: bool) -> "RecordColumns":
        count = rows.num_rows
        nothing: list[Any] = [None] * count
        times = rows["_published_at"].cast(pa.int64())
        sources, is_echo, is_tombstone = None, [False] * count, [False] * count
        if "_kafka" in rows.schema.names and rows["_kafka"].type == KAFKA:
            kafka = rows["_kafka"]
            own = pc.struct_field(kafka, "timestamp").cast(pa.int64())
            times = pc.coalesce(own, times)
            is_here = pc.and_(
                pc.equal(pc.struct_field(kafka, "cluster"), cluster), pc.equal(pc.struct_field(kafka, "topic"), target)
            )
            is_echo = pc.fill_null(is_here, False).to_pylist()
            is_tombstone = pc.fill_null(pc.struct_field(kafka, "tombstone"), False).to_pylist()
            if by_source:
                sources = pc.struct_field(kafka, "partition").to_pylist()
        return cls(
            keys=_bytes(rows, "_key") or nothing,
            headers=_headers(rows) or [[] for _ in range(count)],
            times_ms=pc.divide(times, 1_000).to_pylist(),
            sources=sources,
            is_echo=is_echo,
            is_tombstone=is_tombstone,
        )

    def partitions(self, known: list[int], origin: str) -> list[int]:
        """The partition of each row, by its key as Kafka's clients do. Rows without a key go by their stream."""
        count = len(known)
        if count == 1:
            return known * len(self.keys)
        home = known[(_hash(origin.encode()) & 0x7FFFFFFF) % count]
        chosen = [home if key is None else known[(_hash(key) & 0x7FFFFFFF) % count] for key in self.keys]
        if self.sources is not None:
            existing = set(known)
            chosen = [own if own in existing else by_key for own, by_key in zip(self.sources, chosen, strict=True)]
        return chosen


def payload_names(schema: pa.Schema) -> list[str]:
    """The columns that make up the value."""
    return [field.name for field in schema if field.name not in RESERVED and not _is_own(field)]


def _is_own(field: pa.Field) -> bool:
    """True if the column is the bridge's own. The nodes check the types of the others; a user's `_kafka` of another
    type is an ordinary column."""
    return field.name in OWN and (field.name != "_kafka" or field.type == KAFKA)


def _bytes(rows: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    if name not in rows.schema.names:
        return None
    column = rows[name]
    if not types.is_binary(column.type):
        column = column.cast(pa.string())
    listed: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return listed


def _headers(rows: pa.RecordBatch) -> list[list[Header]] | None:
    if "_headers" not in rows.schema.names:
        return None
    if rows["_headers"].type != HEADERS:
        raise M4castError(
            f"topic {rows['_topic'][0]}: column '_headers' is {rows['_headers'].type} and not {HEADERS}: "
            "publish it as that type, or rename it"
        )
    return [
        [(each["key"], each["value"] or b"") for each in listed] if listed else []
        for listed in rows["_headers"].to_pylist()
    ]
