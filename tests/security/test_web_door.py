"""Clients at the web door: who is let in by TLS, by certificate, by token and by origin, and to what; crowds, trickles
and nonsense. The tests of the Flight door, for this one."""

import asyncio
import json
import random
import socket
import ssl
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.aio import Channel
from m4cast.overlay.client.connections import as_client_error
from m4cast.overlay.door.actions import ACTIONS
from m4cast.overlay.door.http.monitoring import HttpDoor
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.web.bodies import rows_of
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.positions import parse_position
from m4cast.overlay.door.web.routes import BODIES, JSON_LINES, ROUTES, ROW_TEXTS
from m4cast.overlay.door.web.texts import accepted
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.http.watched import CHANNEL
from tests.overlay.door.web.doors import Answer, WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.test_posts import BODY_OF
from tests.overlay.net.running import TIMEOUT_S
from tests.security.attackers import Certificates, context, until_refused
from tests.security.test_doors import SECRETS, TOKENS, act, raw

CONNECTS = 10_000
HANDSHAKES = 2_000
OPEN_FILES = Path("/proc/self/fd")
WAVE = 500
NONSENSE = 3_000
ORIGIN = "https://console.example"
POST = b"POST /topics/slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
NARROW = WebLimits(
    connections_max=64,
    asking_ms=300,
    head_bytes_max=4_000,
    body_bytes_max=200_000,
    bodies_bytes_max=400_000,
    body_idle_ms=300,
    body_bytes_per_s=10_000_000,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[WebServed]:
    """A node with TLS and tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens.toml").write_text(TOKENS)
    with web_serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}", settings=certificates.settings) as web:
        for topic in ("orders", "secret"):
            assert ask(web, certificates, "all", "POST", f"/topics/{topic}", [{"n": 1}, {"n": 2}]).status == 200
        yield web


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    """A plain node whose web door has low limits, and serves the pages of one origin."""
    with web_serving(tmp_path_factory.mktemp("narrow"), 1, NARROW, origins=(ORIGIN,)) as web:
        yield web


def ask(
    web: WebServed, certificates: Certificates, name: str, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """As the holder of a token, or with these words in its place."""
    shown = {"Authorization": f"Bearer {SECRETS.get(name, name)}"} if name else {}
    if body is not None:
        shown["Content-Type"] = "application/json"
    written = None if body is None else json.dumps(body)
    answer = web.ask(method, path, written, {**shown, **headers}, tls=context(certificates.ca, None))
    assert not any(secret.encode() in answer.body for secret in SECRETS.values())
    return answer


def refused(answer: Answer, status: int, code: str, *words: str) -> None:
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    for word in words:
        assert word in answer.json["detail"]


# ---- tokens


def test_no_token_and_a_wrong_one_are_refused_on_every_path_and_counted(
    guarded: WebServed, certificates: Certificates
) -> None:
    driver = guarded.served.nodes[0].driver
    before = driver.refused["unauthenticated"]
    guarded_routes = [route for route in ROUTES.values() if not route.is_public]
    assert {route.handler for route in ROUTES.values()} - {each.handler for each in guarded_routes} == {
        "console",
        "file",
    }
    for name, what in (("", "no token"), ("not a token of this node", "an unknown token")):
        for route in guarded_routes:
            path = route.path.replace("{topic}", "orders").replace("{action}", "status")
            answer = ask(guarded, certificates, name, route.method, path)
            refused(answer, 401, "unauthenticated", what)
            assert answer.headers["www-authenticate"] == "Bearer"
    expected = before + 2 * len(guarded_routes)
    guarded.served.run(until_refused(guarded.served.nodes[0], "unauthenticated", expected))
    assert driver.refused["unauthenticated"] == expected


def test_a_token_is_shown_in_its_header_and_nowhere_else(guarded: WebServed, certificates: Certificates) -> None:
    secret = SECRETS["all"].replace(" ", "%20")
    for query in (f"token={secret}", f"access_token={secret}", f"Authorization=Bearer%20{secret}"):
        refused(ask(guarded, certificates, "all", "GET", f"/topics?{query}"), 400, "bad-request", "unknown parameter")
        refused(ask(guarded, certificates, "", "GET", f"/topics/orders/tail?{query}"), 401, "unauthenticated")
    cookie = {"Cookie": f"token={SECRETS['all']}"}
    refused(ask(guarded, certificates, "", "GET", "/topics", **cookie), 401, "unauthenticated")


def test_a_body_without_a_token_is_not_read(guarded: WebServed, certificates: Certificates) -> None:
    """The answer arrives although the body never does."""
    host, _, port = guarded.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain,
        context(certificates.ca, None).wrap_socket(plain) as connection,
    ):
        connection.sendall(b"POST /topics/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
        assert connection.recv(1_000).startswith(b"HTTP/1.1 401 ")


def test_a_token_may_do_what_it_says_and_nothing_else(guarded: WebServed, certificates: Certificates) -> None:
    def as_(name: str, method: str, path: str, body: Any = None) -> Answer:
        return ask(guarded, certificates, name, method, path, body)

    assert as_("writer", "POST", "/topics/events.new", {"n": 1}).status == 200
    assert [row["n"] for row in as_("reader", "GET", "/topics/events.new/rows").lines] == [1]
    refused(as_("writer", "POST", "/topics/secret", {"n": 1}), 403, "forbidden", "'publish' on topic 'secret'")
    refused(as_("writer", "GET", "/topics/orders/rows"), 403, "forbidden", "'read' on topic 'orders'")
    refused(as_("writer", "GET", "/topics"), 403, "forbidden")
    refused(as_("reader", "POST", "/topics/orders", {"n": 1}), 403, "forbidden")
    for path in ("/topics/secret", "/topics/secret/rows", "/topics/secret/tail", "/topics/secret/frontier"):
        refused(as_("reader", "GET", path), 403, "forbidden", "'read' on topic 'secret'")
    refused(as_("reader", "POST", "/actions/delivery-range"), 403, "forbidden", "on all topics")
    refused(as_("all", "POST", "/actions/topic-delete", {"topic": "orders"}), 403, "forbidden", "'admin'")
    refused(as_("all", "POST", "/actions/explode"), 403, "forbidden", "'admin'")
    refused(as_("admin", "POST", "/actions/explode"), 400, "bad-request", "no action 'explode'")
    assert as_("admin", "POST", "/actions/topic-retention", {"topic": "orders"}).status == 200
    assert as_("writer", "GET", "/status").json["name"] == "n0"
    guarded.served.run(until_refused(guarded.served.nodes[0], "forbidden", 10))


def test_nothing_of_what_may_not_be_read_is_shown(guarded: WebServed, certificates: Certificates) -> None:
    assert "secret" in ask(guarded, certificates, "all", "GET", "/topics").json
    for path in ("/topics", "/status", "/topology", "/openapi.json"):
        assert b"secret" not in ask(guarded, certificates, "reader", "GET", path).body, path
    listed = ask(guarded, certificates, "reader", "POST", "/actions/frontier").json
    assert "secret" not in listed and "orders" in listed


def test_a_position_of_another_topic_reads_nothing_of_it(guarded: WebServed, certificates: Certificates) -> None:
    position = ask(guarded, certificates, "all", "GET", "/topics/secret/rows").headers["m4cast-next"]
    answer = ask(guarded, certificates, "reader", "GET", f"/topics/orders/rows?from=-&to={position}")
    assert {row["_topic"] for row in answer.lines} == {"orders"}


def test_a_filtered_token_gets_its_rows_and_no_others(tmp_path: Path) -> None:
    """By every way to read them: ranges in each format, events, and a WebSocket."""
    secret = "the secret of one who sees little"
    (tmp_path / "tokens.toml").write_text(
        f'''{TOKENS}
[[token]]
name = "few"
secret = "{secret}"
read = ["*"]
where = {{orders = "n = 2"}}
'''
    )
    shown = {"Authorization": f"Bearer {secret}"}
    everything = {"Authorization": f"Bearer {SECRETS['all']}", "Content-Type": "application/json"}

    async def live() -> list[int]:
        async with Channel(web.address, token=secret) as channel:
            async for rows in channel.tail("orders", "earliest"):
                found: list[int] = rows.column("n").to_pylist()
                return found
        return []

    with web_serving(tmp_path, 1, tokens=f"file:{tmp_path / 'tokens.toml'}") as web:
        for n in (1, 2, 3):
            assert web.ask("POST", "/topics/orders", json.dumps({"n": n, "hidden": "x"}), everything).status == 200
        for accept in ROW_TEXTS:
            for query in ("", "?where=n%20%3E%200", "?limit=3"):
                answer = web.ask("GET", f"/topics/orders/rows{query}", headers={**shown, "Accept": accept})
                assert answer.status == 200
                if accept == JSON_LINES:
                    assert [row["n"] for row in answer.lines] == [2]
        assert web.ask("GET", "/topics/orders/rows?where=n%20%3D%201", headers=shown).lines == []
        assert web.ask("GET", "/topics/orders/explain?where=n%20%3D%201", headers=shown).json["matching_rows"] == 0
        tail = EventSource(web.address, "/topics/orders/tail?from=earliest", headers=shown)
        (event,) = islice(tail.events(), 1)
        assert json.loads(event.data)["n"] == 2
        assert asyncio.run(live()) == [2]


def test_rows_that_others_have_in_memory_are_not_for_everybody(tmp_path: Path) -> None:
    """What one client's publishes and tails have opened on the loop is used by those who may, and filtered."""
    secret = "the secret of one who sees little"
    (tmp_path / "tokens.toml").write_text(
        f'''{TOKENS}
[[token]]
name = "few"
secret = "{secret}"
read = ["orders"]
where = {{orders = "n > 2"}}
'''
    )

    async def work() -> None:
        async with (
            Channel(web.address, token=SECRETS["all"]) as everything,
            Channel(web.address, token=secret) as few,
            aiohttp.ClientSession() as session,
        ):
            await everything.publish("orders", [{"n": 0}])
            seen: dict[str, list[int]] = {"all": [], "few": [], "early": []}

            async def follow(name: str, channel: Channel, last: int, *, early: bool = False) -> None:
                async for rows in channel.tail("orders", "earliest", early=early):
                    seen[name] += rows.column("n").to_pylist()
                    if seen[name][-1] == last:
                        return

            following = asyncio.gather(
                follow("all", everything, 5), follow("few", few, 5), follow("early", few, 5, early=True)
            )
            orders = f"http://{web.address}/topics/orders"
            headers = {"Authorization": f"Bearer {SECRETS['all']}"}
            for n in range(1, 6):
                async with session.post(orders, json={"n": n}, headers=headers) as answer:
                    assert answer.status == 200
            await following
            assert seen == {"all": [0, 1, 2, 3, 4, 5], "few": [3, 4, 5], "early": [3, 4, 5]}
            shown = {"Authorization": f"Bearer {secret}"}
            async with session.post(orders, json={"n": 6}, headers=shown) as answer:
                assert (answer.status, (await answer.json())["code"]) == (403, "forbidden")
            async with session.ws_connect(f"http://{web.address}/live", headers=shown) as socket:
                await socket.send_json({"type": "publish", "id": 1, "topic": "orders", "rows": [{"n": 6}]})
                assert (await socket.receive_json())["code"] == "forbidden"
                await socket.send_json({"type": "subscribe", "id": "s", "topic": "secret", "early": True})
                assert (await socket.receive_json())["code"] == "forbidden"
            assert (await everything.read("orders")).column("n").to_pylist() == [0, 1, 2, 3, 4, 5]

    with web_serving(tmp_path, 1, tokens=f"file:{tmp_path / 'tokens.toml'}") as web:
        asyncio.run(work())


def test_every_action_asks_for_the_same_rights_at_both_doors(guarded: WebServed, certificates: Certificates) -> None:
    """One table, two transports: whoever asks for whatever, the answer has the same code."""
    bodies: list[dict[str, Any]] = [{}, {"topic": "secret"}, {"topic": "orders"}, {"reader": "r", "topics": ["secret"]}]
    seen: Counter[str] = Counter()
    for name in ("writer", "reader"):
        client = raw(guarded.served, certificates, name)
        for action in (*ACTIONS, "explode"):
            for body in bodies:
                answer = ask(guarded, certificates, name, "POST", f"/actions/{action}", body)
                code = "ok" if answer.status == 200 else answer.json["code"]
                seen[code] += 1
                try:
                    act(client, action, **body)
                    other = "ok"
                except (pa.ArrowException, flight.FlightError) as error:
                    refusal = as_client_error("", error)
                    assert isinstance(refusal, RefusedError)
                    other = refusal.code
                assert (name, action, body, code) == (name, action, body, other)
        client.close()
    assert seen["ok"] > 5 and seen["forbidden"] > 50, seen


def test_tokens_change_while_the_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    headers = {"Content-Type": "application/json", "Authorization": f"bearer {SECRETS['writer']}"}
    with web_serving(tmp_path, 1, tokens=f"file:{file}") as web:  # plain HTTP
        assert web.ask("POST", "/topics/orders", '{"n": 1}', headers).status == 200
        file.write_text(TOKENS.replace(SECRETS["writer"], "another secret, also long"))
        assert web.ask("POST", "/topics/orders", '{"n": 1}', headers).status == 401


# ---- TLS


def test_without_tokens_a_certificate_of_the_cluster_lets_in(tmp_path: Path, certificates: Certificates) -> None:
    others = Certificates(tmp_path / "others")
    with web_serving(tmp_path, 1, settings=certificates.settings) as web:
        for pair in (certificates.client("reports"), certificates.node("n0")):
            assert web.ask("GET", "/status", tls=context(certificates.ca, pair)).status == 200
        strangers: list[ssl.SSLContext | None] = [
            context(certificates.ca, None),
            context(certificates.ca, others.client("reports")),
            context(certificates.ca, certificates.node("expired", days=-1)),
            context(others.ca, certificates.client("reports")),
            None,
        ]
        for stranger in strangers:
            with pytest.raises((OSError, ConnectionError)):
                pytest.fail(str(web.ask("GET", "/status", tls=stranger)))
        web.served.run(until_refused(web.served.nodes[0], "http-tls"))


# ---- browsers


def test_pages_of_other_origins_are_refused(narrow: WebServed) -> None:
    assert narrow.post("/topics/t", {"n": 1}).status == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1", f"http://{narrow.address}"):
        for answer in (narrow.get("/topics/t/rows", Origin=origin), narrow.post("/topics/t", {"n": 2}, Origin=origin)):
            refused(answer, 403, "forbidden", "web_origins")
            assert "access-control-allow-origin" not in answer.headers
    assert len(narrow.get("/topics/t/rows").lines) == 1
    assert "access-control-allow-origin" not in narrow.get("/topics/t/rows").headers


def test_pages_of_allowed_origins_are_served(narrow: WebServed) -> None:
    answer = narrow.post("/topics/cors", {"n": 1}, Origin=ORIGIN)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    preflight = narrow.ask("OPTIONS", "/topics/cors", headers=asked)
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers
    assert narrow.get("/topics/never/rows", Origin=ORIGIN).headers["access-control-allow-origin"] == ORIGIN


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


async def until_closed(files: int) -> None:
    """Until the process has no more open files than this."""
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
                for path in ("/healthz", "/readyz", "/metrics"):
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
    """Whatever a parser is given, it returns rows or a refusal."""
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
    assert refusals <= {"bad-request", "too-large"} and read


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
