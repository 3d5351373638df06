"""The limit of any Python data source: one whose rows are ready. It reads a record batch from a file and gives it to
Spark again and again, so that what is measured is Spark's own part: Arrow through a socket, and each row made of it.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_ROWS = 100_000


def ready_rows(spark: SparkSession, like: DataFrame, rows: int, partitions: int, file: Path) -> DataFrame:
    """A source of as many rows as asked for, with the columns and about the contents of `like`; `file` is written for
    it."""
    sample = like.where(f"_sequence <= {BATCH_ROWS}").toArrow().combine_chunks()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, sample.schema) as writer:
        writer.write_table(sample)
    spark.dataSource.register(_source())
    options = {"file": str(file), "rows": str(rows), "partitions": str(partitions)}
    return spark.read.format("ready").options(**options).schema(like.schema).load()


def _source() -> type[DataSource]:
    """Made in a function, so that it travels to the workers by value."""

    class ReadyReader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self._file = options["file"]
            self._partitions = int(options["partitions"])
            self._rows = int(options["rows"]) // self._partitions

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(self._partitions)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            (batch,) = pa.ipc.open_stream(Path(self._file).read_bytes()).read_all().combine_chunks().to_batches()
            for given in range(0, self._rows, batch.num_rows):
                yield batch.slice(0, self._rows - given)

    class ReadySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def reader(self, schema: object) -> DataSourceReader:
            return ReadyReader(dict(self.options))

    return ReadySource
