"""The graph that is put together from what nodes tell, and its picture."""

from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from m4cast.topology.beside import Beside, GatewayBeside, UnitBeside
from m4cast.topology.graph import NODES_EXAMINED_MAX, Topology
from m4cast.topology.picture import COLOURS, drawn

SVG = "{http://www.w3.org/2000/svg}"


def told_by(asker: str, neighbours: dict[str, str], leaving: str = "", name: str = "") -> tuple[Any, Any]:
    """The words of a node: one letter is the id of a node, its neighbours are written as letters."""
    nodes = [
        {
            "node_id": node_id,
            "name": name or node_id,
            "site": "",
            "address": f"{node_id}:7400",
            "incarnation": 1,
            "leaving": node_id in leaving,
            "neighbours": list(theirs),
        }
        for node_id, theirs in neighbours.items()
    ]
    return {"node_id": asker, "state": "full"}, {"node_id": asker, "nodes": nodes}


RING = {"a": "bd", "b": "ac", "c": "bd", "d": "ac"}


def test_links_reported_by_both_ends_count() -> None:
    graph = Topology.of([told_by("a", {"a": "b", "b": "ac", "c": ""})])
    assert graph.named(graph.links) == [["a", "b"]]
    assert graph.named(graph.half_links) == [["b", "c"]]
    assert [(node.name, node.state) for node in graph.nodes] == [("a", "full"), ("b", "heard"), ("c", "apart")]
    assert graph.components == [["a", "b"], ["c"]]


def test_a_node_is_believed_about_itself() -> None:
    old = {"a": "bc", "b": "a", "c": "a"}
    graph = Topology.of([told_by("a", old), told_by("b", {"a": "c", "b": "c", "c": "a"})])
    assert graph.named(graph.links) == [["a", "c"]]
    assert graph.named(graph.half_links) == [["a", "b"], ["b", "c"]]
    assert [node.state for node in graph.nodes] == ["full", "full", "heard"]


def test_nodes_that_have_left_are_not_in_it() -> None:
    graph = Topology.of([told_by("a", {"a": "b", "b": "ac", "c": "b"}, leaving="c")])
    assert [node.name for node in graph.nodes] == ["a", "b"]
    assert graph.half_links == ()


@pytest.mark.parametrize(
    ("neighbours", "diameter", "lynchpins"),
    [
        ({"a": ""}, 0, []),
        ({"a": "b", "b": "a"}, 1, []),
        ({"a": "b", "b": "ac", "c": "b"}, 2, ["b"]),
        (RING, 2, []),
        ({"a": "bc", "b": "ac", "c": "abde", "d": "ce", "e": "cd"}, 2, ["c"]),
    ],
)
def test_what_the_graph_survives(neighbours: dict[str, str], diameter: int, lynchpins: list[str]) -> None:
    graph = Topology.of([told_by("a", neighbours)])
    assert (graph.diameter, graph.lynchpins) == (diameter, lynchpins)
    assert len(graph.components) == 1


def test_a_large_graph_is_not_searched() -> None:
    names = [f"n{number}" for number in range(NODES_EXAMINED_MAX + 1)]
    nodes = [
        {**told_by("x", {"x": ""})[1]["nodes"][0], "node_id": name, "name": name, "neighbours": []} for name in names
    ]
    graph = Topology.of([({"node_id": "n0", "state": "full"}, {"node_id": "n0", "nodes": nodes})])
    assert graph.lynchpins is None
    assert [node.name for node in graph.nodes[:3]] == ["n0", "n1", "n2"]


def test_nodes_of_one_name_are_distinguished() -> None:
    graph = Topology.of([told_by("a", {"a": "b", "b": "a"}, name="node")])
    assert [node.name for node in graph.nodes] == ["node.a", "node.b"]


def test_the_picture_is_svg_with_every_node_and_link() -> None:
    neighbours = {**RING, "e": "a"}
    svg = Xml.fromstring(drawn(Topology.of([told_by("a", neighbours, name="<&>")])))
    assert svg.tag == f"{SVG}svg"
    lines = svg.findall(f"{SVG}line")
    assert len(lines) == 5
    assert [line.get("stroke-dasharray") is not None for line in lines] == [False] * 4 + [True]
    labels = [text.text for text in svg.findall(f"{SVG}text")]
    assert [f"<&>.{letter}" for letter in "abcde"] == labels[:5]
    fills = [circle.get("fill") for circle in svg.findall(f"{SVG}circle")]
    assert fills[:5] == [COLOURS["full"], *[COLOURS["heard"]] * 3, COLOURS["apart"]]


def test_every_state_has_a_colour_and_a_style() -> None:
    from m4cast.console.screen import STATE_STYLES
    from m4cast.topology.picture import MEANINGS

    assert set(COLOURS) == set(MEANINGS) == {"full", "partial", "seeking", "heard", "apart"}
    assert set(STATE_STYLES) == {*COLOURS, "silent", "down"}  # the last two: by a local cluster


def test_a_gateway_ends_at_the_border_of_its_unit() -> None:
    """So it does not cross the name inside."""
    units = tuple(UnitBeside(name, name, is_reached=True) for name in ("x", "y", "z"))
    gateways = tuple(GatewayBeside((unit.unit_id, "a"), 1, 1, "up") for unit in units)
    svg = Xml.fromstring(drawn(Topology.of([told_by("a", RING)]), beside=Beside(units, gateways)))
    boxes = [
        {name: float(rect.attrib[name]) for name in ("x", "y", "width", "height")} for rect in svg.iter(f"{SVG}rect")
    ]
    ends = [
        (float(line.attrib["x1"]), float(line.attrib["y1"]))
        for line in svg.iter(f"{SVG}line")
        if "gateway" in line.findtext(f"{SVG}title", "")
    ]
    assert len(boxes) == len(ends) == 3
    for box, (x, y) in zip(boxes, ends, strict=True):
        across, down = abs(x - box["x"] - box["width"] / 2), abs(y - box["y"] - box["height"] / 2)
        assert max(across / box["width"], down / box["height"]) == pytest.approx(0.5, abs=0.01)
