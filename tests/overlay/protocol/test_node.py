"""The node: its beginning and its end, what it refuses to publish, whom it watches, and how it leaves."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.departure import LEAVE_DRAIN_MS
from m4cast.overlay.protocol.effects import (
    Abort,
    AnnounceClients,
    Append,
    AppendFailed,
    CameAcross,
    ClockSet,
    Close,
    Commit,
    Connected,
    CreateTopic,
    Damaged,
    DialFailed,
    Disconnected,
    Disown,
    Drain,
    Durable,
    Forget,
    FrameProgress,
    ImportBatch,
    ImportBegin,
    Input,
    Leave,
    Left,
    LinkBlocked,
    LinkReady,
    OpenGates,
    Output,
    Publish,
    RangeRead,
    ReadRange,
    Received,
    Recovered,
    Refused,
    RemoveKey,
    Restore,
    RolledBack,
    SelectedRead,
    Send,
    Shutdown,
    Stage,
    Staged,
    Start,
    StoredStream,
    StoreFull,
    Subscribe,
    TimesFound,
    Trace,
    Trimmed,
    Unsubscribe,
    WaitActive,
    Wake,
    WakeAt,
    Wish,
)
from m4cast.overlay.protocol.holdings import BUCKETS
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.protocol.wire.messages import (
    AbsentStmt,
    AckEntry,
    AckStmt,
    BeaconStmt,
    DisconnectStmt,
    DropStmt,
    FailedStmt,
    FrontierEntry,
    FrontierStmt,
    Heartbeat,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingEntry,
    HoldingsStmt,
    Message,
    PortConnectionCall,
    PortSearchStmt,
    PullCall,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SummaryStmt,
)
from m4cast.overlay.protocol.wire.selective import Destination, KeepCall, RoutedFrame
from tests.overlay.protocol.node_picture import difference, ids, picture
from tests.overlay.protocol.node_pump import CLUSTER, Host, dialled, hello, linked
from tests.overlay.protocol.stream_parts import chain, contact, entry, node_id, of, pushed, sends, stream_id

S, MINE = stream_id(), stream_id("m")
SEEKER = NodeConfig(name="m", listen="m:7400", portals=("x:7400",))


def payload(size: int = 10) -> Staged:
    return Staged("t", 1, 1, b"." * size)


INPUTS: list[Input] = [
    Start(),
    Connected(998),
    Connected(999),
    DialFailed(999),
    Disconnected(998),
    Received(998, hello("x")),
    FrameProgress(998),
    LinkBlocked(998),
    LinkReady(998),
    Wake(),
    ClockSet(0),
    Durable(0),
    AppendFailed(0, "late"),
    RangeRead(99, ()),
    Damaged(S, 1, 2, (7,)),
    StoreFull(False),
    Trimmed(S, 1),
    SelectedRead(99, (), 2, 1, 0),
    TimesFound(99, (0,)),
    Stage(1, "s", payload()),
    Commit(2, (), ()),
    Publish(3, (payload(),)),
    Abort(("s",)),
    RemoveKey(4, "k"),
    Disown("t"),
    Subscribe(8, (Wish("r", "t"),)),
    Unsubscribe(9, ("r",)),
    CreateTopic(10, "u", 2),
    AnnounceClients(11, ()),
    WaitActive(12, 1, 1, 1_000),
    Restore(13, chain(1)[0]),
    ImportBatch(pushed(chain(1)[0]), node_id("x")),
    ImportBegin(S, 1, 2),
    OpenGates((node_id("y"),)),
    CameAcross(RoutedFrame(node_id("x"), (Destination(node_id("y"), 0, 0),), KeepCall(keep=True))),
    Drain(begin=True),
    Forget(7),
    Leave(),
    Shutdown(),
]


def test_every_kind_of_input_is_in_the_list() -> None:
    assert {type(each) for each in INPUTS} == set(Input.__args__)


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
        assert sends(host.say("z", SeekingConnectionCall(seeking=True, depth=0)), SeekingConnectionResp) == [
            (conn, SeekingConnectionResp(full, hears_you=False, depth=0))
        ]
    host = linked()
    host.say("a", BeaconStmt(entry("z"), 2))
    host.call("z")
    assert sends(host.say("z", SeekingConnectionCall(seeking=True, depth=0)), SeekingConnectionResp)[0][1].hears_you


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
    host.node.arrival.found(0)
    host.link("a", exchange=False)
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    host.say("a", HoldingsStmt((), 1, 0, last=False))
    assert refusal(host, Publish(2, (payload(),))) == "not-ready"
    host.say("a", HoldingsStmt((), 1, 0, last=True))
    assert of(host.feed(Publish(3, (payload(),))), Refused) == []


def test_alone_only_a_node_that_never_knew_another_publishes() -> None:
    assert of(Host().feed(Publish(1, (payload(),))), Refused) == []
    host = Host(Recovered(node_id("m"), 2, roster=(entry("z"),)), SEEKER)
    host.node.arrival.found(0)
    assert refusal(host, Publish(1, (payload(),))) == "not-ready"
    gone = Host(Recovered(node_id("m"), 2, roster=(entry("z", leaving=True),)))
    assert of(gone.feed(Publish(1, (payload(),))), Refused) == []


def test_after_a_rollback_it_publishes_when_the_old_rows_are_back() -> None:
    host = Host(Recovered(node_id("m"), 1, former_ids=(node_id("f"),)), SEEKER)
    host.node.arrival.found(0)
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
            host.feed(FrameProgress(host.conns[name]))
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


def test_a_word_from_far_raises_the_diameter_and_a_further_copy_does_not() -> None:
    host = linked("ab")
    host.say("a", BeaconStmt(entry("z"), 3))
    assert host.node.membership.diameter.estimate == 3
    assert host.node.membership.diameter.population == 2
    host.say("b", BeaconStmt(entry("z"), 4))
    assert host.node.membership.diameter.estimate == 3


def test_a_search_for_a_holder_is_passed_on_once_and_within_its_reach() -> None:
    host = linked("abc")
    search = HolderSearchStmt(contact("z"), 1, *S, 1, 1, 3)
    onward = replace(search, hops=2)
    assert sends(host.say("a", search), HolderSearchStmt) == [(host.conns["b"], onward), (host.conns["c"], onward)]
    assert host.say("b", search) == []
    assert host.say("b", HolderSearchStmt(contact("z"), 2, *S, 1, 3, 3)) == []
    assert sends(host.say("a", PortSearchStmt(contact("z"), 1, 1, 2)), PortSearchStmt), "counted apart"


def test_who_keeps_what_is_searched_for_serves_it_on_a_call() -> None:
    host = linked("ab")
    (batch,) = chain(1)
    host.say("a", pushed(batch))
    host.sync()
    outputs = host.say("b", HolderSearchStmt(contact("z"), 1, *S, 1, 1, 3))
    assert sends(host.answered(outputs, "z"), HolderFoundStmt)[0][1] == HolderFoundStmt(1, *S, 1, 2)
    (read,) = of(host.say("z", PullCall(*S, 1, 2, 100)), ReadRange)
    served = host.feed(RangeRead(read.token, (batch,)))
    assert [conn for conn, _ in sends(served, BatchFrame)] == [host.conns["z"]]
    host.feed(Disconnected(host.conns["z"]))
    outputs = host.say("b", HolderSearchStmt(contact("z"), 2, *S, 1, 1, 3))
    assert dialled(outputs, "z") != host.conns["z"], "a new call for a new search"


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


def test_a_leaver_does_not_wait_for_rows_that_nobody_keeps_any_more() -> None:
    host = linked()
    host.feed(Publish(1, (payload(), payload())))
    host.sync()
    host.feed(Trimmed(MINE, 2))
    assert Left() not in host.feed(Leave())
    assert host.say("b", AckStmt((AckEntry("t", 2, 3),)))[-1] == Left()


def test_a_node_that_is_drained_takes_no_publishes_until_it_is_told_to() -> None:
    host = linked()
    host.feed(Drain(begin=True))
    (refused,) = of(host.feed(Publish(1, (payload(),))), Refused)
    assert (refused.request, refused.code) == (1, "leaving")
    host.feed(Drain(begin=False))
    assert of(host.feed(Publish(2, (payload(),))), Append)


def test_a_leaver_does_not_wait_for_ever() -> None:
    host = linked()
    host.feed(Publish(1, (payload(),)))
    host.sync()
    host.feed(Leave())
    host.feed(Leave())
    outputs = host.wait(LEAVE_DRAIN_MS)
    assert outputs[-1] == Left()


# ---- rows of this node at others


def acked_by(host: Host, *names: str) -> None:
    """This node has published a row, and these neighbours have it on disk."""
    host.feed(Publish(1, (Staged("t", 1, 1, b"."),)))
    host.sync()
    for name in names:
        host.say(name, BeaconStmt(entry(name), 1))
        host.say(name, AckStmt((AckEntry("t", 1, 2),)))
    assert host.node.publishing.copies() == len(names)


def remembered(host: Host) -> list[str]:
    return sorted(each[:8].rstrip(b"\0").decode() for each in host.node.publishing.acks._stored)


def test_a_former_neighbour_counts_no_more_and_is_remembered_until_it_failed_or_left() -> None:
    host = linked("abcd")
    acked_by(host, *"abc")
    for name in "ab":
        host.say(name, DropStmt())
    assert (host.node.publishing.copies(), remembered(host)) == (1, ["a", "b", "c"])
    host.say("d", FailedStmt(node_id("a"), 1, 1))
    assert remembered(host) == ["b", "c"]
    host.say("d", BeaconStmt(entry("b", counter=2, leaving=True), 1))
    assert remembered(host) == ["c"]
    host.say("d", FailedStmt(node_id("c"), 1, 1))
    assert (host.node.publishing.copies(), remembered(host)) == (1, ["c"]), "its link knows better"
    host.feed(Disconnected(host.conns["c"]))
    assert (host.node.publishing.copies(), remembered(host)) == (0, [])


def link(host: Host, name: str, version: int) -> list[Output]:
    """A peer that speaks up to this version becomes a neighbour."""
    host.connect(name)
    host.say(name, replace(hello(name), version_max=version))
    return host.say(name, PortConnectionCall())


def test_absent_nodes_are_told_to_neighbours_of_this_version_and_news_of_them_goes_on() -> None:
    host = Host()
    for name, version in (("a", 2), ("b", 2), ("c", 1)):
        link(host, name, version)
    absent = AbsentStmt((entry("z"), entry("b")))
    assert sends(host.say("a", absent), AbsentStmt) == [(host.conns["b"], absent)]
    assert sends(host.say("b", absent), AbsentStmt) == [], "it is no news"
    host.say("a", BeaconStmt(entry("b", counter=2), 1))
    assert sends(link(host, "d", 2), AbsentStmt) == [(host.conns["d"], AbsentStmt((entry("z"),)))]


def test_a_node_whose_rows_were_with_a_neighbour_that_is_gone_waits_for_another_to_have_them() -> None:
    host = linked("ab")
    acked_by(host, "a")
    host.feed(Disconnected(host.conns["a"]))
    assert not of(host.feed(Leave()), Left)
    assert of(host.say("b", AckStmt((AckEntry("t", 1, 2),))), Left)


def test_a_holder_that_sends_for_a_long_time_has_heartbeats_from_whom_it_helps() -> None:
    host = linked("a")
    host.say("a", SummaryStmt((7,) * BUCKETS))
    host.say("a", HoldingsStmt((HoldingEntry(*S, 4, 6),), 1, 0, last=True))
    conn = host.call("h")
    host.say("h", HolderFoundStmt(1, *S, 1, 5))
    outputs: list[Output] = []
    for _ in range(8):
        outputs += host.wait(500)
        host.feed(FrameProgress(conn))
        host.say("a", Heartbeat(0))
    beats = [to for to, _ in sends(outputs, Heartbeat) if to == conn]
    assert 3 <= len(beats) <= 5
