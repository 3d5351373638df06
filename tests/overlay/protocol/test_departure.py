"""Departure: when a node goes, alone or with the channel, and what it waits for."""

from m4cast.overlay.protocol.departure import LEAVE_DRAIN_MS, SHUTDOWN_LINGER_MS, Departure
from m4cast.overlay.protocol.effects import Left, Publish, Refused, Shutdown, Staged
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.messages import BeaconStmt, DisconnectStmt, ShutdownStmt
from tests.overlay.protocol.node_pump import linked
from tests.overlay.protocol.stream_parts import contact, of, sends


def departure() -> Departure:
    return Departure(Timers())


# ---- alone


def test_a_leaver_goes_when_its_rows_are_handed_over_or_its_time_is_up() -> None:
    going = departure()
    assert not going.is_due(lambda: True, False, 0)
    going.leave(100)
    assert going.is_due(lambda: True, False, 100)
    assert not going.is_due(lambda: False, False, 100 + LEAVE_DRAIN_MS - 1)
    assert going.is_due(lambda: False, False, 100 + LEAVE_DRAIN_MS)


def test_a_leaver_that_is_asked_again_does_not_get_more_time() -> None:
    going = departure()
    going.leave(0)
    going.leave(LEAVE_DRAIN_MS)
    assert going.is_due(lambda: False, False, LEAVE_DRAIN_MS)


def test_publishes_are_refused_while_draining_and_taken_again() -> None:
    going = departure()
    assert going.why_no_publishes() is None
    going.draining = True
    assert going.why_no_publishes() == ("leaving", "this node leaves the channel: publish at another one")
    going.draining = False
    assert going.why_no_publishes() is None


# ---- with the channel


def test_who_shuts_down_stays_a_moment_even_if_it_has_nothing_to_hand_over() -> None:
    going = departure()
    assert going.shut_down(0)
    assert not going.is_due(lambda: True, False, SHUTDOWN_LINGER_MS - 1)
    assert going.is_due(lambda: True, False, SHUTDOWN_LINGER_MS)


def test_who_shuts_down_does_not_wait_for_nobody() -> None:
    going = departure()
    going.shut_down(0)
    assert not going.is_due(lambda: False, False, SHUTDOWN_LINGER_MS)
    assert going.is_due(lambda: False, True, SHUTDOWN_LINGER_MS)
    assert going.is_due(lambda: False, False, LEAVE_DRAIN_MS)


def test_the_word_is_news_once() -> None:
    going = departure()
    assert going.shut_down(0)
    assert not going.shut_down(1)


# ---- the whole node


def test_a_node_that_is_asked_tells_all_neighbours_takes_no_publishes_and_goes_without_a_farewell() -> None:
    host = linked()
    word = ShutdownStmt(host.node.me)
    assert [message for _, message in sends(host.feed(Shutdown()), ShutdownStmt)] == [word] * len(host.conns)
    (refused,) = of(host.feed(Publish(1, (Staged("t", 1, 1, b"x"),))), Refused)
    assert (refused.code, refused.detail) == ("leaving", "the channel is being shut down: publish when it is up again")
    outputs = host.wait(SHUTDOWN_LINGER_MS)
    assert outputs[-1] == Left()
    assert not sends(outputs, DisconnectStmt), "nobody is to fill its hole"
    assert not [beacon for _, beacon in sends(outputs, BeaconStmt) if beacon.entry.leaving], "it will be back"


def test_the_first_word_is_passed_on_to_all_but_who_said_it_and_others_are_not() -> None:
    host = linked()
    word = ShutdownStmt(contact("x"))
    passed_on = sends(host.say("b", word), ShutdownStmt)
    assert [conn for conn, _ in passed_on] == [conn for name, conn in host.conns.items() if name != "b"]
    assert not sends(host.say("a", word), ShutdownStmt)
