"""Finding rows beyond the gateways: whose answers count, and what no question gets around the rules."""

from types import SimpleNamespace
from typing import Any

import pytest

from m4cast.overlay.config.federation import GatewayConfig
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways import finding
from m4cast.overlay.net.gateways.finding import HOPS_MAX, FoundRows, StreamFinding
from m4cast.overlay.net.gateways.reports import echo
from m4cast.overlay.net.gateways.reports.client_finding import ClientFinding, FoundClient
from m4cast.overlay.net.gateways.wire.messages import (
    ClientFindCall,
    ClientFindResp,
    PulledBatch,
    StreamFindCall,
    StreamFindResp,
    StreamPullCall,
    StreamPullResp,
)

ME, FELLOW, OTHER = (UnitId(bytes([number]) * 16) for number in (1, 2, 3))
HERE, THERE = NodeId(bytes([4]) * 16), NodeId(bytes([5]) * 16)
OWN, FOREIGN = StreamId(HERE, "orders"), StreamId(THERE, "orders")
TRANSIT = GatewayConfig(channel="m4cast/c", transits=("orders",))
FROM_A = GatewayConfig(channel="m4cast/a", imports=("orders",), transits=("orders",))
NOTHING, CUT_OFF = (0, 0, 0), (0, 0, 1)


class Side:
    """A node that has rows 1 to 9 of both streams."""

    def is_own(self, origin: NodeId) -> bool:
        return origin == HERE

    def speaks_for(self, stream: StreamId) -> bool:
        return False

    def first_kept(self, stream: StreamId, first: int) -> tuple[int, int]:
        return (first, 10) if first < 10 else (0, 0)


class Link:
    def __init__(self, conn: int, gateway: GatewayConfig | None, node: UnitId) -> None:
        self.conn, self.gateway, self.is_full = conn, gateway, False
        self.hello = SimpleNamespace(channel="m4cast/b" if gateway is None else gateway.channel, node=node)
        self.sent: list[Any] = []

    def send(self, message: Any, batch: object = None) -> None:
        self.sent.append(message)

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


class Place:
    """A gatekeeper of channel b, linked with another one of it and with channels c and a."""

    def __init__(self) -> None:
        self.fellow, self.to_c, self.to_a = Link(1, None, FELLOW), Link(2, TRANSIT, OTHER), Link(3, FROM_A, OTHER)
        self.links: dict[int, Any] = {link.conn: link for link in (self.fellow, self.to_c, self.to_a)}
        self.finding = StreamFinding(Side(), ME, self.links)  # type: ignore[arg-type]
        self.finals: dict[StreamId, str] = {}
        self.finding.is_final = self.finals.__contains__
        self.finding.note_final = self.note_final
        self.served: list[StreamId] = []
        self.finding.serve = lambda link, call, stream: self.served.append(stream)
        self.answers: list[FoundRows | None] = []

    def note_final(self, stream: StreamId, channel: str, is_final: bool) -> None:
        if is_final:
            self.finals[stream] = channel

    def heard(self, link: Link, message: Any) -> None:
        self.finding.heard(link, message, None)  # type: ignore[arg-type]

    def find(self) -> int:
        """Ask for a stream of channel a, of which c says that it has nothing; the number of the question."""
        self.finding.find(FOREIGN, 1, 0, self.answers.append)
        (call,) = self.to_a.take()
        assert self.fellow.take() == [call]
        self.heard(self.to_c, answer(call.ask, 0, 0, asker=ME))
        return int(call.ask)

    def lose(self, link: Link) -> None:
        del self.links[link.conn]
        self.finding.link_down(link)  # type: ignore[arg-type]


def asked(stream: StreamId, first: int = 1, ask: int = 7, hops: int = 1) -> StreamFindCall:
    return StreamFindCall(OTHER, ask, stream.origin, stream.topic, first, 0, hops)


def answer(ask: int, low: int, following: int, asker: UnitId = OTHER, *, is_final: bool = False) -> StreamFindResp:
    return StreamFindResp(asker, ask, low, following, 1 if low else 0, is_final)


def outcome(link: Link) -> tuple[int, int, int]:
    (resp,) = link.take()
    assert isinstance(resp, StreamFindResp)
    return resp.low, resp.next, resp.first


def test_own_rows_that_are_not_exported_do_not_leave_by_another_gatekeeper_of_the_channel() -> None:
    place = Place()
    place.heard(place.to_c, asked(OWN))
    assert outcome(place.to_c) == NOTHING
    assert not place.fellow.sent, "within the channel it would have answered"


def test_a_ban_that_only_another_gatekeeper_of_the_channel_has_heard_of_counts() -> None:
    place = Place()
    place.heard(place.to_c, asked(FOREIGN))
    (call,) = place.fellow.take()
    assert not place.to_c.sent, "the rows are here, but nobody has said that they may be passed on"
    place.heard(place.fellow, answer(call.ask, 1, 10, is_final=True))
    assert outcome(place.to_c) == NOTHING and FOREIGN in place.finals
    place.heard(place.to_c, StreamPullCall(OTHER, 7, 1, 10, 1_000))
    assert place.to_c.take() == [StreamPullResp(OTHER, 7, 0)] and not place.served
    place.heard(place.to_c, asked(FOREIGN, ask=8))
    assert outcome(place.to_c) == NOTHING and not place.fellow.sent


def test_rows_that_may_be_passed_on_are_found_here() -> None:
    place = Place()
    place.heard(place.to_c, asked(FOREIGN))
    place.heard(place.fellow, answer(7, 1, 10))
    assert outcome(place.to_c) == (1, 10, 1)
    place.heard(place.to_c, StreamPullCall(OTHER, 7, 1, 10, 1_000))
    assert place.served == [FOREIGN]
    place.finals[FOREIGN] = "m4cast/a"  # and from now on not
    place.heard(place.to_c, StreamPullCall(OTHER, 7, 1, 10, 1_000))
    assert place.served == [FOREIGN] and place.to_c.take() == [StreamPullResp(OTHER, 7, 0)]


@pytest.mark.parametrize(("low", "is_found"), [(1, True), (50, False)])
def test_what_is_missing_where_somebody_was_cut_off_is_not_given_up(low: int, is_found: bool) -> None:
    """H43: those who were not heard may keep what the others do not."""
    place = Place()
    ask = place.find()
    place.heard(place.fellow, answer(ask, low, 60, asker=ME))
    place.lose(place.to_a)
    (found,) = place.answers
    assert (found is not None) is is_found


def test_who_passes_a_question_on_says_that_somebody_was_cut_off() -> None:
    place = Place()
    place.heard(place.to_c, asked(FOREIGN, first=20))  # none of these are here
    place.heard(place.fellow, answer(7, 50, 60))
    place.lose(place.to_a)
    assert outcome(place.to_c) == CUT_OFF
    place.heard(place.to_c, asked(FOREIGN, first=20, ask=8, hops=HOPS_MAX))
    assert outcome(place.to_c) == CUT_OFF, "beyond, nobody was asked"


def test_questions_beyond_what_is_remembered_end_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the asker would wait for ever."""
    monkeypatch.setattr(finding, "ASKS_MAX", 2)
    place = Place()
    place.find()
    place.to_c.take()
    place.heard(place.to_c, asked(FOREIGN, first=20))
    assert not place.answers
    place.heard(place.to_c, asked(FOREIGN, first=20, ask=8))
    assert place.answers == [None] and not place.to_c.sent
    place.heard(place.to_c, asked(FOREIGN, first=20, ask=9))
    assert outcome(place.to_c) == CUT_OFF


def test_batches_for_a_link_that_is_full_are_dropped_and_the_end_of_the_pull_is_not() -> None:
    place = Place()
    place.heard(place.to_c, asked(FOREIGN, first=20))
    place.heard(place.fellow, answer(7, 0, 0))
    place.heard(place.to_a, answer(7, 20, 60))
    assert outcome(place.to_c) == (20, 60, 1)
    place.heard(place.to_a, PulledBatch(OTHER, 7))
    place.to_c.is_full = True
    place.heard(place.to_a, PulledBatch(OTHER, 7))
    place.heard(place.to_a, StreamPullResp(OTHER, 7, 60))
    assert place.to_c.take() == [PulledBatch(OTHER, 7), StreamPullResp(OTHER, 7, 60)]


def test_an_echo_says_who_could_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many gatekeepers, or for want of room: "nobody has it" would be believed."""
    monkeypatch.setattr(echo, "ASKS_MAX", 1)
    links: dict[int, Any] = {1: Link(1, None, FELLOW), 2: Link(2, TRANSIT, OTHER)}
    answers: list[tuple[FoundClient, bool]] = []
    clients = ClientFinding(ME, links, lambda call: FoundClient())
    clients.find("ann", b"digest", 2, lambda found: answers.append((found or FoundClient(), found is None)))
    assert not answers
    clients.heard(links[2], ClientFindCall(OTHER, 1, "bob", b"digest", 2, 1))
    assert answers == [(FoundClient(), True)]
    (call, *_) = links[1].take()
    assert isinstance(call, ClientFindCall)
    links[2].take()
    clients.heard(links[2], ClientFindCall(OTHER, 2, "eve", b"digest", 2, HOPS_MAX))
    found = [(each.ask, each.is_cut) for each in links[2].take() if isinstance(each, ClientFindResp)]
    assert found == [(1, True), (2, True)]
