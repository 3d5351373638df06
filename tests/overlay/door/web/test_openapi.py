"""The description of the door, its table of routes, its handlers, its documentation: all say the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.door.web.door import WebDoor
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.openapi import description
from m4cast.overlay.door.web.routes import BODIES, ROUTES, WebRoute
from m4cast.overlay.refusals import REFUSALS
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.test_posts import BODY_OF

PAGE = (Path(__file__).parents[4] / "docs" / "HTTP.md").read_text("utf-8")


def url(route: WebRoute) -> str:
    return route.path.replace("{topic}", "described").replace("{action}", "status").replace("{file}", "console.js")


FILE_OF = {
    "text/javascript": "console.js",
    "text/css": "console.css",
    "image/svg+xml": "mark.svg",
    "text/plain": "licences.txt",
}


def test_the_description_is_served_and_has_every_route(pair: WebServed) -> None:
    served = pair.get("/openapi.json").json
    assert served == description()
    described = {(method.upper(), path) for path, item in served["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in ROUTES.values()}


def test_answers_have_the_form_that_is_described(pair: WebServed) -> None:
    paths = description()["paths"]

    def described(path: str, method: str) -> Any:
        return paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]

    published = pair.post("/topics/described", {"id": 1}).json
    schema = described("/topics/{topic}", "post")
    assert set(published) == set(schema["required"]) == set(schema["properties"])
    one_range = schema["properties"]["ranges"]["items"]
    assert set(published["ranges"][0]) == set(one_range["required"]) == set(one_range["properties"])
    assert re.fullmatch(one_range["properties"]["origin"]["pattern"], published["ranges"][0]["origin"])
    assert described("/topics", "get")["type"] == "array" and isinstance(pair.get("/topics").json, list)
    ends = pair.get("/topics/described/frontier").json["described"][published["ranges"][0]["origin"]]
    assert (
        len(ends)
        == described("/topics/{topic}/frontier", "get")["additionalProperties"]["additionalProperties"]["minItems"]
    )
    assert list(paths["/live"]["get"]["responses"]) == ["101", "default"]


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
