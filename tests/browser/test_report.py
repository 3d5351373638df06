"""The report in a real browser: charts are drawn, nothing goes wrong, and it can be read on a desk and on a phone."""

from pathlib import Path

import pytest

from tests.browser.chromium import Chromium
from tests.browser.report_page import report_page
from tests.browser.tab import DESK, PHONE, new_tab

pytestmark = pytest.mark.browser
AUDIT = (Path(__file__).parent / "page_audit.js").read_text("utf-8")
CHARTS = {"heat map": 18, "latency curves": 6, "timeline of gaps": 5, "graph": 27}
"""With the fewest shapes that each has to have."""


def test_the_page_logs_no_errors() -> None:
    browser = Chromium()
    assert browser.console(report_page()) == []
    spoiled = report_page().replace("</body>", "<script>console.error('spoiled'); missing()</script></body>")
    assert len(browser.console(spoiled)) == 2, "it would not be heard"


@pytest.mark.parametrize("width", [1280, 390])
def test_charts_are_drawn_and_can_be_read(width: int) -> None:
    found = Chromium().measured(report_page(), width)
    assert found["width"] <= width, "the page itself is never scrolled sideways; wide charts are, by themselves"
    assert found["smallest"] >= 12
    assert len(found["headings"]) == 9 and {"Who wanted what", "Topics and their volume, in rows"} <= {
        *found["headings"]
    }
    charts = {chart["name"]: chart for chart in found["charts"]}
    assert set(charts) == set(CHARTS)
    for name, shapes in CHARTS.items():
        assert charts[name]["shapes"] >= shapes, name
        assert charts[name]["width"] >= 300 and charts[name]["height"] >= 100, name


def test_it_can_be_read_in_light_and_dark_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(), encoding="utf-8")
    with new_tab() as tab:
        tab.open(file.as_uri())
        tab.until("document.readyState === 'complete'", "it is loaded")
        for theme in ("light", "dark"):
            tab.prefers(theme)
            for size in (DESK, PHONE):
                tab.size(*size)
                found = tab.run(AUDIT)
                problems = {key: found[key] for key in ("faint", "small", "unnamed", "twice")}
                assert problems == {key: [] for key in problems}, (theme, size)
                assert found["levels"] == 1 and found["texts"] >= 100
        assert tab.log == []
        assert "price > 100" in tab.run("document.body.innerText"), "who wanted what"
