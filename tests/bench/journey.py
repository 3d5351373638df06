"""Draws the way of a batch through a channel of nine real nodes, from their delivery records:
`python -m tests.bench.journey docs/row-journey.svg`.

Of the batches that are published, the one is drawn whose time to the last node is the median. Times have a resolution
of a millisecond, and all nodes have one clock.
"""

import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from m4cast.cluster.local import LocalCluster

NODES = 9
BATCHES = 41
ROWS = 100
PAUSE_S = 0.25
WIDTH, LEFT, TOP, LANE = 760, 70, 46, 34
GREY, GREEN, BLUE = "#7d8590", "#2e9e5b", "#3a7bd5"


class Arrival(NamedTuple):
    """The delivery of a batch at a node."""

    node: str
    ms: float
    hops: int
    sender: str | None
    how: str


def journeys(cluster: LocalCluster, origin: str) -> list[list[Arrival]]:
    """The arrivals of each batch of an origin, in the order of time."""
    with cluster.channel(origin) as channel:
        for batch in range(BATCHES):
            channel.publish("orders", [{"id": batch * ROWS + row, "price": 1.5 * row} for row in range(ROWS)])
            time.sleep(PAUSE_S)
    time.sleep(5 * PAUSE_S)
    found: dict[int, list[dict[str, Any]]] = {}
    for name in cluster.names():
        with cluster.channel(name) as channel:
            for record in channel.deliveries().to_pylist():
                if record["kind"] == "batch" and record["topic"] == "orders":
                    found.setdefault(record["first_sequence"], []).append(record)
    names = {record["node_id"]: record["node"] for record in next(iter(found.values()))}
    return [
        sorted(
            (
                Arrival(
                    node=record["node"],
                    ms=(record["delivered_at"] - record["published_at"]).total_seconds() * 1000,
                    hops=record["hops"],
                    sender=names.get(record["from_node"]),
                    how=record["how"],
                )
                for record in records
            ),
            key=lambda arrival: (arrival.ms, arrival.hops),
        )
        for records in found.values()
        if len(records) == len(names)
    ]


def drawn(arrivals: list[Arrival]) -> str:
    """A lane for each node, in the order of arrival on its disk, and a line from the node that sent it the batch."""
    lanes = {arrival.node: TOP + LANE * at for at, arrival in enumerate(arrivals)}
    height = TOP + LANE * len(arrivals) + 30
    longest = max(arrival.ms for arrival in arrivals)

    def across(ms: float) -> float:
        return LEFT + 20 + ms / max(longest, 1) * (WIDTH - LEFT - 180)

    title = f"The way of a batch of {ROWS} rows through a channel of {len(arrivals)} nodes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
    ]
    for ms in range(int(longest) + 1):
        x = across(ms)
        parts.append(f'<path d="M {x:.1f} {TOP - 18} V {height - 34}" stroke="{GREY}" stroke-opacity="0.3"/>')
        parts.append(_text(x, height - 14, f"{ms} ms", "middle"))
    by_node = {arrival.node: arrival for arrival in arrivals}
    for arrival in arrivals:
        sender = by_node.get(arrival.sender or "")
        if sender is not None:
            x, y = across(sender.ms), lanes[sender.node]
            to_x, to_y = across(arrival.ms), lanes[arrival.node]
            bend = f"C {x:.1f} {to_y} {x:.1f} {to_y} {to_x:.1f} {to_y}"
            parts.append(f'<path d="M {x:.1f} {y} {bend}" fill="none" stroke="{GREEN}" stroke-width="1.5"/>')
    for arrival in arrivals:
        x, y = across(arrival.ms), lanes[arrival.node]
        colour = GREEN if arrival.hops else BLUE
        parts.append(_text(LEFT, y + 5, arrival.node, "end"))
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{colour}"/>')
        what = f"{arrival.how} over {arrival.hops} link{'s' * (arrival.hops > 1)}" if arrival.hops else arrival.how
        parts.append(_text(x + 12, y - 6, what, "start"))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{GREY}">{escape(text)}</text>'


def main(picture: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.make(Path(folder) / "cluster", NODES)
        cluster.up()
        try:
            found = sorted(journeys(cluster, "n1"), key=lambda arrivals: arrivals[-1].ms)
        finally:
            cluster.down()
    print(f"{len(found)} batches; the last node had them after {[arrivals[-1].ms for arrivals in found]} ms")
    Path(picture).write_text(drawn(found[len(found) // 2]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
