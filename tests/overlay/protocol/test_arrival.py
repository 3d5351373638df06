"""Arrival: seeking the channel, founding it, and seeking it again."""

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import Dial, DialFailed, Disconnected, Output, Start, Trace
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import (
    BeaconStmt,
    ConnectedStmt,
    ConnectionRequestCall,
    SeekingConnectionCall,
    SeekingConnectionResp,
)
from tests.overlay.protocol.node_pump import Host, dialled, linked
from tests.overlay.protocol.stream_parts import contact, entry, of, sends

FULL = SeekingConnectionResp(full=True, hears_you=False, depth=0)
SEEKS_TOO = SeekingConnectionResp(full=False, hears_you=False, depth=0)
FOUNDED = Trace("founded", ())


def seeking(*portals: str) -> tuple[Host, list[Output]]:
    """Node m has just begun to seek."""
    addresses = tuple(contact(name).address for name in portals)
    host = Host(config=NodeConfig(name="m", listen="m:7400", portals=addresses), start=False)
    return host, host.feed(Start())


def fail(host: Host, outputs: list[Output], *names: str) -> list[Output]:
    """Nobody is there."""
    failed = [dialled(outputs, name) for name in names]
    return [output for conn in failed for output in host.feed(DialFailed(conn))]


def state(host: Host) -> State:
    return host.node.membership.state


def test_a_portal_that_is_on_the_channel_is_asked_for_a_connection() -> None:
    host, outputs = seeking("x", "y")
    asked = host.answered(outputs, "x")
    assert sends(asked, SeekingConnectionCall) == [(host.conns["x"], SeekingConnectionCall(seeking=True, depth=0))]
    outputs = host.say("x", FULL)
    assert [conn for conn, _ in sends(outputs, ConnectionRequestCall)] == [host.conns["x"]]


def test_a_portal_that_reaches_nobody_founds_the_channel() -> None:
    host, outputs = seeking("m", "x")
    assert state(host) is State.SEEKING
    assert FOUNDED in fail(host, outputs, "x")
    assert state(host) is State.FULL


def test_who_is_no_portal_founds_nothing_and_seeks_again() -> None:
    host, outputs = seeking("x", "y")
    assert FOUNDED not in fail(host, outputs, "x", "y")
    again = host.wait(120_000)
    assert FOUNDED not in again and state(host) is State.SEEKING
    assert {dial.address for dial in of(again, Dial)} == {"x:7400", "y:7400"}


def test_a_portal_that_met_a_seeker_of_a_lower_address_leaves_the_founding_to_it() -> None:
    for other, founds in (("a", False), ("x", True)):
        host, outputs = seeking("m", other)
        host.answered(outputs, other)
        assert (FOUNDED in host.say(other, SEEKS_TOO)) == founds


def test_a_fellow_seeker_that_is_on_the_channel_now_is_asked() -> None:
    host, outputs = seeking("x")
    fail(host, outputs, "x")
    host.call("z")
    host.say("z", SeekingConnectionCall(seeking=True, depth=0))
    host.call("z")
    assert [dial.address for dial in of(host.say("z", ConnectedStmt()), Dial)] == ["z:7400"]


def test_who_lost_its_last_neighbour_seeks_among_those_that_it_has_heard_of() -> None:
    host = linked("a")
    host.say("a", BeaconStmt(entry("z"), 2))
    outputs = [*host.feed(Disconnected(host.conns["a"])), *host.wait(200)]
    asked = host.answered(outputs, "z")
    assert [call for _, call in sends(asked, SeekingConnectionCall)] == [SeekingConnectionCall(seeking=True, depth=0)]
