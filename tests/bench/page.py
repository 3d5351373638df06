"""Results as one page for a browser: a chart and a table for each comparison, without scripts or anything from outside.

Bars are medians, the thin line across a bar's end spans the rounds, and what is ours has a colour of its own.
"""

from collections.abc import Sequence
from html import escape
from statistics import median

from tests.bench.comparison import Bench, Comparison, Measured, Row
from tests.bench.results import by_columns, by_process, cell, figure, ratio_texts, spread

LEFT, BAR, RIGHT, STEP = 220, 520, 150, 26
STYLE = """
:root { color-scheme: light dark; --ours: #3a7bd5; --other: #9aa4b0; --ink: #1c2430; --paper: #fff; --line: #d5dbe2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #14181e; --line: #38414d; --other: #6b7683 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: var(--ink); background: var(--paper) }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem }
h3 { margin: 2rem 0 .3rem; font-size: 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; margin: .5rem 0 }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
svg text { font: 13px system-ui, sans-serif; fill: currentColor } .missing, .failed { color: #c0392b }
"""


def page(machine: Row, when: str, results: dict[str, tuple[str, Bench]], failures: dict[str, str]) -> str:
    """`results`: by the benchmark's name, what it says about itself and what it measured."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        f"<title>m4cast benchmarks, {escape(when)}</title><style>{STYLE}</style>",
        f"<h1>m4cast benchmarks</h1><p>{escape(when)}</p>",
        _table([{"": name, "machine": value} for name, value in machine.items()]),
    ]
    for name, (about, bench) in results.items():
        parts.append(f"<h2 id='{escape(name)}'>{escape(name)}</h2><p>{escape(about)}</p>")
        if name in failures:
            parts.append(f"<p class='failed'>It failed: {escape(failures[name])}</p>")
        parts += [_comparison(each) for each in bench.comparisons]
        parts += [_table(rows) for rows in by_columns(bench.facts)]
    return "\n".join(parts) + "\n"


def _comparison(comparison: Comparison) -> str:
    rows: list[Row] = []
    for side in comparison.sides:
        is_ours = side is comparison.sides[0]
        ratio, ratio_spread = ("", "") if is_ours else ratio_texts(comparison, side)
        rows.append(
            {
                "who": side.name,
                comparison.unit: figure(median(side.values)),
                "of rounds": spread(side.values),
                "m4cast / it": ratio,
                "ratio of rounds": ratio_spread,
                comparison.cpu_unit: by_process(comparison.cpu(side)),
                "peak RssAnon MB": by_process(side.peak_mb),
            }
        )
    missing = "".join(
        f"<p class='missing'>{escape(each.name)} is missing: {escape(each.why)}</p>" for each in comparison.missing
    )
    title = f"<h3>{escape(comparison.what)}, {escape(comparison.unit)} ({comparison.better} is better)</h3>"
    return f"{title}{_bars(comparison.sides)}{_table(rows)}{missing}"


def _bars(sides: Sequence[Measured]) -> str:
    greatest = max(max(side.values) for side in sides) or 1.0
    parts = []
    for at, side in enumerate(sides):
        y, middle = STEP * at + 4, STEP * at + 13
        low, mid, high = (BAR * value / greatest for value in (min(side.values), median(side.values), max(side.values)))
        colour = "var(--other)" if at else "var(--ours)"
        hint = f"{side.name}: {', '.join(figure(value) for value in side.values)}"
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(side.name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{mid:.1f}" height="18" rx="3" fill="{colour}">'
            f"<title>{escape(hint)}</title></rect>",
            f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{middle}" y2="{middle}" stroke="currentColor"/>',
            f'<text x="{LEFT + high + 8:.1f}" y="{middle + 4}">{figure(median(side.values))}</text>',
        ]
    width, height = LEFT + BAR + RIGHT, STEP * len(sides) + 6
    return (
        f'<div class="wide"><svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"{''.join(parts)}</svg></div>"
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = ("<tr>" + "".join(f"<td>{escape(cell(value))}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<div class='wide'><table><tr>{head}</tr>{''.join(lines)}</table></div>"
