"""Clients at the web door: who is let in by TLS, by certificate, by token and by origin, and to what. The tests of the
Flight door, for this one."""

import asyncio
import json
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
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
from m4cast.overlay.door.web.routes import JSON_LINES, ROUTES, ROW_TEXTS
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.web.doors import Answer, WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.net.running import TIMEOUT_S
from tests.security.attackers import Certificates, context, until_refused
from tests.security.narrow_door import ORIGIN, refused
from tests.security.test_doors import SECRETS, TOKENS, act, raw


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[WebServed]:
    """A node with TLS and tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens.toml").write_text(TOKENS)
    with web_serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}", settings=certificates.settings) as web:
        for topic in ("orders", "secret"):
            assert ask(web, certificates, "all", "POST", f"/topics/{topic}", [{"n": 1}, {"n": 2}]).status == 200
        yield web


def ask(
    web: WebServed, certificates: Certificates, name: str, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """Ask as the holder of a token, or with this text in its place."""
    shown = {"Authorization": f"Bearer {SECRETS.get(name, name)}"} if name else {}
    if body is not None:
        shown["Content-Type"] = "application/json"
    written = None if body is None else json.dumps(body)
    answer = web.ask(method, path, written, {**shown, **headers}, tls=context(certificates.ca, None))
    assert not any(secret.encode() in answer.body for secret in SECRETS.values())
    return answer


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
    """Read the topics in every way: ranges in each format, events, and a WebSocket."""
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
    """The gatherers and summaries that one client's publishes and tails opened on the loop serve only callers with the
    right, and filtered."""
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
