"""Values of Kafka records on their way through the channel and Spark into Delta: as they were written, to the end.

That a record becomes these rows, or a dead letter, is tested in `tests/overlay/bridge/test_values.py`, with the same
random batches; here the rows go on.
"""

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import types
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.bridge.kafka_in.fitting import fit
from m4cast.schemas.tables.events import events_table
from tests.overlay.bridge.test_values import COLUMNS, avro_batch, json_batch


def rows_of(seed: int) -> pa.Table | None:
    """One random batch as the bridge makes it, with a column of each type."""
    chance = random.Random(seed)
    codec, records, _ = chance.choice((json_batch, avro_batch))(chance)
    at = chance.randrange(len(COLUMNS))
    _, table = fit(codec.decode(records), pa.schema([("n", pa.int64()), ("x", COLUMNS[at])]))
    if not table.num_rows or "x" not in table.column_names or table["x"].type != COLUMNS[at]:
        return None
    return table.select(["n", "x"]).rename_columns(["n", f"x{at}"])


@pytest.mark.parametrize("batches", [400, pytest.param(5_000, marks=pytest.mark.soak)])
def test_values_of_records_are_the_same_in_delta(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str, batches: int
) -> None:
    channel = cluster.channel("n1")
    tables = [table for seed in range(batches) if (table := rows_of(seed)) is not None]
    channel.publish(topic, pa.concat_tables(tables, promote_options="default"), acks=1)
    (filled,) = run(spark, Ingest({"nodes": nodes}, folder, topics=(topic,), kinds=("events",))).tables
    published = channel.read(topic)
    assert filled.rows == published.num_rows == sum(table.num_rows for table in tables)
    found = TableFolder(spark, folder).read(events_table(topic, StructType())).orderBy("_sequence").toArrow()
    for name in published.column_names:
        if name != "_published_at":
            assert plain(found[name]) == plain(published[name]), name


def plain(column: pa.ChunkedArray) -> list[Any]:
    """A value as Python has it. Delta has no times of day: they are text there."""
    if types.is_time(column.type):
        column = pa.chunked_array([[at and f"{at:%H:%M:%S}.{at.microsecond:06}" for at in column.to_pylist()]])
    if types.is_string(column.type):
        column = pc.replace_substring_regex(column, r"^(\d\d:\d\d:\d\d)(\.\d*?)?\.?0*$", r"\1\2")
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values
