"""The graph of a channel as its nodes tell it: who is linked with whom, and what that graph survives.

Every node knows its own neighbours exactly and those of the others by their beacons, which are some seconds old. Nodes
that are asked directly are believed about themselves. A link counts when both ends tell of it; one that only one end
tells of is new, or gone, or its other end is. Nodes that have left are not in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

NODES_EXAMINED_MAX = 200
"""Larger graphs are not searched for nodes that hold them together: it takes the square of their size."""


@dataclass(frozen=True)
class TopologyNode:
    node_id: str
    name: str
    """Unique in its topology: with a piece of the id, if several nodes have the same."""
    listen: str
    """Where other nodes reach it."""
    door: str
    """Where clients do; empty if it has no door, or has not told of it."""
    state: str
    """Its own word (full, partial, seeking); `apart` when no link of it is known, else `heard` of through others."""
    neighbours: tuple[str, ...]
    """Ids, of links that both ends tell of; in the order of names."""


@dataclass(frozen=True)
class Topology:
    nodes: tuple[TopologyNode, ...]
    links: tuple[tuple[str, str], ...]
    """Pairs of ids, told by both ends."""
    half_links: tuple[tuple[str, str], ...]
    """Told by one end."""

    @classmethod
    def of(cls, answers: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> "Topology":
        """From each node that was asked: its `status` and its `topology`."""
        told: dict[str, Mapping[str, Any]] = {}
        states: dict[str, str] = {}
        for status, topology in answers:
            states[status["node_id"]] = status["state"]
            for node in topology["nodes"]:
                is_its_own_word = node["node_id"] == topology["node_id"]
                if is_its_own_word or (node["node_id"] not in told and not node["leaving"]):
                    told[node["node_id"]] = node
        said = {(node_id, neighbour) for node_id, node in told.items() for neighbour in node["neighbours"]}
        said = {(one, other) for one, other in said if other in told}
        links = {pair for pair in said if pair[::-1] in said}
        names = _names(told)

        def in_order(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
            ordered = {tuple(sorted(pair, key=lambda node_id: _natural(names[node_id]))) for pair in pairs}
            return tuple(
                sorted(
                    ((one, other) for one, other in ordered), key=lambda pair: [_natural(names[end]) for end in pair]
                )
            )

        neighbours: dict[str, list[str]] = {node_id: [] for node_id in told}
        for one, other in links:
            neighbours[one].append(other)
        nodes = [
            TopologyNode(
                node_id,
                names[node_id],
                node["address"],
                node.get("door", ""),
                states.get(node_id, "heard" if neighbours[node_id] else "apart"),
                tuple(sorted(neighbours[node_id], key=lambda each: _natural(names[each]))),
            )
            for node_id, node in told.items()
        ]
        nodes.sort(key=lambda node: _natural(node.name))
        return cls(tuple(nodes), in_order(links), in_order(said - links))

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
        """Names of nodes that reach each other, the largest component first."""
        left = [node.node_id for node in self.nodes]
        found = []
        while left:
            reached = self._distances(left[0])
            found.append([self.name(node_id) for node_id in left if node_id in reached])
            left = [node_id for node_id in left if node_id not in reached]
        return sorted(found, key=len, reverse=True)

    @cached_property
    def diameter(self) -> int:
        """Hops between the two nodes that are farthest apart, in the component where that is most."""
        return max((max(self._distances(node.node_id).values()) for node in self.nodes), default=0)

    @cached_property
    def lynchpins(self) -> list[str] | None:
        """Names of nodes whose loss alone splits the channel; None when the graph is too large to look."""
        if len(self.nodes) > NODES_EXAMINED_MAX:
            return None
        return [node.name for node in self.nodes if self._splits(node)]

    def _splits(self, node: TopologyNode) -> bool:
        if len(node.neighbours) < 2:
            return False
        reached = self._distances(node.neighbours[0], without=node.node_id)
        return any(neighbour not in reached for neighbour in node.neighbours)

    def _distances(self, start: str, without: str = "") -> dict[str, int]:
        """Hops from a node to all that it reaches, itself included."""
        hops = {start: 0}
        ahead = [start]
        for node_id in ahead:  # grows while it is gone through
            for neighbour in self._adjacent[node_id]:
                if neighbour not in hops and neighbour != without:
                    hops[neighbour] = hops[node_id] + 1
                    ahead.append(neighbour)
        return hops

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


def _names(told: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    same = {one["name"] for one, other in combinations(told.values(), 2) if one["name"] == other["name"]}
    return {
        node_id: f"{node['name']}.{node_id[:4]}" if node["name"] in same else str(node["name"])
        for node_id, node in told.items()
    }


def _natural(name: str) -> tuple[str, int, str]:
    """n2 before n10."""
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :] or 0), name)
