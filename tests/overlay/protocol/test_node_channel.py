"""The node on its channel: how it is found, how fragments find each other, and that rows reach everybody."""

from dataclasses import replace
from itertools import pairwise

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import (
    Close,
    Connected,
    Delivered,
    Dial,
    DialFailed,
    Disconnected,
    Publish,
    Published,
    Recovered,
    RolledBack,
    RosterChanged,
    Staged,
    Start,
    StoredStream,
    Trace,
)
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.streams.spreading import PULLS_WAITING_MAX
from m4cast.overlay.protocol.wire.batch import BatchFrame
from m4cast.overlay.protocol.wire.messages import (
    BeaconStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    Heartbeat,
    MergeCall,
    MergeResp,
    NeighboursStmt,
    RefusedStmt,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SummaryStmt,
)
from tests.overlay.protocol.node_pump import Host, Pump, dialled, hello, linked
from tests.overlay.protocol.stream_parts import contact, entry, node_id, of, sends, stream_id

S, MINE = stream_id(), stream_id("m")
SEEKER = NodeConfig(name="m", listen="m:7400", portals=("x:7400",))


def payload(size: int = 10) -> Staged:
    return Staged("t", 1, 1, b"." * size)


# ---- finding the channel


def portal(*portals: str) -> NodeConfig:
    return NodeConfig(name="m", listen="m:7400", portals=tuple(contact(name).address for name in portals))


def test_a_seeker_asks_a_portal_and_is_brought_in() -> None:
    host = Host(config=SEEKER, start=False)
    conn = sends(host.answered(host.feed(Start()), "x"), SeekingConnectionCall)[0][0]
    asked = sends(host.say("x", SeekingConnectionResp(full=True, hears_you=False, depth=0)), ConnectionRequestCall)
    assert asked == [(conn, ConnectionRequestCall(4))]
    outputs = host.say("x", ConnectionRequestResp(3, 1, True, (entry("x"), entry("y"), entry("m"))))
    assert [changed.entry.name for changed in of(outputs, RosterChanged)] == ["x", "y"]
    assert list(host.node.membership.table.neighbours) == [node_id("x")]
    assert host.node.membership.diameter.population == 3
    assert sends(outputs, SummaryStmt)
    assert sends(host.say("x", NeighboursStmt((node_id("m"),))), BeaconStmt) == []
    assert host.node.membership.state is State.FULL
    assert [message.entry.name for _, message in sends(host.wait(0), BeaconStmt)] == ["m"], "its first word, at once"


@pytest.mark.parametrize(("fellow", "founds"), [("z", True), ("a", False)])
def test_of_two_portals_that_seek_the_one_with_the_smaller_address_founds(fellow: str, founds: bool) -> None:
    host = Host(config=portal("m", fellow), start=False)
    host.answered(host.feed(Start()), fellow)
    outputs = host.say(fellow, SeekingConnectionResp(full=False, hears_you=False, depth=0))
    assert ("founded" in [trace.name for trace in of(outputs, Trace)]) is founds


@pytest.mark.parametrize("how", ["not there", "hung up", "refused", "other settings", "silent"])
def test_a_seeker_whose_portal_is_of_no_use_asks_again(how: str) -> None:
    host = Host(config=SEEKER, start=False)
    outputs = host.feed(Start())
    conn = dialled(outputs, "x")
    outputs = []
    if how == "not there":
        host.feed(DialFailed(conn))
    else:
        host.conns["x"] = conn
        host.feed(Connected(conn))
        if how == "hung up":
            host.feed(Disconnected(conn))
        elif how == "refused":
            host.say("x", hello("x"))
            outputs = host.say("x", RefusedStmt("busy", "not now"))
            assert Close(conn) in outputs
        elif how == "other settings":
            other = replace(hello("x"), settings=())
            outputs = host.say("x", other)
            assert Close(conn) in outputs
    outputs = host.wait(3_000 + 1_000)
    assert dialled(outputs, "x") != conn


@pytest.mark.parametrize("alone", [True, False])
def test_a_founder_that_is_alone_seeks_again_and_one_with_a_neighbour_does_not(alone: bool) -> None:
    host = Host() if alone else linked("a")
    again = [trace.name for trace in of(host.wait(5_000), Trace) if trace.name in ("founded", "alone")]
    assert again == (["alone"] if alone else [])


def test_a_fragment_calls_those_it_knows_more_and_more_rarely() -> None:
    """It is complete, so nobody else is in its component; but it has heard of z."""
    host = linked("a")
    host.say("a", NeighboursStmt((node_id("m"),)))
    host.say("a", BeaconStmt(entry("z"), 1))
    called_ms = []
    for _ in range(145):  # three beacons of z: then it would be called because it is silent
        for dial in of(host.wait(100), Dial):
            assert dial.address == contact("z").address
            called_ms.append(host.now_ms)
            host.feed(DialFailed(dial.conn))
        host.say("a", Heartbeat(host.node.holdings.digest))
    gaps = [later - earlier for earlier, later in pairwise(called_ms)]
    assert len(gaps) >= 3
    assert all(later >= 1.5 * earlier for earlier, later in pairwise(gaps))


def test_who_is_not_a_fragment_calls_nobody() -> None:
    host = linked("a")
    host.say("a", NeighboursStmt((node_id("m"), node_id("x"))))
    host.say("a", BeaconStmt(entry("z"), 1))
    for _ in range(10):
        assert of(host.wait(500), Dial) == []
        host.say("a", Heartbeat(host.node.holdings.digest))
    alone = linked("a")
    alone.say("a", NeighboursStmt((node_id("m"),)))
    alone.say("a", BeaconStmt(entry("a"), 1))
    assert of(alone.wait(3_000), Dial) == [], "it knows only its neighbour"


def test_two_components_become_one() -> None:
    host = linked("a")
    host.say("a", NeighboursStmt((node_id("m"),)))
    host.say("a", BeaconStmt(entry("z"), 1))
    host.answered(host.wait(1_001), "z")
    assert sends(host.say("z", SeekingConnectionResp(full=True, hears_you=True, depth=0)), MergeCall)
    host.say("z", MergeResp(accepted=True))
    assert list(host.node.membership.table.neighbours) == [node_id("a"), node_id("z")]


@pytest.mark.parametrize(("others", "prompt"), [(62, True), (64, False)])
def test_in_a_large_channel_a_newcomers_first_word_waits_for_its_turn(others: int, prompt: bool) -> None:
    host = Host(Recovered(node_id("m"), 1, roster=tuple(entry(f"n{n}") for n in range(others))), SEEKER)
    host.node.arrival.found(0)
    host.link("a")
    outputs = host.wait(1)
    assert bool(sends(outputs, BeaconStmt)) is prompt
    for _ in range(2):
        outputs += host.wait(3_500)
        host.say("a", Heartbeat(0))
    assert sends(outputs, BeaconStmt)


# ---- rows travel


def published(pump: Pump, name: str, request: int = 1, *, acks: int = 0, size: int = 10) -> None:
    pump.feed(name, Publish(request, (payload(size),), acks=acks))
    pump.settle()


def delivered(pump: Pump, name: str) -> list[tuple[str, int]]:
    deliveries = [output.delivery for output in pump.came_out(name, Delivered)]
    return [(pump.name_of(each.stream.origin), each.first_sequence) for each in deliveries]


def trio(**settings: int) -> Pump:
    pump = Pump(portals="a", settings=settings)
    for name in "abc":
        pump.start(name)
        pump.run(2_000)
    assert pump.links() == {"ab", "ac", "bc"}
    pump.outputs.clear()
    pump.log.clear()
    return pump


@pytest.mark.parametrize("size", [10, 100_000])
def test_rows_reach_everybody_once_and_in_order(size: int) -> None:
    """Pushed: n(n - 2) + 1 = 4 copies in a complete graph of three. Large ones: announced, and pulled once each."""
    pump = trio()
    for request in range(3):
        published(pump, "a", request, size=size)
        published(pump, "b", request, size=size)
    for name in "abc":
        got = delivered(pump, name)
        assert sorted(got) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
        for origin in "ab":
            assert [first for who, first in got if who == origin] == [1, 2, 3]
    copies = pump.sent(BatchFrame)
    assert len(copies) == 6 * (4 if size == 10 else 2)


def test_a_publish_with_acks_is_answered_when_others_have_it_on_disk() -> None:
    pump = trio()
    published(pump, "b", 7, acks=2)
    assert [published.request for published in pump.came_out("b", Published)] == [7]
    published(pump, "b", 8, acks=3)
    pump.run(10_000)
    assert [published.request for published in pump.came_out("b", Published)] == [7], "there are only two others"


def test_a_late_comer_gets_everything_in_order() -> None:
    pump = trio()
    for request in range(5):
        published(pump, "b", request)
    pump.start("d")
    pump.run(2_000)
    assert delivered(pump, "d") == [("b", first) for first in range(1, 6)]


def test_a_node_that_was_away_gets_what_it_missed() -> None:
    pump = trio()
    published(pump, "a", 1)
    stored = {stream_id("a"): StoredStream(1, 2, pump.nodes["c"].holdings.open(stream_id("a")).last_checksum)}
    pump.kill("c")
    pump.run(1_000)
    published(pump, "a", 2)
    pump.outputs.clear()
    pump.start("c", recovered=Recovered(node_id("c"), 2, streams=stored))
    pump.run(5_000)
    assert delivered(pump, "c") == [("a", 2)]


def test_a_node_whose_store_is_old_finds_out_from_its_neighbours() -> None:
    pump = trio()
    published(pump, "c", 1)
    pump.kill("c")
    pump.start("c", recovered=Recovered(node_id("c"), 2))
    pump.run(2_000)
    assert len(pump.came_out("c", RolledBack)) == 1
    assert pump.nodes["c"].over


def test_a_late_comer_gets_more_topics_than_may_be_pulled_at_once() -> None:
    pump = trio()
    topics = 2 * PULLS_WAITING_MAX + 5
    for number in range(topics):
        pump.feed("b", Publish(number, (Staged(f"t{number}", 1, 1, b"."),)))
        pump.settle()
    pump.start("d")
    pump.run(2_000)
    assert len(delivered(pump, "d")) == topics
    assert pump.sent(RefusedStmt) == []
