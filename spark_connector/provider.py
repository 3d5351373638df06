"""The data source `m4cast`: the class that Spark loads.

Options are checked when the DataFrame is created. No connection is made here, except to read the columns of the topics
if the user sets no schema.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options, write_options

if TYPE_CHECKING:
    from m4cast.spark_connector.sink.writers import BatchWriter, StreamWriter


class M4castDataSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("m4cast")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._values = parse(options)
        self._has_all_columns = False
        """True if Spark plans with all existing columns, and not with a schema that the user chose."""

    @classmethod
    def name(cls) -> str:
        return "m4cast"

    def schema(self) -> StructType:
        from m4cast.spark_connector.source.rows import schema_of

        # Spark does not reveal whether it is a stream. Options that are wrong for one of both are refused on reading.
        both = {name: value for name, value in self._values.items() if not name.startswith(("starting", "ending"))}
        found = schema_of(read_options(both, streaming=False))
        self._has_all_columns = True
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        from m4cast.spark_connector.source.changing_records import INTEREST, ROSTER, ChangingTable
        from m4cast.spark_connector.source.client_table import ClientTable
        from m4cast.spark_connector.source.deliveries import DeliveryTable
        from m4cast.spark_connector.source.questions import QueryReader, TableReader
        from m4cast.spark_connector.source.rows import BatchReader

        options = read_options(self._values, streaming=False)
        match options.read:
            case "deliveries":
                return DeliveryTable(options, schema)
            case "roster":
                return ChangingTable(ROSTER, options, schema)
            case "interest":
                return ChangingTable(INTEREST, options, schema)
            case "table":
                return TableReader(options, schema)
            case "rows" if options.asks_channel:
                return QueryReader(options, schema, drop_others=not self._has_all_columns)
            case "clients":
                return ClientTable(options, schema)
            case "client":
                problem = "the notifications of a client can only be read by spark.readStream"
                raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use readStream, with availableNow to end")
            case "rows" | "raw":
                return BatchReader(options, schema, drop_others=not self._has_all_columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from m4cast.spark_connector.source.changing_records import INTEREST, ROSTER, ChangingStream
        from m4cast.spark_connector.source.client_stream import ClientStream
        from m4cast.spark_connector.source.deliveries import DeliveryStream
        from m4cast.spark_connector.source.rows import StreamReader

        options = read_options(self._values, streaming=True)
        match options.read:
            case "deliveries":
                return DeliveryStream(options, schema)
            case "roster":
                return ChangingStream(ROSTER, options, schema)
            case "interest":
                return ChangingStream(INTEREST, options, schema)
            case "client":
                return ClientStream(options, schema, drop_others=not self._has_all_columns)
            case "rows" | "raw" | "table" | "clients":  # `read_options` refuses tables and clients
                return StreamReader(options, schema, drop_others=not self._has_all_columns)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from m4cast.spark_connector.sink.writers import BatchWriter, check_columns

        options = write_options(self._values, streaming=False)
        if overwrite:
            raise ConnectorError("M4CAST_APPEND_ONLY", "a channel cannot be overwritten", 'use mode("append")')
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from m4cast.spark_connector.sink.writers import StreamWriter, check_columns

        options = write_options(self._values, streaming=True)
        if overwrite:
            problem = "output mode complete would publish all rows again with every micro-batch"
            raise ConnectorError("M4CAST_APPEND_ONLY", problem, 'use outputMode("append")')
        check_columns(schema, options)
        return StreamWriter(options)
