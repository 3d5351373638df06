"""Results as a table for people who look on, and as JSON for those who come later."""

from collections.abc import Iterator, Mapping
from statistics import median

from rich.table import Table

from tests.bench.comparison import Bench, Comparison, Measured, Row

OURS = "m4cast"


def as_json(bench: Bench) -> Row:
    return {"comparisons": [_comparison_as_json(each) for each in bench.comparisons], "facts": bench.facts}


def _comparison_as_json(comparison: Comparison) -> Row:
    sides = []
    for side in comparison.sides:
        row: Row = {
            "name": side.name,
            "median": median(side.values),
            "values": side.values,
            "gb_per_round": side.gb,
            comparison.cpu_unit: comparison.cpu(side),
            "peak RssAnon MB": side.peak_mb,
        }
        if side is not comparison.sides[0]:
            ratios = comparison.ratios(side)
            row |= {"ratio": median(ratios), "ratios": ratios}
        sides.append(row)
    missing = [{"name": each.name, "why": each.why} for each in comparison.missing]
    facts = {"what": comparison.what, "unit": comparison.unit, "better": comparison.better, "bar": comparison.bar}
    return {**facts, "sides": sides, "missing": missing}


def tables(bench: Bench) -> Iterator[Table]:
    if bench.comparisons:
        yield _comparisons_table(bench.comparisons)
    for rows in by_columns(bench.facts):
        yield _facts_table(rows)


def by_columns(facts: list[Row]) -> list[list[Row]]:
    """Facts with the same columns belong into one table."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in facts:
        found.setdefault(tuple(row), []).append(row)
    return list(found.values())


def _comparisons_table(comparisons: list[Comparison]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("what", ratio=4)
    table.add_column("who", ratio=3)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("of rounds", justify="right", no_wrap=True)
    table.add_column("m4cast / it", justify="right", no_wrap=True)
    table.add_column("of rounds", justify="right", no_wrap=True)
    table.add_column("CPU s/GB *", ratio=3)
    table.add_column("peak RssAnon MB", ratio=3)
    for comparison in comparisons:
        for side in comparison.sides:
            table.add_row(*_side_cells(comparison, side))
        for missing in comparison.missing:
            table.add_row("", missing.name, "missing", "", "", "", missing.why, "")
    table.caption = "* busy cores where bytes are not the point"
    table.caption_justify = "left"
    return table


def _side_cells(comparison: Comparison, side: Measured) -> list[str]:
    is_ours = side is comparison.sides[0]
    ratio, ratio_spread = ("", "") if is_ours else ratio_texts(comparison, side)
    return [
        f"{comparison.what}, {comparison.unit}" if is_ours else "",
        side.name,
        figure(median(side.values)),
        spread(side.values),
        ratio,
        ratio_spread,
        by_process(comparison.cpu(side)),
        by_process(side.peak_mb),
    ]


def ratio_texts(comparison: Comparison, side: Measured) -> tuple[str, str]:
    """The ratio, with what was to be reached, and its spread. The bar is that of the first reference."""
    ratios = comparison.ratios(side)
    said = f"{median(ratios):.2f}"
    if comparison.bar is not None and side is comparison.sides[1]:
        sign = ">=" if comparison.better == "higher" else "<="
        said += f" ({sign} {comparison.bar:g} {'met' if comparison.is_met(side) else 'MISSED'})"
    return said, spread(ratios)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: list[float]) -> str:
    return f"{figure(min(values))} .. {figure(max(values))}" if len(values) > 1 else ""


def by_process(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in figures.items())


def _facts_table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for key, value in rows[0].items():
        table.add_column(key, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    return table


def cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
