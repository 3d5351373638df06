"""The hot path costs no more than was agreed on: counts that are the same on every machine, each with a margin."""

import json

from tests.bench.hot_path import FIGURES, measure

MARGIN = 1.1
"""What the order of threads and the version of Python may change."""
NET_MARGIN = 1.5
"""In how many pieces the kernel hands over a large frame is its own affair."""


def test_the_hot_path_costs_no_more_than_the_committed_figures() -> None:
    committed: dict[str, float] = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures = measure()
    assert figures.keys() == committed.keys(), "other things are counted: python -m tests.bench.hot_path --write"
    costlier = [
        f"{name}: {value:g}, was {committed[name]:g}"
        for name, value in figures.items()
        if value > committed[name] * (NET_MARGIN if name.endswith("calls, net") else MARGIN)
    ]
    assert not costlier, (
        "for each batch the hot path does more than before:\n"
        + "\n".join(costlier)
        + "\nDo less, or, if it is worth it, write the new figures: python -m tests.bench.hot_path --write"
    )
