"""Fan-out: publish a DataFrame from inside any pipeline, once for each batch, even if the batch is repeated.

    def each(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(path)
        m4cast.fanout(batch, topic="orders", name="orders-out", nodes="127.0.0.1:7501", batch_id=batch_id)

It is a batch write with the sink id `name` and the number `batch_id`: the node stores both in the transaction that
numbers the rows. So a micro-batch that Spark replays is not published again, and one `name` is one sequence of
numbers. Two fan-outs of one batch need two names: with one name, the second would count as a repeat of the first, and
its rows would be lost silently. Within a run of a stream this is detected and is an error.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from m4cast.spark_connector.errors import ConnectorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_done: dict[tuple[str, str], int] = {}
"""The last batch id by run and name. A run is one start of a query; each has a handful of names."""
RUNS_MAX = 10_000


def fanout(
    df: "DataFrame",
    *,
    topic: str | None = None,
    name: str,
    nodes: str | Sequence[str],
    batch_id: int | None = None,
    **options: object,
) -> None:
    """Publish the rows of `df` to `topic` (or each row to its `_topic`), all or none, once for each (`name`,
    `batch_id`). Returns when they are published. `options` are those of `df.write.format("m4cast")`.

    `batch_id` must rise from call to call: the id that `foreachBatch` passes (a classic session knows it by itself
    there), the version of a table, the number of a run. The last number again publishes nothing; a smaller one is
    refused.
    """
    run, known_batch_id = _stream_of(df)
    batch_id = known_batch_id if batch_id is None else batch_id
    if batch_id is None:
        fix = "set batch_id: the one that foreachBatch passes or, outside of a stream, a number that a repeat reuses"
        raise ConnectorError("M4CAST_FANOUT", f"fan-out {name!r} has no batch_id", fix)
    if run is not None:
        if _done.get((run, name)) == batch_id:
            problem = f"fan-out {name!r} has already published in batch {batch_id}: these rows would count as a repeat"
            raise ConnectorError("M4CAST_FANOUT", problem, "give each fan-out of a batch its own name")
        if len(_done) >= RUNS_MAX:
            _done.clear()
    writer = df.write.format("m4cast").mode("append").option("sinkId", name).option("batchId", str(batch_id))
    writer = writer.option("nodes", nodes if isinstance(nodes, str) else ",".join(nodes))
    if topic is not None:
        writer = writer.option("topic", topic)
    for option, value in options.items():
        writer = writer.option(option, str(value))
    writer.save()
    if run is not None:
        _done[run, name] = batch_id


def _stream_of(df: "DataFrame") -> tuple[str | None, int | None]:
    """The run and the batch of the stream whose `foreachBatch` makes this call; None if unknown."""
    if os.environ.get("SPARK_CONNECT_LOCAL_URL"):
        # Spark Connect: each run calls its function in a process of its own, which knows neither run nor batch.
        return "this process", None
    if not hasattr(df.sparkSession, "_jsc"):
        return None, None  # a client of Spark Connect, outside of a stream
    context = df.sparkSession.sparkContext
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if batch_id is None:
        return None, None
    return context.getLocalProperty("spark.jobGroup.id"), int(batch_id)
