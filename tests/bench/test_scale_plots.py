import pytest

from tests.bench.scale_plots import DOCS, PLOTS, Plot, drawn


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_a_plot_is_drawn_from_its_table_and_shown(plot: Plot) -> None:
    page = (DOCS / "SCALE.md").read_text(encoding="utf-8")
    assert (DOCS / plot.name).read_text(encoding="utf-8") == drawn(plot, page), "python -m tests.bench.scale_plots"
    assert f"]({plot.name})" in page
