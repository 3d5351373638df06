"""The graph of a channel as its nodes report it: which nodes are linked, and which failures the graph survives.

Every node knows its own neighbours exactly and those of other nodes from their beacons, which are some seconds old.
What a node reports about itself takes precedence. A link counts if both ends report it; if only one end does, the link
is new or gone, or the other end is. Nodes that have left are not included.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from m4cast.overlay.errors import M4castError

NAMES_SHOWN_MAX = 20
NODES_EXAMINED_MAX = 200
"""Limit on the size of graphs that are searched for single points of failure; the search takes quadratic time."""


@dataclass(frozen=True)
class TopologyNode:
    node_id: str
    name: str
    """Unique in its topology: includes part of the id if several nodes have the same name."""
    listen: str
    """Address for other nodes."""
    door: str
    """Address for clients; empty if it has no door or has not reported one."""
    state: str
    """As the node reports it (full, partial, seeking). If not asked: `heard`, or `apart` without a known link."""
    neighbours: tuple[str, ...]
    """Ids of the nodes it has links with, ordered by name."""


@dataclass(frozen=True)
class Topology:
    nodes: tuple[TopologyNode, ...]
    links: tuple[tuple[str, str], ...]
    """Pairs of ids; reported by both ends."""
    half_links: tuple[tuple[str, str], ...]
    """Pairs of ids; reported by one end only."""

    @classmethod
    def of(cls, answers: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> "Topology":
        """The topology from the `status` and the `topology` of each node that was asked."""
        known: dict[str, Mapping[str, Any]] = {}
        states: dict[str, str] = {}
        for status, topology in answers:
            states[status["node_id"]] = status["state"]
            for node in topology["nodes"]:
                is_about_itself = node["node_id"] == topology["node_id"]
                if is_about_itself or (node["node_id"] not in known and not node["leaving"]):
                    known[node["node_id"]] = node
        reported = {(node_id, neighbour) for node_id, node in known.items() for neighbour in node["neighbours"]}
        reported = {(one, other) for one, other in reported if other in known}
        links = {pair for pair in reported if pair[::-1] in reported}
        names = _names(known)

        def in_order(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
            ordered = {tuple(sorted(pair, key=lambda node_id: _natural(names[node_id]))) for pair in pairs}
            return tuple(
                sorted(
                    ((one, other) for one, other in ordered), key=lambda pair: [_natural(names[end]) for end in pair]
                )
            )

        neighbours: dict[str, list[str]] = {node_id: [] for node_id in known}
        for one, other in links:
            neighbours[one].append(other)
        nodes = [
            TopologyNode(
                node_id=node_id,
                name=names[node_id],
                listen=node["address"],
                door=node.get("door", ""),
                state=states.get(node_id, "heard" if neighbours[node_id] else "apart"),
                neighbours=tuple(sorted(neighbours[node_id], key=lambda each: _natural(names[each]))),
            )
            for node_id, node in known.items()
        ]
        nodes.sort(key=lambda node: _natural(node.name))
        return cls(tuple(nodes), in_order(links), in_order(reported - links))

    @cached_property
    def _adjacent(self) -> dict[str, tuple[str, ...]]:
        return {node.node_id: node.neighbours for node in self.nodes}

    def name(self, node_id: str) -> str:
        return self._names[node_id]

    @cached_property
    def _names(self) -> dict[str, str]:
        return {node.node_id: node.name for node in self.nodes}

    @cached_property
    def components(self) -> list[list[str]]:
        """The names of the nodes in each connected component, the largest component first."""
        left = [node.node_id for node in self.nodes]
        found = []
        while left:
            reached = self._distances(left[0])
            found.append([self.name(node_id) for node_id in left if node_id in reached])
            left = [node_id for node_id in left if node_id not in reached]
        return sorted(found, key=len, reverse=True)

    @cached_property
    def diameter(self) -> int:
        """The largest number of hops between two nodes of one component."""
        return max((max(self._distances(node.node_id).values()) for node in self.nodes), default=0)

    @cached_property
    def lynchpins(self) -> list[str] | None:
        """The names of nodes each of which splits the channel if it fails; None if the graph is too large to search."""
        if len(self.nodes) > NODES_EXAMINED_MAX:
            return None
        return [node.name for node in self.nodes if self._splits(node)]

    def _splits(self, node: TopologyNode) -> bool:
        if len(node.neighbours) < 2:
            return False
        reached = self._distances(node.neighbours[0], without=node.node_id)
        return any(neighbour not in reached for neighbour in node.neighbours)

    def _distances(self, start: str, without: str = "") -> dict[str, int]:
        """Hops from a node to every node that it reaches, including itself."""
        hops = {start: 0}
        ahead = [start]
        for node_id in ahead:  # grows during the loop
            for neighbour in self._adjacent[node_id]:
                if neighbour not in hops and neighbour != without:
                    hops[neighbour] = hops[node_id] + 1
                    ahead.append(neighbour)
        return hops

    def id_of(self, name: str) -> str:
        """The id of the node with this name, or with an id that begins so."""
        found = [node.node_id for node in self.nodes if node.name == name] or [
            node.node_id for node in self.nodes if name and node.node_id.startswith(name)
        ]
        if len(found) != 1:
            known = ", ".join(node.name for node in self.nodes[:NAMES_SHOWN_MAX])
            problem = "several nodes are" if found else "no node is"
            raise M4castError(f"{problem} called {name!r}: choose one of {known}, or give the beginning of an id")
        return found[0]

    def as_object(self) -> dict[str, object]:
        return {
            "nodes": [
                {
                    "node_id": node.node_id,
                    "name": node.name,
                    "address": node.listen,
                    "listen": node.listen,
                    "door": node.door,
                    "state": node.state,
                    "neighbours": [self.name(neighbour) for neighbour in node.neighbours],
                }
                for node in self.nodes
            ],
            "links": self.named(self.links),
            "half_links": self.named(self.half_links),
            "components": self.components,
            "diameter": self.diameter,
            "lynchpins": self.lynchpins,
        }

    def named(self, links: Iterable[tuple[str, str]]) -> list[list[str]]:
        return [[self.name(one), self.name(other)] for one, other in links]


def _names(known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    same = {one["name"] for one, other in combinations(known.values(), 2) if one["name"] == other["name"]}
    return {
        node_id: f"{node['name']}.{node_id[:4]}" if node["name"] in same else str(node["name"])
        for node_id, node in known.items()
    }


def _natural(name: str) -> tuple[str, int, str]:
    """A sort key that puts n2 before n10."""
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :] or 0), name)
