"""The node: when it is over, what it refuses, that strangers and mistakes change nothing, and that rows travel."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.batch import BatchFrame, How
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    AppendFailed,
    Close,
    Commit,
    Connected,
    Delivered,
    Dial,
    DialFailed,
    Disconnected,
    Durable,
    Input,
    Leave,
    Left,
    LinkBlocked,
    LinkReady,
    Output,
    Progress,
    Publish,
    Published,
    RangeRead,
    Received,
    Recovered,
    Refused,
    RolledBack,
    Send,
    Stage,
    Staged,
    Start,
    StoredStream,
    Trace,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.holdings import BUCKETS
from m4cast.overlay.protocol.messages import (
    AckEntry,
    AckStmt,
    AnnounceStmt,
    BeaconStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    DiameterEstimateStmt,
    DisconnectStmt,
    DropStmt,
    EdgeProposalCall,
    EdgeProposalResp,
    EdgeSearchCall,
    EdgeSearchResp,
    FrontierEntry,
    FrontierStmt,
    Heartbeat,
    Hello,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingEntry,
    HoldingsStmt,
    MergeCall,
    MergeResp,
    Message,
    NeighboursStmt,
    PortConnectionCall,
    PortConnectionResp,
    PortSearchStmt,
    PullCall,
    RefusedStmt,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SummaryStmt,
)
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.node import LEAVE_DRAIN_MS
from tests.overlay.protocol.node_picture import MESSAGES, difference, picture
from tests.overlay.protocol.node_pump import CLUSTER, Host, Pump, hello
from tests.overlay.protocol.stream_parts import chain, contact, entry, node_id, of, pushed, sends, stream_id

S, MINE = stream_id(), stream_id("m")
SEEKER = NodeConfig(name="m", listen="m:7400", portals=("x:7400",))


def payload(size: int = 10) -> Staged:
    return Staged("t", 1, 1, b"." * size)


def ids(things: Sequence[object]) -> list[str]:
    return [f"{number}-{type(thing).__name__}" for number, thing in enumerate(things)]


def linked(names: str = "ab") -> Host:
    host = Host()
    for name in names:
        host.link(name)
    return host


INPUTS: list[Input] = [
    Start(),
    Connected(998),
    Connected(999),
    DialFailed(999),
    Disconnected(998),
    Received(998, hello("x")),
    Progress(998),
    LinkBlocked(998),
    LinkReady(998),
    Wake(),
    Durable(0),
    AppendFailed(0, "late"),
    RangeRead(99, ()),
    Trimmed(S, 1),
    Stage(1, "s", payload()),
    Commit(2, (), ()),
    Publish(3, (payload(),)),
    Abort(("s",)),
    Leave(),
]


def test_every_kind_of_input_and_message_is_in_the_lists() -> None:
    assert {type(each) for each in INPUTS} == set(Input.__args__)
    assert {type(each) for each in MESSAGES} == {*Message.__args__, BatchFrame}


# ---- the beginning


def test_a_node_without_portals_founds_and_is_full() -> None:
    host = Host(start=False)
    outputs = host.feed(Start())
    assert [trace.name for trace in of(outputs, Trace)] == ["founded", "full"]
    assert host.node.membership.state is State.FULL
    assert isinstance(outputs[-1], WakeAt)


def test_a_wake_is_asked_for_when_it_changed_and_an_early_one_is_harmless() -> None:
    host = Host()
    before = picture(host.node)
    assert host.feed(Abort(())) == []
    assert of(host.feed(Wake()), Append) == []
    assert difference(before, picture(host.node)) == []
    assert len(of(host.wait(CLUSTER.heartbeat_interval_ms), WakeAt)) >= 1


def test_a_caller_is_told_whether_this_node_is_on_the_channel_and_hears_it() -> None:
    for host, full in ((Host(), True), (Host(config=SEEKER), False)):
        conn = host.call("z")
        assert sends(host.say("z", SeekingConnectionCall()), SeekingConnectionResp) == [
            (conn, SeekingConnectionResp(full, hears_you=False))
        ]
    host = linked()
    host.say("a", BeaconStmt(entry("z"), 2))
    host.call("z")
    assert sends(host.say("z", SeekingConnectionCall()), SeekingConnectionResp)[0][1].hears_you


# ---- the end


def left() -> Host:
    host = linked()
    assert host.feed(Leave())[-1] == Left()
    return host


def rolled_back() -> Host:
    host = linked()
    frontier = FrontierStmt((FrontierEntry(*MINE, 2), FrontierEntry(*S, 5), FrontierEntry(*MINE, 3)))
    outputs = host.say("a", frontier)
    assert isinstance(outputs[-1], RolledBack)
    assert len(of(outputs, RolledBack)) == 1
    return host


@pytest.mark.parametrize("end", [left, rolled_back])
@pytest.mark.parametrize("event", INPUTS, ids=ids(INPUTS))
def test_nothing_comes_out_when_it_is_over(end: Callable[[], Host], event: Input) -> None:
    host = end()
    assert host.node.over
    assert host.feed(event) == []
    host.now_ms += 10**6
    assert host.feed(Wake()) == []
    for conn in host.conns.values():
        assert host.feed(Received(conn, pushed(chain(1)[0]))) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (FrontierStmt((FrontierEntry(*MINE, 9),)), "'t' up to 8"),
        (pushed(chain(8, stream=MINE)[-1]), "'t' up to 8"),
        (HoldingsStmt((HoldingEntry(*MINE, 1, 9),), 3, 7, last=True), "'t' up to 8"),
        (HoldingsStmt((), 4, 7, last=True), "incarnation 4"),
        (HoldingsStmt((), 3, 8, last=True), "8 batches"),
        (BeaconStmt(entry("m", incarnation=4), 1), "incarnation 4"),
    ],
)
def test_each_word_that_shows_a_rollback_ends_the_node(message: Message | BatchFrame, words: str) -> None:
    stored = Recovered(node_id("m"), 3, streams={MINE: StoredStream(1, 8, 1)}, origin_batch=7)
    host = Host(stored)
    host.link("a")
    outputs = host.say("a", message)
    assert isinstance(outputs[-1], RolledBack)
    assert words in outputs[-1].detail
    assert host.node.over


@pytest.mark.parametrize(
    "message",
    [
        FrontierStmt((FrontierEntry(*MINE, 8),)),
        pushed(chain(7, stream=MINE)[-1]),
        HoldingsStmt((HoldingEntry(*MINE, 1, 8),), 3, 7, last=True),
        BeaconStmt(entry("m", incarnation=3, counter=99, origin_batch=7), 1),
        BeaconStmt(entry("m", incarnation=2), 1),
    ],
)
def test_what_is_no_more_than_i_know_is_no_rollback(message: Message | BatchFrame) -> None:
    stored = Recovered(node_id("m"), 3, streams={MINE: StoredStream(1, 8, 1)}, origin_batch=7)
    host = Host(stored)
    host.link("a")
    assert of(host.say("a", message), RolledBack) == []
    assert not host.node.over


# ---- publishing, by code


def refusal(host: Host, request: Publish | Commit) -> str:
    (refused,) = of(host.feed(request), Refused)
    assert refused.request == request.request
    return refused.code


def test_a_node_that_has_not_heard_from_the_channel_does_not_publish() -> None:
    host = Host(config=SEEKER)
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    assert refusal(host, Commit(2, ("s",), ())) == "not-ready"


def test_it_publishes_after_the_first_exchange_and_not_before() -> None:
    host = Host(Recovered(node_id("m"), 1, roster=(entry("z"),)), SEEKER)
    host.node._found(0)
    host.link("a", exchange=False)
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    host.say("a", HoldingsStmt((), 1, 0, last=False))
    assert refusal(host, Publish(2, (payload(),))) == "not-ready"
    host.say("a", HoldingsStmt((), 1, 0, last=True))
    assert of(host.feed(Publish(3, (payload(),))), Refused) == []


def test_alone_only_a_node_that_never_knew_another_publishes() -> None:
    assert of(Host().feed(Publish(1, (payload(),))), Refused) == []
    host = Host(Recovered(node_id("m"), 2, roster=(entry("z"),)), SEEKER)
    host.node._found(0)
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    gone = Host(Recovered(node_id("m"), 2, roster=(entry("z", leaving=True),)))
    assert of(gone.feed(Publish(1, (payload(),))), Refused) == []


def test_after_a_rollback_it_publishes_when_the_old_rows_are_back() -> None:
    host = Host(Recovered(node_id("m"), 1, former_ids=(node_id("f"),)), SEEKER)
    host.node._found(0)
    host.link("a", exchange=False)
    old = stream_id("f")
    host.say("a", HoldingsStmt((HoldingEntry(*old, 1, 2),), 1, 0, last=True))
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    host.say("a", BatchFrame(chain(1, stream=old)[0], 1, How.PULLED))
    assert refusal(host, Publish(2, (payload(),))) == "not-ready"
    host.sync()
    assert of(host.feed(Publish(3, (payload(),))), Refused) == []


def test_a_leaver_does_not_publish() -> None:
    host = linked()
    host.feed(Publish(1, (payload(),)))
    host.sync()
    assert not host.node.over
    host.feed(Leave())
    assert refusal(host, Publish(2, (payload(),))) == "leaving"
    assert refusal(host, Commit(3, (), ())) == "leaving"


def test_so_many_publishes_wait_and_one_more_is_refused() -> None:
    host = Host(config=NodeConfig(listen="m:7400", publish_window_bytes=1_024, publish_queue_max=2))
    host.link("a")
    host.feed(Publish(1, (payload(1_024),)))
    host.sync()
    for request in (2, 3):
        assert of(host.feed(Publish(request, (payload(),))), Append) == []
    assert refusal(host, Publish(4, (payload(),))) == "busy"
    outputs = host.say("a", AckStmt((AckEntry("t", 1, 2),)))
    assert len(of(outputs, Append)) == 2


# ---- strangers and mistakes


@pytest.mark.parametrize("message", MESSAGES[1:], ids=ids(MESSAGES[1:]))
def test_a_stranger_that_does_not_begin_with_a_hello_is_hung_up_on_and_changes_nothing(
    message: Message | BatchFrame,
) -> None:
    host = linked()
    before = picture(host.node)
    conn = host.connect("x")
    outputs = host.say("x", message)
    assert Close(conn) in outputs
    if not isinstance(message, RefusedStmt):
        assert [refused.reason for _, refused in sends(outputs, RefusedStmt)] == ["protocol"]
    assert difference(before, picture(host.node)) == []


LINK_ONLY: list[Message | BatchFrame] = [
    message
    for message in MESSAGES
    if isinstance(
        message,
        PortSearchStmt
        | EdgeSearchCall
        | EdgeSearchResp
        | DiameterEstimateStmt
        | DisconnectStmt
        | DropStmt
        | NeighboursStmt
        | Heartbeat
        | BeaconStmt
        | SummaryStmt
        | HoldingsStmt
        | AnnounceStmt
        | FrontierStmt
        | AckStmt
        | HolderSearchStmt
        | PullCall
        | BatchFrame
        | Hello,
    )
]
"""What only neighbours may say; and a second hello."""


@pytest.mark.parametrize("message", LINK_ONLY, ids=ids(LINK_ONLY))
def test_a_caller_that_speaks_like_a_neighbour_is_hung_up_on_and_changes_nothing(message: Message | BatchFrame) -> None:
    host = linked()
    before = picture(host.node)
    conn = host.call("x")
    outputs = host.say("x", message)
    assert Close(conn) in outputs
    (refused,) = [message.reason for _, message in sends(outputs, RefusedStmt)]
    assert refused == ("second-hello" if isinstance(message, Hello) else "protocol")
    assert difference(before, picture(host.node)) == []


ANSWERS: list[Message | BatchFrame] = [
    message
    for message in MESSAGES
    if isinstance(message, SeekingConnectionResp | EdgeProposalResp | PortConnectionResp | MergeResp | HolderFoundStmt)
]


@pytest.mark.parametrize("message", ANSWERS, ids=ids(ANSWERS))
def test_a_caller_that_answers_what_was_not_asked_is_hung_up_on_and_changes_nothing(
    message: Message | BatchFrame,
) -> None:
    host = linked()
    before = picture(host.node)
    conn = host.call("x")
    assert Close(conn) in host.say("x", message)
    assert difference(before, picture(host.node)) == []


VIOLATIONS: list[Message | BatchFrame] = [
    *(
        message
        for message in MESSAGES
        if isinstance(
            message,
            Hello
            | SeekingConnectionCall
            | SeekingConnectionResp
            | ConnectionRequestCall
            | ConnectionRequestResp
            | EdgeProposalCall
            | EdgeProposalResp
            | PortConnectionCall
            | PortConnectionResp
            | MergeCall
            | MergeResp
            | HolderFoundStmt,
        )
    ),
    SummaryStmt((0,) * (BUCKETS - 1)),
]
"""What a neighbour may not say."""


@pytest.mark.parametrize("message", VIOLATIONS, ids=ids(VIOLATIONS))
def test_a_neighbour_that_breaks_the_rules_is_lost_like_a_broken_connection(message: Message | BatchFrame) -> None:
    host, twin = linked(), linked()
    outputs = host.say("a", message)
    assert [refused.reason for _, refused in sends(outputs, RefusedStmt)] == ["protocol"]
    assert Close(host.conns["a"]) in outputs
    twin.feed(Disconnected(twin.conns["a"]))
    assert difference(picture(twin.node), picture(host.node)) == []


def test_a_neighbour_that_pulls_too_much_at_once_is_lost() -> None:
    host = linked()
    host.feed(LinkBlocked(host.conns["a"]))
    outputs: list[Output] = []
    while node_id("a") in host.node.membership.table.neighbours:
        outputs = host.say("a", PullCall(*S, 1, 2, 9))
    assert [refused.detail for _, refused in sends(outputs, RefusedStmt)] == ["too many pulls at once"]


def test_a_refusal_ends_a_call_and_a_link() -> None:
    host = linked()
    conn = host.call("x")
    assert Close(conn) in host.say("x", RefusedStmt("busy", "no"))
    assert Close(host.conns["a"]) in host.say("a", RefusedStmt("busy", "no"))
    assert list(host.node.membership.table.neighbours) == [node_id("b")]


# ---- stale numbers


STALE: list[Input] = [
    DialFailed(999),
    Disconnected(998),
    Disconnected(999),
    *(Received(998, message) for message in MESSAGES),
    *(Received(999, message) for message in MESSAGES),
    Progress(998),
    LinkBlocked(998),
    LinkReady(998),
    Wake(),
    Durable(0),
    Durable(-1),
    AppendFailed(0, "late"),
    RangeRead(99, tuple(chain(1))),
]


@pytest.mark.parametrize("event", STALE, ids=ids(STALE))
def test_numbers_that_mean_nothing_any_more_are_harmless(event: Input) -> None:
    host = linked()
    before = picture(host.node)
    assert [output for output in host.feed(event) if not isinstance(output, WakeAt)] == []
    assert difference(before, picture(host.node)) == []


def test_a_dial_that_was_given_up_is_closed_when_it_connects_after_all() -> None:
    host = linked()
    before = picture(host.node)
    assert host.feed(Connected(999)) == [Close(999)]
    assert difference(before, picture(host.node)) == []


def test_what_was_durable_is_durable_once() -> None:
    host = linked()
    host.feed(Publish(1, (payload(),)))
    token = host.last_token
    assert len(of(host.feed(Durable(token)), Published)) == 1
    before = picture(host.node)
    assert of(host.feed(Durable(token)), Published) == []
    assert difference(before, picture(host.node)) == []


def test_a_failure_is_counted_once_however_often_it_is_reported() -> None:
    """Each append that was asked for after the failed one reports for itself; those asked for since are good."""
    host = linked()
    one, two, three = chain(3)
    for batch in (one, two):
        host.say("a", pushed(batch))
    first = host.last_token - 1
    host.feed(AppendFailed(first, "full"))
    assert host.node.holdings.open(S).next == 1
    host.say("a", pushed(one))
    host.feed(AppendFailed(first + 1, "full"))
    assert host.node.holdings.open(S).next == 2
    host.sync()
    assert host.node.holdings.open(S).durable_next == 2
    host.say("a", pushed(two))
    host.feed(AppendFailed(host.last_token, "full"))
    assert host.node.holdings.open(S).next == 2, "a new failure is a new failure"
    assert three.first_sequence == 3


# ---- watching


def test_a_call_that_comes_to_nothing_is_closed_after_a_while() -> None:
    host = linked()
    conn = host.call("x")
    assert Close(conn) not in host.wait(2 * 3_000 - 2)
    assert Close(conn) in host.wait(2)


def test_a_silent_neighbour_is_given_up_and_one_that_speaks_is_not() -> None:
    host = linked()
    outputs: list[Output] = []
    for _ in range(8):
        outputs += host.wait(1_000)
        host.say("b", Heartbeat(0))
    assert list(host.node.membership.table.neighbours) == [node_id("b")]
    assert Close(host.conns["a"]) in outputs
    beats = [conn for conn, _ in sends(outputs, Heartbeat)]
    assert beats.count(host.conns["b"]) == 8


def test_a_large_frame_that_is_on_its_way_is_no_silence() -> None:
    host = linked()
    conn = host.call("x")
    for _ in range(8):
        host.wait(1_000)
        for name in "abx":
            host.feed(Progress(host.conns[name]))
    assert len(host.node.membership.table.neighbours) == 2
    assert host.node.calls.get(conn) is not None


def test_beacons_are_passed_on_once_and_not_back() -> None:
    host = linked("abc")
    word = BeaconStmt(entry("z"), 3)
    outputs = host.say("a", word)
    onward = replace(word, hops=4)
    assert sends(outputs, BeaconStmt) == [(host.conns["b"], onward), (host.conns["c"], onward)]
    assert host.say("b", word) == []
    assert sends(host.say("c", BeaconStmt(entry("y"), 255)), BeaconStmt)[0][1].hops == 255


# ---- leaving


def test_a_leaver_tells_everybody_and_hangs_up() -> None:
    host = linked()
    outputs = host.feed(Leave())
    for name in "ab":
        conn = host.conns[name]
        messages = [message for sent_to, message in sends(outputs, object) if sent_to == conn]
        beacon, goodbye = messages
        assert isinstance(beacon, BeaconStmt) and beacon.entry.leaving
        assert isinstance(goodbye, DisconnectStmt) and set(goodbye.neighbours) == {contact("a"), contact("b")}
        assert outputs.index(Send(conn, goodbye)) < outputs.index(Close(conn))


def test_a_leaver_waits_until_its_rows_are_somewhere_else() -> None:
    host = linked()
    host.feed(Publish(1, (payload(),)))
    host.sync()
    assert Left() not in host.feed(Leave())
    assert Left() not in host.wait(LEAVE_DRAIN_MS - 1)
    outputs = host.say("b", AckStmt((AckEntry("t", 1, 2),)))
    assert outputs[-1] == Left()


def test_a_leaver_does_not_wait_for_ever() -> None:
    host = linked()
    host.feed(Publish(1, (payload(),)))
    host.sync()
    host.feed(Leave())
    host.feed(Leave())
    outputs = host.wait(LEAVE_DRAIN_MS)
    assert outputs[-1] == Left()


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


def test_a_seeker_whose_portal_is_away_asks_again() -> None:
    host = Host(config=SEEKER, start=False)
    (dial,) = of(host.feed(Start()), Dial)
    host.feed(DialFailed(dial.conn))
    assert len(of(host.wait(1_000), Dial)) == 1
