"""The first screen of the README works as it stands."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import DOCS, ROOT, prose_of
from tests.docs.walkthrough import Walkthrough


def test_the_first_screen_publishes_and_reads(
    spark: SparkSession, with_cluster: Walkthrough, capsys: pytest.CaptureFixture[str]
) -> None:
    with_cluster.run(ROOT / "README.md")
    assert with_cluster.names["received"].count() == 1000
    assert "|orders|" in capsys.readouterr().out
    assert [snippet.language for snippet in with_cluster.ran] == ["console", "python", "console"]


def test_the_number_is_the_one_that_was_measured() -> None:
    (measured,) = [line for line in prose_of(DOCS / "PERFORMANCE.md").splitlines() if line.startswith("| publish | ")]
    _, _, ours, theirs, ratio, *_ = (cell.strip() for cell in measured.split("|"))
    text = " ".join(Path(ROOT / "README.md").read_text(encoding="utf-8").split())
    assert ratio == "2.00 (1.70 .. 2.15)" and "**2.0 times**" in text and "1.70 to 2.15" in text
    assert f"({ours.removesuffix(' rows/s')} against {theirs} rows/s" in text
