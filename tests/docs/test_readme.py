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


def test_the_comparison_with_jetstream_has_the_measured_numbers() -> None:
    rows = {
        cells[1]: cells
        for line in prose_of(DOCS / "PERFORMANCE.md").splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) > 4
    }
    text = " ".join(Path(ROOT / "README.md").read_text(encoding="utf-8").split())
    row = rows["a row over `/live`, 1,000 rows/s, three nodes: p50"]
    ratio, faster = (cell.partition(";")[0] for cell in (row[4], row[7]))
    times = [
        f"{ours.partition(' ms')[0]} against {theirs.removeprefix('JetStream R3: ')} ms"
        for ours, theirs in (row[5:7], row[2:4])
    ]
    assert f"takes {faster} to {ratio} times as long as in a three-way replicated JetStream" in text
    assert f"three nodes: {', '.join(times)})" in text
    row = rows["batches of 100 rows, eight clients"]
    assert f"publish {row[4]} to {row[7].partition(' ')[0]} times as many batches of 100 rows" in text
    row = rows["4,000 DoPuts of 100 rows, eight clients"]
    assert f"eight Flight clients {row[4]} times as many" in text
