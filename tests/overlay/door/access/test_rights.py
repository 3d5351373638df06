"""Rights that each call demands of a token: the tables of `docs/CLIENT.md`, tried out call by call and token by
token."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.door.actions import ACTIONS
from tests.overlay.door.plain import command, connect, path
from tests.overlay.door.served import Served, serving

DOCUMENT = Path(__file__).parents[4] / "docs" / "CLIENT.md"
ROWS = pa.record_batch({"n": [1]})
HERE, ELSEWHERE = "here", "elsewhere"
TOKENS = {
    "nothing": "",
    "publish here": f'publish = ["{HERE}"]',
    "publish elsewhere": f'publish = ["{ELSEWHERE}"]',
    "publish": 'publish = ["*"]',
    "read here": f'read = ["{HERE}"]',
    "read elsewhere": f'read = ["{ELSEWHERE}"]',
    "read": 'read = ["*"]',
    "subscribe here": f'subscribe = ["{HERE}"]',
    "subscribe elsewhere": f'subscribe = ["{ELSEWHERE}"]',
    "subscribe": 'subscribe = ["*"]',
    "client": 'client = ["*"]',
    "admin": "admin = true",
}


class Rule(NamedTuple):
    right: str
    """`publish`, `read`, `subscribe`, `client`, `admin`, or `any` token."""
    topics: str
    """`named`, `some`, `all`, or nothing."""


def documented() -> dict[str, Rule]:
    text = DOCUMENT.read_text(encoding="utf-8")
    calls_table = text.partition("| call | right of the token | on which topics |\n")[2].partition("\n\n")[0]
    actions_table = text.partition("| action | right | on which topics | body | answer |\n")[2].partition("\n\n")[0]
    words = {"each": "named", "at": "some", "all": "all", "": ""}
    rules: dict[str, Rule] = {}
    for row in (*calls_table.splitlines()[1:], *actions_table.splitlines()[1:]):
        calls, right, topics, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        rule = Rule(right.replace("any token", "any").strip("`"), words[topics.partition(" ")[0]])
        for call in re.findall("`([^`]+)`", calls):
            assert call not in rules, f"{call} is in the table twice"
            rules[call] = rule
    return rules


def secret(token: str) -> str:
    return f"the secret of {token}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("rights")
    written = [f'[[token]]\nname = "{name}"\nsecret = "{secret(name)}"\n{rights}\n' for name, rights in TOKENS.items()]
    (folder / "tokens.toml").write_text("\n".join(written), encoding="utf-8")
    with serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}") as served:
        client, options = connect(served, 0), shown("publish")
        put(client, options, path(HERE))
        put(client, options, path(ELSEWHERE))
        yield served


def shown(token: str) -> Any:
    return flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {secret(token)}".encode())])


Call = Callable[[Any, Any], object]
"""With a client and the options that show a token."""


def put(client: Any, options: Any, descriptor: Any) -> None:
    writer, _ = client.do_put(descriptor, ROWS.schema, options)
    with suppress(flight.FlightError):  # what it says, it says again when it is closed
        writer.write_batch(ROWS)
    writer.close()


def get(**ticket: object) -> Call:
    return lambda client, options: client.do_get(flight.Ticket(json.dumps(ticket).encode()), options).read_all()


def act(action: str, **body: object) -> Call:
    return lambda client, options: list(client.do_action(flight.Action(action, json.dumps(body).encode()), options))


def staged(action: str) -> Call:
    """A call of this action for what was staged under the topic."""

    def call(client: Any, options: Any) -> None:
        put(client, shown("publish"), command(topic=HERE, stage=action))
        act(action, stage_ids=[f"{action}/0"])(client, options)

    return call


def release(client: Any, options: Any) -> None:
    act("lease", reader="theirs", topic=HERE, ttl_ms=60_000)(client, shown("read"))
    act("release", reader="theirs")(client, options)


LOST = {
    **dict.fromkeys(("checksum", "schema_id", "previous_checksum"), "0" * 16),
    **dict.fromkeys(("first_sequence", "origin_batch", "published_at_ms", "origin_incarnation", "parts"), 1),
    "origin": "0" * 32,
    "part": 0,
}
"""A batch that never was."""
REQUESTS: dict[str, Call] = {
    "DoPut": lambda client, options: put(client, options, path(HERE)),
    "DoPut that stages": lambda client, options: put(client, options, command(topic=HERE, stage="rights")),
    "DoPut that restores": lambda client, options: put(
        client, options, command(topic=HERE, restore=LOST, rows=ROWS.num_rows)
    ),
    "DoGet of rows": get(topic=HERE, end="latest"),
    "DoGet of raw batches": get(topic=HERE, read="raw", end="latest"),
    "DoGet of deliveries": get(read="deliveries", end="latest"),
    "DoGet of the roster": get(read="roster"),
    "DoGet of interest": get(read="interest"),
    "GetFlightInfo": lambda client, options: client.get_flight_info(path(HERE), options),
    "GetSchema": lambda client, options: client.get_schema(path(HERE), options),
    "ListFlights": lambda client, options: list(client.list_flights(json.dumps({"topics": [HERE]}).encode(), options)),
    "ListActions": lambda client, options: client.list_actions(options),
    "DoExchange": lambda client, options: client.do_exchange(path(HERE), options)[1].read_chunk(),
    "abort": staged("abort"),
    "client-connect": act("client-connect", key="k"),
    "client-disconnect": act("client-disconnect", key="k"),
    "client-mail": act("client-mail", key="k"),
    "client-remove": act("client-remove", key="k"),
    "client-save": act("client-save", key="k"),
    "client-share": act("client-share", key="k"),
    "client-state": act("client-state", key="k"),
    "clients": act("clients"),
    "clients-profiles": act("clients-profiles"),
    "clients-subscribe": act("clients-subscribe"),
    "commit": staged("commit"),
    "delivery-range": act("delivery-range"),
    "drain": act("drain", copies=0),
    "frontier": act("frontier", topic=HERE),
    "lease": act("lease", reader="mine", topic=HERE, ttl_ms=60_000),
    "position": act("position", key="k"),
    "publisher-remove": act("publisher-remove", key="", no_such_field=1),
    "publishers": act("publishers"),
    "read-registration": act("read-registration", topic=HERE),
    "readers": act("readers"),
    "release": release,
    "shutdown": act("shutdown", no_such_field=1),
    "shutdown-channel": act("shutdown-channel", channel="no/such"),
    "status": act("status"),
    "subscribe": act("subscribe", topic=HERE),
    "subscription-active": act("subscription-active", topic=HERE),
    "subscription-changes": act("subscription-changes"),
    "subscriptions": act("subscriptions"),
    "units": act("units"),
    "unsubscribe": act("unsubscribe", topic=HERE),
    "explain": act("explain", topic=HERE, where="n = 1"),
    "topic": act("topic", topic=HERE),
    "topic-compact": act("topic-compact", topic=HERE),
    "topic-create": act("topic-create", topic=HERE, spread="no such spread"),
    "topic-delete": act("topic-delete", topic="never-published"),
    "topic-retention": act("topic-retention", topic=HERE),
    "topic-summaries": act("topic-summaries", topic=HERE),
    "topics": act("topics"),
    "topology": act("topology"),
    "trace": act("trace", topic=HERE, origin="0" * 32, sequence=1),
}
"""Something that each call can do with the topic `HERE`; what would end the node is asked for with a mistake."""


def is_allowed(token: str, rule: Rule) -> bool:
    right, _, where = token.partition(" ")
    if rule.right != "any" and right != rule.right:
        return False
    return {"named": where != ELSEWHERE, "some": True, "all": not where, "": True}[rule.topics]


def test_the_table_has_every_call_and_action() -> None:
    assert documented().keys() == REQUESTS.keys()
    assert REQUESTS.keys() >= ACTIONS.keys()


@pytest.mark.parametrize("call", REQUESTS)
def test_a_call_demands_the_right_of_the_table(guarded: Served, call: str) -> None:
    rule = documented()[call]
    client = connect(guarded, 0)
    for token in TOKENS:
        refused = refusal_of(REQUESTS[call], client, shown(token))
        if is_allowed(token, rule):
            assert re.match("$|bad-request: |unknown-topic: |not-implemented: |not-restored: ", refused), token
        else:
            assert refused.startswith(f"forbidden: token {token!r} has no right {rule.right!r}"), token
    client.close()


def refusal_of(call: Call, client: Any, options: Any) -> str:
    """The text of the error; nothing if there was none."""
    try:
        call(client, options)
    except (pa.ArrowException, OSError) as error:  # pyarrow makes Flight errors of those of all calls but GetSchema
        return str(error)
    return ""


def test_without_named_topics_the_answer_has_those_that_may_be_read(guarded: Served) -> None:
    client = connect(guarded, 0)

    def answer(token: str, action: str) -> set[str]:
        (result,) = client.do_action(flight.Action(action, b""), shown(token))
        return set(json.loads(result.body.to_pybytes()))

    def answers(token: str) -> list[set[str]]:
        flights = {info.descriptor.path[0].decode() for info in client.list_flights(b"", shown(token))}
        return [flights, answer(token, "frontier"), answer(token, "topics")]

    assert answers("read here") == [{HERE}] * 3
    assert answers("read") == [{HERE, ELSEWHERE}] * 3
    assert list(client.list_flights(b"", shown("nothing"))) == []
    client.close()


def test_a_call_without_a_valid_token_is_unauthenticated(guarded: Served) -> None:
    client = connect(guarded, 0)
    for call in REQUESTS.values():
        for options in (flight.FlightCallOptions(timeout=30), shown("nobody")):
            assert refusal_of(call, client, options).startswith("unauthenticated: ")
    client.close()
