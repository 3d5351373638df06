"""The lookout: when a node calls beyond its component, and when it swaps."""

from itertools import pairwise

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import Dial
from m4cast.overlay.protocol.lookout import BEYOND_WAIT_MS_MAX, FlipDue
from m4cast.overlay.protocol.wire.messages import BeaconStmt, NeighboursStmt
from tests.overlay.protocol.node_pump import CLUSTER, Host
from tests.overlay.protocol.stream_parts import contact, entry, node_id, of, take

BEAT_MS = CLUSTER.heartbeat_interval_ms
HOUR_MS = 3_600_000


def say_neighbours(host: Host, name: str, neighbours: str) -> None:
    host.say(name, NeighboursStmt(tuple(map(node_id, neighbours))))


def dials(host: Host) -> list[str]:
    """The addresses that were dialled since the last look."""
    return [dial.address for dial in of(take(host.node._context.out), Dial)]


def fragment() -> Host:
    """m and a, each the other's only neighbour; m has heard of z."""
    host = Host()
    host.link("a")
    say_neighbours(host, "a", "m")
    host.say("a", BeaconStmt(entry("z"), 2))
    take(host.node._context.out)
    return host


def test_a_fragment_calls_the_nodes_that_it_knew_more_and_more_rarely() -> None:
    host = fragment()
    at = []
    for now_ms in range(0, HOUR_MS, BEAT_MS):
        host.node.lookout.look_beyond(now_ms)
        at += [now_ms for address in dials(host) if address == contact("z").address]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[:3] == [BEAT_MS, 2 * BEAT_MS, 4 * BEAT_MS] and pauses[-1] == BEYOND_WAIT_MS_MAX


def test_who_is_no_fragment_calls_nobody_beyond() -> None:
    host = fragment()
    say_neighbours(host, "a", "mz")  # z is the neighbour of a neighbour
    for now_ms in range(0, HOUR_MS, BEAT_MS):
        host.node.lookout.look_beyond(now_ms)
    assert dials(host) == []


def test_a_fragment_that_was_whole_for_a_while_begins_to_call_at_once() -> None:
    host = fragment()
    for now_ms in range(0, HOUR_MS, BEAT_MS):
        host.node.lookout.look_beyond(now_ms)
    say_neighbours(host, "a", "mz")
    host.node.lookout.look_beyond(2 * HOUR_MS)
    say_neighbours(host, "a", "m")
    take(host.node._context.out)
    for beat in range(2):
        host.node.lookout.look_beyond(2 * HOUR_MS + beat * BEAT_MS)
        assert dials(host) == [contact("z").address]


@pytest.mark.parametrize(("portal", "called"), [("x:7400", ["x:7400"]), ("a:7400", []), ("m:7400", [])])
def test_a_portal_that_nobody_has_heard_of_is_called(portal: str, called: list[str]) -> None:
    host = Host()
    host.link("a")
    host.say("a", BeaconStmt(entry("a"), 1))
    take(host.node._context.out)
    host.node.lookout.look_for_strangers([portal], host.now_ms)
    assert dials(host) == called


def grid(flip_interval_ms: int = 0) -> Host:
    """m with four neighbours, each of which has one of its own: b1 and so on."""
    host = Host(config=NodeConfig(name="m", listen="m:7400", flip_interval_ms=flip_interval_ms))
    for name in "abcd":
        host.link(name)
        host.say(name, BeaconStmt(entry(f"{name}1"), 2))
        say_neighbours(host, name, "m")
    take(host.node._context.out)
    return host


def test_a_flip_asks_a_neighbours_neighbour() -> None:
    host = grid()
    host.say("b", NeighboursStmt((node_id("m"), node_id("b1"))))
    take(host.node._context.out)
    called: list[str] = []
    for _ in range(20):  # b is drawn at some time; of the others nobody is beyond
        host.node.lookout.flip(host.now_ms)
        called += dials(host)
    assert called and set(called) == {contact("b1").address}


def test_flips_are_made_again_and_again_where_the_setting_asks_for_them() -> None:
    assert not grid().node._context.timers.is_set(FlipDue())
    host = grid(flip_interval_ms=1_000)
    for _ in range(3):
        assert host.node._context.timers.is_set(FlipDue())
        host.wait(1_000)
