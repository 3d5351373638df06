"""Channels with gatekeepers on loopback, for tests: all nodes on one loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.config.federation import FederationConfig, GatewayConfig
from m4cast.overlay.door.flight import FlightDoor
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.services import Services
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.gatekeeper import Gatekeeper
from m4cast.overlay.protocol.wire.batch import Batch, Delivery
from tests.overlay.net.running import LOOK_S, QUICK, TIMEOUT_S, Running, settled, start_node


async def until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for something that no single node reports: looked at now and then."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(LOOK_S)


@dataclass
class Member:
    """A node, and its gatekeeper if it is one."""

    running: Running
    gatekeeper: Gatekeeper | None = None
    config: FederationConfig | None = None
    door: FlightDoor | None = None

    @property
    def keeper(self) -> Gatekeeper:
        assert self.gatekeeper is not None
        return self.gatekeeper

    @property
    def gate(self) -> str:
        return self.keeper.links.address

    @property
    def node_id(self) -> NodeId:
        return self.running.driver.node.me.node_id

    def rows(self, topic: str) -> list[tuple[NodeId, int, int]]:
        """The deliveries of a topic at this node, in order: origin, first and last sequence."""
        return [
            (each.stream.origin, each.first_sequence, each.last_sequence)
            for each in self.running.deliveries
            if isinstance(each, Delivery) and each.stream.topic == topic
        ]

    def batches(self, stream: StreamId) -> tuple[Batch, ...]:
        return self.running.store.read_range(stream, 1, 1 << 40, 1 << 30)

    async def open_gate(self, config: FederationConfig, **certificates: Any) -> None:
        """Start a gatekeeper beside the node; after a stop, again at the same address."""
        driver = self.running.driver
        node = NodeConfig(name=self.running.name, insecure=not certificates, **certificates)
        self.config = config
        self.gatekeeper = Gatekeeper(driver, self.running.store, QUICK, node, config)
        await self.gatekeeper.start()
        self.config = replace(config, listen=self.gatekeeper.links.address)

    async def close_gate(self) -> None:
        if self.gatekeeper is not None:
            await self.gatekeeper.stop()
            self.running.driver.watchers.remove(self.gatekeeper._shown)
            self.gatekeeper = None

    async def open_door(self) -> str:
        """Start a door beside the node; its address."""
        driver = self.running.driver
        self.door = FlightDoor(driver, Services(driver, self.running.store, DoorLimits()))
        return self.door.address

    async def stop(self) -> None:
        await self.close_gate()
        if self.door is not None:
            await self.door.stop()
        await self.running.stop()


@dataclass
class Channels:
    """Several channels, by name, each with some nodes."""

    folder: Path
    members: dict[str, list[Member]] = field(default_factory=dict)

    async def add(self, name: str, nodes: int, **settings: Any) -> list[Member]:
        cluster = replace(QUICK, channel_instance=name)
        portals: tuple[str, ...] = ()
        for number in range(nodes):
            running = await start_node(self.folder, f"{name}{number + 1}", portals, cluster=cluster, **settings)
            self.members.setdefault(name, []).append(Member(running))
            portals = (self.members[name][0].running.address,)
        if nodes > 1:
            await settled([member.running for member in self.members[name]])
        return self.members[name]

    async def stop(self) -> None:
        for members in self.members.values():
            for member in members:
                with suppress(Exception):
                    await member.stop()


def gateway(channel: str, **rules: Any) -> GatewayConfig:
    return GatewayConfig(channel=f"m4cast/{channel}", **rules)


def gates(*gateways: GatewayConfig, listen: str = "127.0.0.1:0", **settings: Any) -> FederationConfig:
    return FederationConfig(listen=listen, gateways=gateways, **settings)
