"""Writes rows into Parquet files of a Delta table, with Arrow, and describes each file as Delta's log needs it.

Rows are collected into row groups of up to 64 MiB. Dictionaries are expensive to build and pay off only where values
repeat, so the first rows decide which columns get one. Statistics are those that the Parquet writer has computed.

A file has a random name and becomes part of the table only by a commit: those of failed or repeated tasks stay unused
until VACUUM removes them. A file that could not be finished is removed at once. One that is described is on the disk:
Delta's log must not name a file that a loss of power can take away.

Cost: measured with rows of 100 bytes, one core writes about four million rows/s.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from m4cast.jobs.direct.durable import sync
from m4cast.jobs.direct.layout import FileLayout
from m4cast.spark_connector.columns import arrow_schema

ROW_GROUP_BYTES = 64 << 20
"""Arrow bytes; a task holds one row group in memory. Higher: better compression, more memory."""
ROW_GROUP_ROWS = 1 << 20
FILE_BYTES = 1 << 30
"""A file ends after the row group that exceeds this, which is also the size that OPTIMIZE aims at."""
SAMPLE_ROWS = 4_096
REPEATS_MIN = 4
"""A column gets a dictionary if its values repeat this often on average in the sample. Guess."""
TEXT_CHARS = 32
"""Delta stores at most this many characters of a text in statistics."""
LAST_CHARACTER = "\U0010ffff"
CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}
"""Spark's names of codecs where Arrow has another one."""


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str
    rows: int
    bytes: int
    modified_at_ms: int
    statistics: str
    """JSON, as in Delta's log."""
    partition: str | None = None
    """The value of the column that the table is partitioned by, if it is."""


def written_files(layout: FileLayout, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Write the rows to as few files as their size allows; yields each when it is complete.

    Rows for a table with partitions are collected first: its tasks are small.
    """
    if layout.partition is None:
        yield from _written(layout, batches)
        return
    rows = pa.Table.from_batches(batches, arrow_schema(layout.columns))
    for value in sorted(pc.unique(rows[layout.partition]).to_pylist()):
        mine = rows.filter(pc.equal(rows[layout.partition], value)).drop_columns(layout.partition)
        folder = f"{layout.partition}={quote(value)}"
        (Path(layout.folder) / folder).mkdir(exist_ok=True)
        sync(Path(layout.folder))
        for file in _written(layout, mine.to_batches(), f"{folder}/"):
            yield replace(file, partition=value)


def _written(layout: FileLayout, batches: Iterable[pa.RecordBatch], folder: str = "") -> Iterator[DataFile]:
    writer: _FileWriter | None = None
    try:
        for group in _row_groups(batches):
            writer = writer or _FileWriter(layout, group, folder)
            if writer.write(group) >= FILE_BYTES:
                file, writer = writer.close(), None
                yield file
        if writer is not None:
            file, writer = writer.close(), None
            yield file
    finally:
        if writer is not None:
            writer.discard()


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and (size + batch.nbytes > ROW_GROUP_BYTES or rows + batch.num_rows > ROW_GROUP_ROWS):
            yield pa.Table.from_batches(waiting)
            waiting, size, rows = [], 0, 0
        waiting.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


class _FileWriter:
    def __init__(self, layout: FileLayout, sample: pa.Table, folder: str) -> None:
        self._layout = layout
        self._schema = layout.physical()
        self._name = f"{folder}part-{uuid.uuid4()}.{layout.codec}.parquet"
        self._path = Path(layout.folder) / self._name
        self._sink = pa.OSFile(str(self._path), "wb")
        self._metadata: list[pq.FileMetaData] = []
        first = sample.slice(0, SAMPLE_ROWS).combine_chunks().to_batches()[0]
        self._parquet = pq.ParquetWriter(
            self._sink,
            self._schema,
            version="2.6",
            compression=CODECS.get(layout.codec, layout.codec),
            use_dictionary=list(_repeating(_as(first, self._schema))),
            store_decimal_as_integer=True,  # as Spark does
            store_schema=False,
            metadata_collector=self._metadata,
        )

    def write(self, rows: pa.Table) -> int:
        """The size of the file so far."""
        batches = [_as(batch, self._schema) for batch in rows.to_batches()]
        self._parquet.write_table(pa.Table.from_batches(batches), row_group_size=rows.num_rows)
        return int(self._sink.tell())

    def close(self) -> DataFile:
        self._parquet.close()
        self._sink.close()
        sync(self._path)
        sync(self._path.parent)
        found = self._path.stat()
        (metadata,) = self._metadata
        return DataFile(
            name=self._name,
            rows=metadata.num_rows,
            bytes=found.st_size,
            modified_at_ms=found.st_mtime_ns // 1_000_000,
            statistics=statistics_of(metadata, self._schema, self._layout.statistics),
        )

    def discard(self) -> None:
        with suppress(OSError, pa.ArrowException):  # a full disk, perhaps
            self._parquet.close()
        self._sink.close()
        self._path.unlink()


class _Renamed:
    """Rows under another schema with the same layout in memory: a struct's fields can be renamed without a copy."""

    def __init__(self, rows: pa.RecordBatch, schema: pa.Schema) -> None:
        self._rows = rows
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._rows.__arrow_c_array__()[1]


def _as(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch(_Renamed(rows, schema))


def _repeating(sample: pa.RecordBatch) -> Iterator[str]:
    """Paths of the columns in Parquet whose values repeat."""
    for field, column in zip(sample.schema, sample.columns, strict=True):
        yield from _repeating_in(field.name, column)


def _repeating_in(path: str, column: pa.Array) -> Iterator[str]:
    if types.is_struct(column.type):
        for field, inner in zip(column.type, column.flatten(), strict=True):
            yield from _repeating_in(f"{path}.{field.name}", inner)
    elif types.is_list(column.type):
        yield from _repeating_in(f"{path}.list.element", column.flatten())
    elif not types.is_nested(column.type) and not types.is_boolean(column.type):
        values = len(column) - column.null_count
        if values and values >= REPEATS_MIN * pc.count_distinct(column, mode="only_valid").as_py():
            yield path


# ---- statistics


def statistics_of(metadata: pq.FileMetaData, schema: pa.Schema, paths: Iterable[tuple[str, ...]]) -> str:
    """The statistics by which Delta skips a file, as JSON: its number of rows and, for the columns at these paths, the
    least and the greatest value and the number of nulls.

    Only integers, text, dates and times have a least and a greatest value here. Those of fractions that Parquet has
    ignore NaN, which Spark considers the greatest.
    """
    columns = {path: at for at, path in enumerate(_leaves(schema))}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path in paths:
        at = columns.get(path)
        if at is None:
            continue
        groups = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        _put(nulls, path, sum(group.null_count for group in groups))
        ends = _ends([group for group in groups if group.num_values])
        if ends is not None:
            _put(least, path, _stored(ends[0]))
            _put(greatest, path, _stored_as_greatest(ends[1]))
    rows = {"numRecords": metadata.num_rows}
    return json.dumps({**rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _leaves(fields: Iterable[pa.Field], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The columns of a Parquet file in their order. (Parquet's own names join these parts with dots, which names can
    have as well.)"""
    for field in fields:
        here, type_ = (*path, field.name), field.type
        if types.is_struct(type_):
            yield from _leaves(type_, here)
        elif types.is_map(type_):
            yield from _leaves((type_.key_field, type_.item_field), (*here, "key_value"))
        elif types.is_list(type_):
            yield from _leaves((type_.value_field,), (*here, "list"))
        else:
            yield here


def _ends(groups: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """The least and the greatest value, if all groups have them and Delta's log can."""
    if not groups or not all(group.has_min_max for group in groups):
        return None
    try:
        low, high = min(group.min for group in groups), max(group.max for group in groups)
    except (OverflowError, UnicodeDecodeError):  # Python has years 1 to 9999 only, and Arrow takes any bytes as text
        return None
    return (low, high) if isinstance(low, int | str | date) and not isinstance(low, bool) else None


def _put(values: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _stored(value: int | str | date) -> int | str:
    """A time is cut to milliseconds; readers of the log allow for it."""
    match value:
        case datetime():
            at = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return at.isoformat(timespec="milliseconds") + ("" if value.tzinfo is None else "Z")
        case date():
            return value.isoformat()
        case str():
            return value[:TEXT_CHARS]
    return value


def _stored_as_greatest(value: int | str | date) -> int | str:
    """A text is cut and gets the last of all characters, which must be greater than the one that was there."""
    if not isinstance(value, str) or len(value) <= TEXT_CHARS:
        return _stored(value)
    rest = value[TEXT_CHARS:].lstrip(LAST_CHARACTER)
    return value[: len(value) - len(rest)] + LAST_CHARACTER if rest else value
