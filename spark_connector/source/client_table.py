"""Profiles of clients as a batch source: each access point has those of its own clients, and is asked at its own door.

A client that is between two access points may be at both.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector.access import as_connector_error, channel_of
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source.nodes import FoundNode, Nodes

if TYPE_CHECKING:
    import pyarrow as pa


class AccessPointPartition(InputPartition):
    """The clients of one node."""

    def __init__(self, node: FoundNode) -> None:
        super().__init__(node)


class ClientTable(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        found = [node for node in Nodes(self._options).wanted() if node.is_here]
        doorless = [node.name for node in found if not node.door]
        if doorless and self._options.fail_on_data_loss:
            problem = f"node {doorless[0]!r} has announced no door, and its clients cannot be asked for"
            fix = "set advertise_door at the node, name another with of, or set failOnDataLoss to false"
            raise ConnectorError("M4CAST_UNREACHABLE", problem, fix)
        return [AccessPointPartition(node) for node in found if node.door]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        from m4cast.schemas.arrow_types import CLIENT_PROFILES
        from m4cast.spark_connector.columns import arrow_schema, projected

        node = partition.value
        if node is None:  # Spark's placeholder when there is nothing to read
            return
        channel = channel_of(self._options.access).at(node.door)
        try:
            rows = [
                {**each, "begin": list(each["begin"].items()), "node_id": node.node_id, "node": node.name}
                for each in channel.client_profiles()
            ]
        except M4castError as error:
            raise as_connector_error(error, channel.timeout_s) from None
        found = pa.RecordBatch.from_pylist(rows, schema=CLIENT_PROFILES)
        yield projected(found, arrow_schema(self._schema), {}, drop_others=True)
