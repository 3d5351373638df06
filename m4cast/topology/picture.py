"""A drawing of a topology: nodes on a circle, coloured by state, and links, dashed if only one end reports them. Units
beside the channel are boxes on a wider circle, with their gateways.

It is plain SVG that needs no other file and fits light and dark backgrounds.
"""

from collections.abc import Container, Iterable, Mapping
from math import cos, pi, sin
from pathlib import Path
from xml.etree import ElementTree as Xml

from m4cast.overlay.errors import M4castError
from m4cast.topology.beside import Beside, GatewayBeside
from m4cast.topology.graph import Topology

RADIUS_MIN = 150
NODE_RADIUS = 9
ARC = 44
"""Length of the circle per node."""
MARGIN = 90
BESIDE = 170
"""Distance from the circle of the nodes to that of the units beside the channel."""
BOX_WIDTH, BOX_HEIGHT = 130, 34
BOX_ARC = 150
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
GATEWAY = "#b5651d"


def write_svg(
    topology: Topology, path: Path, tree: Iterable[tuple[str, str]] = (), beside: Beside | None = None
) -> None:
    """`tree`: pairs of ids; these links are drawn thick."""
    try:
        path.write_text(drawn(topology, tree, beside), encoding="utf-8")
    except OSError as error:
        raise M4castError(f"{path}: cannot be written: {error.strerror}") from error


def drawn(topology: Topology, tree: Iterable[tuple[str, str]] = (), beside: Beside | None = None) -> str:
    """The text of the SVG file."""
    thick = {frozenset(pair) for pair in tree}
    units = beside.units if beside is not None else ()
    radius = max(RADIUS_MIN, ARC * len(topology.nodes) / (2 * pi))
    outer = max(radius + BESIDE, BOX_ARC * len(units) / (2 * pi)) if units else radius
    states = [state for state in COLOURS if any(node.state == state for node in topology.nodes)]
    width = 2 * (outer + MARGIN)
    height = width + 24 * (len(states) + 1 + bool(units))
    centre = outer + MARGIN
    places = {
        node.node_id: (2 * pi * index / len(topology.nodes) - pi / 2) for index, node in enumerate(topology.nodes)
    }

    boxes = {unit.unit_id: 2 * pi * (index + 0.5) / len(units) - pi / 2 for index, unit in enumerate(units)}

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
    ends = {node_id: at(node_id, radius) for node_id in places}
    ends |= {unit: (centre + outer * cos(angle), centre + outer * sin(angle)) for unit, angle in boxes.items()}
    for gateway in beside.gateways if beside is not None else ():
        _gateway(svg, gateway, ends, boxes)
    for links, dashes in ((topology.links, {}), (topology.half_links, {"stroke-dasharray": "4 5"})):
        for one, other in links:
            (x1, y1), (x2, y2) = at(one, radius), at(other, radius)
            drawn_as = {"stroke": TREE, "stroke-width": "4"} if {one, other} in thick else {"stroke": GREY}
            line = Xml.SubElement(
                svg, "line", {**_from_to((x1, y1), (x2, y2)), "stroke-width": "1.4", **drawn_as, **dashes}
            )
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
    for unit in units:
        x, y = ends[unit.unit_id]
        box = {"x": f"{x - BOX_WIDTH / 2:.1f}", "y": f"{y - BOX_HEIGHT / 2:.1f}", "rx": "6", "fill": "none"}
        lost = {} if unit.is_reached else {"stroke-dasharray": "4 5"}
        size = {"width": str(BOX_WIDTH), "height": str(BOX_HEIGHT), "stroke-width": "1.6"}
        colour = GATEWAY if unit.is_reached else COLOURS["apart"]
        drawn_box = Xml.SubElement(svg, "rect", {**box, **size, "stroke": colour, **lost})
        Xml.SubElement(drawn_box, "title").text = f"{unit.name}{'' if unit.is_reached else ': out of reach'}"
        label = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": "middle", "dominant-baseline": "middle"}
        Xml.SubElement(svg, "text", label).text = unit.name
    if units:
        gateways = len(beside.gateways) if beside is not None else 0
        _line_of_text(svg, width + 24 * (len(states) + 1), f"boxes: {len(units)} units beside it, {gateways} gateways")
    _line_of_text(svg, width, summary)
    for number, state in enumerate(states, 1):
        y = width + 24 * number
        Xml.SubElement(svg, "circle", {"cx": "20", "cy": f"{y - 4:.0f}", "r": "6", "fill": COLOURS[state]})
        _line_of_text(svg, y, f"{state}: {MEANINGS[state]}", x=34)
    Xml.indent(svg)
    return Xml.tostring(svg, encoding="unicode") + "\n"


def _from_to(one: tuple[float, float], other: tuple[float, float]) -> dict[str, str]:
    (x1, y1), (x2, y2) = one, other
    return {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}


def _gateway(
    svg: Xml.Element, gateway: GatewayBeside, ends: Mapping[str, tuple[float, float]], boxes: Container[str]
) -> None:
    first, last = gateway.ends
    one, other = ends.get(first), ends.get(last)
    if one is None or other is None:
        return  # inside the larger unit that this channel is part of, between units that are drawn as one
    one, other = _border(one, other, first in boxes), _border(other, one, last in boxes)
    dashes = {} if gateway.status == "up" else {"stroke-dasharray": "4 5"}
    line = Xml.SubElement(svg, "line", {**_from_to(one, other), "stroke": GATEWAY, "stroke-width": "2", **dashes})
    Xml.SubElement(line, "title").text = f"gateway of level {gateway.level}: {gateway.status}, cost {gateway.cost}"


def _border(end: tuple[float, float], other: tuple[float, float], is_box: bool) -> tuple[float, float]:
    """The point where a line leaves the box around its end, so that it does not cross the name inside."""
    across, down = other[0] - end[0], other[1] - end[1]
    if not is_box or not (across or down):
        return end
    share = min(BOX_WIDTH / 2 / abs(across) if across else 1, BOX_HEIGHT / 2 / abs(down) if down else 1, 1)
    return end[0] + share * across, end[1] + share * down


def _line_of_text(svg: Xml.Element, y: float, text: str, x: float = 14) -> None:
    Xml.SubElement(svg, "text", {"x": f"{x:.0f}", "y": f"{y:.0f}"}).text = text
