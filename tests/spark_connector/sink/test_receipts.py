"""Receipts: what is in them, that Spark reads them as they are defined, and when they are written."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from m4cast.cluster.local import LocalCluster
from m4cast.schemas.receipt import RECEIPT_DDL, Receipt, ReceiptStream
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import WriteOptions, parse, write_options
from m4cast.spark_connector.sink.receipts import keep
from m4cast.spark_connector.sink.writers import BatchWriter, StreamWriter
from tests.spark_connector.sink.test_writers import staged

RECEIPT = Receipt(
    "orders/import",
    "q",
    7,
    "q/7",
    datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC),
    (ReceiptStream("orders", "a" * 32, 5, 9, 5, 500), ReceiptStream("returns", "a" * 32, 1, 1, 1, 100)),
)


def given(nodes: str, topic: str, folder: Path) -> WriteOptions:
    return write_options(parse({"nodes": nodes, "topic": topic, "sinkId": topic, "receipts": str(folder)}))


def receipts(folder: Path) -> list[Receipt]:
    return [Receipt.from_json(path.read_text()) for path in sorted(folder.iterdir())]


def test_a_receipt_is_read_as_it_was_written() -> None:
    assert Receipt.from_json(RECEIPT.to_json()) == RECEIPT
    for bad in ("[]", "{}", '{"version": 2}', '{"version": 1}'):
        with pytest.raises(ValueError, match="not a receipt"):
            Receipt.from_json(bad)


def test_spark_reads_every_field(spark: SparkSession, tmp_path: Path) -> None:
    keep(RECEIPT, str(tmp_path))
    (row,) = spark.read.schema(RECEIPT_DDL).json(str(tmp_path)).collect()
    assert row.asDict(recursive=True) == {
        **json.loads(RECEIPT.to_json()),
        "committed_at": RECEIPT.committed_at.replace(tzinfo=None),
    }
    assert set(row.asDict()) == {"version", *(field.name for field in fields(Receipt))}


def test_names_are_those_of_files_and_differ() -> None:
    others = [RECEIPT, replace(RECEIPT, sink_id="orders_import"), replace(RECEIPT, position="q/8")]
    others.append(replace(RECEIPT, sink_id="ż" * 100))
    names = [receipt.file_name for receipt in others]
    assert len(set(names)) == 4 and all(name.isascii() and "/" not in name and len(name) < 200 for name in names)


def test_every_commit_has_one_and_a_replay_the_same(
    cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    options = given(nodes, topic, tmp_path / "new" / "folder")
    StreamWriter(options).commit([staged(options, 1, 2), replace(staged(options, 3), partition=1)], 0)
    (first,) = receipts(tmp_path / "new" / "folder")
    for _ in range(2):  # replayed: staged anew, published once
        StreamWriter(options).commit([staged(options, 4, 5)], 1)
    _, second = receipts(tmp_path / "new" / "folder")
    origin = cluster.channel("n1").status()["node_id"]
    assert (first.sink_id, first.query_id, first.batch_id, first.position) == (topic, "q", 0, "q/0")
    assert first.streams == (ReceiptStream(topic, origin, 1, 3, 3, 24),)
    assert second.streams == (ReceiptStream(topic, origin, 4, 5, 2, 16),)


def test_a_receipt_that_was_not_written_is_written_by_the_replay(
    cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "receipts"
    folder.write_text("in the way")
    options = given(nodes, topic, folder)
    message = staged(options, 1, 2)
    with pytest.raises(ConnectorError, match=r"M4CAST_RECEIPT.*q/0 is published.*restart"):
        StreamWriter(options).commit([message], 0)
    StreamWriter(options).abort([message], 0)
    folder.unlink()
    StreamWriter(options).commit([staged(options, 1, 2)], 0)
    (written,) = receipts(folder)
    assert [(stream.first_sequence, stream.last_sequence) for stream in written.streams] == [(1, 2)]
    assert cluster.channel("n1").read(topic).num_rows == 2


def test_batch_writes_have_receipts(cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path) -> None:
    options = given(nodes, topic, tmp_path)
    BatchWriter(options).commit([replace(staged(options, 1), query_id=None)])
    (written,) = receipts(tmp_path)
    assert (written.query_id, written.batch_id) == (None, None) and written.position.startswith("write/")
