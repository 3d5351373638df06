"""The HTTP door of real nodes: whether they are well, ready and where; and what bad clients can do to it: nothing."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.door.http.monitoring import HttpDoor, HttpLimits
from m4cast.overlay.errors import M4castError
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.writer import Callbacks
from tests.overlay.door.http.watched import CHANNEL, Watched, get, get_json, until, watching
from tests.overlay.net.running import TIMEOUT_S, Running, settled, start_node

REQUEST_BYTES = 5_000
CONNECTIONS = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watching(tmp_path_factory.mktemp("pair"), 2) as watched:
        yield watched


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A node whose HTTP door has low limits."""
    limits = HttpLimits(CONNECTIONS, connection_ms=1_000, request_bytes_max=REQUEST_BYTES, look_ms=500)
    with watching(tmp_path_factory.mktemp("narrow"), 1, limits) as watched:
        yield watched


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A node whose HTTP door takes few connections and waits for a long time for each."""
    with watching(tmp_path_factory.mktemp("patient"), 1, HttpLimits(CONNECTIONS, connection_ms=600_000)) as watched:
        yield watched


def connected(watched: Watched) -> socket.socket:
    host, _, port = watched.doors[0].address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def heard(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up, in whichever way."""
    said = b""
    try:
        while piece := connection.recv(65_536):
            said += piece
    except ConnectionError:
        pass
    return said


def asked(watched: Watched, request: bytes) -> bytes:
    """The answer to a request as it is."""
    with connected(watched) as connection:
        try:
            connection.sendall(request)
        except ConnectionError:
            return b""
        return heard(connection)


def answers_others(watched: Watched) -> None:
    """Soon: a connection is gone a moment after its client hears so."""
    until(lambda: b" 200 " in asked(watched, b"GET /healthz HTTP/1.0\r\n\r\n"), "it answers others")


# ---- what it tells


def test_the_first_page_names_the_others(pair: Watched) -> None:
    status, body = pair.get(0, "/")
    assert status == 200
    for path in body.split():
        assert pair.get(0, path)[0] == 200
    assert body.split() == ["/metrics", "/healthz", "/readyz", "/topology"]


def test_a_question_mark_and_what_follows_do_not_matter(pair: Watched) -> None:
    assert pair.get(0, "/healthz?why=not")[0] == 200


def test_the_topology_has_all_nodes_and_their_links(pair: Watched) -> None:
    nodes = [node.driver.node for node in pair.served.nodes]
    ids = [node.me.node_id.hex() for node in nodes]
    until(lambda: len(get_json(pair.doors[0].address, "/topology")[1]["nodes"]) == 2, "both are on the roster")
    status, topology = get_json(pair.doors[0].address, "/topology")
    assert status == 200
    assert topology["channel"] == {"type": "m4cast", "instance": "default"}
    assert topology["node_id"] == ids[0]
    own = next(entry for entry in topology["nodes"] if entry["node_id"] == ids[0])
    assert own == {
        "node_id": ids[0],
        "name": "n0",
        "site": "",
        "address": nodes[0].me.address,
        "door": NodeConfig().advertised_door,
        "incarnation": 1,
        "leaving": False,
        "silent": False,
        "neighbours": [ids[1]],
    }
    assert {entry["node_id"] for entry in topology["nodes"]} == set(ids)


def test_a_node_is_ready_when_it_is_on_the_channel_and_not_before_or_after(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        portal = f"127.0.0.1:{free.getsockname()[1]}"

    async def live() -> None:
        nodes: list[Running] = []
        doors: list[HttpDoor] = []

        async def start(name: str, listen: str, portals: tuple[str, ...]) -> str:
            node = await start_node(tmp_path, name, portals, listen=listen)
            nodes.append(node)
            doors.append(HttpDoor(node.driver, node.store, CHANNEL, "127.0.0.1:0"))
            return doors[-1].address

        async def ask(address: str, path: str) -> tuple[int, str]:
            return await asyncio.to_thread(get, address, path)

        try:
            seeker = await start("seeker", "127.0.0.1:0", (portal,))
            status, body = await ask(seeker, "/readyz")
            assert (status, '"reason": "seeking"' in body) == (503, True)
            assert (await ask(seeker, "/healthz"))[0] == 200, "it is well, though it is alone"
            assert "\nm4cast_node_ready 0.0\n" in (await ask(seeker, "/metrics"))[1]
            founder = await start("founder", portal, ())
            await settled(nodes)
            for address in (seeker, founder):
                assert await ask(address, "/readyz") == (200, '{"status": "ready"}\n')
                assert "\nm4cast_node_ready 1.0\n" in (await ask(address, "/metrics"))[1]
            nodes[0].driver.leave()
            await asyncio.wait_for(nodes[0].driver.stopped.wait(), TIMEOUT_S)
            status, body = await ask(seeker, "/readyz")
            assert (status, '"reason": "stopping"' in body) == (503, True)
        finally:
            for door in doors:
                await door.stop()
            for node in nodes:
                await node.stop()

    asyncio.run(live())


def test_a_node_that_leaves_is_not_ready(tmp_path: Path) -> None:
    with watching(tmp_path, 1) as watched:
        (node,) = watched.served.nodes
        watched.served.run(
            node.publish("kept", b"nobody else has this row, so it waits a while for somebody to take it")
        )
        assert watched.get(0, "/readyz")[0] == 200
        watched.served.loop.call_soon_threadsafe(node.driver.leave)
        status, said = get_json(watched.doors[0].address, "/readyz")
        assert (status, said["reason"]) == (503, "leaving")
        assert watched.get(0, "/healthz")[0] == 200


def test_a_node_whose_store_is_full_is_not_ready(pair: Watched, tmp_path: Path) -> None:
    node = pair.served.nodes[0]
    callbacks = Callbacks(lambda token: None, lambda token, reason: None, lambda reason: None)
    full = Store.open(tmp_path, CHANNEL, callbacks, limits=StoreLimits(map_bytes=1 << 30, reserve_bytes=1 << 30))

    async def opened() -> HttpDoor:
        return HttpDoor(node.driver, full, CHANNEL, "127.0.0.1:0")

    door = pair.served.run(opened())
    try:
        status, said = get_json(door.address, "/readyz")
        assert (status, said["reason"]) == (503, "store-full")
        assert "reserve" in said["detail"]
        assert get(door.address, "/healthz")[0] == 200
    finally:
        pair.served.run(door.stop())
        full.close()
    assert pair.get(0, "/readyz")[0] == 200


def test_a_node_whose_loop_is_stuck_is_not_well(narrow: Watched) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def block() -> None:
        stuck.set()
        go_on.wait(TIMEOUT_S)

    narrow.served.loop.call_soon_threadsafe(block)
    assert stuck.wait(TIMEOUT_S)
    try:
        for path in ("/healthz", "/readyz", "/metrics", "/topology"):
            status, said = get_json(narrow.doors[0].address, path)
            assert (path, status, said["reason"]) == (path, 503, "busy")
    finally:
        go_on.set()
    answers_others(narrow)


# ---- its life


def test_a_taken_port_is_reported(pair: Watched) -> None:
    node = pair.served.nodes[0]

    async def open_again() -> None:
        HttpDoor(node.driver, node.store, CHANNEL, pair.doors[0].address)

    with pytest.raises(
        M4castError, match=r"cannot serve HTTP at 127\.0\.0\.1:\d+: .*; choose another address for `http`"
    ):
        pair.served.run(open_again())


def test_a_door_that_stops_hangs_up_and_frees_its_port(pair: Watched) -> None:
    node = pair.served.nodes[0]

    async def opened(listen: str) -> HttpDoor:
        return HttpDoor(node.driver, node.store, CHANNEL, listen)

    door = pair.served.run(opened("127.0.0.1:0"))
    host, _, port = door.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as waiting:
        waiting.sendall(b"GET /healthz HTTP/1.0\r\n")
        pair.served.run(door.stop())
        heard(waiting)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    again = pair.served.run(opened(door.address))
    assert get(again.address, "/healthz")[0] == 200
    pair.served.run(again.stop())


# ---- bad clients


def test_only_get_and_head_are_answered(pair: Watched) -> None:
    for method, expected in (("GET", 200), ("HEAD", 200), ("POST", 405), ("PUT", 405), ("DELETE", 405), ("X", 400)):
        head, _, body = asked(pair, f"{method} /healthz HTTP/1.0\r\n\r\n".encode()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 %d " % expected), method
        assert bool(body) == (method != "HEAD")
        if expected == 200:
            assert b"\r\nContent-Length: 17\r\n" in head + b"\r\n"


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/../../etc/passwd", "/%00"])
def test_other_paths_are_not_there(pair: Watched, path: str) -> None:
    said = asked(pair, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    assert b" 404 " in said.splitlines()[0]


def test_what_is_no_path_is_refused(pair: Watched) -> None:
    assert b" 400 " in asked(pair, b"GET * HTTP/1.0\r\n\r\n").splitlines()[0]


def test_requests_ahead_of_an_answer_are_limited_and_counted(narrow: Watched) -> None:
    """A connection has one request; what is sent after it counts as a part of it."""
    before = narrow.sample(0, "m4cast_http_refused_total")
    asked(narrow, b"GET /healthz HTTP/1.1\r\n\r\n" * REQUEST_BYTES)
    answers_others(narrow)
    assert narrow.sample(0, "m4cast_http_refused_total") > before


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\x00\xff" * 1_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x80" * 500,
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: -1\r\n\r\nzz\r\n",
        b"GET " + b"/" * (2 * REQUEST_BYTES) + b" HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nX: " + b"x" * (2 * REQUEST_BYTES) + b"\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /healthz HTTP/1.0\r\n" + b"\xff: \xfe\r\n" * 10 + b"\r\n",
        b"POST /healthz HTTP/1.0\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000,
    ],
    ids=lambda request_bytes: repr(request_bytes[:30]),
)
def test_what_is_no_request_is_harmless(
    narrow: Watched, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), connected(narrow) as connection:
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it hung up on us already
            pass
        heard(connection)
        answers_others(narrow)
    assert not caplog.records, "nobody fills the log from outside"


def test_a_request_may_be_as_long_as_the_limit_and_no_longer(narrow: Watched) -> None:
    def padded(size: int) -> bytes:
        start, end = b"GET / HTTP/1.0\r\nX: ", b"\r\n\r\n"
        return start + b"x" * (size - len(start) - len(end)) + end

    assert b" 200 " in asked(narrow, padded(REQUEST_BYTES)).splitlines()[0]
    assert b" 200 " not in asked(narrow, padded(REQUEST_BYTES + 1))


def test_a_client_that_takes_its_time_is_hung_up_on(narrow: Watched) -> None:
    """Byte by byte: no single pause is long, but the request is never over."""
    with connected(narrow) as connection:
        stop = threading.Event()

        def drip() -> None:
            try:
                connection.sendall(b"GET /healthz HTTP/1.0\r\nX: ")
                while not stop.wait(0.01):
                    connection.sendall(b"x")
            except OSError:
                pass

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert b"200" not in heard(connection)
        stop.set()
        dripping.join(TIMEOUT_S)
    answers_others(narrow)


def test_more_connections_than_allowed_are_hung_up_on_and_counted(narrow: Watched) -> None:
    before = narrow.sample(0, "m4cast_http_refused_total")
    with ExitStack() as stack:
        crowd = [stack.enter_context(connected(narrow)) for _ in range(3 * CONNECTIONS)]
        for connection in crowd:
            assert heard(connection) == b""
    answers_others(narrow)
    assert narrow.sample(0, "m4cast_http_refused_total") >= before + CONNECTIONS


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.0\r\n"], ids=["nothing", "half a request"])
def test_connections_that_ask_for_nothing_do_not_keep_others_out(patient: Watched, said: bytes) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(patient)) for _ in range(CONNECTIONS)]
        for connection in idle:
            connection.sendall(said)
        assert b" 200 " in asked(patient, b"GET /healthz HTTP/1.0\r\n\r\n"), "at the first try"
        assert heard(idle[0]) == b"", "the oldest had to go"
        idle[-1].sendall(b"\r\n" if said else b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in heard(idle[-1]), "one that is left is answered when it asks"
        for _ in range(2 * CONNECTIONS):
            assert b" 200 " in asked(patient, b"GET /healthz HTTP/1.0\r\n\r\n")


def test_connections_that_do_not_take_their_answers_do_not_keep_others_out(patient: Watched) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            lazy = stack.enter_context(connected(patient))
            lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answers_others(patient)
