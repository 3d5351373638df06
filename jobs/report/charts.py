"""Charts as SVG text: plain shapes without scripts, in the page's colours, with their values as tooltips.

Sizes are in units of the page, so that a chart wider than a phone scrolls instead of shrinking.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from math import ceil, log10

LEFT = 110
"""Space for names on the left, in pixels."""
RIGHT = 40
CELL = 44
LINE_COLOURS = ("#3a7bd5", "#e0a100", "#d64545")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a heat map. `share` is a percentage; None if nothing was expected."""

    share: float | None
    hint: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a timeline."""

    row: str
    begin: datetime
    end: datetime
    colour: str
    hint: str


def heat_map(rows: Sequence[str], columns: Sequence[str], cells: dict[tuple[str, str], Cell]) -> str:
    """Rows against columns; the colour shows the completeness."""
    top = 84
    width, height = LEFT + CELL * len(columns) + 60, top + CELL * len(rows) + 4
    parts = [
        _text(
            LEFT + CELL * at + CELL / 2,
            top - 10,
            name,
            f'transform="rotate(-45 {LEFT + CELL * at + CELL / 2:.0f} {top - 10})"',
        )
        for at, name in enumerate(columns)
    ]
    for down, row in enumerate(rows):
        y = top + CELL * down
        parts.append(_text(LEFT - 8, y + CELL / 2 + 4, row, 'text-anchor="end"'))
        for across, column in enumerate(columns):
            cell = cells.get((row, column), Cell(None, f"{row} to {column}: nothing expected"))
            x = LEFT + CELL * across
            shape = f'<rect x="{x}" y="{y}" width="{CELL - 3}" height="{CELL - 3}" rx="4" fill="{_shade(cell.share)}">'
            parts.append(f"{shape}<title>{escape(cell.hint)}</title></rect>")
            label = "" if cell.share is None else f"{floor_percent(cell.share)}"
            parts.append(_text(x + CELL / 2 - 1.5, y + CELL / 2 + 3, label, 'text-anchor="middle" class="in"'))
    return _svg("heat map", width, height, parts)


def floor_percent(share: float) -> str:
    """Rounded down: never 100 if anything is missing."""
    return "100" if share >= 100 else f"{int(share * 10) / 10:.1f}"


def _shade(share: float | None) -> str:
    if share is None:
        return "#80889044"
    if share >= 100:
        return "#0b7a4e"
    return "#8f5400" if share >= 99 else "#a34a14" if share >= 90 else "#b92727"


def curves(times: Sequence[datetime], series: dict[str, Sequence[float | None]], unit: str) -> str:
    """Values over time, on a logarithmic scale."""
    width, height, bottom, top = 900, 300, 40, 16
    values = [value for line in series.values() for value in line if value is not None]
    if not times or not values:
        return '<p class="none">Nothing has been delivered yet.</p>'
    low = 10 ** int(log10(max(1.0, min(values))))
    decades = max(1, ceil(log10(max(values) / low)))

    def x_of(at: datetime) -> float:
        span = (times[-1] - times[0]) / timedelta(seconds=1) or 1
        return LEFT + (width - LEFT - RIGHT) * ((at - times[0]) / timedelta(seconds=1)) / span

    def y_of(value: float) -> float:
        return height - bottom - (height - bottom - top) * log10(max(value, low) / low) / decades

    parts = []
    for power in range(decades + 1):
        y = y_of(low * 10**power)
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{low * 10**power:,} {unit}", 'text-anchor="end"'))
    parts += _time_axis(times[0], times[-1], x_of, height - bottom)
    for (name, line), colour in zip(series.items(), LINE_COLOURS, strict=True):
        points = [(x_of(at), y_of(value)) for at, value in zip(times, line, strict=True) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"><title>{name}</title></polyline>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
            for x, y in points[:: max(1, len(points) // 60)]
        ]
    for at, (name, colour) in enumerate(zip(series, LINE_COLOURS, strict=True)):
        parts.append(f'<rect x="{LEFT + 10 + 90 * at}" y="2" width="12" height="12" rx="3" fill="{colour}"/>')
        parts.append(_text(LEFT + 28 + 90 * at, 13, name))
    return _svg("latency curves", width, height, parts)


def time_line(begin: datetime, end: datetime, bars: Sequence[Bar]) -> str:
    """Bars over time, one row per name."""
    if not bars:
        return '<p class="none">None.</p>'
    names = sorted({bar.row for bar in bars})
    width, step = 900, 26
    height = step * len(names) + 44
    span = (end - begin) / timedelta(seconds=1) or 1

    def x_of(at: datetime) -> float:
        share = ((at - begin) / timedelta(seconds=1)) / span
        return LEFT + (width - LEFT - RIGHT) * min(max(share, 0.0), 1.0)

    parts = _time_axis(begin, end, x_of, height - 36)
    for at, name in enumerate(names):
        parts.append(_text(LEFT - 8, step * at + 18, name, 'text-anchor="end"'))
    for bar in bars:
        x, y = x_of(bar.begin), step * names.index(bar.row) + 6
        wide = max(3.0, x_of(bar.end) - x)
        shape = f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="16" rx="3" fill="{bar.colour}">'
        parts.append(f"{shape}<title>{escape(bar.hint)}</title></rect>")
    return _svg("timeline of gaps", width, height, parts)


def _time_axis(begin: datetime, end: datetime, x_of: Callable[[datetime], float], y: float) -> list[str]:
    ticks = [begin + (end - begin) * step / 4 for step in range(5)]
    style = "%H:%M:%S" if end - begin < timedelta(hours=1) else "%d %b %H:%M"
    return [_text(x_of(at), y + 20, at.strftime(style), 'text-anchor="middle"') for at in dict.fromkeys(ticks)]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _svg(name: str, width: float, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<div class="chart"><svg role="img" aria-label="{name}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">\n{inside}\n</svg></div>'
    )
