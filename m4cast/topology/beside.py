"""The units beside a channel, and the gateways to and between them, as one of its gatekeepers reports them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError
from m4cast.topology.graph import Topology

ASKED_MAX = 16
"""Limit on the nodes that are asked whether they are gatekeepers; guess."""
ASKED_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class UnitBeside:
    unit_id: str
    name: str
    is_reached: bool


@dataclass(frozen=True)
class GatewayBeside:
    """A link of level 1 or above. An end is a node of the channel, or a unit beside it."""

    ends: tuple[str, str]
    level: int
    cost: int
    status: str


@dataclass(frozen=True)
class Beside:
    units: tuple[UnitBeside, ...] = ()
    gateways: tuple[GatewayBeside, ...] = ()

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> "Beside":
        """The units and gateways in the report of a gatekeeper (`Channel.units`)."""
        channels = {link["address"]: link["channel"].rpartition("/")[2] for link in view["links"]}
        names: dict[str, str] = {}
        for each in view["gateways"]:
            for end, address in zip(each["ends"], each["addresses"], strict=True):
                if end["level"] == 1 and address in channels:
                    names[end["id"]] = channels[address]
        units = tuple(
            UnitBeside(unit["id"], names.get(unit["id"]) or _kind(unit), unit["is_reached"])
            for unit in view["units"]
            if unit["level"] and not unit["is_own"]
        )
        gateways = tuple(
            GatewayBeside((one["id"], other["id"]), each["level"], each["cost"], each["status"])
            for each in view["gateways"]
            for one, other in [each["ends"]]
            if each["level"]
        )
        return cls(units, gateways)


def _kind(unit: Mapping[str, Any]) -> str:
    return f"channel {unit['number']}" if unit["level"] == 1 else f"unit {unit['number']} of level {unit['level']}"


def find_beside(channel: Channel, graph: Topology) -> Beside:
    """Ask nodes of the channel until one is a gatekeeper; nothing if none of those asked is."""
    doors = dict.fromkeys((*channel.nodes, *(node.door for node in graph.nodes if node.door)))
    for door in list(doors)[:ASKED_MAX]:
        try:
            view = channel.at(door, timeout_s=ASKED_TIMEOUT_S).units()
        except M4castError:
            continue
        if view["is_gatekeeper"]:
            return Beside.of(view)
    return Beside()
