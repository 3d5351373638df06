"""A driver program of its own that publishes and reads through a door with TLS and tokens, and tells what Spark shows.

    python -m tests.spark_connector.guarded_query '{"nodes": ..., "ca": ..., "token": ..., "folder": ...}'

Everything lands in `folder`: `shown` (plans, progress, errors, the pages and the REST answers of Spark's own UI),
`events` (Spark's event log, from which its history is shown) and checkpoints; logs go to stderr.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.docs.pages import DOCS, snippets_of

TIMEOUT_S = 120
PAGES = ("SQL/", "environment/", "jobs/", "StreamingQuery/", "SQL/execution/?id=0", "SQL/execution/?id=1")


def main(nodes: str, ca: str, token: str, folder: str) -> None:
    here = Path(folder)
    (here / "events").mkdir()
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.port", "0")
        .config("spark.log.level", "INFO")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{here}/events")
        .getOrCreate()
    )
    shown = [*_batches(spark, nodes, ca, token), *_stream(spark, folder, {"nodes": nodes, "tlsCa": ca, "token": token})]
    shown += _errors(spark, {"nodes": nodes, "tlsCa": ca, "token": token})
    shown += _pages(spark)
    (here / "shown").write_text("\n\n".join(shown))
    spark.stop()


def _batches(spark: SparkSession, nodes: str, ca: str, token: str) -> list[str]:
    """Read as the docs do it, with the token by reference; then with the token as it is."""
    orders = spark.range(0, 10, 1, 1)
    (snippet,) = [each.text for each in snippets_of(DOCS / "SPARK.md") if "tlsCa" in each.text]
    names: dict[str, Any] = {"spark": spark, "orders": orders, "nodes": nodes, "ca": ca}
    exec(compile(snippet, "docs", "exec"), names)
    assert names["count"] == 10
    options = {"nodes": nodes, "tlsCa": ca, "token": token}
    orders.write.format("m4cast").mode("append").options(**options, topic="orders").save()
    table = spark.read.format("m4cast").options(**options, topic="orders").load()
    execution = table._jdf.queryExecution()
    modes = spark.sparkContext._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]
    explained = [execution.explainString(modes.fromString(mode)) for mode in ("extended", "formatted", "codegen")]
    return [repr(table.collect()), execution.toString(), *explained]


def _stream(spark: SparkSession, folder: str, options: dict[str, str]) -> list[str]:
    stream = spark.readStream.format("m4cast").options(**options, topic="orders", startingOffsets="earliest").load()
    published = stream.select("id").writeStream.format("m4cast").options(**options, topic="orders-again")
    query = published.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    return [*map(str, query.recentProgress), query._jsq.explainInternal(True)]


def _errors(spark: SparkSession, options: dict[str, str]) -> list[str]:
    wrong = {**options, "token": f"{options['token']}-wrong", "timeoutMs": "500"}
    rows = spark.range(1)
    attempts: list[Any] = [
        lambda: rows.write.format("m4cast").mode("append").options(**options, topic="forbidden").save(),
        lambda: rows.write.format("m4cast").mode("append").options(**wrong, topic="orders").save(),
        lambda: spark.read.format("m4cast").options(**wrong, topic="orders").load(),
        lambda: spark.read.format("m4cast").options(**options, topic="orders", tokne="x").load(),
    ]
    told = []
    for attempt in attempts:
        try:
            attempt()
        except Exception as error:
            told.append(f"{error}\n{error!r}")
    assert len(told) == len(attempts), "all of these fail"
    return told


def _pages(spark: SparkSession) -> list[str]:
    ui, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    rest = (f"api/v1/applications/{application}/{each}" for each in ("sql", "environment", "jobs"))
    pages = []
    for page in (*PAGES, *rest):
        with urllib.request.urlopen(f"{ui}/{page}") as answer:
            pages.append(f"{page}\n{answer.read().decode()}")
    return pages


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
