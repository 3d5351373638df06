"""The plot of docs/PERFORMANCE.md, drawn from its own tables: `python -m tests.bench.ratio_plot` writes it anew.

A bar for each row whose ratio was measured in turns, from the slowest round to the fastest, with a dot for the median;
the scale is logarithmic, so that half and twice are equally far from 1.
"""

import re
from html import escape
from math import log2
from typing import NamedTuple

from tests.bench.scale_plots import DOCS

NAME = "performance-ratios.svg"
PAGE = DOCS / "PERFORMANCE.md"
WIDTH, LEFT, RIGHT, TOP, STEP = 900, 470, 60, 58, 24
LOW, HIGH = 0.125, 8.0
TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8)
GREEN, RED, GREY = "#2e9e5b", "#d64545", "#888"
MEASURED = re.compile(r"(\d+\.\d+) \((\d+\.\d+) \.\. (\d+\.\d+)\)")
LABEL_CHARACTERS = 62


class Ratio(NamedTuple):
    label: str
    median: float
    low: float
    high: float


def ratios(page: str) -> list[Ratio]:
    """The rows of all tables with a column `ratio`, in their order, under the name of their section."""
    found = []
    for section in re.split(r"^###? ", page, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        column = None
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
            if "ratio" in cells:
                column = cells.index("ratio")
            elif not cells:
                column = None
            elif column is not None and (match := MEASURED.match(cells[column])) is not None:
                median, low, high = map(float, match.groups())
                label = f"{heading}: {cells[0]}".replace("`", "")
                found.append(Ratio(label, median, low, high))
    return found


def drawn(page: str) -> str:
    def place(ratio: float) -> float:
        share = log2(min(max(ratio, LOW), HIGH) / LOW) / log2(HIGH / LOW)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    rows = ratios(page)
    bottom = TOP + STEP * len(rows)
    parts = [
        _text(
            10, 20, "m4cast's speed divided by that of the reference: median of the rounds, slowest to fastest", "start"
        ),
        _text(place(1) - 8, 42, "slower", "end", RED),
        _text(place(1) + 8, 42, "faster", "start", GREEN),
    ]
    for tick in TICKS:
        x = place(tick)
        width = 1.5 if tick == 1 else 0.5
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{GREY}" stroke-width="{width}"/>'
        )
        parts.append(_text(x, bottom + 18, f"{tick:g}", "middle"))
    for at, row in enumerate(rows):
        y = TOP + STEP * at + STEP / 2
        colour = GREEN if row.median >= 1 else RED
        label = row.label if len(row.label) <= LABEL_CHARACTERS else f"{row.label[: LABEL_CHARACTERS - 1]}…"
        parts.append(_text(LEFT - 12, y + 4, label, "end"))
        parts.append(
            f'<line x1="{place(row.low):.1f}" x2="{place(row.high):.1f}" y1="{y:g}" y2="{y:g}" stroke="{colour}" '
            'stroke-width="6" stroke-opacity="0.45" stroke-linecap="round"/>'
        )
        parts.append(f'<circle cx="{place(row.median):.1f}" cy="{y:g}" r="5" fill="{colour}"/>')
        parts.append(_text(WIDTH - 8, y + 4, f"{row.median:.2f}", "end", colour))
    inside = "\n".join(parts)
    size = f'viewBox="0 0 {WIDTH} {bottom + 30}" width="{WIDTH}" height="{bottom + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">\n'
        f"<title>Ratios of the benchmarks</title>\n{inside}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = GREY) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    (DOCS / NAME).write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
