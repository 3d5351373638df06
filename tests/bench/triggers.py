"""Micro-batches of one row, from a topic to a topic, and from a Python source to a Python sink that do nothing.

Both queries are open all the time; each gets its next row when the other is done with its own, so that their triggers
alternate and a change of the machine's mood meets both.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.overlay.client import Channel

WARM = 20
QUICK_WARM = 5
TIMEOUT_S = 60
POLL_S = 0.005


class OneRow:
    """A query from a topic to a topic of the node at `door`; each trigger is of one row."""

    def __init__(self, spark: SparkSession, door: str, folder: Path) -> None:
        self._channel = Channel([door])
        self._publish()
        self._number = 0
        options = {"nodes": door, "topic": "in", "startingOffsets": "earliest"}
        through = spark.readStream.format("m4cast").options(**options).load().select("v")
        self._query = _start(through.writeStream.format("m4cast").options(nodes=door, topic="out"), folder)

    def trigger_ms(self) -> float:
        if self._number:
            self._publish()
        taken = _trigger_ms(self._query, self._number)
        self._number += 1
        return taken

    def _publish(self) -> None:
        self._channel.publish("in", [{"v": b"x" * 100}])

    def stop(self) -> None:
        self._query.stop()


def trigger_ms(
    spark: SparkSession, nodes: str, folder: Path, triggers: int, warm: int = WARM
) -> list[tuple[float, float]]:
    """Pairs: a trigger of the channel's query, and the one beside it that does nothing."""
    gate, new = folder / "gate", folder / "gate.new"
    gate.write_text("0")
    spark.dataSource.register(empty_source(str(gate)))
    ours = OneRow(spark, nodes, folder / "ours")
    empty = _start(spark.readStream.format("empty").load().writeStream.format("empty"), folder / "empty")
    pairs = []
    try:
        for number in range(warm + triggers):
            taken = ours.trigger_ms()
            new.write_text(str(number + 1))
            new.replace(gate)
            pairs.append((taken, _trigger_ms(empty, number)))
    finally:
        ours.stop()
        empty.stop()
    return pairs[warm:]


def _start(stream: Any, checkpoint: Path) -> StreamingQuery:
    query: StreamingQuery = stream.option("checkpointLocation", str(checkpoint)).start()
    return query


def _trigger_ms(query: StreamingQuery, batch_id: int) -> float:
    """The progress of the micro-batch with this number, when it is done."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress.batchId == batch_id and "addBatch" in progress.durationMs:
            return float(progress.durationMs["triggerExecution"])
        if not query.isActive:
            raise AssertionError(query.exception())
        time.sleep(POLL_S)
    raise AssertionError(f"no trigger for {TIMEOUT_S} s")


def empty_source(gate: str) -> type[DataSource]:
    """Gives one row whenever the number in the file `gate` has risen, and throws rows away."""

    class EmptyReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
            return {"at": json.loads(Path(gate).read_text())}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"v": [b"x" * 100]})

    class EmptyWriter(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            pass

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            pass

    class EmptySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "v binary"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return EmptyReader()

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
            return EmptyWriter()

    return EmptySource
