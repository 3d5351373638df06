"""The hot path costs exactly the committed counts, which are the same on every machine.

No figure has a margin: what varies from batch to batch (in which order threads work, in how many pieces the kernel
hands over a frame) is gone from a median over the batches, and from the least of several reads. In 40 runs on two cores
with load averages from 12 to 80, every figure was the same.

The counts are those of one Python version. Newer ones make fewer calls, since they inline comprehensions: there, calls
and memory may only be lower.
"""

import json
import sys

from tests.bench.hot_path import FIGURES, measure

COMMITTED_WITH = (3, 11)


def test_the_hot_path_costs_exactly_the_committed_figures() -> None:
    committed: dict[str, float] = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures = measure()
    assert figures.keys() == committed.keys(), "other things are counted: python -m tests.bench.hot_path --write"
    differ = [
        f"{name}: {value:g}, was {committed[name]:g}"
        for name, value in figures.items()
        if value > committed[name] or (value < committed[name] and is_exact(name))
    ]
    assert not differ, (
        "for each batch the hot path does something else than before:\n"
        + "\n".join(differ)
        + "\nDo less; if it does less already, or if more is worth it, write the new figures:"
        + " python -m tests.bench.hot_path --write"
    )


def is_exact(name: str) -> bool:
    depends_on_python = "calls, " in name or "memory" in name
    return not depends_on_python or sys.version_info[:2] == COMMITTED_WITH
