"""The data source `m4cast`, as Spark finds it.

Options are checked when the DataFrame is made. Nothing is connected here but for the columns of the topics, when the
user gives none.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options, write_options

if TYPE_CHECKING:
    from m4cast.spark_connector.sink import BatchWriter, StreamWriter


class M4castDataSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("m4cast")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._values = parse(options)
        self._has_all_columns = False
        """Whether Spark plans with all columns there are, or with those that the user chose."""

    @classmethod
    def name(cls) -> str:
        return "m4cast"

    def schema(self) -> StructType:
        from m4cast.spark_connector.source import schema_of

        # Spark does not say whether it is a stream. What is only wrong for one of them is said when it is read.
        both = {name: value for name, value in self._values.items() if not name.startswith(("starting", "ending"))}
        found = schema_of(read_options(both, streaming=False))
        self._has_all_columns = True
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        from m4cast.spark_connector.deliveries import DeliveryTable
        from m4cast.spark_connector.roster import RosterTable
        from m4cast.spark_connector.source import BatchReader

        options = read_options(self._values, streaming=False)
        match options.read:
            case "deliveries":
                return DeliveryTable(options, schema)
            case "roster":
                return RosterTable(options, schema)
            case "rows" | "raw":
                return BatchReader(options, schema, drop_others=not self._has_all_columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from m4cast.spark_connector.deliveries import DeliveryStream
        from m4cast.spark_connector.roster import RosterStream
        from m4cast.spark_connector.source import StreamReader

        options = read_options(self._values, streaming=True)
        match options.read:
            case "deliveries":
                return DeliveryStream(options, schema)
            case "roster":
                return RosterStream(options, schema)
            case "rows" | "raw":
                return StreamReader(options, schema, drop_others=not self._has_all_columns)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from m4cast.spark_connector.sink import BatchWriter, check_columns

        options = write_options(self._values, streaming=False)
        if overwrite:
            raise ConnectorError("M4CAST_APPEND_ONLY", "a channel cannot be overwritten", 'use mode("append")')
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from m4cast.spark_connector.sink import StreamWriter, check_columns

        options = write_options(self._values, streaming=True)
        if overwrite:
            problem = "output mode complete would publish every row again with every micro-batch"
            raise ConnectorError("M4CAST_APPEND_ONLY", problem, 'use outputMode("append")')
        check_columns(schema, options)
        return StreamWriter(options)
