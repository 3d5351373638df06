"""Peers and clients that waste a node's time: crowds, trickles and nonsense by the thousand. Afterwards the node is as
it was, and it never had more than so many of them in hand. Real sockets."""

import asyncio
import json
import os
import random
import socket
import ssl
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.ids import NodeId
from m4cast.overlay.net.connection import PROGRESS_S
from m4cast.overlay.net.listener import STRANGERS_MAX
from tests.fuzz.test_frame_fuzz import MAKERS
from tests.overlay.door.served import serving
from tests.overlay.net.running import TIMEOUT_S, Running
from tests.security.attackers import (
    Certificates,
    call,
    close,
    context,
    hello,
    resetting_socket,
    run_on_uvloop,
    running_pair,
    still_works,
    until_refused,
)

WAVE = 250
PEER_INPUTS = 5_000
DOOR_INPUTS = 5_000
RAW_DOOR_INPUTS = 300
AT_ONCE = 50


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths


def state(node: Running) -> object:
    """The facts that strangers must not change."""
    inner = node.driver.node
    streams = {stream.id: stream.next for stream in inner.holdings.streams.values()}
    known = [entry.address for entry in inner.roster.entries()]
    return inner.me, inner.incarnation, known, streams, node.store.streams()


# ---- crowds


@pytest.mark.parametrize(("protected", "connects"), [(True, 10_000), (False, 2_500)], ids=["tls", "plain"])
def test_a_crowd_of_connections_is_turned_away(
    tmp_path: Path, certificates: Certificates, protected: bool, connects: int
) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates if protected else None) as nodes:
            before, files = state(nodes[0]), open_files()
            crowd: deque[socket.socket] = deque()
            for made in range(WAVE, connects + 1, WAVE):
                crowd.extend(resetting_socket(nodes[0].address) for _ in range(WAVE))
                await until_refused(nodes[0], "crowd", made - STRANGERS_MAX)
                # Those in hand, the few links, and what an ended one takes until the loop has closed it.
                assert open_files() - files - len(crowd) <= STRANGERS_MAX + 32
                while len(crowd) > 2 * WAVE:
                    crowd.popleft().close()
                if made % (10 * WAVE) == 0:
                    await still_works(nodes)
            assert len(state(nodes[0])[2]) == len(before[2])  # type: ignore[index]
            while crowd:
                crowd.popleft().close()
            await nodes[0].until(lambda: open_files() <= files + 4)
            await still_works(nodes)

    run_on_uvloop(run())


# ---- trickles


async def trickle(node: Running, first: bytes, drops: bytes, certificates: Certificates | None) -> None:
    """Send the first bytes at once and then one byte at a time, until the node ends it."""
    tls = context(certificates.ca, certificates.node("slow")) if certificates else None
    reader, writer = await call(node, tls)
    writer.write(first)
    async with asyncio.timeout(TIMEOUT_S):
        for drop in drops:
            with suppress(ConnectionError):
                writer.write(bytes([drop]))
            try:
                async with asyncio.timeout(0.05):
                    while await reader.read(65_536):
                        pass
                break
            except TimeoutError:
                pass
            except ConnectionError:
                break
        else:
            pytest.fail("it was allowed to send everything")
    await close(writer)


@pytest.mark.parametrize("protected", [True, False], ids=["tls", "plain"])
def test_a_hello_that_never_ends_is_cut_off(tmp_path: Path, certificates: Certificates, protected: bool) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates if protected else None, call_timeout_ms=300) as nodes:
            await trickle(nodes[0], b"", hello(), certificates if protected else None)
            await until_refused(nodes[0], "no-hello")
            await still_works(nodes)

    run_on_uvloop(run())


def test_a_frame_that_trickles_in_after_the_hello_is_cut_off(tmp_path: Path) -> None:
    async def run() -> None:
        # Long enough that a frame that makes progress would be waited for.
        async with running_pair(tmp_path, None, call_timeout_ms=int(PROGRESS_S * 600)) as nodes:
            await trickle(nodes[0], hello(), (60_000).to_bytes(4, "little") + b"\x01" * 500, None)
            await still_works(nodes)

    run_on_uvloop(run())


def test_a_handshake_that_never_ends_is_cut_off(tmp_path: Path, certificates: Certificates) -> None:
    async def run() -> None:
        async with running_pair(tmp_path, certificates, call_timeout_ms=500) as nodes:
            silent = resetting_socket(nodes[0].address)
            slow = resetting_socket(nodes[0].address)
            slow.sendall(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello begins like this
            await until_refused(nodes[0], "handshake", 2)
            for each in (silent, slow):
                each.close()
            await still_works(nodes)

    run_on_uvloop(run())


# ---- nonsense


async def throw(node: Running, inputs: list[bytes]) -> None:
    """Each on a connection of its own, some at a time; the end of one is the end of what is said."""
    host, _, port = node.address.rpartition(":")

    async def one(data: bytes) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(ConnectionError, OSError):
            writer.write(data)
            writer.write_eof()
            while await reader.read(65_536):
                pass
        await close(writer)

    waiting = deque(inputs)

    async def some() -> None:
        while waiting:
            await one(waiting.popleft())

    async with asyncio.timeout(4 * TIMEOUT_S):
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def test_thousands_of_damaged_frames_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(1)
    inputs = []
    for number in range(PEER_INPUTS):
        made = chance.choice(MAKERS)(chance)
        # Half of them are somebody's first words, half come after a proper hello.
        inputs.append(made if number % 2 else hello(NodeId(chance.randbytes(16))) + made)

    async def run() -> None:
        async with running_pair(tmp_path, None) as nodes:
            await still_works(nodes)
            before, files = state(nodes[0]), open_files()
            await throw(nodes[0], inputs)
            refused = nodes[0].driver.refused
            assert refused["malformed"] > PEER_INPUTS // 2
            assert refused["protocol"] > PEER_INPUTS // 100, "none got behind the decoder"
            await nodes[0].until(lambda: state(nodes[0]) == before)
            await nodes[0].until(lambda: open_files() <= files + 4)
            await still_works(nodes)

    run_on_uvloop(run())


def test_damaged_handshakes_change_nothing(tmp_path: Path, certificates: Certificates) -> None:
    chance = random.Random(2)
    first_words = client_hello(certificates)
    inputs = []
    for _ in range(PEER_INPUTS // 10):
        changed = bytearray(first_words)
        for _ in range(chance.randrange(1, 5)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        inputs.append(bytes(changed[: chance.randrange(1, len(changed) + 1)]))

    async def run() -> None:
        async with running_pair(tmp_path, certificates) as nodes:
            await still_works(nodes)
            before = state(nodes[0])
            await throw(nodes[0], inputs)
            await until_refused(nodes[0], "tls")
            assert state(nodes[0]) == before
            await still_works(nodes)

    run_on_uvloop(run())


def client_hello(certificates: Certificates) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context(certificates.ca, None).wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


# ---- nonsense at the door

WORDS: list[Any] = [
    "topic",
    "topics",
    "start",
    "end",
    "key",
    "next",
    "expect",
    "moves",
    "rows",
    "acks",
    "stage",
    "stage_ids",
]
WORDS += ["at_ms", "idle_ms", "timeout_ms", "on_missing", "earliest", "latest", "skip", "t", "_beacon", "x" * 300, ""]
VALUES: list[Any] = [None, True, 0, 1, -1, 2**63, 1e300, "\ud800", "0" * 32, [], {}, [[]], {"t": {"0" * 32: 1}}]
ACTIONS = ["abort", "commit", "frontier", "status", "topics", "nothing", "", "\x00", "x" * 10_000]


def nonsense(chance: random.Random, **more: int) -> bytes:
    """JSON that looks like a request, or does not. `more` keeps those that are understood from waiting."""
    if chance.randrange(4) == 0:
        return chance.randbytes(chance.randrange(60))

    def value(depth: int) -> Any:
        if depth < 3 and chance.randrange(3) == 0:
            return {chance.choice(WORDS): value(depth + 1) for _ in range(chance.randrange(3))}
        return chance.choice(WORDS + VALUES)

    fields = {chance.choice(WORDS): value(0) for _ in range(chance.randrange(5))}
    return json.dumps({**fields, **more}).encode()


def ask(client: Any, chance: random.Random) -> None:
    options = flight.FlightCallOptions(timeout=5)
    match chance.randrange(8):
        case 0 | 1 | 2:
            name = chance.choice(ACTIONS)
            said = nonsense(chance, timeout_ms=1) if name == "commit" else nonsense(chance)
            list(client.do_action(flight.Action(name, said), options))
        case 3 | 4:
            client.do_get(flight.Ticket(nonsense(chance, idle_ms=1, timeout_ms=1)), options).read_all()
        case 5:
            client.get_flight_info(flight.FlightDescriptor.for_command(nonsense(chance)), options)
        case 6:
            list(client.list_flights(nonsense(chance), options))
        case _:
            rows = pa.record_batch({chance.choice(["n", "_topic", ""]): [1]})
            descriptor = flight.FlightDescriptor.for_command(nonsense(chance) + b"!")  # never a valid publish
            writer, _ = client.do_put(descriptor, rows.schema, options)
            with suppress(pa.ArrowException):
                writer.write_batch(rows)
            writer.close()


def test_thousands_of_senseless_calls_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    with serving(tmp_path, 1) as served:
        (node,) = served.nodes
        channel = Channel(served.addresses)
        channel.publish("t", [{"n": 1}])
        before = state(node)
        client = flight.connect(f"grpc://{served.addresses[0]}")
        refused = 0
        for _ in range(DOOR_INPUTS):
            try:
                ask(client, chance)
            except flight.FlightInternalError as error:
                pytest.fail(f"a mistake behind the door: {error}")
            except (flight.FlightServerError, flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
                if not error.extra_info:  # the node's own word has some
                    raise
                refused += 1
        client.close()
        assert refused > DOOR_INPUTS // 2
        host, _, port = served.addresses[0].rpartition(":")
        for _ in range(RAW_DOOR_INPUTS):
            with socket.create_connection((host, int(port))) as raw, suppress(OSError):
                raw.sendall(chance.choice([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""]) + chance.randbytes(60))
        assert state(node) == before
        assert channel.read("t")["n"].to_pylist() == [1]
        channel.publish("t", [{"n": 2}])
        assert channel.read("t")["n"].to_pylist() == [1, 2]
