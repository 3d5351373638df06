"""The report: one self-contained HTML file about the last day, from the tables of gaps and audit.

It loads nothing and runs no script: the charts are SVG, the styles are in the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from m4cast.jobs.expectation import unread_nodes
from m4cast.jobs.report.charts import Bar, Cell, curves, floor_percent, heat_map, time_line
from m4cast.jobs.runs import in_utc, last_runs
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.delivery_audit import BAD, DELIVERY_AUDIT, NOT_READ
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER
from m4cast.topology.graph import Topology
from m4cast.topology.picture import drawn

GAPS_SHOWN_MAX = 500
"""The latest ones; the table has all."""
INTEREST_SHOWN_MAX = 200
"""The same."""
SERIES = {"p50": "latency_p50_ms", "p95": "latency_p95_ms", "p99": "latency_p99_ms"}
STATE_COLOURS = {"REPAIRED": "#3a7bd5", "MISSING": "#d64545", "NOT READ": "#808890"}
SEVERITY = ("OK", NOT_READ, "INCOMPLETE")

Row = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """The content of the report, as plain values."""

    run: Row | None
    """The last run of the job with the worse verdict; if they are equal, the later run. All figures are from it."""
    pairs: list[Row]
    """Per origin and receiver."""
    windows: list[Row]
    """Per window: the highest latencies of any stream and receiver."""
    statuses: dict[str, int]
    gaps: list[Row]
    """Repaired ranges, and ranges of expected rows that are missing or not read."""
    roster: list[Row]
    interest: list[Row]
    """Registrations: those that last first, then those that ended last."""


def write_report(tables: TableFolder, path: Path) -> None:
    try:
        path.write_text(page(find(tables), datetime.now(UTC)), encoding="utf-8")
    except OSError as error:
        raise M4castError(f"{path}: cannot be written: {error.strerror}") from error


def find(tables: TableFolder) -> Findings:
    for each in (DELIVERY_AUDIT, ORDERING_GAPS, AUDIT_RUNS):
        if tables.has(each):
            tables.ensure(each)  # upgrades an older table, which may lack columns
    pairs: list[Row] = []
    windows: list[Row] = []
    statuses: list[Row] = []
    if tables.has(DELIVERY_AUDIT):
        table = tables.read(DELIVERY_AUDIT)
        last = table.agg(F.max("window_start")).collect()[0][0]
        recent = table if last is None else table.where(F.col("window_start") > F.lit(last) - F.expr("INTERVAL 1 DAY"))
        counts = ("published", "expected", "missing", "lost", "not_read", "duplicates")
        pairs = _rows(recent.groupBy("origin", "node_id").agg(*(F.sum(name).alias(name) for name in counts)))
        worst = [F.max(name).alias(name) for name in SERIES.values()]
        windows = _rows(recent.groupBy("window_start").agg(*worst).orderBy("window_start"))
        statuses = _rows(recent.groupBy("status").count())
    roster = _rows(tables.read(ROSTER)) if tables.has(ROSTER) else []
    runs = last_runs(tables) if tables.has(AUDIT_RUNS) else []
    worst_run = max(runs, key=lambda run: (SEVERITY.index(run.verdict), run.finished_at), default=None)
    members = next((run.members for run in runs if run.job == "ordering_gaps"), None)
    return Findings(
        run=None if worst_run is None else asdict(worst_run),
        pairs=pairs,
        windows=windows,
        statuses={row["status"]: row["count"] for row in statuses},
        gaps=_gap_rows(tables, unread_nodes(members)) if tables.has(ORDERING_GAPS) else [],
        roster=roster,
        interest=_interest_rows(tables) if tables.has(INTEREST) else [],
    )


def _interest_rows(tables: TableFolder) -> list[Row]:
    order = F.col("until_at").desc_nulls_first(), "topic", "node", "number"
    return _rows(tables.read(INTEREST).orderBy(*order).limit(INTEREST_SHOWN_MAX))


def _gap_rows(tables: TableFolder, unread: Sequence[str]) -> list[Row]:
    lines = tables.read(ORDERING_GAPS).where(F.col("line") == "stream")
    is_expected = F.coalesce(F.col("expected") > 0, F.lit(True))
    lines = lines.where((F.col("state") == "REPAIRED") | ((F.col("state") == "MISSING") & is_expected))
    is_unread = (F.col("state") == "MISSING") & F.col("is_tail") & F.col("node_id").isin(list(unread))
    lines = lines.withColumn("state", F.when(is_unread, "NOT READ").otherwise(F.col("state")))
    latest = F.coalesce("repaired_at", F.current_timestamp()).desc()
    return _rows(lines.orderBy(latest, "node_id", "first").limit(GAPS_SHOWN_MAX))


def _rows(frame: Any) -> list[Row]:
    return [in_utc(row.asDict(recursive=True)) for row in frame.collect()]


# ---- the page, from plain values


def page(found: Findings, now: datetime) -> str:
    names = {row["node_id"]: row["name"] for row in sorted(found.roster, key=lambda row: int(row["incarnation"]))}

    def name(node_id: str) -> str:
        return "all nodes" if node_id == EVERYBODY else str(names.get(node_id, node_id[:8]))

    sections = [
        ("Result", _verdict(found)),
        ("Completeness: percentage of expected rows, from origin (rows) to receiver (columns)", _heat(found, name)),
        ("Highest latency of any stream and receiver, by time of publication", _latency(found)),
        ("Gaps by receiver: missing (red), repaired (blue), not read (grey)", _gaps(found, name, now)),
        ("Graph of the nodes, as last reported by each", _graph(found)),
        ("Ranges that are missing or not read", _missing(found, name)),
        ("Who wanted what", _wanted(found)),
    ]
    body = "\n".join(f"<section><h2>{escape(title)}</h2>\n{content}\n</section>" for title, content in sections)
    return PAGE.format(style=STYLE, when=f"{now:%Y-%m-%d %H:%M:%S} UTC", body=body)


def _verdict(found: Findings) -> str:
    if found.run is None:
        return '<p class="none">No job has run yet.</p>'
    run = found.run
    facts = [
        ("verdict", run["verdict"], run["verdict"] == "OK"),
        ("rows missing", f"{run['missing']:,}", run["missing"] == 0),
        ("rows given up", f"{run['lost']:,}", run["lost"] == 0),
        ("rows not read", f"{run['not_read'] or 0:,}", not run["not_read"]),
        ("rows duplicated", f"{run['duplicates']:,}", run["duplicates"] == 0),
        ("rows unaccounted for", f"{run['unaccounted']:,}", run["unaccounted"] == 0),
    ]
    facts += [
        (f"windows {status}", f"{count:,}", status not in (*BAD, NOT_READ))
        for status, count in sorted(found.statuses.items())
    ]
    tiles = "".join(
        f'<div class="tile {"good" if good else "bad"}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value, good in facts
    )
    until = f", for windows until {run['audited_until']:%Y-%m-%d %H:%M} UTC" if run["audited_until"] else ""
    return (
        f'<div class="tiles">{tiles}</div><p>From the last run of {escape(run["job"])}{until}. Window counts are for '
        "the last day. Rows are not read if a receiver's delivery records were not ingested: whether it received "
        "them is unknown.</p>"
    )


def _heat(found: Findings, name: Callable[[str], str]) -> str:
    if not found.pairs:
        return '<p class="none">No window has been audited yet.</p>'
    cells = {}
    for row in found.pairs:
        absent, not_read = row["missing"] + row["lost"], row["not_read"] or 0
        known = row["expected"] - not_read
        share = None if known == 0 else 100 * (known - absent) / known
        delivered = f"{floor_percent(share)} % of {known:,} rows" if share is not None else "nothing expected"
        delivered = "not read" if share is None and not_read else delivered
        also = f", {not_read:,} not read" if not_read and share is not None else ""
        pair = f"{name(row['origin'])} to {name(row['node_id'])}"
        hint = f"{pair}: {delivered}, {absent:,} missing{also}, {row['duplicates']:,} duplicated"
        cells[name(row["origin"]), name(row["node_id"])] = Cell(share, hint)
    origins, receivers = (sorted({key[at] for key in cells}, key=_natural) for at in (0, 1))
    return heat_map(origins, receivers, cells)


def _latency(found: Findings) -> str:
    times = [row["window_start"] for row in found.windows]
    return curves(times, {label: [row[column] for row in found.windows] for label, column in SERIES.items()}, "ms")


def _gaps(found: Findings, name: Callable[[str], str], now: datetime) -> str:
    bars = []
    for row in found.gaps:
        if row["node_id"] == EVERYBODY or row["first_seen_at"] is None:
            continue
        end = row["repaired_at"] or now
        what = f"{name(row['origin'])}/{row['topic']} {row['first']:,} to {row['last']:,}"
        since = f"{row['first_seen_at']:%H:%M:%S} to {end:%H:%M:%S}"
        hint = f"{what}: {row['state'].lower()}{', at the end' if row['is_tail'] else ''}, {since}"
        bars.append(Bar(name(row["node_id"]), row["first_seen_at"], end, STATE_COLOURS[row["state"]], hint))
    begin = min((bar.begin for bar in bars), default=now)
    return time_line(begin, max((bar.end for bar in bars), default=now), bars)


def _missing(found: Findings, name: Callable[[str], str]) -> str:
    rows = [row for row in found.gaps if row["state"] != "REPAIRED"]
    if not rows:
        return '<p class="none">Nothing is missing.</p>'
    lines = [
        (name(row["node_id"]), name(row["origin"]), row["topic"], row["first"], row["last"], _how(row)) for row in rows
    ]
    cells = "".join(
        f"<tr><td>{escape(receiver)}</td><td>{escape(origin)}</td><td>{escape(topic)}</td>"
        f"<td class=n>{first:,}</td><td class=n>{last:,}</td><td>{how}</td></tr>"
        for receiver, origin, topic, first, last, how in lines
    )
    head = "".join(f"<th>{each}</th>" for each in ("receiver", "origin", "topic", "first", "last", ""))
    return f'<div class="chart"><table><tr>{head}</tr>{cells}</table></div>'


def _wanted(found: Findings) -> str:
    if not found.interest:
        return '<p class="none">Nobody has registered anything.</p>'
    cells = "".join(
        f"<tr><td>{escape(row['node'])}</td><td>{escape(row['topic'])}</td>"
        f"<td>{escape(row['condition'] or 'every row')}</td><td>{escape(row['owner'] or 'the node')}</td>"
        f"<td class=n>{row['epoch']}</td><td>{_moment(row['from_at'])}</td><td>{_moment(row['until_at'])}</td></tr>"
        for row in found.interest
    )
    head = "".join(f"<th>{each}</th>" for each in ("node", "topic", "rows", "owner", "epoch", "from", "until"))
    return f'<div class="chart"><table><tr>{head}</tr>{cells}</table></div>'


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _how(row: Row) -> str:
    if row["state"] == "NOT READ":
        return "not read"
    return "missing at the end" if row["is_tail"] else "missing"


def _graph(found: Findings) -> str:
    here = [row for row in found.roster if row["to_at"] is None]
    if not here:
        return '<p class="none">The roster is empty.</p>'
    nodes = [
        {
            "node_id": row["node_id"],
            "name": row["name"],
            "address": row["address"],
            "leaving": False,
            "neighbours": row["neighbours"] or [],
        }
        for row in here
    ]
    answers = [
        (
            {"node_id": row["node_id"], "state": "apart" if row["silent"] or not row["neighbours"] else "heard"},
            {"node_id": row["node_id"], "nodes": nodes},
        )
        for row in here
    ]
    return f'<div class="chart">{drawn(Topology.of(answers))}</div>'


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --soft: #808890; --card: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #12161c; --card: #1c222b; } }
body { margin: 0 auto; padding: 16px; max-width: 1200px; font: 16px/1.5 system-ui, sans-serif;
       color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .6rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.tile { background: var(--card); border-left: 5px solid #2e9e5b; border-radius: 6px; padding: 8px 12px; }
.tile.bad { border-color: #d64545; } .tile b { display: block; font-size: 1.2rem; } .tile span { font-size: .85rem; }
.chart { overflow-x: auto; max-width: 100%; } svg { font: 13px system-ui, sans-serif; display: block; }
svg text { fill: var(--ink); } svg text.in { fill: #fff; font-size: 12px; }
.grid { stroke: var(--soft); stroke-opacity: .3; }
table { border-collapse: collapse; font-size: .9rem; } td, th { padding: 3px 12px 3px 0; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .none { color: var(--soft); }
"""
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>m4cast: delivery report</title><link rel="icon" href="data:,"><style>{style}</style></head>
<body><h1>m4cast: delivery report</h1><p>{when}</p>
{body}
</body></html>
"""
