"""Real nodes with real doors on loopback, on a loop of their own thread: tests are clients, and clients block."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from m4cast.cluster.ports import free_ports
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.flight import FlightDoor
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.services import Services
from tests.overlay.net.running import TIMEOUT_S, Running, settled, start_node
from tests.overlay.protocol.stream_parts import entry

T = TypeVar("T")


@dataclass
class Served:
    """A channel of nodes; `doors[i]` is the door of `nodes[i]`."""

    loop: asyncio.AbstractEventLoop
    nodes: list[Running] = field(default_factory=list)
    doors: list[FlightDoor] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    @property
    def addresses(self) -> list[str]:
        return [door.address for door in self.doors]

    async def start(
        self,
        folder: Path,
        count: int,
        limits: DoorLimits | None,
        tokens: str,
        settings: Callable[[str], dict[str, Any]],
    ) -> None:
        for number in range(count):
            portals = (self.nodes[0].address,) if self.nodes else ()
            self.nodes.append(await start_node(folder, f"n{number}", portals, **settings(f"n{number}")))
        if count > 1:
            await settled(self.nodes)
        else:
            (node,) = self.nodes
            await node.until(lambda: node.driver.node.membership.state.value == "full")
        for number, node in enumerate(self.nodes):
            address = settings(f"n{number}").get("door", "127.0.0.1:0")
            known = await asyncio.to_thread(Tokens, tokens) if tokens else None
            self.doors.append(
                FlightDoor(node.driver, Services(node.driver, node.store, limits or DoorLimits()), address, known)
            )

    async def hear_of_another(self) -> None:
        """The first node knows one more, which is away: publishes with `acks=1` wait for it and are not refused."""
        self.nodes[0].driver.node.roster.heard(entry("away"), self.nodes[0].driver.clock.now_ms())

    async def join(self, folder: Path) -> None:
        """One more node, with a door."""
        node = await start_node(folder, f"n{len(self.nodes)}", (self.nodes[0].address,))
        self.nodes.append(node)
        await settled(self.nodes)
        self.doors.append(FlightDoor(node.driver, Services(node.driver, node.store, DoorLimits())))

    async def stop_door(self, at: int) -> None:
        await self.doors[at].stop()

    async def lose(self, at: int) -> None:
        """A node is gone, and its disk with it."""
        await self.doors.pop(at).stop()
        node = self.nodes.pop(at)
        await node.stop()
        shutil.rmtree(node.store.path)

    async def stop(self) -> None:
        while self.doors:
            await self.doors.pop().stop()
        while self.nodes:
            await self.nodes.pop().stop()
        for _ in range(10):  # transports close in the loop's next turns
            await asyncio.sleep(0)


def told_doors(count: int) -> Callable[[str], dict[str, Any]]:
    """Settings of nodes whose beacons say where their doors are."""
    doors = dict(zip((f"n{number}" for number in range(count)), free_ports(count), strict=True))
    return lambda name: {"door": doors[name]}


@contextmanager
def serving(
    folder: Path,
    count: int,
    limits: DoorLimits | None = None,
    tokens: str = "",
    settings: Callable[[str], dict[str, Any]] = lambda name: {},
    *,
    one_is_away: bool = False,
) -> Iterator[Served]:
    """`settings`: more of the nodes', by name. `one_is_away`: the first one knows another besides."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="nodes")
    thread.start()
    served = Served(loop)
    try:
        served.run(served.start(folder, count, limits, tokens, settings))
        if one_is_away:
            served.run(served.hear_of_another())
        yield served
    finally:
        served.run(served.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()
