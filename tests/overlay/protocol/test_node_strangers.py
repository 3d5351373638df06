"""The node and strangers: mistakes of peers and stale numbers change nothing (guarantee 8)."""

from dataclasses import replace

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import (
    AppendFailed,
    Close,
    Connected,
    Dial,
    DialFailed,
    Disconnected,
    Durable,
    FrameProgress,
    Input,
    LinkBlocked,
    LinkReady,
    Output,
    Publish,
    Published,
    RangeRead,
    Received,
    Staged,
    Start,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.holdings import BUCKETS
from m4cast.overlay.protocol.wire.batch import BatchFrame
from m4cast.overlay.protocol.wire.control import to_avro
from m4cast.overlay.protocol.wire.messages import (
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
    FrontierStmt,
    Heartbeat,
    Hello,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingsStmt,
    MergeCall,
    MergeResp,
    Message,
    NeighboursStmt,
    PortConnectionCall,
    PortConnectionResp,
    PortSearchStmt,
    PruneStmt,
    PullCall,
    RefusedStmt,
    SeekingConnectionCall,
    SeekingConnectionResp,
    Setting,
    SummaryStmt,
    SwapCall,
    SwapResp,
)
from tests.overlay.protocol.node_picture import MESSAGES, difference, ids, picture
from tests.overlay.protocol.node_pump import Host, dialled, hello, linked
from tests.overlay.protocol.stream_parts import chain, contact, node_id, of, pushed, sends, stream_id

S = stream_id()


def payload(size: int = 10) -> Staged:
    return Staged("t", 1, 1, b"." * size)


def test_every_kind_of_message_is_in_the_list() -> None:
    assert {type(each) for each in MESSAGES} == {*Message.__args__, BatchFrame}


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
        | PruneStmt
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
    if isinstance(
        message,
        SeekingConnectionResp
        | ConnectionRequestResp
        | EdgeProposalResp
        | PortConnectionResp
        | MergeResp
        | SwapResp
        | HolderFoundStmt,
    )
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
            | SwapCall
            | SwapResp
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
    FrameProgress(998),
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


def test_a_neighbour_that_was_never_heard_of_is_forgotten_with_its_link_and_others_are_not() -> None:
    """It may be anybody who has said hello; what is remembered is called again and again, for ever."""
    host = linked("ab")
    entry = host.node.roster.own._replace(node_id=node_id("a"), counter=1, address=contact("a").address)
    host.say("a", BeaconStmt(entry, 1))
    assert set(host.node.roster.passive.addresses()) == {contact("a").address, contact("b").address}
    for name in "ab":
        host.feed(Disconnected(host.conns[name]))
    assert host.node.roster.passive.addresses() == [contact("a").address]


# ---- what hangs on a call goes with it


def courting(name: str) -> Host:
    """Node m, which courts somebody whose search came through its neighbour a, and has its hello."""
    host = linked("a")
    outputs = host.say("a", PortSearchStmt(contact(name), 1, 1, 2))
    host.answered(outputs, name)
    assert host.node.membership.table.courting == {node_id(name): host.conns[name]}
    return host


@pytest.mark.parametrize("name", ["d", "x"])  # with a smaller id than m, and a larger one
@pytest.mark.parametrize("message", MESSAGES, ids=ids(MESSAGES))
def test_whatever_ends_a_call_frees_the_hole_that_it_promised(message: Message | BatchFrame, name: str) -> None:
    host = courting(name)
    host.say(name, message)
    table = host.node.membership.table
    assert all(host.node.calls.get(conn) is not None for conn in table.courting.values())
    assert all(host.node.calls.get(each.conn) is not None for each in table.neighbours.values())
    host.wait(10_000)
    assert not table.courting


@pytest.mark.parametrize("message", MESSAGES, ids=ids(MESSAGES))
def test_whatever_ends_a_call_the_search_for_the_channel_goes_on(message: Message | BatchFrame) -> None:
    host = Host(config=NodeConfig(name="m", listen="m:7400", portals=("x:7400",)), start=False)
    host.answered(host.feed(Start()), "x")
    outputs = host.say("x", message)
    outputs += host.wait(20_000)
    assert of(outputs, Dial) or host.node.membership.table.neighbours


@pytest.mark.parametrize("message", MESSAGES, ids=ids(MESSAGES))
def test_whatever_ends_the_call_of_a_holder_the_next_search_is_answered(message: Message | BatchFrame) -> None:
    host = linked()
    host.say("a", pushed(chain(1)[0]))
    host.sync()
    outputs = host.say("a", HolderSearchStmt(contact("z"), 1, *S, 1, 1, 3))
    host.answered(outputs, "z")
    if Close(host.conns["z"]) in host.say("z", message):
        dialled(host.say("b", HolderSearchStmt(contact("z"), 2, *S, 1, 1, 3)), "z")


QUESTIONS = [
    message
    for message in MESSAGES
    if isinstance(
        message,
        SeekingConnectionCall | ConnectionRequestCall | EdgeProposalCall | PortConnectionCall | MergeCall | SwapCall,
    )
]


@pytest.mark.parametrize("message", QUESTIONS, ids=ids(QUESTIONS))
def test_who_was_called_answers_and_does_not_ask(message: Message) -> None:
    host = courting("d")
    outputs = host.say("d", message)
    assert [refused.reason for _, refused in sends(outputs, RefusedStmt)] == ["protocol"]
    assert list(host.node.membership.table.neighbours) == [node_id("a")]


def test_a_hello_with_the_longest_settings_is_refused_in_a_message_that_can_be_sent() -> None:
    host = Host()
    host.connect("x")
    differing = tuple(Setting(each.key, "\N{GRINNING FACE}" * 250) for each in hello("x").settings)
    outputs = host.say("x", replace(hello("x"), settings=differing))
    ((_, refused),) = sends(outputs, RefusedStmt)
    to_avro(refused)
