"""Crowds, trickles, floods and nonsense at the web door: they do not keep others out, and change nothing."""

import asyncio
import random
import socket
import ssl
import urllib.request
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from m4cast.overlay.door.http.monitoring import HttpDoor
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.web.bodies import rows_of
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.positions import parse_position
from m4cast.overlay.door.web.query import start_of
from m4cast.overlay.door.web.routes import BODIES
from m4cast.overlay.door.web.texts import accepted
from tests.overlay.door.http.watched import CHANNEL
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.test_posts import BODY_OF
from tests.overlay.net.running import TIMEOUT_S
from tests.security.attackers import Certificates, context, until_refused
from tests.security.narrow_door import NARROW, refused

CONNECTS = 10_000
HANDSHAKES = 2_000
OPEN_FILES = Path("/proc/self/fd")
WAVE = 500
NONSENSE = 3_000
POST = b"POST /topics/slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


# ---- crowds, trickles, floods


def connected(web: WebServed) -> socket.socket:
    host, _, port = web.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def heard(connection: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            said += piece
    return said


def sent(web: WebServed, request: bytes) -> bytes:
    with connected(web) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        return heard(connection)


def counted(web: WebServed, reason: str) -> int:
    return web.served.nodes[0].driver.refused[reason]


def test_ten_thousand_connections_do_not_keep_others_out(narrow: WebServed) -> None:
    before = counted(narrow, "http-crowd")
    crowd: deque[socket.socket] = deque()
    for made in range(WAVE, CONNECTS + 1, WAVE):
        crowd.extend(connected(narrow) for _ in range(WAVE))
        narrow.served.run(
            until_refused(narrow.served.nodes[0], "http-crowd", before + made // 2 - NARROW.connections_max)
        )
        assert narrow.get("/status").status == 200
        while len(crowd) > WAVE:
            crowd.popleft().close()
    while crowd:
        crowd.popleft().close()
    assert counted(narrow, "http-crowd") - before > CONNECTS // 2


def test_handshakes_that_never_end_do_not_keep_others_out(tmp_path: Path, certificates: Certificates) -> None:
    """They are cut off when there are many, and when they take long. Their files are closed."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    narrow = WebLimits(connections_max=64, handshake_ms=200)
    with web_serving(tmp_path, 1, narrow, settings=certificates.settings) as web:
        tls = context(certificates.ca, certificates.client("reports"))
        assert web.ask("GET", "/status", tls=tls).status == 200
        files = len(list(OPEN_FILES.iterdir()))
        crowd: deque[socket.socket] = deque()
        for made in range(WAVE, HANDSHAKES + 1, WAVE):
            for _ in range(WAVE):
                crowd.append(connected(web))
                crowd[-1].sendall(hello)
            web.served.run(until_refused(web.served.nodes[0], "http-crowd", made // 2 - narrow.connections_max))
            assert web.ask("GET", "/status", tls=tls).status == 200
            while len(crowd) > WAVE:
                crowd.popleft().close()
        web.served.run(until_refused(web.served.nodes[0], "http-handshake"))
        while crowd:
            crowd.popleft().close()
        web.served.run(until_closed(files))


@pytest.mark.parametrize("count", [300, pytest.param(CONNECTS, marks=pytest.mark.soak)])
def test_strangers_of_another_authority_do_not_keep_others_out(
    tmp_path: Path, certificates: Certificates, count: int
) -> None:
    """Each handshake is done to its end; half of them come from those who do not know the node's authority either."""
    others = Certificates(tmp_path / "others")
    strangers = [
        context(certificates.ca, others.client("reports")),
        context(others.ca, certificates.client("reports")),
    ]
    with web_serving(tmp_path, 1, WebLimits(connections_max=64), settings=certificates.settings) as web:
        tls = context(certificates.ca, certificates.client("reports"))
        assert web.ask("GET", "/status", tls=tls).status == 200
        files = len(list(OPEN_FILES.iterdir()))
        before = web.ask("GET", "/topics", tls=tls).json
        for number in range(1, count + 1):
            assert shaken_off(web, strangers[number % 2])
            if number % 100 == 0:
                assert web.ask("GET", "/status", tls=tls).status == 200
        web.served.run(until_refused(web.served.nodes[0], "http-tls", count))
        assert web.ask("GET", "/topics", tls=tls).json == before
        web.served.run(until_closed(files))


def shaken_off(web: WebServed, tls: ssl.SSLContext) -> bool:
    """True if it gets no answer."""
    with suppress(ssl.SSLError, ConnectionError), connected(web) as connection:
        secured = tls.wrap_socket(connection, server_hostname="127.0.0.1")
        secured.sendall(b"GET /topics HTTP/1.1\r\nHost: x\r\n\r\n")
        said = secured.recv(65_536)
        secured.close()
        return not said
    return True


async def until_closed(files: int) -> None:
    """Wait until the process has no more open files than this."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(list(OPEN_FILES.iterdir())) > files:
            await asyncio.sleep(0)


def test_health_is_answered_while_the_web_door_is_flooded(narrow: WebServed) -> None:
    """Requests that wait, bodies that never end and connections without a word: the door for operators has a loop, a
    port and limits of its own."""
    node = narrow.served.nodes[0]

    async def opened() -> HttpDoor:
        return HttpDoor(node.driver, node.store, CHANNEL, "127.0.0.1:0")

    monitoring = narrow.served.run(opened())
    pipelined = b"GET /topics HTTP/1.1\r\nHost: x\r\n\r\n" * 10
    flood: list[socket.socket] = []
    try:
        for number in range(3 * NARROW.connections_max):
            flood.append(connected(narrow))
            with suppress(ConnectionError):
                flood[-1].sendall((pipelined, POST + b"Content-Length: 100000\r\n\r\n[", b"")[number % 3])
            if number % 16 == 0:
                for path in ("/healthz", "/readyz", "/metrics", "/topology"):
                    with urllib.request.urlopen(f"http://{monitoring.address}{path}", timeout=TIMEOUT_S) as answer:
                        assert answer.status == 200
    finally:
        for each in flood:
            each.close()
        narrow.served.run(monitoring.stop())


def test_connections_that_rest_give_way_to_others(narrow: WebServed) -> None:
    resting = []
    for _ in range(2 * NARROW.connections_max):
        resting.append(connected(narrow))
        resting[-1].sendall(b"GET /topics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert resting[-1].recv(1_000).startswith(b"HTTP/1.1 200 ")
    assert heard(resting[0]) == b""
    for each in resting:
        each.close()


@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"GET /status HTTP/1.1\r\nX: ", b"x"),
        (b"GET /status HTTP/1.1\r\nHost: x\r\n\r\nGET /status HTTP/1.1\r\nX: ", b"x"),
        (POST + b"Content-Length: 100000\r\n\r\n[", b" "),
    ],
    ids=["head", "second head", "body"],
)
def test_a_request_that_trickles_in_is_cut_off(narrow: WebServed, begin: bytes, drop: bytes) -> None:
    with connected(narrow) as connection:
        connection.sendall(begin)
        connection.settimeout(0.02)
        said = b""
        for _ in range(1_000):
            try:
                connection.sendall(drop)
                piece = connection.recv(65_536)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            said += piece
            if not piece:
                break
        else:
            pytest.fail("it was allowed to go on")
    assert b'"rows"' not in said


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (b"GET /status HTTP/1.1\r\nX: " + b"x" * 2_000_000 + b"\r\n\r\n", "http-malformed"),
        (b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n" * 100_000, "http-oversize"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x80" * 500, "http-malformed"),
        (b"GET /\x00 HTTP/1.1\r\n\r\n", "http-malformed"),
        (b"POST /topics/t HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx", "http-malformed"),
    ],
    ids=["long head", "many requests", "TLS", "control character", "two lengths"],
)
def test_what_is_too_much_or_no_request_is_refused_and_counted(
    narrow: WebServed, request_bytes: bytes, reason: str
) -> None:
    before = counted(narrow, reason)
    sent(narrow, request_bytes)
    narrow.served.run(until_refused(narrow.served.nodes[0], reason, before + 1))
    assert narrow.get("/status").status == 200


def test_bodies_have_a_limit_of_their_own_and_together(narrow: WebServed) -> None:
    rows = "[" + " " * (NARROW.body_bytes_max - 10) + '{"n":1}]'
    assert len(rows) <= NARROW.body_bytes_max
    assert narrow.post("/topics/sized", rows).status == 200
    refused(narrow.post("/topics/sized", rows + "  "), 413, "too-large", "in parts")
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in sent(narrow, chunked + (b"%x\r\n%b\r\n" % (50_000, b" " * 50_000)) * 5)
    held = []
    for _ in range(2):  # one client has half of all
        held.append(connected(narrow))
        held[-1].sendall(POST + b"Content-Length: 150000\r\n\r\n" + b" " * 140_000)
    said = [heard(each) for each in held]
    assert any(b" 503 " in each and b"memory" in each for each in said), said
    for each in held:
        each.close()
    assert narrow.post("/topics/sized", rows).status == 200, "what they held is free again"
    ends = narrow.served.doors[0].services.calls.so_far()
    assert ends["post", "too-large"] == 2 and ends["post", "busy"]


def test_tails_of_one_client_are_limited(tmp_path: Path) -> None:
    with web_serving(tmp_path, 1, WebLimits(streams_max=2)) as web:
        web.post("/topics/t", {"n": 1})
        tails = [EventSource(web.address, "/topics/t/tail?from=earliest").events() for _ in range(2)]
        assert [len(list(islice(tail, 1))) for tail in tails] == [1, 1]
        refused(web.get("/topics/t/tail"), 503, "busy", "open calls")


# ---- nonsense

WORDS = ["{", "}", "[", "]", '"a"', ":", ",", "1", "null", "\n", "\r", "é", "\x00", "\\ud800"]


def nonsense(chance: random.Random) -> bytes:
    if chance.randrange(3) == 0:
        return chance.randbytes(chance.randrange(80))
    return "".join(chance.choice(WORDS) for _ in range(chance.randrange(20))).encode()


def test_bodies_that_make_no_sense_are_refused_and_nothing_else() -> None:
    """A parser returns rows or a refusal, whatever it is given."""
    chance = random.Random(1)
    refusals: set[str] = set()
    for number in range(NONSENSE):
        kind = BODIES[number % len(BODIES)]
        headers = {"Content-Type": kind}
        if chance.randrange(10) == 0:
            headers = {"Content-Type": "text/plain", "ce-specversion": chance.choice(["1.0", '"', '"\\'])}
        try:
            list(rows_of(nonsense(chance), headers, no_columns).batches)
        except Refusal as refusal:
            refusals.add(refusal.code)
    assert refusals == {"bad-request"}


def test_damaged_bodies_are_refused_or_read_and_nothing_else() -> None:
    """Bodies of every format, with some bytes changed, cut off or put in: rows or a refusal, and no other error."""
    chance = random.Random(4)
    refusals: set[str] = set()
    read = 0
    for number in range(NONSENSE):
        kind = BODIES[number % len(BODIES)]
        body = bytearray(BODY_OF[kind])
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[at] ^= 1 << chance.randrange(8)
                case 1:
                    del body[at : at + chance.randrange(1, 20)]
                case _:
                    body[at:at] = chance.randbytes(chance.randrange(1, 5))
            body = body or bytearray(b" ")
        try:
            read += sum(rows.num_rows for rows in rows_of(bytes(body), {"Content-Type": kind}, no_columns).batches)
        except Refusal as refusal:
            refusals.add(refusal.code)
    assert refusals <= {"bad-request", "bad-rows", "too-large"} and read


def no_columns() -> pa.Schema:
    return pa.schema([])


def test_parameters_that_make_no_sense_are_refused_and_nothing_else() -> None:
    chance = random.Random(2)
    letters = "0123456789abcdef:,-;=q./*"
    for _ in range(NONSENSE):
        text = "".join(chance.choice(letters) for _ in range(chance.randrange(80)))
        for parse in (lambda text=text: parse_position(text, "t", "from"), lambda text=text: accepted(text)):
            with suppress(Refusal):
                parse()


def test_times_that_make_no_sense_are_refused_and_nothing_else() -> None:
    chance = random.Random(5)
    starts = 0
    for _ in range(NONSENSE):
        text = list(
            chance.choice(["2026-01-31T12:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59"])
        )
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(text))
            match chance.randrange(3):
                case 0:
                    text[at] = chance.choice("0129TZ:+-. W\u0661\x00\ud800")
                case 1:
                    del text[at]
                case _:
                    text.insert(at, chance.choice("0129TZ:+-. W"))
        with suppress(Refusal):
            start = start_of("".join(text), "from", "t")
            starts += isinstance(start, int) and 0 <= start < 2**63
    assert NONSENSE // 10 < starts < NONSENSE


def test_requests_that_make_no_sense_change_nothing(narrow: WebServed) -> None:
    chance = random.Random(3)
    before = narrow.get("/topics").json
    pieces = [b"GET ", b"POST ", b"/topics/t", b"/live", b"?", b" HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"\x00"]
    pieces += [b"Content-Length: ", b"5", b"-1", b"Transfer-Encoding: chunked\r\n", b"\xff", b"Connection: Upgrade\r\n"]
    for _ in range(200):
        with connected(narrow) as connection, suppress(ConnectionError):
            connection.sendall(b"".join(chance.choice(pieces) for _ in range(chance.randrange(1, 12))))
    assert narrow.get("/topics").json == before
    assert narrow.get("/status").status == 200
