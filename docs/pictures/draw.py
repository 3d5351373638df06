"""Draws the pictures of the documentation: `python docs/pictures/draw.py` writes `channel.svg` and `row.svg` beside it.

Plain SVG without fonts, scripts or links, readable on light and dark backgrounds.
"""

from collections.abc import Callable
from math import cos, pi, sin
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
GREY = "#7d8590"
GREEN = "#2e9e5b"
BLUE = "#3a7bd5"
AMBER = "#c98a00"


class Drawing:
    """Lines of SVG; y grows downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="14" role="img">',
            f"<title>{escape(title)}</title>",
        ]

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY, dashes: str = "") -> None:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._lines.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.5"{dashed}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY, dashes: str = "") -> None:
        self.line(x1, y1, x2, y2, colour, dashes)
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
        left = (x2 - 9 * along_x + 4 * along_y, y2 - 9 * along_y - 4 * along_x)
        right = (x2 - 9 * along_x - 4 * along_y, y2 - 9 * along_y + 4 * along_x)
        points = " ".join(f"{round(x, 1):g},{round(y, 1):g}" for x, y in ((x2, y2), left, right))
        self._lines.append(f'<polygon points="{points}" fill="{colour}"/>')

    def box(self, x: float, y: float, width: float, height: float, colour: str = GREY) -> None:
        self._lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{colour}" fill-opacity="0.12" stroke="{colour}" stroke-width="1.5"/>'
        )

    def circle(self, x: float, y: float, radius: float, colour: str) -> None:
        self._lines.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def text(self, x: float, y: float, words: str, *, size: int = 14, colour: str = GREY, code: bool = False) -> None:
        family = ' font-family="monospace"' if code else ""
        self._lines.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="{size}" fill="{colour}"{family}>'
            f"{escape(words)}</text>"
        )

    def finished(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])


def channel() -> str:
    """Six nodes of degree 4, the pipelines that publish on the left, and those that receive on the right."""
    drawing = Drawing(880, 330, "Pipelines publish to one node of a channel; every node delivers every row")
    centre_x, centre_y, radius = 440, 155, 110
    places = [
        (round(centre_x - radius * cos(number * pi / 3), 1), round(centre_y - radius * sin(number * pi / 3), 1))
        for number in range(6)
    ]
    for first in range(6):
        for second in range(first + 1, 6):
            if second - first != 3:  # everybody but the opposite node is a neighbour
                drawing.line(*places[first], *places[second], GREEN)

    def client(x: float, y: float, what: str, how: str, colour: str) -> None:
        drawing.box(x, y, 210, 52, colour)
        drawing.text(x + 105, y + 22, what)
        drawing.text(x + 105, y + 41, how, size=12, code=True)

    client(20, 129, "Spark pipeline, site A", "df.writeStream", BLUE)
    client(20, 15, "Kafka topic", "m4cast bridge kafka-in", GREY)
    client(20, 243, "Python", "Channel.publish", GREY)
    client(650, 15, "Spark pipeline, site B", "spark.readStream", BLUE)
    client(650, 129, "Delta tables, site C", "m4cast ingest", AMBER)
    client(650, 243, "Python, command line", "m4cast tail", GREY)
    publishing = [(230.0, 155.0, 0), (230.0, 41.0, 1), (230.0, 269.0, 5)]
    receiving = [(650.0, 41.0, 2), (650.0, 155.0, 3), (650.0, 269.0, 4)]
    for x, y, number in (*publishing, *receiving):
        node_x, node_y = places[number]
        edge = 16 if node_x > x else -16
        published = (x, y, number) in publishing
        ends = (x, y, node_x - edge, node_y) if published else (node_x - edge, node_y, x, y)
        drawing.arrow(*ends)
    for number, (x, y) in enumerate(places, 1):
        drawing.circle(x, y, 13, GREEN)
        drawing.text(x, y + 4, f"n{number}", size=12, colour="#ffffff")
    drawing.text(centre_x, 318, "nodes: each with a durable log and 4 neighbours; no broker", size=13)
    return drawing.finished()


LANES = (
    ("Spark task", BLUE),
    ("Spark driver", BLUE),
    ("A: door", GREY),
    ("A: loop", GREEN),
    ("A: writer", AMBER),
    ("B: loop", GREEN),
    ("B: writer", AMBER),
    ("B: door", GREY),
    ("reader", BLUE),
)
STEPS: tuple[tuple[int, int, str], ...] = (
    (0, 2, "DoPut: stage Arrow batches"),
    (2, 3, "stage"),
    (3, 4, "append"),
    (4, 3, "durable (fsync)"),
    (3, 0, "stage ids"),
    (1, 2, "commit, with key"),
    (2, 3, "commit"),
    (3, 4, "numbers, key: append"),
    (4, 3, "durable (fsync)"),
    (3, 5, "announce"),
    (5, 3, "pull"),
    (3, 5, "batch, as the origin encoded it"),
    (5, 6, "append, in order"),
    (6, 5, "durable (fsync)"),
    (5, 3, "durable up to here"),
    (3, 2, "acks reached"),
    (2, 1, "sequences"),
    (8, 7, "DoGet: range, tail"),
    (7, 8, "rows, in order"),
)
"""Sender, receiver, what; as docs/PROTOCOL.md, 5, 6 and 10, has it for a staged batch and `acks` of 1 or more."""


def row() -> str:
    """The life of a row that Spark publishes through node A and somebody reads at node B."""
    gap, top, step = 124, 46, 34
    height = top + step * (len(STEPS) + 1)
    drawing = Drawing(len(LANES) * gap, height, "The life of a row, from a Spark task to a reader")

    def at(lane: int) -> float:
        return gap / 2 + lane * gap

    for lane, (name, colour) in enumerate(LANES):
        drawing.line(at(lane), top, at(lane), top + step * (len(STEPS) + 0.6), colour, "3 4")
        drawing.box(at(lane) - 50, 12, 100, 30, colour)
        drawing.text(at(lane), 32, name, size=13)
    for number, (sender, receiver, words) in enumerate(STEPS, 1):
        y = top + step * number
        drawing.arrow(at(sender), y, at(receiver), y, GREY)
        drawing.text((at(sender) + at(receiver)) / 2, y - 6, words, size=12)
    return drawing.finished()


PICTURES: dict[str, Callable[[], str]] = {"channel.svg": channel, "row.svg": row}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
