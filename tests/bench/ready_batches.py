"""A Python data source that does nothing but hand over: the same record batch again and again, from a file that each
task maps. What it takes is what Spark takes with any Python source, so it is the limit of ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

FORMAT = "ready-batches"


def prepare(spark: SparkSession, batch: pa.RecordBatch, path: Path) -> None:
    """Register the source; its option `path` is the file."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    spark.dataSource.register(ReadyBatches)


def _batch(path: str) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(path)).get_batch(0)


class ReadyBatches(DataSource):
    """Options: `path`, `rows`, `partitions`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(_batch(self.options["path"]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self.options)


class _Part(InputPartition):
    def __init__(self, path: str, rows: int) -> None:
        super().__init__(rows)
        self.path = path
        self.rows = rows


def _parts(options: Any) -> list[InputPartition]:
    count = int(options["partitions"])
    return [_Part(options["path"], int(options["rows"]) // count) for _ in range(count)]


def _read(part: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(part, _Part)
    batch, left = _batch(part.path), part.rows
    while left > 0:
        yield batch.slice(0, left)
        left -= batch.num_rows


class _Reader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return _parts(self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)


class _StreamReader(DataSourceStreamReader):
    """All rows in one micro-batch."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": int(self._options["rows"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return _parts(self._options) if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition)

    def commit(self, end: dict[str, int]) -> None:
        pass
