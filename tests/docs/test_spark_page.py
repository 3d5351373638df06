"""The snippets of docs/SPARK.md run, one after the other, and do what they say."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from m4cast import Client
from tests.docs.pages import DOCS, snippets_of
from tests.docs.walkthrough import Walkthrough


def test_the_snippets_publish_and_read(spark: SparkSession, own_nodes: str, tmp_path: Path) -> None:
    secret = tmp_path / "shop-7.secret"
    secret.write_text("the-secret-of-the-shop")
    client = Client(own_nodes.split(","), key="shop-7", credential=f"file:{secret}")
    client.connect(create=True)
    client.subscribe("orders", "price > 100")
    client.disconnect()
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "1.json").write_text(json.dumps({"id": 100, "price": 150.0}))
    page = Walkthrough(tmp_path, {"spark": spark, "nodes": own_nodes, "folder": tmp_path})
    names = page.names
    try:
        for snippet in snippets_of(DOCS / "SPARK.md"):
            if "tlsCa" not in snippet.text:  # it runs where there is a door with TLS
                page.run_one(snippet)
    finally:
        if "listener" in names:
            spark.streams.removeListener(names["listener"])
    assert len(page.ran) == 23
    replica = spark.read.format("delta").load(str(tmp_path / "replica")).collect()
    assert sorted((row.id, row.name) for row in replica) == [(1, "Ada"), (2, "Bobby")]
    assert sorted(row.id for row in names["table"].collect()) == list(range(101))
    assert {row.topic: row.row_count for row in names["receipts"].collect()} == {"paid": 100}
    (kept,) = spark.read.format("m4cast").options(nodes=own_nodes, topic="kept-orders").load().collect()
    assert kept.id == 100
    assert names["tuned"].columns == ["id", "price", "_origin", "_sequence"]
    assert names["held"].isStreaming and names["selected"].isStreaming
    assert names["notifications"].columns == names["stream"].columns
    assert {row._topic for row in names["several"].collect()} == {"orders", "orders, returned", "paid "}
    assert names["since_then"].count() == 101 and names["first_ten"].count() == 10
    assert {row._topic for row in names["raw"].collect()} == {"orders"}
    assert {row.node for row in names["deliveries"].collect()} == {row.name for row in names["roster"].collect()}
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "orders")).collect()) == list(range(101))
