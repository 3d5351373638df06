"""The quickstart leads from nothing to an audited Delta table."""

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import DOCS
from tests.docs.walkthrough import Walkthrough


def test_the_quickstart_ends_with_an_audited_table(
    spark: SparkSession, with_cluster: Walkthrough, capsys: pytest.CaptureFixture[str]
) -> None:
    with_cluster.run(DOCS / "QUICKSTART.md")
    assert sorted(row.id for row in with_cluster.names["table"].collect()) == list(range(1, 1005))
    work = with_cluster.folder / "work"
    assert "<svg" in (work / "report.html").read_text(encoding="utf-8")
    gaps = spark.read.format("delta").load(str(work / "tables" / "ordering_gaps"))
    held = gaps.where("line = 'stream' AND state = 'HELD' AND topic = 'orders' AND node_id <> '*'").collect()
    assert len({row.node_id for row in held}) == 3, "n3 has everything, too"
    printed = capsys.readouterr().out.splitlines()
    assert "3" in printed and "1004" in printed
