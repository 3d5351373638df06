"""The hot path costs no more than the committed counts, which are the same on every machine."""

import json

from tests.bench.hot_path import FIGURES, measure

MARGINS = {"read": 1.1, "calls, client": 1.1, "calls, door": 1.1, "calls, net": 1.5, "Python memory / payload": 1.1}
"""What may vary from run to run: in which order the door's and the client's threads do their work, in how many chunks a
read takes it, and in how many pieces the kernel hands over a large frame. Everything else is exact."""


def margin_of(name: str) -> float:
    return max((margin for part, margin in MARGINS.items() if part in name), default=1)


def test_the_hot_path_costs_no_more_than_the_committed_figures() -> None:
    committed: dict[str, float] = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures = measure()
    assert figures.keys() == committed.keys(), "other things are counted: python -m tests.bench.hot_path --write"
    costlier = [
        f"{name}: {value:g}, was {committed[name]:g}"
        for name, value in figures.items()
        if value > committed[name] * margin_of(name)
    ]
    assert not costlier, (
        "for each batch the hot path does more than before:\n"
        + "\n".join(costlier)
        + "\nDo less, or, if it is worth it, write the new figures: python -m tests.bench.hot_path --write"
    )
