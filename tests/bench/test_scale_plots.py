import pytest

from tests.bench import ratio_plot
from tests.bench.scale_plots import DOCS, PLOTS, Plot, drawn


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_a_plot_is_drawn_from_its_table_and_shown(plot: Plot) -> None:
    page = (DOCS / "SCALE.md").read_text(encoding="utf-8")
    assert (DOCS / plot.name).read_text(encoding="utf-8") == drawn(plot, page), "python -m tests.bench.scale_plots"
    assert f"]({plot.name})" in page


def test_the_plot_of_ratios_is_drawn_from_the_tables_and_shown() -> None:
    page = ratio_plot.PAGE.read_text(encoding="utf-8")
    shown = (DOCS / ratio_plot.NAME).read_text(encoding="utf-8")
    assert shown == ratio_plot.drawn(page), "python -m tests.bench.ratio_plot"
    assert f"]({ratio_plot.NAME})" in page
    found = ratio_plot.ratios(page)
    assert len(found) >= 10 and all(each.low <= each.median <= each.high for each in found)
