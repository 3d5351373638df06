"""Finds the nodes of the channel and their doors, for data that only the node itself has.

Each node has its own delivery records, roster and interest records. One of the listed nodes is asked for the nodes that
it knows; every node announces its door on the channel. A listed node is reached at its listed door, which may differ
from the announced one.
"""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.spark_connector.access import channel_of, patiently
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import ReadOptions

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel

log = logging.getLogger("m4cast.spark")
T = TypeVar("T")

ANSWER_S = 2.0
"""Time to wait for one node when many are asked at once. Guess."""
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FoundNode:
    node_id: str
    name: str
    door: str
    """Empty if it has none, or has not announced one."""
    is_here: bool
    """True if it has not left."""


class Nodes:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def wanted(self) -> list[FoundNode]:
        """The nodes that the option `of` selects, as known to the first listed node that answers; sorted by id."""
        first, known = patiently(self._look, self._options.access.timeout_s)
        match self._options.of:
            case "first":
                return [known[first]]
            case "all":
                return sorted(known.values(), key=lambda node: node.node_id)
            case named:
                found = [node for node in known.values() if named in (node.name, node.node_id)]
                if not found:
                    names = ", ".join(sorted({node.name for node in known.values()}))
                    problem = f"no node {named!r} is known: known nodes are {names}"
                    raise ConnectorError("M4CAST_UNKNOWN_NODE", problem, "correct of, or add the node to nodes")
                return sorted(found, key=lambda node: node.node_id)

    def of_ids(self, node_ids: Iterable[str]) -> dict[str, FoundNode]:
        """Those of the nodes that are known."""
        _, known = patiently(self._look, self._options.access.timeout_s)
        return {node_id: known[node_id] for node_id in node_ids if node_id in known}

    def at(self, node: FoundNode) -> "Channel":
        return channel_of(self._options.access).at(node.door)

    def ask(self, nodes: Iterable[FoundNode], question: Callable[["Channel"], T], *, is_patient: bool) -> dict[str, T]:
        """The answers by node id, from the nodes that answer. `is_patient`: wait for the whole time-out, because
        missing answers are omitted for good. (A node that is not running is detected at once either way.)"""
        channel = channel_of(self._options.access)
        timeout_s = channel.timeout_s if is_patient else min(ANSWER_S, channel.timeout_s)

        def ask(node: FoundNode) -> T | None:
            try:
                return question(channel.at(node.door, timeout_s=timeout_s))
            except M4castError as error:
                log.info("node %s at %s does not answer: %s", node.name, node.door, error)
                return None

        reachable = [node for node in nodes if node.door]
        if not reachable:
            return {}
        with ThreadPoolExecutor(min(len(reachable), ASKED_AT_ONCE)) as pool:
            answers = zip(reachable, pool.map(ask, reachable), strict=True)
            return {node.node_id: answer for node, answer in answers if answer is not None}

    def _look(self) -> tuple[str, dict[str, FoundNode]]:
        """The first listed node that answers, and all nodes that it knows."""
        channel = channel_of(self._options.access)
        listed: dict[str, str] = {}
        first: tuple[str, dict[str, FoundNode]] | None = None
        unreachable = []
        for door in channel.nodes:
            # Each node gets a share of the time-out, so that one that hangs does not consume all of it.
            limit_s = channel.timeout_s / len(channel.nodes)
            try:
                answer = channel.at(door, timeout_s=limit_s if first is None else min(limit_s, ANSWER_S)).topology()
            except (UnreachableError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code != "timeout":
                    raise
                unreachable.append(str(error))
                continue
            listed[answer["node_id"]] = door
            if first is None:
                known = {
                    each["node_id"]: FoundNode(each["node_id"], each["name"], each["door"], not each["leaving"])
                    for each in answer["nodes"]
                }
                first = answer["node_id"], known
        if first is None:
            raise UnreachableError("; ".join(unreachable))
        for node_id, door in listed.items():
            if node_id in first[1]:
                node = first[1][node_id]
                first[1][node_id] = FoundNode(node_id, node.name, door, node.is_here)
        return first
