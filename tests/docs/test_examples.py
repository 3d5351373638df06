"""Every program in `docs/examples` runs against real nodes and does what it says."""

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.docs.pages import DOCS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = DOCS / "examples"


def main_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_every_example_is_run_and_has_a_line_in_the_index() -> None:
    """Those of JavaScript are run by the test of HTTP.md."""
    text = Path(__file__).read_text(encoding="utf-8")
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    page = (DOCS / "HTTP.md").read_text(encoding="utf-8")
    files = sorted(path for path in EXAMPLES.iterdir() if path.is_file())
    assert {path.suffix for path in files} == {".py", ".mjs"}
    assert [
        each.name for each in files if f'main_of("{each.stem}")' not in text and f"../{each.name}" not in page
    ] == []
    assert [each.name for each in files if f"(examples/{each.name})" not in index] == []


def test_rows_are_tailed_at_another_node(nodes: str) -> None:
    received = main_of("publish_and_tail")(nodes)
    assert [(row["_sequence"], row["id"]) for row in received] == [(1, 0), (2, 1), (3, 2)]


def test_an_import_that_is_run_again_publishes_nothing(nodes: str) -> None:
    main = main_of("exactly_once")
    assert [main(nodes), main(nodes)] == [3, 0]


def test_single_rows_are_all_acknowledged(nodes: str) -> None:
    assert main_of("single_rows")(nodes) == 1000


def test_a_stream_is_published_and_received_once(spark: "SparkSession", nodes: str, tmp_path: Path) -> None:
    received = main_of("spark_streams")(spark, nodes, str(tmp_path))
    assert sorted(row.id for row in received.collect()) == list(range(100))


def test_fan_out_publishes_what_the_pipeline_chose(spark: "SparkSession", nodes: str, tmp_path: Path) -> None:
    main_of("fan_out")(spark, nodes, str(tmp_path))
    published = spark.read.format("m4cast").options(nodes=nodes, topic="example-fan-out").load()
    assert sorted(row.id for row in published.collect()) == [0, 2, 4, 6, 8]
    assert spark.read.parquet(str(tmp_path / "kept")).count() == 10


def test_the_audit_finds_everything(spark: "SparkSession", nodes: str, tmp_path: Path) -> None:
    assert main_of("audit")(spark, nodes, str(tmp_path)) == "OK"
    assert spark.read.format("delta").load(str(tmp_path / "events" / "example-audit")).count() == 100
