"""The report: one self-contained HTML file about the last day, from the tables of gaps and audit.

It loads nothing and runs no script: the charts are SVG, the styles are in the page, in the colours of the console.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from m4cast.jobs.report.charts import Bar, Cell, curves, floor_percent, heat_map, time_line
from m4cast.jobs.report.findings import SERIES, WINDOWS_SHOWN_MAX, Findings, Row, find
from m4cast.jobs.report.style import STYLE
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.delivery_audit import BAD, NOT_READ
from m4cast.schemas.tables.ordering_gaps import EVERYBODY
from m4cast.topology.graph import Topology
from m4cast.topology.picture import drawn

STATE_COLOURS = {"REPAIRED": "#3a7bd5", "MISSING": "#d64545", "NOT READ": "#808890"}
Name = Callable[[str], str]

ADVICE = {
    "INCOMPLETE": "Some rows did not arrive. What a node still retains is fetched once the receiver reaches that node: "
    "check its links (m4cast topology). Rows that were given up are lost to it: publish them again.",
    "STALLED": "Nothing arrived, though the receiver is heard. Look at its log, its disk and m4cast_missing_rows, and "
    "restart it if /healthz fails.",
    "SILENT": "Nothing arrived, and the receiver is not heard: it is down or cut off. Start it, and it fetches what is "
    "retained.",
    NOT_READ: "It is unknown, because the receiver's delivery records were not ingested. Ingest them (m4cast ingest "
    "--only deliveries), then audit again.",
}
VERDICTS = {
    "OK": "Every row that was expected at a node has arrived there.",
    "NOT_READ": "Nothing is known to be missing, but the delivery records that would tell were not all read.",
    "INCOMPLETE": "Rows are missing. The table of bad windows says where, and what to do.",
}


def write_report(tables: TableFolder, path: Path) -> None:
    try:
        path.write_text(page(find(tables), datetime.now(UTC)), encoding="utf-8")
    except OSError as error:
        raise M4castError(f"{path}: cannot be written: {error.strerror}") from error


def page(found: Findings, now: datetime) -> str:
    names = {row["node_id"]: row["name"] for row in sorted(found.roster, key=lambda row: int(row["incarnation"]))}

    def name(node_id: str) -> str:
        return "all nodes" if node_id == EVERYBODY else str(names.get(node_id, node_id[:8]))

    sections = [
        ("Topics and their volume, in rows", _topics(found)),
        ("Bad windows, and what to do", _bad_windows(found, name)),
        ("Completeness: percentage of expected rows, from origin (rows) to receiver (columns)", _heat(found, name)),
        ("Highest latency of any stream and receiver, by time of publication", _latency(found)),
        ("Gaps by receiver: missing (red), repaired (blue), not read (grey)", _gaps(found, name, now)),
        ("Ranges that are missing or not read", _missing(found, name)),
        ("Who wanted what", _wanted(found)),
        ("Nodes that have left or restarted", _left(found)),
        ("Graph of the nodes, as last reported by each", _graph(found)),
    ]
    body = "\n".join(f"<section><h2>{escape(title)}</h2>\n{content}\n</section>" for title, content in sections)
    return PAGE.format(style=STYLE, when=f"{now:%Y-%m-%d %H:%M:%S} UTC", verdict=_verdict(found), body=body)


def _verdict(found: Findings) -> str:
    if found.run is None:
        return (
            '<div class="verdict unknown"><b>No job has run yet</b><p>Run m4cast gaps and m4cast audit first.</p></div>'
        )
    run = found.run
    facts = [
        ("rows missing", run["missing"]),
        ("rows given up", run["lost"]),
        ("rows not read", run["not_read"] or 0),
        ("rows duplicated", run["duplicates"]),
        ("rows unaccounted for", run["unaccounted"]),
    ]
    tiles = [_tile(label, value, is_good=not value) for label, value in facts]
    tiles += [
        _tile(f"windows {status}", count, is_good=status not in (*BAD, NOT_READ))
        for status, count in sorted(found.statuses.items())
    ]
    kind = {"OK": "good", "NOT_READ": "warn"}.get(run["verdict"], "bad")
    until = f", for windows until {run['audited_until']:%Y-%m-%d %H:%M} UTC" if run["audited_until"] else ""
    return (
        f'<div class="verdict {kind}"><b>{escape(run["verdict"])}</b><p>{escape(VERDICTS[run["verdict"]])}</p>'
        f'<p class="soft">By the last run of {escape(run["job"])}{until}. Windows are those of the last day.</p></div>'
        f'<div class="tiles">{"".join(tiles)}</div>'
    )


def _tile(label: str, value: int, *, is_good: bool) -> str:
    return f'<div class="tile {"good" if is_good else "bad"}"><span>{escape(label)}</span><b>{value:,}</b></div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str | int | None]]) -> str:
    """Columns of numbers are aligned to the right; None is shown as a dash."""

    def cell(value: str | int | None) -> str:
        if isinstance(value, int):
            return f'<td class="n">{value:,}</td>'
        return f"<td>{escape(value) if value is not None else '-'}</td>"

    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    kinds = [' class="n"' if isinstance(value, int) else "" for value in rows[0]]
    titles = "".join(f'<th scope="col"{kind}>{escape(title)}</th>' for title, kind in zip(head, kinds, strict=True))
    return (
        f'<div class="chart" tabindex="0"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _topics(found: Findings) -> str:
    if not found.topics:
        return '<p class="none">No window has been audited yet.</p>'
    head = (
        "topic",
        "origins",
        "rows published",
        "deliveries expected",
        "missing",
        "given up",
        "not read",
        "duplicated",
    )
    names = ("topic", "origins", "published", "expected", "missing", "lost", "not_read", "duplicates")
    return _table(head, [[row[name] or (0 if name != "topic" else "") for name in names] for row in found.topics])


def _bad_windows(found: Findings, name: Name) -> str:
    if not found.bad_windows:
        return '<p class="none">None: every window is complete.</p>'
    present = dict.fromkeys(row["status"] for row in found.bad_windows)
    advice = "".join(f"<dt>{escape(status)}</dt><dd>{escape(ADVICE[status])}</dd>" for status in present)
    rows = [
        (
            f"{row['window_start']:%Y-%m-%d %H:%M}",
            row["status"],
            name(row["node_id"]),
            name(row["origin"]),
            row["topic"],
            row["expected"],
            row["missing"] + row["lost"],
            row["not_read"] or 0,
        )
        for row in found.bad_windows
    ]
    head = ("published, UTC", "status", "receiver", "origin", "topic", "expected", "missing or given up", "not read")
    more = f"<p class='soft'>The latest {WINDOWS_SHOWN_MAX}.</p>" if len(rows) == WINDOWS_SHOWN_MAX else ""
    return f"<dl>{advice}</dl>{_table(head, rows)}{more}"


def _left(found: Findings) -> str:
    gone = sorted((row for row in found.roster if row["to_at"] is not None), key=lambda row: row["to_at"], reverse=True)
    if not gone:
        return '<p class="none">No node has left or restarted.</p>'
    rows = [(row["name"], row["incarnation"], f"{row['to_at']:%Y-%m-%d %H:%M:%S}", row["reason"]) for row in gone]
    return _table(("node", "incarnation", "until, UTC", "why"), rows)


def _wanted(found: Findings) -> str:
    if not found.interest:
        return '<p class="none">Nobody has registered anything.</p>'
    rows = [
        [
            row["node"],
            row["topic"],
            row["condition"] or "every row",
            row["owner"] or "the node",
            str(row["epoch"]),
            _moment(row["from_at"]),
            _moment(row["until_at"]),
        ]
        for row in found.interest
    ]
    return _table(("node", "topic", "rows", "owner", "epoch", "from, UTC", "until, UTC"), rows)


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _heat(found: Findings, name: Name) -> str:
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


def _gaps(found: Findings, name: Name, now: datetime) -> str:
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


def _missing(found: Findings, name: Name) -> str:
    rows = [row for row in found.gaps if row["state"] != "REPAIRED"]
    if not rows:
        return '<p class="none">Nothing is missing.</p>'
    lines = [
        (name(row["node_id"]), name(row["origin"]), row["topic"], row["first"], row["last"], _how(row)) for row in rows
    ]
    return _table(("receiver", "origin", "topic", "first", "last", "state"), lines)


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


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>m4cast: delivery report</title><link rel="icon" href="data:,"><style>{style}</style></head>
<body><header><h1>m4cast: delivery report</h1><p class="soft">{when}</p></header>
{verdict}
{body}
</body></html>
"""
