"""Calls: what a hello must say, who gives up when, and how many calls there may be."""

from dataclasses import replace

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import CALLS_MAX, DETAIL_BYTES_MAX, Call, Calls, CallTimeout
from m4cast.overlay.protocol.effects import Close, Dial, Output, Send, Trace
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.control import to_avro
from m4cast.overlay.protocol.wire.messages import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Hello,
    RefusedStmt,
    Setting,
)
from tests.overlay.protocol.stream_parts import contact, of, sends, take

TIMEOUT_MS = 100
CLUSTER = ClusterConfig()
SETTINGS = tuple(Setting(key, str(value)) for key, value in CLUSTER.settings().items())
PURPOSE = "why"


class Desk:
    """The calls of node m."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.out: list[Output] = []
        self.calls = Calls(contact("m"), 3, CLUSTER, TIMEOUT_MS, self.timers, self.out)

    def accept(self, conn: int = 2, now_ms: int = 0, peer_name: str = "") -> Call:
        self.calls.connected(conn, now_ms, peer_name)
        return self.get(conn)

    def dial(self, name: str = "a", expected: Contact | None = None) -> Call:
        conn = self.calls.dial(contact(name).address, PURPOSE, 0, expected)
        self.calls.connected(conn, 0)
        return self.get(conn)

    def get(self, conn: int) -> Call:
        call = self.calls.get(conn)
        assert call is not None
        return call


def hello(name: str = "a", version_min: int = PROTOCOL_VERSION_MIN, version_max: int = PROTOCOL_VERSION_MAX) -> Hello:
    return Hello(version_min, version_max, contact(name).node_id, 7, contact(name).address, SETTINGS)


def refusal(outputs: list[Output], conn: int) -> RefusedStmt:
    """The refusal: traced, told to the peer, and then the connection is closed."""
    trace, send, close = outputs
    assert isinstance(trace, Trace) and trace.name == "refused"
    assert isinstance(send, Send) and isinstance(send.message, RefusedStmt)
    assert (send.conn, close) == (conn, Close(conn))
    return send.message


# ---- hello


def test_both_sides_say_hello_as_soon_as_they_are_connected() -> None:
    desk = Desk()
    mine = Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, contact("m").node_id, 3, contact("m").address, SETTINGS)
    conn = desk.calls.dial("a:7400", PURPOSE, 0)
    assert take(desk.out) == [Dial(conn, "a:7400")]
    desk.calls.connected(conn, 0)
    desk.calls.connected(2, 0)
    assert take(desk.out) == [Send(conn, mine), Send(2, mine)]


@pytest.mark.parametrize("dialled", [True, False])
def test_a_good_hello_names_the_peer(dialled: bool) -> None:
    desk = Desk()
    call = desk.dial() if dialled else desk.accept()
    take(desk.out)
    assert desk.calls.hello(call, hello())
    assert (call.peer, call.incarnation) == (contact("a"), 7)
    assert call.purpose == (PURPOSE if dialled else None)
    assert desk.out == []


@pytest.mark.parametrize(
    ("version_min", "version_max", "accepted"),
    [
        (PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX + 5, True),
        (PROTOCOL_VERSION_MIN - 1, PROTOCOL_VERSION_MIN, True),
        (PROTOCOL_VERSION_MAX + 1, PROTOCOL_VERSION_MAX + 1, False),
        (PROTOCOL_VERSION_MIN - 1, PROTOCOL_VERSION_MIN - 1, False),
    ],
)
def test_versions_must_have_one_in_common(version_min: int, version_max: int, accepted: bool) -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    assert desk.calls.hello(call, hello(version_min=version_min, version_max=version_max)) is accepted
    if not accepted:
        refused = refusal(desk.out, call.conn)
        assert refused.reason == "version"
        assert f"{version_min}..{version_max}" in refused.detail


@pytest.mark.parametrize("name", list(CLUSTER.settings()))
def test_each_cluster_setting_that_differs_is_refused_by_name(name: str) -> None:
    for settings in (
        tuple(Setting(key, "other" if key == name else value) for key, value in SETTINGS),
        tuple(setting for setting in SETTINGS if setting.key != name),
    ):
        desk = Desk()
        call = desk.accept()
        take(desk.out)
        assert not desk.calls.hello(call, replace(hello(), settings=settings))
        refused = refusal(desk.out, call.conn)
        assert refused.reason == "settings"
        assert refused.detail.startswith(f"{name} is ")
        assert ";" not in refused.detail


def test_all_settings_that_differ_are_named_at_once() -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    desk.calls.hello(call, replace(hello(), settings=()))
    assert [part.split()[0] for part in refusal(desk.out, 2).detail.split("; ")] == list(CLUSTER.settings())


def test_the_own_identity_is_refused() -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    assert not desk.calls.hello(call, hello("m"))
    assert refusal(desk.out, 2).reason == "self"


@pytest.mark.parametrize("known_name", ["warsaw", ""], ids=["the roster knows it", "met before"])
def test_a_node_id_belongs_to_one_certificate(known_name: str) -> None:
    desk = Desk()
    assert desk.calls.hello(desk.accept(2, peer_name="warsaw"), hello(), known_name)
    thief = desk.accept(4, peer_name="thief")
    take(desk.out)
    assert not desk.calls.hello(thief, hello(), known_name)
    refused = refusal(take(desk.out), 4)
    assert refused.reason == "certificate"
    assert "'warsaw'" in refused.detail and "'thief'" in refused.detail
    assert desk.calls.hello(desk.accept(6, peer_name="warsaw"), hello(), known_name)
    assert desk.calls.hello(desk.accept(8, peer_name="thief"), hello("b")), "its own id is its own"


def test_the_roster_knows_better_than_the_first_meeting() -> None:
    desk = Desk()
    assert desk.calls.hello(desk.accept(2, peer_name="thief"), hello())
    assert not desk.calls.hello(desk.accept(4, peer_name="thief"), hello(), "warsaw")
    assert desk.calls.hello(desk.accept(6, peer_name="warsaw"), hello(), "warsaw")


def test_without_certificates_names_bind_nothing() -> None:
    desk = Desk()
    assert desk.calls.hello(desk.accept(2), hello(), "warsaw")
    assert desk.calls.hello(desk.accept(4, peer_name="krakow"), hello())


def test_the_names_of_first_meetings_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m4cast.overlay.protocol.calls.NAMES_MAX", 2)
    desk = Desk()
    for conn, name in ((2, "a"), (4, "b"), (6, "c")):
        assert desk.calls.hello(desk.accept(conn, peer_name=name), hello(name))
    assert desk.calls.hello(desk.accept(8, peer_name="other"), hello("a")), "the first of three is forgotten"
    assert not desk.calls.hello(desk.accept(10, peer_name="other"), hello("c"))


def test_a_second_hello_is_refused() -> None:
    desk = Desk()
    call = desk.accept()
    assert desk.calls.hello(call, hello())
    take(desk.out)
    assert not desk.calls.hello(call, hello())
    assert refusal(desk.out, 2).reason == "second-hello"


def test_a_refused_call_is_forgotten_and_no_other() -> None:
    desk = Desk()
    other = desk.accept(4)
    desk.calls.hello(desk.accept(2), hello("m"))
    assert desk.calls.get(2) is None
    assert desk.calls.get(4) is other
    assert not desk.timers.is_set(CallTimeout(2))
    assert desk.timers.is_set(CallTimeout(4))


def test_somebody_else_at_the_dialled_address_is_left_alone() -> None:
    """A node moved, and another one lives there now: no fault of that one, so it is not refused by name."""
    desk = Desk()
    call = desk.dial("a", expected=contact("a"))
    take(desk.out)
    assert not desk.calls.hello(call, hello("b"))
    assert take(desk.out) == [Close(call.conn)]
    assert desk.calls.get(call.conn) is None
    assert desk.calls.hello(desk.dial("a", expected=contact("a")), hello("a"))


# ---- numbers, time and limits


def test_dialled_connections_have_odd_numbers_and_none_twice() -> None:
    desk = Desk()
    numbers = []
    for _ in range(5):
        numbers.append(desk.calls.dial("a:7400", PURPOSE, 0))
        desk.calls.close(numbers[-1])
    assert len(set(numbers)) == 5
    assert all(number % 2 == 1 for number in numbers)


def test_the_dialler_gives_up_first() -> None:
    desk = Desk()
    conn = desk.calls.dial("a:7400", PURPOSE, 1_000)
    desk.calls.connected(2, 1_000)
    assert desk.timers.pop_due(1_000 + TIMEOUT_MS - 1) is None
    assert desk.timers.pop_due(1_000 + TIMEOUT_MS) == CallTimeout(conn)
    assert desk.timers.pop_due(1_000 + 2 * TIMEOUT_MS - 1) is None
    assert desk.timers.pop_due(1_000 + 2 * TIMEOUT_MS) == CallTimeout(2)


def test_a_dial_is_timed_from_when_it_was_asked_for() -> None:
    desk = Desk()
    conn = desk.calls.dial("a:7400", PURPOSE, 0)
    desk.calls.connected(conn, TIMEOUT_MS - 1)
    assert desk.timers.pop_due(TIMEOUT_MS) == CallTimeout(conn)


def test_a_useful_call_lives_for_another_time_out() -> None:
    desk = Desk()
    call = desk.accept(now_ms=0)
    desk.calls.extend(call, 150)
    assert desk.timers.next_at() == 150 + 2 * TIMEOUT_MS


def test_a_link_is_not_timed_and_cannot_be_again() -> None:
    desk = Desk()
    call = desk.accept()
    desk.calls.promote(call)
    assert call.is_link
    assert desk.timers.next_at() is None
    desk.calls.extend(call, 10)
    assert desk.timers.next_at() is None


def test_calls_from_others_are_taken_up_to_the_limit() -> None:
    desk = Desk()
    desk.calls.dial("a:7400", PURPOSE, 0)
    for number in range(1, CALLS_MAX):
        desk.calls.connected(2 * number, 0)
    assert len(desk.calls) == CALLS_MAX
    take(desk.out)
    desk.calls.connected(2 * CALLS_MAX, 0)
    assert take(desk.out) == [Trace("call-shed", (("calls", CALLS_MAX),)), Close(2 * CALLS_MAX)]
    assert len(desk.calls) == CALLS_MAX
    assert not desk.timers.is_set(CallTimeout(2 * CALLS_MAX))
    desk.calls.close(2)
    take(desk.out)
    desk.calls.connected(2 * CALLS_MAX + 2, 0)
    assert [conn for conn, _ in sends(desk.out, Hello)] == [2 * CALLS_MAX + 2]


@pytest.mark.parametrize("given_up_by", ["close", "lost"])
def test_a_dial_that_was_given_up_before_it_connected_is_closed_when_it_does(given_up_by: str) -> None:
    desk = Desk()
    conn = desk.calls.dial("a:7400", PURPOSE, 0)
    desk.calls.close(conn) if given_up_by == "close" else desk.calls.lost(conn)
    take(desk.out)
    desk.calls.connected(conn, 10)
    assert take(desk.out) == [Close(conn)]
    assert len(desk.calls) == 0


def test_closing_is_reported_once() -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    desk.calls.close(call.conn)
    desk.calls.close(call.conn)
    assert take(desk.out) == [Close(call.conn)]
    assert desk.timers.next_at() is None


def test_a_lost_connection_is_not_closed_again() -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    assert desk.calls.lost(call.conn) is call
    assert desk.calls.lost(call.conn) is None
    assert len(desk.calls) == 0
    assert desk.timers.next_at() is None
    assert of(desk.out, Close) == []


# ---- refusals


def with_settings(hello: Hello, **differing: str) -> Hello:
    return replace(hello, settings=tuple(Setting(key, differing.get(key, value)) for key, value in hello.settings))


@pytest.mark.parametrize(
    ("refused", "is_at_odds"),
    [
        (with_settings(hello(), degree="6"), True),
        (with_settings(hello(), degree="6", channel_instance="other"), False),
        (with_settings(hello(), channel_type="other"), False),
        (hello(version_min=PROTOCOL_VERSION_MAX + 1, version_max=PROTOCOL_VERSION_MAX + 1), True),
        (with_settings(hello(version_min=98, version_max=99), channel_instance="other"), False),
        (hello("m"), False),
    ],
)
def test_who_is_refused_as_a_node_of_this_channel_is_at_odds_with_it(refused: Hello, is_at_odds: bool) -> None:
    desk = Desk()
    call = desk.dial()
    assert not desk.calls.hello(call, refused)
    assert call.is_at_odds is is_at_odds


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_a_refusal_is_not_longer_than_a_message_takes(letter: str) -> None:
    desk = Desk()
    call = desk.accept()
    take(desk.out)
    desk.calls.refuse(call, "settings", letter * (DETAIL_BYTES_MAX + 1))
    refused = refusal(desk.out, call.conn)
    assert len(refused.detail.encode()) == DETAIL_BYTES_MAX
    to_avro(refused)
    assert refused.detail.strip(letter) == ""
