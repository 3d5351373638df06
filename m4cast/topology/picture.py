"""A drawing of a topology: nodes on a circle, coloured by state, and links, dashed if only one end reports them.

It is plain SVG that needs no other file and fits light and dark backgrounds.
"""

from collections.abc import Iterable
from math import cos, pi, sin
from pathlib import Path
from xml.etree import ElementTree as Xml

from m4cast.overlay.errors import M4castError
from m4cast.topology.graph import Topology

RADIUS_MIN = 150
NODE_RADIUS = 9
ARC = 44
"""Length of the circle per node."""
MARGIN = 90
COLOURS = {"full": "#2e9e5b", "partial": "#e0a100", "seeking": "#e0a100", "heard": "#3a7bd5", "apart": "#d64545"}
MEANINGS = {
    "full": "on the channel",
    "partial": "on the channel, neighbours missing",
    "seeking": "not on the channel yet",
    "heard": "known from other nodes",
    "apart": "no known link",
}
GREY = "#808890"
TREE = "#7a4fd0"


def write_svg(topology: Topology, path: Path, tree: Iterable[tuple[str, str]] = ()) -> None:
    """`tree`: pairs of ids; these links are drawn thick."""
    try:
        path.write_text(drawn(topology, tree), encoding="utf-8")
    except OSError as error:
        raise M4castError(f"{path}: cannot be written: {error.strerror}") from error


def drawn(topology: Topology, tree: Iterable[tuple[str, str]] = ()) -> str:
    """The text of the SVG file."""
    thick = {frozenset(pair) for pair in tree}
    radius = max(RADIUS_MIN, ARC * len(topology.nodes) / (2 * pi))
    states = [state for state in COLOURS if any(node.state == state for node in topology.nodes)]
    width = 2 * (radius + MARGIN)
    height = width + 24 * (len(states) + 1)
    centre = radius + MARGIN
    places = {
        node.node_id: (2 * pi * index / len(topology.nodes) - pi / 2) for index, node in enumerate(topology.nodes)
    }

    def at(node_id: str, distance: float) -> tuple[float, float]:
        return centre + distance * cos(places[node_id]), centre + distance * sin(places[node_id])

    svg = Xml.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "font-family": "sans-serif",
            "font-size": "13",
            "fill": GREY,
        },
    )
    summary = f"{len(topology.nodes)} nodes, {len(topology.links)} links, diameter {topology.diameter}"
    Xml.SubElement(svg, "title").text = summary
    for links, dashes in ((topology.links, {}), (topology.half_links, {"stroke-dasharray": "4 5"})):
        for one, other in links:
            (x1, y1), (x2, y2) = at(one, radius), at(other, radius)
            ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
            drawn_as = {"stroke": TREE, "stroke-width": "4"} if {one, other} in thick else {"stroke": GREY}
            line = Xml.SubElement(svg, "line", {**ends, "stroke-width": "1.4", **drawn_as, **dashes})
            Xml.SubElement(line, "title").text = f"{topology.name(one)} - {topology.name(other)}"
    for node in topology.nodes:
        x, y = at(node.node_id, radius)
        circle = Xml.SubElement(
            svg, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": str(NODE_RADIUS), "fill": COLOURS[node.state]}
        )
        Xml.SubElement(circle, "title").text = f"{node.name} at {node.listen}: {node.state}"
        x, y = at(node.node_id, radius + 2.2 * NODE_RADIUS)
        side = cos(places[node.node_id])
        anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
        label = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "dominant-baseline": "middle"}
        Xml.SubElement(svg, "text", label).text = node.name
    _line_of_text(svg, width, summary)
    for number, state in enumerate(states, 1):
        y = width + 24 * number
        Xml.SubElement(svg, "circle", {"cx": "20", "cy": f"{y - 4:.0f}", "r": "6", "fill": COLOURS[state]})
        _line_of_text(svg, y, f"{state}: {MEANINGS[state]}", x=34)
    Xml.indent(svg)
    return Xml.tostring(svg, encoding="unicode") + "\n"


def _line_of_text(svg: Xml.Element, y: float, text: str, x: float = 14) -> None:
    Xml.SubElement(svg, "text", {"x": f"{x:.0f}", "y": f"{y:.0f}"}).text = text
