"""Survey a channel: ask its nodes for the graph, through their doors."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, UnreachableError
from m4cast.topology.graph import Topology

BEYOND_TIMEOUT_S = 2.0
"""Time to wait for a node that the caller did not name. Guess."""
BEYOND_AT_A_TIME = 16
BEYOND_MAX = 200
"""Limit on the nodes asked that the caller did not name; in a larger channel the rest is known from beacons."""
Answer = tuple[dict[str, Any], dict[str, Any]]
"""A node's `status` and its `topology`."""


def survey(channel: Channel, *, unreachable: list[str] | None = None, beyond: bool = False) -> Topology:
    """The topology as reported by each node that the channel names.

    With `unreachable`, nodes that cannot be reached are left out and their errors are appended to it; at least one node
    has to answer. With `beyond`, the nodes whose doors these report are asked as well; those that do not answer are
    left out silently.
    """
    answers: list[Answer] = []
    for node in (channel.at(each) for each in channel.nodes):
        try:
            answers.append((node.status(), node.topology()))
        except UnreachableError as error:
            if unreachable is None:
                raise
            unreachable.append(str(error))
    if not answers:
        raise UnreachableError("; ".join(unreachable or ()))
    return Topology.of([*answers, *_beyond(channel, answers)] if beyond else answers)


def every_node(channel: Channel) -> list[tuple[str, str]]:
    """Name and client door of every node on the channel, as the nodes that the channel names know them; the door is
    empty if a node has none, or has not reported one. Nodes that have left are not among them."""
    found = {
        node["node_id"]: (node["name"], node["door"])
        for each in channel.nodes
        for node in channel.at(each).topology()["nodes"]
        if not node["leaving"]
    }
    return sorted(found.values())


def _beyond(channel: Channel, answers: list[Answer]) -> list[Answer]:
    """The answers of nodes that were not asked yet and whose doors others report."""
    asked_ids = {status["node_id"] for status, _ in answers}
    doors = {
        node["node_id"]: node["door"]
        for _, topology in answers
        for node in topology["nodes"]
        if node["door"] and not node["leaving"] and node["node_id"] not in asked_ids
    }

    def ask(node_id: str, door: str) -> Answer | None:
        node = channel.at(door, timeout_s=BEYOND_TIMEOUT_S)
        try:
            status = node.status()
            # Another node may have taken over that address.
            return (status, node.topology()) if status["node_id"] == node_id else None
        except M4castError:
            return None

    if not doors:
        return []
    with ThreadPoolExecutor(min(len(doors), BEYOND_AT_A_TIME)) as pool:
        answered = pool.map(ask, *zip(*list(doors.items())[:BEYOND_MAX], strict=True))
        return [answer for answer in answered if answer is not None]
