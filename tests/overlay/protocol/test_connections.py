"""Connections: a purpose ends with its connection, however that ends."""

from m4cast.overlay.protocol.effects import Close, DialFailed, Disconnected, Output, Trace
from m4cast.overlay.protocol.wire.messages import BeaconStmt, FailedStmt, RefusedStmt
from tests.overlay.protocol.node_pump import Host, dialled, linked
from tests.overlay.protocol.stream_parts import entry, node_id, sends


def lost(names: str = "abz") -> tuple[Host, list[Output]]:
    """The link to z broke; whom the others know of it."""
    host = linked(names)
    host.say("a", BeaconStmt(entry("z"), 2))
    return host, host.feed(Disconnected(host.conns["z"]))


def failures(outputs: list[Output]) -> list[FailedStmt]:
    return [report for _, report in sends(outputs, FailedStmt)]


def test_a_lost_neighbour_that_answers_a_call_has_not_failed() -> None:
    host, outputs = lost()
    assert failures(outputs) == []
    conn = dialled(outputs, "z")
    outputs = host.answered(outputs, "z")
    assert Close(conn) in outputs
    assert failures([*outputs, *host.wait(10_000)]) == []


def test_a_lost_neighbour_that_cannot_be_called_is_reported_once_to_each() -> None:
    host, outputs = lost()
    failed = host.feed(DialFailed(dialled(outputs, "z")))
    assert failures(failed) == [FailedStmt(node_id("z"), 1, 1)] * 2
    assert host.say("a", FailedStmt(node_id("z"), 1, 1)) == []


def test_a_call_that_nobody_answers_ends_as_one_that_failed() -> None:
    host, outputs = lost()
    conn = dialled(outputs, "z")
    later = host.wait(2 * 3_000)
    assert Close(conn) in later and FailedStmt(node_id("z"), 1, 1) in failures(later)
    assert host.feed(DialFailed(conn)) == [], "it is forgotten"


def test_a_refusal_is_traced_and_the_call_is_closed() -> None:
    host = linked("a")
    conn = host.connect("x")
    refused = host.say("x", RefusedStmt("degree", "4, not 6"))
    assert Close(conn) in refused
    assert Trace("was-refused", (("reason", "degree"), ("detail", "4, not 6"))) in refused
    assert host.node.calls.get(conn) is None


def test_what_a_forgotten_connection_brings_changes_nothing() -> None:
    host = linked("a")
    conn = host.call("x")
    host.feed(Disconnected(conn))
    assert host.say("x", BeaconStmt(entry("x"), 1)) == []
    assert host.feed(Disconnected(conn)) == []
