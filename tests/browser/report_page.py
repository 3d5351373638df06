"""The report of a channel with trouble, from what the brute-force references say of it: no Spark is needed."""

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

from m4cast.jobs.report.findings import COUNTS, SERIES, Findings
from m4cast.jobs.report.page import STATE_COLOURS, page
from m4cast.schemas.tables.delivery_audit import BAD
from tests.jobs.audit_by_hand import audit_by_hand
from tests.jobs.gaps_by_hand import gaps_by_hand
from tests.jobs.scenarios import BEGIN, channel


def findings() -> Findings:
    made = channel()
    audited = audit_by_hand(made.records, made.roster, 30_000)
    pairs: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    minutes: dict[datetime, dict[str, Any]] = defaultdict(dict)
    topics: dict[str, Counter[str]] = defaultdict(Counter)
    published: dict[tuple[datetime, str, str], int] = {}
    bad = []
    for (window, origin, topic, node), row in audited.items():
        pairs[origin, node].update({name: row[name] for name in COUNTS})
        topics[topic].update({name: row[name] for name in COUNTS if name != "published"})
        published[window, origin, topic] = row["published"]
        if row["status"] in BAD:
            bad.append({"window_start": window, "origin": origin, "topic": topic, "node_id": node, **row})
        for column in SERIES.values():
            values = [value for value in (row[column], minutes[window].get(column)) if value is not None]
            minutes[window][column] = max(values, default=None)
    gaps = [
        each._asdict() for each in gaps_by_hand(made.records) if each.line == "stream" and each.state in STATE_COLOURS
    ]
    totals = {name: sum(row[name] for row in audited.values()) for name in COUNTS[2:]}
    run = {
        "job": "delivery_audit",
        "verdict": "INCOMPLETE",
        "unaccounted": 0,
        "audited_until": BEGIN + timedelta(minutes=40),
    }
    return Findings(
        run | totals,
        [{"origin": origin, "node_id": node, **counts} for (origin, node), counts in pairs.items()],
        [{"window_start": window, **row} for window, row in sorted(minutes.items())],
        [
            {
                "topic": topic,
                **counts,
                "published": sum(rows for (_, _, each), rows in published.items() if each == topic),
                "origins": len({origin for _, origin, each in published if each == topic}),
            }
            for topic, counts in topics.items()
        ],
        sorted(bad, key=lambda row: row["window_start"], reverse=True),
        dict(Counter(row["status"] for row in audited.values())),
        sorted(gaps, key=lambda row: (row["node_id"], row["first"])),
        [membership.as_row(0) for membership in made.roster],
        interest=[
            {
                "node": node,
                "topic": "orders",
                "condition": condition,
                "owner": owner,
                "epoch": epoch,
                "from_at": BEGIN + timedelta(minutes=epoch),
                "until_at": BEGIN + timedelta(minutes=30) if owner else None,
            }
            for epoch, (node, condition, owner) in enumerate(
                [("n1", "", ""), ("n2", "price > 100", "warehouse"), ("n3", "country = 'NL'", "shop-7")], start=3
            )
        ],
    )


def report_page() -> str:
    return page(findings(), BEGIN + timedelta(minutes=45))
