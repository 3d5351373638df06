"""The roster as a source: who is and was on the channel, as known to one node or to all nodes.

A roster is not a log: its records change while a node lives. A batch read returns the current roster. A stream returns
all of it when it starts, then every record that changed: merge them by `heard_by`, `node_id` and `incarnation`. A new
`last_heard_at` alone is not a change.

An earlier roster cannot be read again, so the offset contains the records themselves: a replayed micro-batch has the
same rows even if the node is gone. Records are small, and few change at a time.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source.nodes import Nodes

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_S = 1.0
"""How often a stream reads the roster; nodes send a beacon every few seconds. Guess."""
RECORDS_PER_OFFSET = 500
"""About 150 kB in the checkpoint. Guess."""
VOLATILE = ("last_heard_at",)
Record = dict[str, Any]


class RosterPartition(InputPartition):
    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)


class Rosters:
    """The rosters of the nodes that answer."""

    def __init__(self, options: ReadOptions) -> None:
        self._nodes = Nodes(options)

    def records(self, *, is_patient: bool = True) -> list[Record]:
        """The records, with times in microseconds, as JSON needs."""
        wanted = [node for node in self._nodes.wanted() if node.is_here]
        found = self._nodes.ask(wanted, lambda channel: _plain(channel.roster()), is_patient=is_patient)
        if not found and is_patient:
            names = ", ".join(node.name for node in wanted)
            fix = "start them, or correct of or nodes"
            raise ConnectorError("M4CAST_UNREACHABLE", f"none of these nodes answers: {names}", fix)
        return [record for node_id in sorted(found) for record in found[node_id]]


def _plain(roster: "pa.Table") -> list[Record]:
    import pyarrow as pa

    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in roster.itercolumns()
    ]
    records: list[Record] = pa.table(columns, names=roster.column_names).to_pylist()
    return records


class RosterStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._schema = schema
        self._rosters = Rosters(options)
        self._given: dict[tuple[str, str, int], Record] = {}
        """The records that this run of the query has returned."""
        self._waiting: list[Record] = []
        self._looks_once = False
        self._look_at = 0.0

    def initialOffset(self) -> dict[str, Any]:
        return {"look": 0, "records": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._looks_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._waiting and time.monotonic() >= self._look_at:
            is_first = not self._look_at
            self._look_at = float("inf") if self._looks_once else time.monotonic() + LOOK_S
            self._waiting = [record for record in self._rosters.records(is_patient=is_first) if self._is_news(record)]
        given, self._waiting = self._waiting[:RECORDS_PER_OFFSET], self._waiting[RECORDS_PER_OFFSET:]
        for record in given:
            self._given[_key(record)] = _lasting(record)
        return {"look": start["look"] + 1, "records": given} if given else start

    def _is_news(self, record: Record) -> bool:
        return self._given.get(_key(record)) != _lasting(record)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RosterPartition(end["records"])]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint stores what was read."""


class RosterTable(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._schema = schema
        self._rosters = Rosters(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [RosterPartition(self._rosters.records())]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema)


def _key(record: Record) -> tuple[str, str, int]:
    return record["heard_by"], record["node_id"], record["incarnation"]


def _lasting(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in VOLATILE}


def _read(partition: InputPartition, schema: StructType) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    from m4cast.schemas.arrow_types import ROSTER
    from m4cast.spark_connector.columns import arrow_schema, projected

    records = pa.RecordBatch.from_pylist(partition.value, schema=ROSTER)
    yield projected(records, arrow_schema(schema), {}, drop_others=True)
