"""Requests of clients: JSON as it is written down, and nothing that two parsers could read in two ways."""

import codecs
import json
from collections.abc import Callable

import pytest

from m4cast.overlay.door import requests
from m4cast.overlay.door.actions import ACTIONS
from m4cast.overlay.door.refusals import Refusal

NO_STATE: dict[str, object] = {"profiles": [], "frontier": {}, "fills": [], "last_number": 0}
PARSERS: dict[str, tuple[Callable[[bytes], object], dict[str, object]]] = {
    "put": (lambda written: requests.parse_put(None, written), {"topic": "t"}),
    "flight": (lambda written: requests.parse_flight(None, written), {"topic": "t"}),
    "criteria": (requests.parse_criteria, {"topics": ["t"]}),
    "get": (requests.parse_get, {"topic": "t"}),
    "get raw": (requests.parse_get, {"topic": "t", "read": "raw"}),
    "get deliveries": (requests.parse_get, {"read": "deliveries"}),
    "get roster": (requests.parse_get, {"read": "roster"}),
    "get interest": (requests.parse_get, {"read": "interest", "start": 3}),
    "get profiles": (requests.parse_get, {"read": "profiles", "profiles": [{"topic": "t", "where": "x > 1"}]}),
    "client-connect": (ACTIONS["client-connect"].question, {"key": "k", "credential": "c" * 16, "create": True}),
    "client-disconnect": (ACTIONS["client-disconnect"].question, {"key": "k", "connection": 1}),
    "client-mail": (ACTIONS["client-mail"].question, {"key": "k", "connection": 1, "to": ["j"]}),
    "client-remove": (ACTIONS["client-remove"].question, {"key": "k"}),
    "client-save": (ACTIONS["client-save"].question, {"key": "k", "connection": 1, "state": NO_STATE}),
    "client-share": (ACTIONS["client-share"].question, {"key": "k", "connection": 1, "state": NO_STATE}),
    "client-state": (ACTIONS["client-state"].question, {"key": "k", "credential": "c" * 16}),
    "clients": (ACTIONS["clients"].question, {"key": "k"}),
    "clients-profiles": (ACTIONS["clients-profiles"].question, {"after": "k"}),
    "clients-subscribe": (
        ACTIONS["clients-subscribe"].question,
        {"clients": [{"key": "k", "credential": "c" * 16, "profiles": []}], "start": "latest"},
    ),
    "commit": (ACTIONS["commit"].question, {"stage_ids": ["s/0"], "key": "k", "next": "1"}),
    "abort": (ACTIONS["abort"].question, {"stage_ids": ["s/0"]}),
    "position": (ACTIONS["position"].question, {"key": "k"}),
    "publishers": (ACTIONS["publishers"].question, {"prefix": "k"}),
    "publisher-remove": (ACTIONS["publisher-remove"].question, {"key": "k"}),
    "drain": (ACTIONS["drain"].question, {"copies": 1}),
    "shutdown-channel": (ACTIONS["shutdown-channel"].question, {"channel": "a/b"}),
    "frontier": (ACTIONS["frontier"].question, {"topics": ["t"]}),
    "topic": (ACTIONS["topic"].question, {"topic": "t"}),
    "topic-compact": (ACTIONS["topic-compact"].question, {"topic": "t"}),
    "topic-create": (ACTIONS["topic-create"].question, {"topic": "t", "spread": "selective"}),
    "topic-delete": (ACTIONS["topic-delete"].question, {"topic": "t"}),
    "subscribe": (ACTIONS["subscribe"].question, {"topic": "t", "where": "x > 1", "start": "earliest"}),
    "subscription-active": (ACTIONS["subscription-active"].question, {"topic": "t", "wait_ms": 2}),
    "subscription-changes": (ACTIONS["subscription-changes"].question, {"after": "c", "wait_ms": 2}),
    "subscriptions": (ACTIONS["subscriptions"].question, {"topic": "t", "seen": 1, "costs": True}),
    "unsubscribe": (ACTIONS["unsubscribe"].question, {"topic": "t", "where": "x > 1"}),
    "trace": (ACTIONS["trace"].question, {"topic": "t", "origin": "0f" * 16, "sequence": 3}),
    "topology": (ACTIONS["topology"].question, {"root": "0f" * 16}),
    "topic-retention": (ACTIONS["topic-retention"].question, {"topic": "t", "max_bytes": 1}),
    "topic-summaries": (ACTIONS["topic-summaries"].question, {"topic": "t", "summarise": ["a", ["b", "c"]]}),
    "explain": (ACTIONS["explain"].question, {"topic": "t", "where": "a = 1"}),
    "lease": (ACTIONS["lease"].question, {"reader": "r", "topic": "t", "ttl_ms": 1_000}),
    "read-registration": (ACTIONS["read-registration"].question, {"topic": "t", "start": "earliest", "wait_ms": 2}),
    "release": (ACTIONS["release"].question, {"reader": "r"}),
}


def test_every_action_with_fields_is_tried() -> None:
    assert {name for name, action in ACTIONS.items() if action.fields} <= PARSERS.keys()


def refusal_of(parse: Callable[[bytes], object], written: bytes) -> Refusal:
    with pytest.raises(Refusal) as refused:
        parse(written)
    return refused.value


@pytest.mark.parametrize("name", PARSERS)
def test_json_is_utf_8_without_a_mark_and_every_name_stands_once(name: str) -> None:
    parse, fields = PARSERS[name]
    written = json.dumps(fields)
    parse(written.encode())
    first = next(iter(fields))
    twice = f'{{"{first}": {json.dumps(fields[first])}, {written[1:]}'
    for bad, says in (
        (written.encode("utf-16"), "must be UTF-8"),
        (written.encode("utf-16-le"), "must be JSON"),
        (written.encode("utf-32-be"), "must be JSON"),
        (codecs.BOM_UTF8 + written.encode(), "byte order mark"),
        (b'{"\xff": 1}', "must be UTF-8"),
        (twice.encode(), f"has the field '{first}' twice"),
        (b'{"a": {"b": 1, "b": 2}}', "has the field 'b' twice"),
        (b'{"timeout_ms": NaN}', "has NaN, which is not JSON"),
        (b'{"timeout_ms": -Infinity}', "has -Infinity, which is not JSON"),
        (written.encode() + b"{}", "must be JSON"),
        (b'{"acks": ' + b"9" * 5_000 + b"}", "must be JSON"),
    ):
        refused = refusal_of(parse, bad)
        assert refused.code == "bad-request"
        assert says in refused.detail
        assert len(refused.detail) < 500


@pytest.mark.parametrize(
    ("parse", "written"),
    [
        (PARSERS["commit"][0], {"stage_ids": ["\ud800"]}),
        (PARSERS["commit"][0], {"stage_ids": [], "key": "\ud800", "next": "1"}),
        (PARSERS["commit"][0], {"stage_ids": [], "key": "k", "next": "\ud800"}),
        (PARSERS["commit"][0], {"stage_ids": [], "moves": [{"key": "k", "expect": "\ud800", "next": "1"}]}),
        (PARSERS["put"][0], {"topic": "t", "stage": "\ud800"}),
        (PARSERS["position"][0], {"key": "\ud800"}),
        (PARSERS["shutdown-channel"][0], {"channel": "\ud800"}),
        (PARSERS["get"][0], {"topic": "t", "start": {"\ud800": {"00" * 16: 1}}}),
        (PARSERS["release"][0], {"reader": "\ud800"}),
    ],
)
def test_text_has_no_half_characters(parse: Callable[[bytes], object], written: dict[str, object]) -> None:
    """JSON can write down halves of characters, which no UTF-8 can: nothing could be kept under such a name."""
    refused = refusal_of(parse, json.dumps(written).encode())
    assert refused.code == "bad-request"
    assert "a lone surrogate" in refused.detail


@pytest.mark.parametrize(
    ("name", "most", "more", "says"),
    [
        ("get", {"where": "a = 1".ljust(4_096)}, {"where": "a = 1".ljust(4_097)}, "has 4097 bytes, at most 4096"),
        ("explain", {"rows": 10_000_000}, {"rows": 10_000_001}, "from 0 to 10000000, not 10000001"),
        (
            "topic-summaries",
            {"summarise": [f"c{at}" for at in range(64)]},
            {"summarise": [f"c{at}" for at in range(65)]},
            "a list of 1 to 64 columns",
        ),
        ("topic-summaries", {"summarise": [["a"] * 32]}, {"summarise": [["a"] * 33]}, "by 33 names: at most 32"),
    ],
)
def test_limits_of_filters(name: str, most: dict[str, object], more: dict[str, object], says: str) -> None:
    parse, fields = PARSERS[name]
    parse(json.dumps({**fields, **most}).encode())
    refused = refusal_of(parse, json.dumps({**fields, **more}).encode())
    assert refused.code == "bad-request" and says in refused.detail, refused.detail


def test_what_is_wrong_with_a_topic_is_told_apart_from_what_is_wrong_with_a_request() -> None:
    for topic in ("", "a\nb", "t" * 201):
        assert refusal_of(PARSERS["get"][0], json.dumps({"topic": topic}).encode()).code == "bad-topic"
    for topics in (5, ["t", 5], {"t": 1}, []):
        assert refusal_of(PARSERS["get"][0], json.dumps({"topics": topics}).encode()).code == "bad-request"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "profiles must be a list of 1 to"),
        ({"profiles": []}, "profiles must be a list of 1 to"),
        ({"profiles": [{}]}, "each of profiles must be {topic, where, language}"),
        ({"profiles": [{"topic": "t", "where": 1}]}, "where and language must be text or null"),
        ({"profiles": [{"topic": "t", "where": "x ="}]}, "where: at character"),
        ({"profiles": [{"topic": "t"}], "start": "earliest"}, "start and end must be frontiers"),
        ({"profiles": [{"topic": "t"}], "left_out": [{}]}, "each of left_out must be"),
        ({"profiles": [{"topic": "t"}], "left_out": [{"conditions": []}]}, "conditions must be a list"),
        (
            {"profiles": [{"topic": "t"}], "left_out": [{"conditions": [["x = 1", None]], "hole": [1]}]},
            "ranges must be",
        ),
        ({"profiles": [{"topic": "t"}], "where": "x = 1"}, "unknown field 'where'"),
    ],
)
def test_a_ticket_for_profiles_names_what_is_wrong(fields: dict[str, object], says: str) -> None:
    refused = refusal_of(requests.parse_get, json.dumps({"read": "profiles", **fields}).encode())
    assert refused.code == "bad-request" and says in refused.detail, refused.detail


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        ("client-connect", {"key": "a b", "credential": "c" * 16}, "printable text without spaces"),
        ("client-connect", {"key": "k" * 65, "credential": "c" * 16}, "at most 64 bytes"),
        ("client-connect", {"key": "k", "credential": "short"}, "must have 16 to 200 characters"),
        ("client-connect", {"key": "k", "credential": "c" * 16, "create": 1}, "create must be true or false"),
        ("client-connect", {"key": "k", "credential": "c" * 16, "state": {}}, "the state of a client must have"),
        ("client-mail", {"key": "k", "connection": 1, "to": "j"}, "to must be a list of at most"),
        ("client-save", {"key": "k", "state": NO_STATE}, "connection is missing"),
        ("client-save", {"key": "k", "connection": 1}, "where an object must be"),
    ],
)
def test_an_action_about_a_client_names_what_is_wrong(action: str, fields: dict[str, object], says: str) -> None:
    refused = refusal_of(ACTIONS[action].question, json.dumps(fields).encode())
    assert refused.code == "bad-request" and says in refused.detail, refused.detail
