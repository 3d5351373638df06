"""Records that change as sources: the roster (who is and was on the channel), and interest (who wants and wanted what).

They are not logs: a record changes until what it is about has ended. A batch read returns the present records. A stream
returns all of them when it starts, then every record that changed: merge them by the key of their kind.

An earlier state cannot be read again, so the offset contains the records themselves: a replayed micro-batch has the
same rows even if the node is gone. Records are small, and few change at a time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from m4cast.schemas import records
from m4cast.schemas.records import RecordDefinition
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source.nodes import Nodes

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel

LOOK_S = 1.0
"""Interval at which a stream asks the nodes; they send a beacon every few seconds. Guess."""
RECORDS_PER_OFFSET = 500
"""About 150 kB in the checkpoint. Guess."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChangingKind:
    definition: RecordDefinition
    key: tuple[str, ...]
    ask: Callable[["Channel"], "pa.Table"]
    volatile: tuple[str, ...] = ()
    """Columns whose change alone is no news."""

    def key_of(self, record: Record) -> tuple[object, ...]:
        return tuple(record[name] for name in self.key)

    def lasting(self, record: Record) -> Record:
        return {name: value for name, value in record.items() if name not in self.volatile}


ROSTER = ChangingKind(
    definition=records.ROSTER_RECORD,
    key=("heard_by", "node_id", "incarnation"),
    ask=lambda channel: channel.roster(),
    volatile=("last_heard_at",),
)
INTEREST = ChangingKind(
    definition=records.INTEREST_RECORD, key=("node_id", "number"), ask=lambda channel: channel.interest()
)


class ChangingPartition(InputPartition):
    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)


class ChangingRecords:
    """The records of the nodes that answer."""

    def __init__(self, kind: ChangingKind, options: ReadOptions) -> None:
        self._kind = kind
        self._nodes = Nodes(options)

    def now(self, *, is_patient: bool = True) -> list[Record]:
        """The records of the nodes, with times in microseconds, as JSON needs."""
        wanted = [node for node in self._nodes.wanted() if node.is_here]
        found = self._nodes.ask(wanted, lambda channel: plain_records(self._kind.ask(channel)), is_patient=is_patient)
        if not found and is_patient:
            names = ", ".join(node.name for node in wanted)
            fix = "start them, or correct of or nodes"
            raise ConnectorError("M4CAST_UNREACHABLE", f"none of these nodes answers: {names}", fix)
        return [record for node_id in sorted(found) for record in found[node_id]]


def plain_records(table: "pa.Table") -> list[Record]:
    """The rows of a table, with times in microseconds."""
    import pyarrow as pa

    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.itercolumns()
    ]
    found: list[Record] = pa.table(columns, names=table.column_names).to_pylist()
    return found


class ChangingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, kind: ChangingKind, options: ReadOptions, schema: StructType) -> None:
        self._kind = kind
        self._schema = schema
        self._records = ChangingRecords(kind, options)
        self._given: dict[tuple[object, ...], Record] = {}
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
            self._waiting = [record for record in self._records.now(is_patient=is_first) if self._is_news(record)]
        given, self._waiting = self._waiting[:RECORDS_PER_OFFSET], self._waiting[RECORDS_PER_OFFSET:]
        for record in given:
            self._given[self._kind.key_of(record)] = self._kind.lasting(record)
        return {"look": start["look"] + 1, "records": given} if given else start

    def _is_news(self, record: Record) -> bool:
        return self._given.get(self._kind.key_of(record)) != self._kind.lasting(record)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [ChangingPartition(end["records"])]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._kind, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint stores what was read."""


class ChangingTable(DataSourceReader):
    def __init__(self, kind: ChangingKind, options: ReadOptions, schema: StructType) -> None:
        self._kind = kind
        self._schema = schema
        self._records = ChangingRecords(kind, options)

    def partitions(self) -> Sequence[InputPartition]:
        return [ChangingPartition(self._records.now())]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._kind, self._schema)


def _read(partition: InputPartition, kind: ChangingKind, schema: StructType) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    from m4cast.schemas.arrow_types import arrow_schema as record_schema
    from m4cast.spark_connector.columns import arrow_schema, projected

    found = pa.RecordBatch.from_pylist(partition.value, schema=record_schema(kind.definition))
    yield projected(found, arrow_schema(schema), {}, drop_others=True)
