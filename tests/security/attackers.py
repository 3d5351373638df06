"""Parts that the tests of bad peers share: a cluster's certificates, protected nodes, and clients that break the rules.
Everything is real sockets on loopback."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import NodeId
from m4cast.overlay.net.certificates import Pair, make_ca, make_client_certificate, make_node_certificate
from m4cast.overlay.protocol.wire.frame import encode
from m4cast.overlay.protocol.wire.messages import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, Hello, Setting
from tests.overlay.net.running import TIMEOUT_S, Running, settled, start_node

CLUSTER = ClusterConfig(heartbeat_interval_ms=200, heartbeat_timeout_ms=2_000)
"""That of `start_node`."""


def run_on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    """The loop that a node runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class Certificates:
    """A cluster's, in a folder; made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = make_ca(folder).certificate

    def node(self, name: str, days: int = 10) -> Pair:
        return make_node_certificate(self.folder, name, days=days, force=True)

    def client(self, name: str) -> Pair:
        return make_client_certificate(self.folder, name, force=True)

    def settings(self, name: str) -> dict[str, Any]:
        pair = self.node(name)
        return {"tls_ca": str(self.ca), "tls_cert": str(pair.certificate), "tls_key": str(pair.key)}


def context(ca: Path, pair: Pair | None) -> ssl.SSLContext:
    """An attacker's TLS: it shows what it has and verifies nothing but the authority."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(ca)
    if pair is not None:
        made.load_cert_chain(pair.certificate, pair.key)
    return made


@asynccontextmanager
async def running_pair(
    folder: Path, certificates: Certificates | None, call_timeout_ms: int = 3_000
) -> AsyncIterator[list[Running]]:
    """Two nodes on one channel. What is added to the list is stopped with them, also after a failure."""
    nodes: list[Running] = []
    try:
        for name in ("n0", "n1"):
            settings = certificates.settings(name) if certificates else {}
            portals = (nodes[0].address,) if nodes else ()
            nodes.append(await start_node(folder, name, portals, call_timeout_ms=call_timeout_ms, **settings))
        await settled(nodes)
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def still_works(nodes: list[Running]) -> None:
    """Check that each gets what the other publishes, whatever happened before; they know each other and no other
    node."""
    before = len(nodes[1].deliveries)
    await nodes[0].publish("t", b"still here")
    await nodes[1].until_delivered(before + 1)
    await settled(nodes)
    for node in nodes:
        assert node.driver.node.roster.population() == len(nodes)


async def until_refused(node: Running, reason: str, count: int = 1) -> None:
    await node.until(lambda: node.driver.refused[reason] >= count)


async def call(node: Running, tls: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = node.address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=tls)


async def until_cut_off(reader: asyncio.StreamReader) -> bytes:
    """All that the node says until it ends the connection."""
    said = b""
    async with asyncio.timeout(TIMEOUT_S):
        try:
            while piece := await reader.read(65_536):
                said += piece
        except (ConnectionError, ssl.SSLError):
            pass
    return said


async def attack(node: Running, sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send it, and hear the node until it ends the connection."""
    try:
        reader, writer = await call(node, tls)
    except (ConnectionError, ssl.SSLError):
        return b""
    writer.write(sent)
    said = await until_cut_off(reader)
    await close(writer)
    return said


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


def hello(
    node_id: NodeId = NodeId(b"a stranger's id."),
    cluster: ClusterConfig = CLUSTER,
    version_min: int = PROTOCOL_VERSION_MIN,
    version_max: int = PROTOCOL_VERSION_MAX,
) -> bytes:
    settings = tuple(Setting(name, str(value)) for name, value in cluster.settings().items())
    return encode(Hello(version_min, version_max, node_id, 1, "127.0.0.1:9", settings))


def resetting_socket(address: str) -> socket.socket:
    """A connection that leaves nothing behind when it is closed, so that thousands can be made."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return made
