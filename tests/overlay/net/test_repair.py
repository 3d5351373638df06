"""A batch that is damaged on a real node's disk comes back from its neighbour, and nobody hears of it twice."""

import asyncio
from pathlib import Path

import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.table import place_key
from m4cast.overlay.store.tables.log import LOG
from tests.overlay.net.running import settled, start_node


def damage(store: Store, stream: StreamId, first: int) -> None:
    """Change the last byte of a batch where it lies."""
    with store._env.begin(write=True) as txn:
        place = place_key(store.held()[stream].number, first)
        value = bytearray(txn.get(place, db=store._tables[LOG]) or b"")
        value[-1] ^= 1
        txn.put(place, bytes(value), db=store._tables[LOG])


def test_a_damaged_batch_is_fetched_again_from_a_neighbour(tmp_path: Path) -> None:
    async def scenario() -> None:
        origin = await start_node(tmp_path, "n1")
        other = await start_node(tmp_path, "n2", (origin.address,))
        await settled([origin, other])
        stream = StreamId(origin.driver.node.me.node_id, "t")
        for number in range(3):
            await origin.publish("t", b"row %d" % number)
        await other.until_delivered(3)
        rows = other.store.read_range(stream, 1, 4, 1 << 20)
        for node in (other, origin):  # one's own rows come back in the same way
            deliveries = node.store.delivery_range()
            damage(node.store, stream, 2)
            with pytest.raises(StoreError, match="damaged"):
                node.store.read_range(stream, 2, 4, 1 << 20)
            await node.until(lambda node=node: node.driver.node.dissemination.repair.repaired == 1)  # type: ignore[misc]
            assert node.store.read_range(stream, 1, 4, 1 << 20) == rows
            assert node.store.delivery_range() == deliveries
            assert len(node.deliveries) == 3
        await origin.stop()
        await other.stop()

    asyncio.run(scenario())
