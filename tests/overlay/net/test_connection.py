"""A connection's end: in order where the peer listens, and not for ever where it does not."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import uvloop

from m4cast.overlay.net import connection as module
from m4cast.overlay.net.connection import Connection
from m4cast.overlay.protocol.wire.frame import HELLO_FRAME_BYTES_MAX
from tests.overlay.net.running import TIMEOUT_S

UNSENT_BYTES = 64 << 20
"""More than the system keeps of a connection whose peer takes nothing."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Nobody:
    """An owner that hears everything and does nothing."""

    def _hears(self, *_: Any) -> None: ...

    connection_made = messages_received = progress = malformed = blocked = ready = connection_lost = _hears


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


async def connected(peer: socket.socket) -> Connection:
    connection = Connection(Nobody(), memoryview(bytearray(1024)), HELLO_FRAME_BYTES_MAX, UNSENT_BYTES, 1)
    await asyncio.get_running_loop().create_connection(lambda: connection, *peer.getsockname())
    return connection


def test_what_was_sent_arrives_before_the_end(runner: asyncio.Runner) -> None:
    async def run() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as peer:
            connection = await connected(peer)
            connection.send((bytes(UNSENT_BYTES),), lambda _: None)
            connection.close()
            reader, writer = await asyncio.open_connection(sock=peer.accept()[0])
            came = len(await reader.read(-1))
            writer.close()
            await connection.gone
            assert came == UNSENT_BYTES

    runner.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_what_a_peer_does_not_take_is_dropped(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory, too: the network would try for a quarter of an hour."""
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.05)

    async def run() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as peer:
            connection = await connected(peer)
            connection.send((bytes(UNSENT_BYTES),), lambda _: None)
            connection.close()
            connection.close()
            await connection.gone

    runner.run(asyncio.wait_for(run(), TIMEOUT_S))
