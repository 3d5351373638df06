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
    assert (with_cluster.folder / "work" / "report.html").stat().st_size > 10_000
    printed = capsys.readouterr().out.splitlines()
    assert "3" in printed and "1004" in printed
