"""The source of snapshots and of delivery records: rows of which Spark sees one row for each file.

A task reads its piece of a stream, writes it into a folder, and returns one row for each file, so that the JVM never
sees the rows themselves. Offsets of delivery records are those of `format("m4cast")`.
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.jobs.direct.layout import FileLayout
from m4cast.spark_connector.options import ReadOptions, parse, read_options
from m4cast.spark_connector.source.deliveries import DeliveryStream
from m4cast.spark_connector.source.rows import BatchReader

if TYPE_CHECKING:
    import pyarrow as pa

LAYOUT_OPTION = "layout"
ROWS_PER_FILE = {"maxRowsPerPartition": "1000000"}
"""The source's option unless the user sets it: several tasks share a long backlog. Higher: fewer and larger files."""
FILES = StructType(
    [
        StructField("name", StringType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("modified_at_ms", LongType()),
        StructField("statistics", StringType()),
        StructField("partition", StringType()),
    ]
)
"""The fields of `DataFile`."""


class FileSource(DataSource):
    """The options of `format("m4cast")` for one topic, or for delivery records, and `layout`: the `FileLayout` as
    JSON."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        self._layout = FileLayout.from_json(given.pop(LAYOUT_OPTION))
        self._values = parse(given)

    @classmethod
    def name(cls) -> str:
        return "m4cast-files"

    def schema(self) -> StructType:
        return FILES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DeliveryFileStream(read_options(self._values, streaming=True), self._layout)

    def reader(self, schema: StructType) -> DataSourceReader:
        return FileTable(read_options(self._values, streaming=False), self._layout)


class FileTable(BatchReader):
    def __init__(self, options: ReadOptions, layout: FileLayout) -> None:
        super().__init__(options, layout.columns, drop_others=True)
        self._layout = layout

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _described(self._layout, super().read(partition))


class DeliveryFileStream(DeliveryStream):
    def __init__(self, options: ReadOptions, layout: FileLayout) -> None:
        super().__init__(options, layout.columns)
        self._layout = layout

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _described(self._layout, super().read(partition))


def _described(layout: FileLayout, rows: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    from m4cast.jobs.direct.data_file import written_files
    from m4cast.spark_connector.columns import arrow_schema

    schema = arrow_schema(FILES)
    for file in written_files(layout, rows):
        yield pa.RecordBatch.from_pylist([asdict(file)], schema=schema)
