"""Questions as batch sources: tables as they stand, and rows asked of the origin of each stream.

A table is read whole by one task for each topic: which row of a name stands can only be told from all of them. A query
is planned by the driver (`Channel.query`), with one partition for each node that answers, which is read at that node's
own door; if the node is lost meanwhile, the task continues at another one. Nodes that do not answer are logged: the
answer has all rows of the ranges that were planned, or the task fails. Of a table, a query has only rows that stand.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector.access import as_connector_error, channel_of
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source.client_rows import NotifiedRows
from m4cast.spark_connector.source.planner import SequenceSpan
from m4cast.spark_connector.source.rows import check_filter
from m4cast.spark_connector.source.spans import SpanReader
from m4cast.spark_connector.source.topics import SourceTopics

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("m4cast.spark")


class TopicPartition(InputPartition):
    """All of one table."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)


class TableReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_filter(options, schema, is_complete=False)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [TopicPartition(topic) for topic in SourceTopics(self._options).names()]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from m4cast.spark_connector.columns import arrow_schema, projected

        if partition.value is None:  # Spark's placeholder when there is nothing to read
            return
        row_filter, wanted = self._options.row_filter, arrow_schema(self._schema)
        where, language = (None, None) if row_filter is None else (row_filter.text, row_filter.language)
        try:
            found = channel_of(self._options.access).table(partition.value, where, language=language)
        except M4castError as error:
            raise as_connector_error(error, self._options.access.timeout_s) from None
        for rows in found.to_batches():
            yield projected(rows, wanted, {}, drop_others=True)


class NodePartition(InputPartition):
    """The part of a read that one node answers: the doors to try, its own first, and the spans, each with the rows
    that are wanted of it if its topic is a table."""

    def __init__(self, nodes: tuple[str, ...], spans: tuple[tuple[SequenceSpan, NotifiedRows | None], ...]) -> None:
        super().__init__((nodes, spans))


class QueryReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        check_filter(options, schema, is_complete=not drop_others)
        self._options = options
        self._schema = schema
        self._drop_others = drop_others

    def partitions(self) -> Sequence[InputPartition]:
        found: dict[tuple[str, ...], list[tuple[SequenceSpan, NotifiedRows | None]]] = {}
        row_filter = self._options.row_filter
        where, language = (None, None) if row_filter is None else (row_filter.text, row_filter.language)
        try:
            for topic in SourceTopics(self._options).names():
                query = channel_of(self._options.access).query(topic, where, language=language, scope="channel")
                for node, reason in query.unanswered.items():
                    log.warning("node %s did not answer for topic %r: %s", node, topic, reason)
                standing = None if query.standing is None else NotifiedRows(query.standing)
                for each in query.ranges:
                    if each.first < each.next:
                        span = SequenceSpan(topic, each.origin, each.first, each.next)
                        found.setdefault(tuple(query.nodes_for(each.node)), []).append((span, standing))
        except M4castError as error:
            raise as_connector_error(error, self._options.access.timeout_s) from None
        return [NodePartition(nodes, tuple(spans)) for nodes, spans in found.items()]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if partition.value is None:
            return
        nodes, spans = partition.value
        options = replace(self._options, access=replace(self._options.access, nodes=nodes))
        reader = SpanReader(options, self._schema, drop_others=self._drop_others)
        for span, standing in spans:
            yield from reader.read(span, standing or self._options.row_filter)
