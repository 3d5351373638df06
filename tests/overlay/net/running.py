"""Real nodes on loopback for tests: a driver and a store each, all on one loop."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.store_side import StoreSide
from m4cast.overlay.protocol.effects import Delivered, Publish, Published, Staged
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.batch import Delivery, Skip
from m4cast.overlay.store.folder import ChannelName
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.writer import Callbacks

TIMEOUT_S = 30
LOOK_S = 0.05
QUICK = ClusterConfig(heartbeat_interval_ms=200, heartbeat_timeout_ms=2_000)


@dataclass
class Running:
    name: str
    store: Store
    driver: Driver
    deliveries: list[Delivery | Skip] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.driver.node.me.address

    async def publish(self, topic: str, payload: bytes, rows: int = 1) -> Published:
        staged = Staged(topic, rows, 1, payload)
        answer = await asyncio.wait_for(self.driver.request(lambda request: Publish(request, (staged,))), TIMEOUT_S)
        assert isinstance(answer, Published), answer
        return answer

    async def until_delivered(self, count: int) -> None:
        await self.until(lambda: len(self.deliveries) >= count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something about the node: looks when the driver tells its watchers of anything, and now and then,
        since not all that a test asks for shows there."""
        changed = asyncio.Event()

        def watch(_: object) -> None:
            changed.set()

        self.driver.watchers.append(watch)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():
                    changed.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), LOOK_S)
        finally:
            self.driver.watchers.remove(watch)

    def watch(self, output: object) -> None:
        if isinstance(output, Delivered):
            self.deliveries.append(output.delivery)

    async def stop(self) -> None:
        await self.driver.stop()
        self.store.close()


async def start_node(
    folder: Path,
    name: str,
    portals: tuple[str, ...] = (),
    listen: str = "127.0.0.1:0",
    limits: StoreLimits | None = None,
    cluster: ClusterConfig = QUICK,
    before_start: Callable[[Driver], None] = lambda driver: None,
    clock: Callable[[], float] = time.time,
    **settings: Any,
) -> Running:
    """`settings`: more of the node's; `limits`: of its store; `clock`: that on the wall."""
    config = NodeConfig(
        name=name,
        listen=listen,
        portals=portals,
        seek_retry_ms=50,  # loopback answers at once
        search_wait_ms=20,
        walk_timeout_ms=300,
        holder_search_ms=50,
        **settings,
    )
    stores: list[Store] = []

    def open_store(side: StoreSide) -> Store:
        callbacks = Callbacks(side.on_durable, side.on_failed, side.on_broken, side.on_damaged)
        channel = ChannelName(cluster.channel_type, cluster.channel_instance)
        stores.append(Store.open(folder / name, channel, callbacks, limits=limits or StoreLimits()))
        return stores[0]

    driver = Driver(open_store, cluster, config, clock)
    running = Running(name, stores[0], driver)
    driver.watchers.append(running.watch)
    before_start(driver)
    await driver.start()
    return running


async def settled(nodes: list[Running]) -> None:
    """All on the channel, with all the neighbours that so few nodes can have, and ready to publish."""
    for node in nodes:
        inner = node.driver.node
        wanted = min(inner.membership.table.degree, len(nodes) - 1)
        await node.until(
            lambda inner=inner, wanted=wanted: (  # type: ignore[misc]
                inner.membership.state is State.FULL and len(inner.membership.table.neighbours) == wanted
            )
        )
        await node.until(lambda inner=inner: inner.dissemination.exchanged_once)  # type: ignore[misc]
