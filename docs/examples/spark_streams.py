"""Publish a stream and read it back as a stream: `python docs/examples/spark_streams.py HOST:PORT,... FOLDER`.

Both queries end when they have caught up (`availableNow`). Started again with their checkpoints, they go on where they
were: nothing is published twice, and nothing is read twice.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "example-stream"


def publish(spark: "SparkSession", nodes: str, folder: str) -> None:
    arriving = spark.readStream.schema("id long, price double").json(f"{folder}/arriving")
    query = (
        arriving.writeStream.format("m4cast")
        .options(nodes=nodes, topic=TOPIC, sinkId="example-stream")
        .option("checkpointLocation", f"{folder}/publish")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def receive(spark: "SparkSession", nodes: str, folder: str) -> "DataFrame":
    query = (
        spark.readStream.format("m4cast")
        .options(nodes=nodes, topic=TOPIC, startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .option("path", f"{folder}/received")
        .option("checkpointLocation", f"{folder}/receive")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/received")


def main(spark: "SparkSession", nodes: str, folder: str) -> "DataFrame":
    spark.range(100).selectExpr("id", "id * 1.5D AS price").write.mode("overwrite").json(f"{folder}/arriving")
    publish(spark, nodes, folder)
    received = receive(spark, nodes, folder)
    received.orderBy("_sequence").show(5)
    return received


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    main(SparkSession.builder.getOrCreate(), *sys.argv[1:3])
