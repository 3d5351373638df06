"""The roster as a source: who is and was on the channel, as one node or all nodes have heard.

A roster is not a log: its records change while a node lives. A batch is the roster as it is. A stream gives all of it
when it starts, and then every record that changed, as it is now: merge them by `heard_by`, `node_id` and `incarnation`.
`last_heard_at` alone is no change.

There is nowhere to read an earlier roster again, so the offset holds the records themselves: a micro-batch that is
replayed has the same rows, also when the node is gone. Records are small, and few of them change at a time.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.nodes import Nodes
from m4cast.spark_connector.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_S = 1.0
"""How often a stream looks at the roster; a beacon comes every few seconds. Guess."""
RECORDS_PER_OFFSET = 500
"""About 150 kB in the checkpoint. Guess."""
PASSING = ("last_heard_at",)
Record = dict[str, Any]


class RosterPartition(InputPartition):
    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)


class Rosters:
    """The rosters of the nodes that answer."""

    def __init__(self, options: ReadOptions) -> None:
        self._nodes = Nodes(options)

    def records(self, *, is_patient: bool = True) -> list[Record]:
        """Times as microseconds, so that they are JSON."""
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
        self._told: dict[tuple[str, str, int], Record] = {}
        """What this run of the query has given."""
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
            self._told[_key(record)] = _lasting(record)
        return {"look": start["look"] + 1, "records": given} if given else start

    def _is_news(self, record: Record) -> bool:
        return self._told.get(_key(record)) != _lasting(record)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RosterPartition(end["records"])]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint keeps what was read; a node has nothing to be told."""


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
    return {name: value for name, value in record.items() if name not in PASSING}


def _read(partition: InputPartition, schema: StructType) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    from m4cast.schemas.arrow_types import ROSTER
    from m4cast.spark_connector.columns import arrow_schema, projected

    records = pa.RecordBatch.from_pylist(partition.value, schema=ROSTER)
    yield projected(records, arrow_schema(schema), {}, drop_others=True)
