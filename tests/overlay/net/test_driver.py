"""The pure node on real sockets and a real store."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.net.connection import Connection
from m4cast.overlay.protocol.effects import Publish, Staged, Wake
from m4cast.overlay.protocol.finding.port_order import LISTEN_TRIES, port_order
from tests.overlay.net.running import TIMEOUT_S, Running, settled, start_node


async def channel(folder: Path, count: int) -> list[Running]:
    nodes = [await start_node(folder, "n0")]
    for index in range(1, count):
        nodes.append(await start_node(folder, f"n{index}", (nodes[0].address,)))
    await settled(nodes)
    return nodes


async def stop(nodes: list[Running]) -> None:
    for node in nodes:
        await node.stop()


def test_rows_published_at_one_node_reach_every_disk_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = await channel(tmp_path, 6)
        for number in range(20):
            size = 200_000 if number % 5 == 0 else 100  # large ones are announced and pulled
            await nodes[number % 2].publish("t", bytes([number]) * size)
        for node in nodes:
            await node.until_delivered(20)
            for origin in {delivery.stream for delivery in node.deliveries}:
                firsts = [d.first_sequence for d in node.deliveries if d.stream == origin]
                assert firsts == list(range(1, 11))
                batches = node.store.read_range(origin, 1, 11, 10_000_000)
                assert [batch.first_sequence for batch in batches] == firsts
        await stop(nodes)

    asyncio.run(run())


def test_a_node_that_was_away_catches_up(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = await channel(tmp_path, 4)
        away = nodes.pop()
        await away.stop()
        for number in range(30):
            await nodes[0].publish("t", bytes(50_000) + bytes([number]))
        back = await start_node(tmp_path, away.name, (nodes[0].address,))
        await back.until_delivered(30)
        assert [delivery.first_sequence for delivery in back.deliveries] == list(range(1, 31))
        assert back.driver.node.incarnation == 2
        await stop([*nodes, back])

    asyncio.run(run())


def test_a_dial_that_is_given_up_at_the_last_moment_does_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    async def run() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()[:2]
            node = await start_node(tmp_path, "n0", (f"{host}:{port}",))
            network, made = node.driver.network, node.driver.network.connection_made
            given_up = asyncio.Event()

            def give_up(connection: Connection) -> None:
                made(connection)
                network._dialling[connection.number].cancel()
                given_up.set()

            network.connection_made = give_up  # type: ignore[method-assign]
            async with asyncio.timeout(TIMEOUT_S):
                await given_up.wait()
                await node.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_a_caller_that_is_sent_away_at_the_last_moment_does_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    async def run() -> None:
        node = await start_node(tmp_path, "n0")
        network, made = node.driver.network, node.driver.network.connection_made
        sent_away = asyncio.Event()

        def send_away(connection: Connection) -> None:
            made(connection)
            network._listener._welcomes[connection].cancel()
            sent_away.set()

        network.connection_made = send_away  # type: ignore[method-assign]
        host, _, port = node.address.rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S):
            async with asyncio.timeout(TIMEOUT_S):
                await sent_away.wait()
                await node.stop()
        assert not network._open, "it is forgotten"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_nodes_find_each_other_by_the_order_of_ports_alone(tmp_path: Path) -> None:
    """No port is agreed upon: each takes the first that is free, and is looked for there. The first one of the order is
    somebody else's."""

    async def run() -> None:
        order = port_order(ClusterConfig(), LISTEN_TRIES)
        with ExitStack() as stack:
            with suppress(OSError):  # or it is taken already, which is as well
                stack.enter_context(socket.create_server(("127.0.0.1", order[0])))
            nodes = [
                await start_node(tmp_path, f"n{index}", portal_hosts=("127.0.0.1",), call_timeout_ms=300)
                for index in range(3)
            ]
            await settled(nodes)
            ports = [int(node.address.rpartition(":")[2]) for node in nodes]
            assert order[0] not in ports and ports == sorted(ports, key=order.index)
            await stop(nodes)

    asyncio.run(run())


def test_leaving_in_order_frees_the_neighbours(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = await channel(tmp_path, 4)
        leaver = nodes.pop()
        await leaver.publish("t", b"the last words")
        leaver.driver.leave()
        await asyncio.wait_for(leaver.driver.stopped.wait(), 10)
        leaver.store.close()
        await settled(nodes)
        for node in nodes:
            await node.until_delivered(1)
        await stop(nodes)

    asyncio.run(run())


def test_a_node_told_to_leave_before_it_has_started_leaves_then(tmp_path: Path) -> None:
    """The signal comes while its name is looked up."""

    async def run() -> None:
        node = await start_node(tmp_path, "n0", before_start=lambda driver: driver.leave())
        await asyncio.wait_for(node.driver.stopped.wait(), TIMEOUT_S)
        node.store.close()

    asyncio.run(run())


def test_what_the_store_reports_to_a_node_that_was_rolled_back_is_not_told_to_the_next(tmp_path: Path) -> None:
    """Its tokens are numbers that the new node gives again."""

    async def run() -> None:
        other, node = nodes = await channel(tmp_path, 2)
        old_id = node.driver.node.me.node_id
        staged = Staged("t", 1, 1, b"under way")
        for _ in range(3):
            node.driver.request(lambda request: Publish(request, (staged,)))
        node.driver._rolled_back("told by the test")
        node.driver.feed(Wake())
        await node.until(lambda: node.driver.node.why_no_publishes() is None)
        (rows,) = (await node.publish("t", b"as another")).ranges
        assert rows.stream.origin != old_id
        assert rows.first_sequence == 1
        await other.until(lambda: any(delivery.stream == rows.stream for delivery in other.deliveries))
        await stop(nodes)

    asyncio.run(run())


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(100),
    "ones": b"\xff" * 100,
    "frame": b"\x20\x00\x00\x00" + bytes(32),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_costs_its_sender_the_connection_and_nothing_else(tmp_path: Path, garbage: bytes) -> None:
    async def run() -> None:
        nodes = await channel(tmp_path, 2)
        host, _, port = nodes[0].address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        async with asyncio.timeout(10):
            while await reader.read(65_536):
                pass  # its hello, then the end
        writer.close()
        await nodes[0].publish("t", b"still here")
        await nodes[1].until_delivered(1)
        await stop(nodes)

    asyncio.run(run())
