"""A driver program of its own: a streaming query that publishes numbered rows until there is enough of them, and one
that reads some of them back by a filter.

    python -m tests.spark_connector.publishing_query '{"nodes": ..., "topic": ..., "folder": ..., "die_after": 3}'

Micro-batch b has the numbers `b * BATCH_ROWS ...` in two partitions, always the same ones, so that whoever reads the
topic knows what has to be there. The other query has the rows of one `kind` sent, one in a hundred, and writes them to
the folder `selected`. When the file `enough` appears in the folder, publishing ends, and so does the program when all
is read.

`die_after` kills the driver (-9) right after the node has committed that micro-batch and before Spark has: the sink's
commit is wrapped, here and not in the sink.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from m4cast.spark_connector.provider import M4castDataSource
from m4cast.spark_connector.sink.writers import StreamWriter

BATCH_ROWS = 1_000
PARTITIONS = 2
KINDS = 100
KIND = 7
POLL_S = 1


def numbers(batches: int) -> "np.ndarray[Any, Any]":
    """The rows of the topic after so many micro-batches, in the order of its stream."""
    of_batch = [np.arange(at, BATCH_ROWS, PARTITIONS) for at in range(PARTITIONS)]
    return np.concatenate([batch * BATCH_ROWS + part for batch in range(batches) for part in of_batch])


def selected(rows: int) -> "np.ndarray[Any, Any]":
    """The rows that the filter selects among the first of the stream."""
    every = numbers(-(-rows // BATCH_ROWS))[:rows]
    return np.compress(every % KINDS == KIND, every)


def dying_source(die_after: int, *pids: int) -> type[M4castDataSource]:
    class DyingWriter(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            super().commit(messages, batchId)
            if batchId >= die_after:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                threading.Event().wait()

    class DyingSource(M4castDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
            return DyingWriter(super().streamWriter(schema, overwrite)._options)

    return DyingSource


def main(nodes: str, topic: str, folder: str, die_after: int | None = None) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may fail three times
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        # It lives for a few micro-batches: compiling them would take longer than running them.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    sink = "m4cast"
    if die_after is not None:
        sink = "dying"
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        spark.dataSource.register(dying_source(die_after, jvm, os.getpid()))
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH_ROWS)
        .option("numPartitions", PARTITIONS)
        .load()
        .selectExpr("value AS number", f"value % {KINDS} AS kind", "repeat('x', 80) AS text")
    )
    query = (
        rows.writeStream.format(sink)
        .options(nodes=nodes, topic=topic, sinkId=topic, receipts=f"{folder}/receipts")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    selecting = (
        spark.readStream.schema("number long, _sequence long")  # the column of the filter is not among them
        .format("m4cast")
        .options(nodes=nodes, topic=topic, startingOffsets="earliest", where=f"kind = {KIND}")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/reading")
    )
    reading = selecting.start(f"{folder}/selected")
    while not (Path(folder) / "enough").exists():
        if query.awaitTermination(POLL_S) or reading.awaitTermination(POLL_S):
            return
    query.stop()
    reading.stop()
    selecting.trigger(availableNow=True).start(f"{folder}/selected").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
