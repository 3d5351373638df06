"""The report: everything in one file, and what it shows is what the tables say."""

import re
from pathlib import Path
from xml.etree import ElementTree as Xml

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from m4cast.jobs.report.charts import floor_percent
from m4cast.jobs.report.findings import find
from m4cast.jobs.report.page import write_report
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT


def test_it_shows_what_the_tables_say(spark: SparkSession, audited: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(TableFolder(spark, audited), path)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<script|@import|url\(|src=", text), "it fetches something"
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    charts = [Xml.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert [chart.get("aria-label") for chart in charts][:3] == ["heat map", "latency curves", "timeline of gaps"]
    assert len(charts) == 4
    cells = [title.text or "" for title in charts[0].iter("title")]
    assert len(cells) == 2 * 9
    assert any(cell.startswith("n1 to n7: ") and "100 %" not in cell for cell in cells)
    assert any(cell.startswith("n2 to n3: 100 %") for cell in cells)
    assert "INCOMPLETE" in text and "n7" in text
    assert "9 nodes, 18 links" in text
    found = find(TableFolder(spark, audited))
    assert len(re.findall(r'class="verdict', text)) == 1 and "what to do" in text
    audit = TableFolder(spark, audited).read(DELIVERY_AUDIT)
    streams = audit.select("window_start", "origin", "topic", "published").distinct()
    assert sum(row["published"] for row in found.topics) == streams.agg(F.sum("published")).collect()[0][0]
    assert found.bad_windows and all(row["missing"] + row["lost"] + row["not_read"] for row in found.bad_windows)
    for row in found.topics:
        assert f"<td>{row['topic']}</td>" in text and f"{row['published']:,}" in text


def test_it_can_be_written_before_any_job_has_run(spark: SparkSession, tmp_path: Path) -> None:
    write_report(TableFolder(spark, str(tmp_path / "nothing")), tmp_path / "report.html")
    assert "No job has run yet" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert find(TableFolder(spark, str(tmp_path / "nothing"))).pairs == []


def test_a_share_is_never_rounded_up_to_all() -> None:
    assert floor_percent(99.9999) == "99.9"
    assert floor_percent(100.0) == "100"
