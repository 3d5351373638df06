"""Liveness: reports of failures, beacons that state a version, and entries of nodes that fell silent."""

from m4cast.overlay.protocol.effects import Output, Subscribe, Wish
from m4cast.overlay.protocol.liveness import PROMPT_BEACON_MS
from m4cast.overlay.protocol.wire.messages import BeaconStmt, FailedStmt, Heartbeat
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION
from tests.overlay.protocol.node_pump import CLUSTER, Host, linked
from tests.overlay.protocol.stream_parts import entry, node_id, sends

MYSELF = FailedStmt(node_id("m"), 1, 1)


def test_who_is_said_to_have_failed_says_that_it_lives_once_per_heartbeat() -> None:
    host = linked("ab")
    host.wait(CLUSTER.heartbeat_interval_ms)
    said = sends(host.say("a", MYSELF), BeaconStmt)
    assert [(conn, word.entry.node_id) for conn, word in said] == [(host.conns[name], node_id("m")) for name in "ab"]
    assert sends(host.say("b", MYSELF), BeaconStmt) == []
    host.wait(CLUSTER.heartbeat_interval_ms)
    assert len(sends(host.say("b", MYSELF), BeaconStmt)) == 2


def test_a_report_about_a_former_life_is_not_answered() -> None:
    host = linked("ab")
    host.wait(CLUSTER.heartbeat_interval_ms)
    assert sends(host.say("a", FailedStmt(node_id("m"), 0, 9)), BeaconStmt) == []


def test_a_failure_is_passed_on_once_and_a_later_beacon_takes_it_back() -> None:
    host = linked("abc")
    host.say("a", BeaconStmt(entry("z"), 2))
    report = FailedStmt(node_id("z"), 1, 1)
    assert sends(host.say("a", report), FailedStmt) == [(host.conns[name], report) for name in "bc"]
    assert host.say("b", report) == []
    assert not host.node.roster.hears(node_id("z"), host.now_ms)
    assert sends(host.say("a", BeaconStmt(entry("z", counter=2), 2)), BeaconStmt)
    assert host.node.roster.hears(node_id("z"), host.now_ms)
    assert host.say("b", report) == [], "it is older than the beacon"


def stated(host: Host, for_ms: int) -> list[int]:
    """The versions in the node's own beacons; its neighbour a lives meanwhile."""
    outputs: list[Output] = []
    for _ in range(0, for_ms, PROMPT_BEACON_MS):
        outputs += host.wait(PROMPT_BEACON_MS)
        host.say("a", Heartbeat(0))
    return [word.version for _, word in sends(outputs, BeaconStmt) if word.entry.node_id == node_id("m")]


def test_beacons_state_no_version_until_somebody_wants_something() -> None:
    host = linked("a")
    assert set(stated(host, 20_000)) == {0}
    host.feed(Subscribe(1, (Wish("r", "t"),)))
    host.sync()
    assert stated(host, PROMPT_BEACON_MS)[0] >= ROUTED_VERSION


def test_a_beacon_that_states_a_version_has_this_node_state_its_own_soon() -> None:
    host = linked("ab")
    host.wait(1_000)
    host.say("a", BeaconStmt(entry("z"), 2, ROUTED_VERSION))
    assert stated(host, PROMPT_BEACON_MS)[0] >= ROUTED_VERSION
