"""The plots of docs/SCALE.md, drawn from its own tables: `python -m tests.bench.scale_plots` writes them anew."""

from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 60, 20, 40, 50
COLOURS = ("#3a7bd5", "#d67f45")


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    heading: str
    """Of the table: the beginning of its first line."""
    rows: str
    """Only rows that begin with this."""
    across: str
    lines: tuple[str, ...]
    is_log: bool


PLOTS = (
    Plot("scale-growth.svg", "| nodes | hops", "| ", "nodes", ("hops, farthest pair", "hops of a batch, mean"), True),
    Plot(
        "scale-degrees.svg", "| joined by", "| walks", "degree", ("hops, farthest pair", "hops of a batch, mean"), False
    ),
    Plot("scale-interest.svg", "| nodes | changes", "| ", "nodes", ("hops to equal views, mean", "eccentricity"), True),
    Plot(
        "scale-interest-bytes.svg",
        "| registrations | bytes",
        "| ",
        "registrations",
        ("bytes of one more, on all links of 16 nodes",),
        True,
    ),
    Plot(
        "scale-threshold.svg",
        "| interest_changes_max",
        "| ",
        "interest_changes_max",
        ("messages for 64 changes at one of 16 nodes", "ms that a change waits there, at most"),
        True,
    ),
    Plot(
        "scale-trees.svg",
        "| nodes | copies along",
        "| ",
        "nodes",
        ("copies along a tree", "copies of a flood"),
        True,
    ),
)


def drawn(plot: Plot, page: str) -> str:
    table = _table(plot, page)
    xs = [log10(row[plot.across]) if plot.is_log else row[plot.across] for row in table]
    top = max(row[line] for row in table for line in plot.lines)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = []
    for y in range(0, int(top) + 1, _step(top)):
        _, at = place(xs[0], y)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#8888" stroke-width="0.5"/>'
        )
        parts.append(_text(LEFT - 8, at + 4, f"{y:,}", "end"))
    for x, row in zip(xs, table, strict=True):
        parts.append(_text(place(x, 0)[0], HEIGHT - BOTTOM + 20, f"{row[plot.across]:,.0f}", "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, plot.across, "middle"))
    for number, (line, colour) in enumerate(zip(plot.lines, COLOURS, strict=False)):
        points = [place(x, row[line]) for x, row in zip(xs, table, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(_text(LEFT + 10 + max(200, 7 * len(plot.lines[0])) * number, 18, line, "start", colour))
    inside = "\n".join(parts)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{inside}\n</svg>\n'
    )


def _step(top: float) -> int:
    """Between two lines of the grid: about eight of them, of round numbers."""
    step = 2
    while step < int(top) // 8:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step


def _table(plot: Plot, page: str) -> list[dict[str, float]]:
    lines = page[page.index(plot.heading) :].splitlines()
    names = [cell.strip() for cell in lines[0].strip("|").split("|")]
    body = lines[2 : next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    wanted = (plot.across, *plot.lines)
    rows = [dict(zip(names, line.strip("|").split("|"), strict=True)) for line in body if line.startswith(plot.rows)]
    return [{name: float(row[name].replace(",", "")) for name in wanted} for row in rows]


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#888") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def main() -> None:
    page = (DOCS / "SCALE.md").read_text(encoding="utf-8")
    for plot in PLOTS:
        (DOCS / plot.name).write_text(drawn(plot, page), encoding="utf-8")


if __name__ == "__main__":
    main()
