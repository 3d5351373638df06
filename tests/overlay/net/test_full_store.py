"""A node whose store is full: it refuses publishes by name, serves what it has, and recovers by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Publish, Published, Refused, Stage, Staged
from m4cast.overlay.store.store import StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.net.running import Running, settled, start_node

MIB = 1 << 20
PAYLOAD = bytes(100_000)
LOOK_S = 0.02


@asynccontextmanager
async def small_node(folder: Path, portals: tuple[str, ...] = ()) -> AsyncIterator[Running]:
    """A node with room for about 100 payloads, which looks after its store as `m4cast node` does, only more often."""
    node = await start_node(folder, "small", portals, limits=StoreLimits(map_bytes=16 * MIB))
    chores = [
        asyncio.create_task(chore)
        for chore in (node.driver.upkeep.trim_every(LOOK_S), node.driver.upkeep.watch_free_space(LOOK_S))
    ]
    try:
        yield node
    finally:
        for chore in chores:
            chore.cancel()
        await node.stop()


async def fill(node: Running) -> tuple[int, Refused]:
    """Publish until it is refused: how many were taken, and the refusal."""
    taken = 0
    while True:
        staged = Staged("t", 1, 1, PAYLOAD)
        answer = await node.driver.request(lambda number, staged=staged: Publish(number, (staged,)))  # type: ignore[misc]
        if isinstance(answer, Refused):
            return taken, answer
        taken += 1
        assert taken < 200, "it is never full"
        await asyncio.sleep(0)


def test_a_full_store_refuses_publishes_serves_reads_and_recovers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with small_node(tmp_path) as node:
            taken, refused = await fill(node)
            assert refused.code in ("store-full", "store"), refused
            await node.until(lambda: node.driver.node.why_no_publishes() is not None)
            staged = Staged("t", 1, 1, PAYLOAD)
            for request in (
                lambda number: Publish(number, (staged,)),
                lambda number: Stage(number, "s", staged),
            ):
                answer = await node.driver.request(request)
                assert isinstance(answer, Refused)
                assert answer.code == "store-full"
                assert "more room" in answer.detail
            stream = StreamId(node.driver.node.me.node_id, "t")
            assert len(node.store.read_range(stream, 1, taken + 1, 1 << 30)) == taken, "what was acknowledged is there"
            node.store.set_keep("t", Keep(bytes_max=0)).result()
            await node.until(lambda: node.driver.node.why_no_publishes() is None)
            after = await node.driver.request(lambda number: Publish(number, (staged,)))
            assert isinstance(after, Published)
            assert after.ranges[0].first_sequence == taken + 1, "numbers go on"

    asyncio.run(scenario())


def test_a_full_neighbour_does_not_stop_the_others(tmp_path: Path) -> None:
    """Batches that do not fit there are asked for again when there is room; the publisher continues."""

    async def scenario() -> None:
        large = await start_node(tmp_path, "large")
        async with small_node(tmp_path, (large.address,)) as small:
            await settled([large, small])
            for _ in range(200):
                await large.publish("t", PAYLOAD)
            small.store.set_keep("t", Keep(bytes_max=MIB)).result()
            stream = StreamId(large.driver.node.me.node_id, "t")
            await small.until(lambda: small.store.streams().get(stream, (1, 1))[1] == 201)
            sequences = [row.first_sequence for row in small.deliveries if row.stream == stream]
            assert sequences == list(range(1, 201)), "each once, in order"
        await large.stop()

    asyncio.run(scenario())
