"""The description of the door, its table of routes, its handlers, its documentation: all say the same."""

import re
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.client.roaming.client import Client
from m4cast.overlay.door.web import schemas
from m4cast.overlay.door.web.door import WebDoor
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live import messages
from m4cast.overlay.door.web.openapi import description
from m4cast.overlay.door.web.routes import BODIES, ROUTES, WebRoute
from m4cast.overlay.refusals import REFUSALS
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.live.test_connection import run, talking
from tests.overlay.door.web.test_posts import BODY_OF

PAGE = (Path(__file__).parents[4] / "docs" / "HTTP.md").read_text("utf-8")


def url(route: WebRoute) -> str:
    return route.path.replace("{topic}", "described").replace("{action}", "status").replace("{file}", "console.js")


FILE_OF = {
    "text/javascript": "console.js",
    "text/css": "console.css",
    "image/svg+xml": "mark.svg",
    "text/plain": "vendor/licences.txt",
}


def test_the_description_is_served_and_has_every_route(pair: WebServed) -> None:
    served = pair.get("/openapi.json").json
    assert served == description()
    described = {(method.upper(), path) for path, item in served["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in ROUTES.values()}


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (NoneType,),
}
WORDS = {
    *("type", "const", "enum", "oneOf", "description", "format", "pattern", "minimum", "maxLength"),
    *("required", "properties", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
}


def fault(value: Any, schema: dict[str, Any], at: str = "") -> str:
    """The first place where a value does not satisfy a JSON schema, or an empty text. It knows the few words that the
    description uses."""
    assert set(schema) <= WORDS, schema
    if "oneOf" in schema:
        faults = [fault(value, each, at) for each in schema["oneOf"]]
        return "" if faults.count("") == 1 else f"{at}: none, or several, of {faults}"
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        wanted = tuple(python for kind in kinds for python in TYPES[kind])
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            return f"{at}: {value!r} is no {schema['type']}"
    wrong = [
        "const" in schema and value != schema["const"],
        "enum" in schema and value not in schema["enum"],
        "pattern" in schema and not re.search(schema["pattern"], value),
        "minimum" in schema and value is not None and value < schema["minimum"],
        "maxLength" in schema and len(value) > schema["maxLength"],
        isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)),
        isinstance(value, dict) and not set(schema.get("required", ())) <= set(value),
    ]
    if any(wrong):
        return f"{at}: {value!r} is not {schema}"
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        each = [*first, *[schema.get("items", {})] * (len(value) - len(first))]
        return "".join(fault(one, rule, f"{at}[{n}]") for n, (one, rule) in enumerate(zip(value, each, strict=True)))
    if isinstance(value, dict):
        own, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, one in value.items():
            rule = own.get(name, others)
            if rule is False or (found := fault(one, rule, f"{at}.{name}")):
                return found if rule is not False else f"{at}: has {name!r}"
    return ""


def test_answers_have_the_form_that_is_described(pair: WebServed) -> None:
    paths = description()["paths"]

    def check(path: str, value: Any, method: str = "get") -> None:
        schema = paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        assert not fault(value, schema, path)

    address = pair.served.addresses[0]
    check("/topics/{topic}", pair.post("/topics/described", {"id": 1}).json, "post")
    Channel([address]).lease("described-reader", topics=["described"])
    client = Client([address], key="described", credential="correct horse battery staple")
    client.connect(create=True)
    client.subscribe("described", "id > 0", name="all")
    for path in ("/topics", "/topics/{topic}", "/topics/{topic}/frontier", "/clients", "/units", "/readers"):
        answer = pair.get(path.replace("{topic}", "described"))
        assert answer.status == 200 and len(answer.json)
        check(path, answer.json)
    assert pair.get("/clients").json["clients"]
    client.disconnect()
    check("/metrics.json", pair.get("/metrics.json").json)
    assert list(paths["/live"]["get"]["responses"]) == ["101", "default"]


def test_a_validator_that_accepts_everything_would_show_nothing(pair: WebServed) -> None:
    """Each member of an answer is looked at."""
    published = pair.post("/topics/described", {"id": 1}).json
    assert not fault(published, schemas.PUBLISHED)
    assert fault({**published, "more": 1}, schemas.PUBLISHED)
    assert fault({**published, "rows": "1"}, schemas.PUBLISHED)
    for name in ("topic", "origin", "first", "next"):
        (range_,) = published["ranges"]
        for wrong in ({**range_, name: None}, {key: value for key, value in range_.items() if key != name}):
            assert fault({**published, "ranges": [wrong]}, schemas.PUBLISHED), name


def test_messages_of_live_have_the_form_that_is_described(pair: WebServed) -> None:
    described = description()["components"]["schemas"]
    said: list[dict[str, Any]] = [
        {"type": "publish", "id": 1, "topic": "described-live", "rows": [{"id": 1}], "acks": 0, "timeout_ms": 60_000},
        {"type": "publish", "id": 2, "topic": "described-live", "rows": [{"id": 2}], "key": "described", "next": "1"},
        {"type": "publish", "id": 3, "topic": "described-live", "rows": [{"_sequence": 1}]},
        {"type": "subscribe", "id": "s", "topic": "described-live", "from": "earliest", "credit": 1, "format": "json"},
        {"type": "credit", "id": "s", "frames": 100},
    ]
    heard: dict[str, int] = {}

    async def work() -> None:
        async with talking(pair) as talk:
            for message in said:
                assert not fault(message, described["FromClient"])
                await talk.say(**message)
            while set(heard) != {"acked", "refused", "subscribed", "rows"}:
                message = await talk.hear()
                assert not fault(message, described["ToClient"])
                heard[message["type"]] = heard.get(message["type"], 0) + 1
            await talk.say(type="unsubscribe", id="s")

    run(work)
    assert not fault({"type": "unsubscribe", "id": "s"}, described["FromClient"])
    assert fault({"type": "unsubscribe", "id": "s", "frames": 1}, described["FromClient"])


def test_the_members_of_messages_are_those_that_are_read() -> None:
    assert set(schemas.FROM_CLIENT["publish"]["properties"]) == set(messages._PUBLISH)
    assert set(schemas.FROM_CLIENT["subscribe"]["properties"]) == set(messages._SUBSCRIBE)


def test_every_body_and_answer_has_a_schema_or_is_described_elsewhere() -> None:
    for item in description()["paths"].values():
        for operation in item.values():
            for kind, content in operation.get("requestBody", {"content": {}})["content"].items():
                assert content["schema"], (operation["operationId"], kind)
            for status, answer in operation["responses"].items():
                if status == "200":
                    assert all("schema" in content for content in answer["content"].values()), operation["operationId"]


def test_every_route_has_a_handler_and_every_handler_a_route() -> None:
    handlers = {name for name in vars(WebDoor) if re.fullmatch("_[a-z]+", name)} - {"_act", "_performed"}
    assert handlers == {f"_{route.handler}" for route in ROUTES.values()}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_a_handler_accepts_the_parameters_that_are_described_and_no_others(pair: WebServed, route: WebRoute) -> None:
    pair.post("/topics/described", {"id": 1})
    kind = {"POST": "application/json"}.get(route.method)
    headers = {"Content-Type": kind} if kind else {}
    body = "{}" if route.handler == "action" else '{"id": 1}' if kind else None
    unknown = pair.ask(route.method, f"{url(route)}?no_such_parameter=1", body, headers)
    assert unknown.json["code"] == "bad-request" and "no_such_parameter" in unknown.json["detail"]
    for name in route.query:
        known = pair.ask(route.method, f"{url(route)}?{name}=%00", body, headers)  # no parameter may have this value
        assert "unknown parameter" not in known.body.decode(), name
        if name not in ("expect", "next"):
            assert known.json["code"] == "bad-request" and name in known.json["detail"], known.body


@pytest.mark.parametrize(
    "route", [route for route in ROUTES.values() if route.handler not in ("tail", "live")], ids=str
)
def test_an_answer_has_a_described_media_type(pair: WebServed, route: WebRoute) -> None:
    pair.post("/topics/described", {"id": 1})
    for kind in route.answers:
        headers = {"Accept": kind, "Content-Type": "application/json"}
        body = '{"id": 1}' if route.handler == "post" else None
        path = url(route).replace("console.js", FILE_OF.get(kind, ""))
        answer = pair.ask(route.method, path + ("?where=id=1" if route.handler == "explain" else ""), body, headers)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind), answer.body


def test_every_described_body_is_accepted(pair: WebServed) -> None:
    for kind in BODIES:
        assert pair.post(f"/topics/described-{BODIES.index(kind)}", BODY_OF[kind], kind).status == 200


# ---- the page


def test_the_page_has_the_paths_of_the_table() -> None:
    rows = re.findall(r"^\| (GET|POST) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert rows == [(route.method, route.path) for route in ROUTES.values()]


def test_the_page_has_the_parameters_and_bodies_of_the_table() -> None:
    for route in ROUTES.values():
        for name in route.query:
            assert f"`{name}`" in PAGE, (route.path, name)
    assert re.findall(r"^\| `(\w+/[^`]+)` \|", PAGE, re.MULTILINE) == list(BODIES)


def test_the_page_has_the_status_of_every_refusal() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.+?) \|$", PAGE, re.MULTILINE)
    listed = {code: int(status) for status, codes in rows for code in re.findall(r"`([a-z-]+)`", codes)}
    assert listed == {code: kind.http for code, kind in REFUSALS.items() if kind.flight is not None}


def test_the_page_has_the_limits_of_the_code() -> None:
    limits = WebLimits()
    for text in (
        f"{limits.connections_max:,} that have",
        f"{limits.head_bytes_max >> 10} KiB, within {limits.asking_ms // 1000} s",
        f"{limits.body_bytes_max >> 20} MiB, at {limits.body_bytes_per_s >> 10} KiB/s",
        f"{limits.bodies_bytes_max >> 20} MiB of all clients",
        f"{limits.waiting_max} of one client",
        f"door's {limits.threads} threads",
        f"{limits.streams_max:,} of one client",
        f"takes nothing for {limits.taking_ms // 1000} s",
        f"every {limits.ping_ms // 1000} s",
    ):
        assert text in PAGE, text
