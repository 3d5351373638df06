"""Nodes: which of them there are, and at which doors, for what only a node itself can tell.

Delivery records and rosters are each node's own. One of the listed nodes is asked whom it knows; every node tells the
channel its door. A listed node is reached at the door that is listed, which may be another than it knows itself.
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
"""How long one of many nodes is waited for when all are asked at once; guess."""
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FoundNode:
    node_id: str
    name: str
    door: str
    """Empty if it has none, or none that it can tell."""
    is_here: bool
    """It has not left."""


class Nodes:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def wanted(self) -> list[FoundNode]:
        """Those that the option `of` names, as the first listed node that answers knows them; sorted by id."""
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
                    problem = f"there is no node {named!r}, as far as is known here: there are {names}"
                    raise ConnectorError("M4CAST_UNKNOWN_NODE", problem, "correct of, or list the node in nodes")
                return sorted(found, key=lambda node: node.node_id)

    def of_ids(self, node_ids: Iterable[str]) -> dict[str, FoundNode]:
        """Those of these that are known."""
        _, known = patiently(self._look, self._options.access.timeout_s)
        return {node_id: known[node_id] for node_id in node_ids if node_id in known}

    def at(self, node: FoundNode) -> "Channel":
        return channel_of(self._options.access).at(node.door)

    def ask(self, nodes: Iterable[FoundNode], question: Callable[["Channel"], T], *, is_patient: bool) -> dict[str, T]:
        """The answers of those that answer, by node id: soon, or at all, if what is not told now is left out for good.
        (A node that does not run is known at once either way.)"""
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
        """The first listed node that answers, and all that it knows."""
        channel = channel_of(self._options.access)
        listed: dict[str, str] = {}
        first: tuple[str, dict[str, FoundNode]] | None = None
        away = []
        for door in channel.nodes:
            # Each has its share of the time, so that one that hangs does not use up all of it.
            limit_s = channel.timeout_s / len(channel.nodes)
            try:
                said = channel.at(door, timeout_s=limit_s if first is None else min(limit_s, ANSWER_S)).topology()
            except (UnreachableError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code != "timeout":
                    raise
                away.append(str(error))
                continue
            listed[said["node_id"]] = door
            if first is None:
                known = {
                    each["node_id"]: FoundNode(each["node_id"], each["name"], each["door"], not each["leaving"])
                    for each in said["nodes"]
                }
                first = said["node_id"], known
        if first is None:
            raise UnreachableError("; ".join(away))
        for node_id, door in listed.items():
            if node_id in first[1]:
                node = first[1][node_id]
                first[1][node_id] = FoundNode(node_id, node.name, door, node.is_here)
        return first
