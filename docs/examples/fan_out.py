"""Publish what a pipeline writes, from inside the pipeline: `python docs/examples/fan_out.py HOST:PORT,... FOLDER`.

`fanout` publishes a micro-batch once for each (`name`, `batch_id`). A micro-batch that Spark replays is not published
again.
"""

import sys
from typing import TYPE_CHECKING

from m4cast import fanout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "example-fan-out"


def main(spark: "SparkSession", nodes: str, folder: str) -> None:
    spark.range(10).selectExpr("id", "id % 2 = 0 AS is_even").write.mode("overwrite").json(f"{folder}/arriving")

    def each(batch: "DataFrame", batch_id: int) -> None:
        batch.write.mode("append").parquet(f"{folder}/kept")
        fanout(batch.where("is_even"), topic=TOPIC, name="example-fan-out", nodes=nodes, batch_id=batch_id)

    query = (
        spark.readStream.schema("id long, is_even boolean")
        .json(f"{folder}/arriving")
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    main(SparkSession.builder.getOrCreate(), *sys.argv[1:3])
