"""Dissemination: which word leads to what, how a rolled-back store is noticed, and holders beyond the neighbours."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from m4cast.overlay.config import NodeConfig, StartFrom
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import StreamId, heir_of
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS, Call, CallTimeout, Candidate
from m4cast.overlay.protocol.effects import Append, Close, Dial, ReadRange, Recovered, StoredStream, Trace
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import BUCKETS, Holdings
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.streams.dissemination import HELPERS_MAX, Dissemination
from m4cast.overlay.protocol.streams.holders import HELPED_MAX, HoldFor
from m4cast.overlay.protocol.streams.inquiries import Inquiry
from m4cast.overlay.protocol.streams.ordering import Accepted, OrderingEvent
from m4cast.overlay.protocol.streams.spreading import PULLS_WAITING_MAX
from m4cast.overlay.protocol.streams.timers import FrontierDue, HolderSearchDue, PullTimeout, WantDue
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.wire.control import to_avro
from m4cast.overlay.protocol.wire.messages import (
    ENTRIES_PER_MESSAGE,
    HELD_VERSION,
    AckEntry,
    AckStmt,
    AnnounceStmt,
    FrontierEntry,
    FrontierStmt,
    Heartbeat,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingEntry,
    HoldingsStmt,
    Message,
    PullCall,
    PullResp,
    RosterEntry,
    SummaryStmt,
)
from tests.overlay.protocol.append_parts import starts_of
from tests.overlay.protocol.stream_parts import (
    chain,
    contact,
    context_of_m,
    entry,
    node_id,
    of,
    pushed,
    sends,
    stream_id,
    take,
)

T = TypeVar("T")
S = stream_id()
MINE = stream_id("m")


class Hub:
    """The dissemination of node m, linked to these neighbours."""

    def __init__(
        self,
        neighbours: str = "ab",
        streams: dict[StreamId, StoredStream] | None = None,
        former: str = "",
        start_from: StartFrom = "earliest",
    ) -> None:
        self.config = NodeConfig(listen="m:7400", start_from=start_from)
        self.searched_ms = 0
        recovered = Recovered(node_id("m"), 5, tuple(map(node_id, former)), streams=streams or {})
        self.context = context = context_of_m(self.config, incarnation=5)
        self.out, self.timers, self.table, self.calls = context.out, context.timers, context.table, context.calls
        self.events: list[OrderingEvent] = []
        self.holdings = Holdings(recovered.streams)
        floods = Floods(context)
        self.hub = Dissemination(context, recovered, self.holdings, floods, lambda append: append, self.events.append)
        self.beacons: dict[str, RosterEntry] = {}
        self._conn = 0
        for name in neighbours:
            self.link(name)
        take(self.out)

    @property
    def tokens(self) -> int:
        return self.context.last_token

    def link(self, name: str) -> None:
        self._conn += 2
        neighbour = Neighbour(contact(name), self._conn, incarnation=3, heard_at_ms=0)
        self.table.neighbours[node_id(name)] = neighbour
        self.hub.link_up(neighbour)

    def unlink(self, name: str) -> None:
        neighbour = self.table.neighbours.pop(node_id(name))
        self.hub.connection_down(node_id(name), neighbour.conn, 0)

    def conn(self, name: str) -> int:
        return self.table.neighbours[node_id(name)].conn

    def hear(self, name: str, message: Message | BatchFrame) -> None:
        """A neighbour says something."""
        if isinstance(message, SummaryStmt):
            self.hub.on_summary(self.table.neighbours[node_id(name)], message, self.beacons.get(name))
            return
        handlers: dict[type, Callable[[Neighbour, Any, int], None]] = {
            BatchFrame: self.hub.on_batch,
            Heartbeat: self.hub.on_heartbeat,
            AnnounceStmt: self.hub.on_announce,
            FrontierStmt: self.hub.on_frontier,
            PullCall: self.hub.on_pull,
            PullResp: self.hub.on_pull_answer,
        }
        handlers[type(message)](self.table.neighbours[node_id(name)], message, 0)

    def holdings_of(self, name: str, *held: HoldingEntry, last: bool = True, seen: tuple[int, int] = (5, 0)) -> None:
        """A neighbour tells its holdings, and what it has seen of m: incarnation and batches."""
        self.hub.on_holdings(self.table.neighbours[node_id(name)], HoldingsStmt(held, *seen, last), 0, 0)

    def called(self, name: str) -> Call:
        """A node that is not a neighbour calls and sends its hello."""
        self._conn += 2
        self.calls.connected(self._conn, 0)
        call = self.calls.get(self._conn)
        assert call is not None
        call.peer = contact(name)
        take(self.out)
        return call

    def accept(self, *batches: Batch) -> None:
        """Batches are here and on disk."""
        for batch in batches:
            self.hub.ordering.receive(pushed(batch), node_id("a"), 0)
            self.hub.durable(self.tokens, 0)
        take(self.out)

    def told(self, name: str, kind: type[T]) -> list[T]:
        conn = self.conn(name)
        return [message for sent_to, message in sends(self.out, kind) if sent_to == conn]


def held(stream: StreamId, low: int, next_sequence: int) -> HoldingEntry:
    return HoldingEntry(stream.origin, stream.topic, low, next_sequence)


# ---- what neighbours say


def test_a_batch_is_received_and_its_sender_is_known_to_have_it() -> None:
    hub = Hub()
    hub.hear("a", pushed(chain(1)[0]))
    (accepted,) = hub.events
    assert isinstance(accepted, Accepted)
    for name in "ab":
        hub.hub.spreading.on_holdings(hub.conn(name), (), True, 0)
    hub.hub.spreading.spread(accepted.stream, accepted.frame, 0)
    assert hub.told("a", BatchFrame) == []
    assert len(hub.told("b", BatchFrame)) == 1


@pytest.mark.parametrize("how", ["announce", "frontier", "holdings"])
def test_what_somebody_claims_and_is_not_here_is_pulled_from_it(how: str) -> None:
    hub = Hub()
    match how:
        case "announce":
            hub.hear("b", AnnounceStmt(*S, 1, 4, 1_000))
        case "frontier":
            hub.hear("b", FrontierStmt((FrontierEntry(*S, 4), FrontierEntry(*stream_id("p"), 1))))
        case "holdings":
            hub.holdings_of("b", held(S, 1, 4))
    (pull,) = hub.told("b", PullCall)
    assert (pull.origin, pull.topic, pull.first_sequence, pull.next_sequence) == (*S, 1, 4)


def test_what_somebody_claims_and_is_here_is_not_pulled_nor_told_to_it() -> None:
    hub = Hub()
    hub.accept(*chain(3))
    hub.hear("b", FrontierStmt((FrontierEntry(*S, 4),)))
    assert hub.out == []
    hub.hub.spreading.on_holdings(hub.conn("b"), (), True, 0)
    hub.hub.spreading.spread(hub.holdings.open(S), pushed(chain(3)[2]), 0)
    assert hub.told("b", BatchFrame) == []
    assert not hub.timers.is_set(FrontierDue(hub.conn("b")))


def test_a_lost_link_is_neither_a_source_nor_announced_to() -> None:
    hub = Hub()
    conn = hub.conn("b")
    hub.unlink("b")
    assert hub.hub.sources.conn(node_id("b")) is None
    assert conn not in hub.hub.spreading.links


def test_a_call_of_a_neighbour_that_ends_does_not_end_its_link() -> None:
    hub = Hub()
    hub.hub.call_over(hub.called("b"), 0)
    assert hub.hub.sources.conn(node_id("b")) == hub.conn("b")


def test_holdings_say_what_is_kept_and_frontiers_do_not() -> None:
    hub = Hub()
    hub.holdings_of("a", held(S, 3, 9))
    assert hub.told("a", PullCall) == [], "it keeps only 3 to 8"
    hub.hear("b", FrontierStmt((FrontierEntry(*S, 9),)))
    assert len(hub.told("b", PullCall)) == 1


def test_a_summary_is_answered_with_what_is_known_about_the_asker() -> None:
    hub = Hub()
    theirs = SummaryStmt((1,) * BUCKETS)
    for beacon, seen in [
        (None, (3, 0)),
        (entry("a", incarnation=2, origin_batch=17), (3, 17)),
        (entry("a", incarnation=4, origin_batch=18), (4, 18)),
    ]:
        if beacon is not None:
            hub.beacons["a"] = beacon
        hub.hear("a", theirs)
        (answer,) = hub.told("a", HoldingsStmt)
        assert (answer.your_incarnation, answer.your_origin_batch) == seen
        take(hub.out)


def test_heartbeats_pulls_and_answers_are_passed_to_the_halves() -> None:
    hub = Hub()
    hub.accept(*chain(2))
    hub.hear("b", Heartbeat(1))
    hub.hear("b", Heartbeat(1))
    assert len(hub.told("b", SummaryStmt)) == 1
    hub.hear("b", PullCall(*S, 9, 10, 100))
    assert hub.told("b", PullResp) == [PullResp(*S, 9, 9, 1, 3)]
    hub.hear("b", AnnounceStmt(*S, 3, 4, 1_000))
    take(hub.out)
    hub.hear("a", AnnounceStmt(*S, 3, 4, 1_000))
    hub.hear("b", PullResp(*S, 3, 3, 1, 3))
    assert len(hub.told("a", PullCall)) == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (SummaryStmt((0,) * (BUCKETS - 1)), "64 digests, not 63"),
        (SummaryStmt((0,) * (BUCKETS + 1)), "64 digests, not 65"),
        (SummaryStmt(()), "64 digests, not 0"),
    ],
)
def test_a_wrong_summary_is_the_peers_mistake(message: Message, words: str) -> None:
    hub = Hub()
    with pytest.raises(RemoteProtocolError, match=words):
        hub.hear("a", message)
    assert hub.out == []


def test_too_many_pulls_are_the_peers_mistake() -> None:
    hub = Hub()
    hub.hub.spreading.blocked(hub.conn("a"))
    for _ in range(PULLS_WAITING_MAX):
        hub.hear("a", PullCall(*S, 1, 2, 100))
    with pytest.raises(RemoteProtocolError, match="too many pulls"):
        hub.hear("a", PullCall(*S, 1, 2, 100))


# ---- a store that was rolled back


def own(next_sequence: int) -> dict[StreamId, StoredStream]:
    return {MINE: StoredStream(1, next_sequence, 0)}


@pytest.mark.parametrize(("next_sequence", "rolled_back"), [(4, False), (5, False), (6, True)])
@pytest.mark.parametrize("how", ["batch", "announce", "frontier", "holdings"])
def test_who_has_more_of_my_rows_than_i_do_shows_that_my_store_is_old(
    how: str, next_sequence: int, rolled_back: bool
) -> None:
    hub = Hub(streams=own(5))
    match how:
        case "batch":
            hub.hear("a", pushed(chain(next_sequence - 1, stream=MINE)[-1]))
        case "announce":
            hub.hear("a", AnnounceStmt(*MINE, next_sequence - 1, next_sequence, 9))
        case "frontier":
            hub.hear("a", FrontierStmt((FrontierEntry(*MINE, next_sequence),)))
        case "holdings":
            hub.holdings_of("a", held(MINE, 1, next_sequence))
    assert bool(hub.hub.past.rolled_back) is rolled_back
    assert hub.holdings.open(MINE).next == 5
    if rolled_back:
        assert "'t' up to 5" in hub.hub.past.rolled_back
        assert hub.told("a", PullCall) == []


def test_a_topic_of_mine_that_i_never_heard_of_shows_it_too() -> None:
    hub = Hub(streams=own(5))
    hub.holdings_of("a", held(stream_id("m", "forgotten"), 1, 1))
    assert not hub.hub.past.rolled_back
    hub.holdings_of("a", held(stream_id("m", "forgotten"), 1, 2))
    assert hub.hub.past.rolled_back


@pytest.mark.parametrize("start_from", ["earliest", "latest"])
def test_an_empty_store_with_an_identity_that_others_know_was_rolled_back(start_from: StartFrom) -> None:
    hub = Hub(start_from=start_from)
    hub.holdings_of("a", held(S, 1, 9), held(MINE, 1, 2))
    assert hub.hub.past.rolled_back


@pytest.mark.parametrize(
    ("seen", "rolled_back"), [((5, 7), False), ((4, 6), False), ((6, 0), True), ((0, 8), True), ((6, 8), True)]
)
def test_who_has_seen_a_later_incarnation_or_more_batches_of_mine_shows_it(
    seen: tuple[int, int], rolled_back: bool
) -> None:
    hub = Hub()
    message = HoldingsStmt((held(S, 1, 4),), *seen, last=True)
    hub.hub.on_holdings(hub.table.neighbours[node_id("a")], message, 7, 0)
    assert bool(hub.hub.past.rolled_back) is rolled_back
    assert hub.hub.exchanged_once is not rolled_back
    if rolled_back:
        assert f"incarnation {seen[0]} and {seen[1]} batches" in hub.hub.past.rolled_back
        assert hub.out == []


def test_after_a_rollback_the_old_streams_must_be_whole_by_everybodys_word() -> None:
    old = stream_id("f", "t")
    hub = Hub("a", former="f")
    hub.holdings_of("a", held(old, 1, 3))
    assert hub.hub.missing_former_stream({}) == (old, 3)
    hub.hear("a", pushed(chain(1, stream=old, rows=2)[0]))
    assert hub.hub.missing_former_stream({}) == (old, 3), "not on disk yet"
    hub.hub.durable(hub.tokens, 0)
    assert hub.hub.missing_former_stream({}) is None
    hub.holdings_of("a", held(S, 1, 9))
    assert hub.hub.missing_former_stream({}) is None, "streams of others do not matter"
    assert hub.hub.missing_former_stream({old: 4}) == (old, 4), "somebody who is no neighbour has more"


def test_a_former_stream_with_two_histories_is_not_waited_for() -> None:
    old = stream_id("f", "t")
    hub = Hub("a", former="f")
    hub.hear("a", pushed(chain(1, stream=old, rows=2)[0]))
    hub.hub.durable(hub.tokens, 0)
    hub.holdings_of("a", held(old, 1, 4))
    assert hub.hub.missing_former_stream({}) == (old, 4)
    hub.hear("a", pushed(chain(1, stream=old, rows=3, mark=b"x")[0]))
    assert [trace.name for trace in of(hub.out, Trace)] == ["fork"]
    assert hub.hub.missing_former_stream({}) is None


# ---- where a new node begins


@pytest.mark.parametrize(
    ("start_from", "founded", "streams", "begins_at"),
    [
        ("earliest", False, {}, 1),
        ("latest", False, {}, 6),
        ("latest", True, {}, 1),  # it founded the channel: there was no past
        ("latest", False, {stream_id("p"): StoredStream(1, 2, 0)}, 1),  # it is not new
    ],
)
def test_a_new_node_begins_at_the_end_if_it_wants_to(
    start_from: StartFrom, founded: bool, streams: dict[StreamId, StoredStream], begins_at: int
) -> None:
    hub = Hub(streams=streams, start_from=start_from)
    if founded:
        hub.hub.founded()
    hub.holdings_of("a", held(S, 1, 6))
    assert hub.holdings.open(S).next == begins_at
    assert [starts_of(append) for append in of(hub.out, Append)] == ([((S, 6),)] if begins_at == 6 else [])
    assert bool(hub.told("a", PullCall)) is (begins_at == 1)


@pytest.mark.parametrize("known", [True, False])
def test_what_this_node_published_before_a_rollback_is_never_begun_at_its_end(known: bool) -> None:
    """Its rows say which keyed commits were made; also those under an id that its store never heard of."""
    old = StreamId(node_id("f") if known else heir_of(node_id("m"), 5_000, b"...."), "t")
    hub = Hub(former="f", start_from="latest")
    hub.holdings_of("a", held(S, 1, 6), held(old, 1, 6))
    assert hub.holdings.open(S).next == 6 and hub.holdings.open(old).next == 1
    assert [call.origin for call in hub.told("a", PullCall)] == [old.origin]


def test_all_of_the_first_neighbours_streams_begin_at_their_ends_and_none_later() -> None:
    hub = Hub(start_from="latest")
    hub.holdings_of("a", held(S, 1, 6), last=False)
    hub.holdings_of("a", held(stream_id("p"), 3, 4), held(S, 1, 7), last=True)
    assert [hub.holdings.open(each).next for each in (S, stream_id("p"))] == [6, 4]
    hub.holdings_of("b", held(stream_id("q"), 1, 5))
    assert hub.holdings.open(stream_id("q")).next == 1


def test_an_exchange_is_over_with_its_last_part() -> None:
    hub = Hub()
    hub.holdings_of("a", held(S, 1, 6), last=False)
    assert not hub.hub.exchanged_once
    hub.holdings_of("a", last=True)
    assert hub.hub.exchanged_once


# ---- word to origins


def test_the_origin_is_told_how_far_its_streams_are_on_disk_if_it_is_a_neighbour() -> None:
    hub = Hub("ao")
    hub.accept(*chain(2), *chain(1, stream=stream_id("o", "u")), *chain(1, stream=stream_id("x")))
    for stream in hub.holdings.streams.values():
        hub.hub.persisted(stream)
        hub.hub.persisted(stream)
    hub.hub.send_acks()
    assert sends(take(hub.out), AckStmt) == [(hub.conn("o"), AckStmt((AckEntry("t", 1, 3), AckEntry("u", 1, 2))))]
    hub.hub.send_acks()
    assert hub.out == []


def test_an_origin_that_becomes_a_neighbour_is_acknowledged_at_once() -> None:
    hub = Hub("a", streams={S: StoredStream(3, 8, 0), stream_id("p"): StoredStream(1, 9, 0)})
    hub.link("o")
    hub.hub.send_acks()
    assert hub.told("o", AckStmt) == [AckStmt((AckEntry("t", 3, 8),))]


def test_many_topics_go_in_parts() -> None:
    streams = {stream_id("o", f"t{n}"): StoredStream(1, 2, 0) for n in range(ENTRIES_PER_MESSAGE + 1)}
    hub = Hub("a", streams=streams)
    hub.link("o")
    hub.hub.send_acks()
    assert [len(ack.entries) for ack in hub.told("o", AckStmt)] == [ENTRIES_PER_MESSAGE, 1]


def test_word_to_an_origin_that_went_away_is_not_sent() -> None:
    hub = Hub("ao")
    hub.accept(*chain(1))
    hub.hub.persisted(hub.holdings.open(S))
    hub.unlink("o")
    hub.hub.send_acks()
    assert sends(hub.out, AckStmt) == []


# ---- holders beyond the neighbours: the one who keeps


def search(sequence: int = 1, requester: str = "z", number: int = 1, stream: StreamId = S) -> HolderSearchStmt:
    return HolderSearchStmt(contact(requester), number, *stream, sequence, 1, 3)


def helping(hub: Hub, requester: str = "z") -> Call:
    """The call to a searcher; it answered."""
    (dial,) = of(take(hub.out), Dial)
    assert dial.address == contact(requester).address
    call = hub.calls.get(dial.conn)
    assert call is not None and isinstance(call.purpose, HoldFor)
    call.peer = contact(requester)
    hub.hub.holders.call_ready(call, call.purpose)
    return call


@pytest.mark.parametrize(
    ("sequence", "offered"), [(1, False), (3, False), (4, True), (6, True), (7, False), (99, False)]
)
def test_who_keeps_what_is_searched_for_calls_the_searcher(sequence: int, offered: bool) -> None:
    hub = Hub(streams={S: StoredStream(4, 7, 0)})
    hub.hub.holders.offer(search(sequence), 0)
    assert [dial.address for dial in of(hub.out, Dial)] == ([contact("z").address] if offered else [])


def test_a_stream_that_is_not_known_is_not_offered() -> None:
    hub = Hub()
    hub.hub.holders.offer(search(), 0)
    assert hub.out == []
    assert hub.holdings.get(S) is None


def test_the_searcher_is_told_what_is_kept_and_served_on_that_call() -> None:
    hub = Hub(streams={S: StoredStream(4, 7, 0)})
    hub.hub.holders.offer(search(4, number=9), 0)
    call = helping(hub)
    assert sends(take(hub.out), HolderFoundStmt) == [(call.conn, HolderFoundStmt(9, *S, 4, 7))]
    hub.hub.on_requester_pull(call, PullCall(*S, 9, 10, 100), 50)
    assert sends(take(hub.out), PullResp) == [(call.conn, PullResp(*S, 9, 9, 4, 7))]
    assert hub.timers._due[CallTimeout(call.conn)] == 50 + 2 * 3_000, "a call that is used lives on"


def test_what_was_found_damaged_is_not_offered_again() -> None:
    hub = Hub("a", streams={S: StoredStream(1, 7, 0)})
    hub.holdings_of("a")
    hub.hear("a", PullCall(*S, 1, 7, 100))
    (read,) = of(take(hub.out), ReadRange)
    hub.hub.spreading.range_read(read.token, (), following=4)
    take(hub.out)
    for sequence, offered in ((1, False), (3, False), (4, True)):
        hub.hub.holders.offer(search(sequence), 0)
        assert bool(of(take(hub.out), Dial)) == offered


def test_a_holder_that_cannot_give_what_it_offered_does_not_keep_it_from_being_given_up() -> None:
    """One that does not remember, or was restarted, offers it at every search."""
    hub = searching()
    for number in range(30):
        call = hub.called("h")
        hub.hub.on_holder_found(call, found(), number * 60_000)
        if sends(take(hub.out), PullCall):
            hub.hub.on_holder_answer(call, PullResp(*S, 1, 1, 4, 6), number * 60_000)
        hub.hub.call_over(call, number * 60_000)
        hub.timers.cancel(HolderSearchDue(S))
        hub.hub.timer(HolderSearchDue(S), lambda _: [], number * 60_000)
        if hub.holdings.open(S).next > 1:
            break
    assert hub.holdings.open(S).next == 4


def test_one_call_serves_all_searches_of_a_node() -> None:
    hub = Hub(streams={S: StoredStream(1, 7, 0), stream_id("p"): StoredStream(1, 3, 0)})
    hub.hub.holders.offer(search(number=1), 0)
    hub.hub.holders.offer(search(2, number=2, stream=stream_id("p")), 0)
    call = helping(hub)
    assert [found.search for _, found in sends(take(hub.out), HolderFoundStmt)] == [1, 2]
    hub.hub.holders.offer(search(5, number=3), 0)
    assert sends(take(hub.out), HolderFoundStmt) == [(call.conn, HolderFoundStmt(3, *S, 1, 7))]
    hub.hub.call_over(call, 0)
    hub.hub.holders.offer(search(number=4), 0)
    assert len(of(hub.out, Dial)) == 1, "after that call a new one"


def test_so_many_are_helped_at_a_time_and_no_more() -> None:
    hub = Hub(streams={S: StoredStream(1, 7, 0)})
    for number in range(HELPED_MAX + 1):
        hub.hub.holders.offer(search(requester=f"z{number}"), 0)
    dials = of(take(hub.out), Dial)
    assert len(dials) == HELPED_MAX
    call = hub.calls.get(dials[0].conn)
    assert call is not None
    hub.hub.call_over(call, 0)
    hub.hub.holders.offer(search(requester="another"), 0)
    assert len(of(hub.out, Dial)) == 1


def test_who_is_not_helped_nor_asked_gets_and_brings_nothing() -> None:
    hub = Hub()
    call = hub.called("x")
    with pytest.raises(RemoteProtocolError):
        hub.hub.on_requester_pull(call, PullCall(*S, 1, 2, 9), 0)
    with pytest.raises(RemoteProtocolError):
        hub.hub.on_holder_batch(call, BatchFrame(chain(1)[0], 1, How.PULLED), 0)
    assert (hub.out, hub.events) == ([], [])


# ---- holders beyond the neighbours: the one who searches


def searching() -> Hub:
    """a keeps only 4 to 5 of the stream; the first search is on."""
    hub = Hub("a")
    hub.holdings_of("a", held(S, 4, 6))
    assert len(hub.told("a", HolderSearchStmt)) == 1
    take(hub.out)
    return hub


def found(stream: StreamId = S, low: int = 1, next_sequence: int = 5) -> HolderFoundStmt:
    return HolderFoundStmt(1, *stream, low, next_sequence)


def test_a_holder_that_was_searched_for_is_asked_on_its_call() -> None:
    hub = searching()
    call = hub.called("h")
    hub.hub.on_holder_found(call, found(), 0)
    ((conn, pull),) = sends(take(hub.out), PullCall)
    assert (conn, pull.first_sequence, pull.next_sequence) == (call.conn, 1, 5)
    hub.hub.on_holder_batch(call, BatchFrame(chain(1)[0], 1, How.PULLED), 50)
    assert len(hub.events) == 1
    assert hub.timers._due[CallTimeout(call.conn)] == 50 + 2 * 3_000
    hub.hub.on_holder_answer(call, PullResp(*S, 1, 2, 1, 5), 50)
    pulls = {conn: pull.first_sequence for conn, pull in sends(take(hub.out), PullCall)}
    assert pulls == {call.conn: 2, hub.conn("a"): 5}


def test_an_unexpected_holder_is_disconnected() -> None:
    hub = searching()
    call = hub.called("h")
    hub.hub.on_holder_found(call, found(stream_id("other")), 0)
    assert take(hub.out) == [Close(call.conn)]
    assert hub.holdings.get(stream_id("other")) is None
    assert hub.hub.sources.conn(node_id("h")) is None


def test_a_holder_that_is_a_neighbour_is_asked_on_its_link() -> None:
    """The search reached it, though its word on the link did not reach this node."""
    hub = searching()
    hub.link("b")
    take(hub.out)
    call = hub.called("b")
    hub.hub.on_holder_found(call, found(), 0)
    assert [conn for conn, _ in sends(hub.out, PullCall)] == [hub.conn("b")]
    assert Close(call.conn) in hub.out


def test_so_many_holders_are_asked_at_a_time_and_the_others_are_let_go() -> None:
    hub = searching()
    room = 4 + HELPERS_MAX - 1
    calls = [hub.called(f"h{number}") for number in range(room + 1)]
    for call in calls:
        hub.hub.on_holder_found(call, found(), 0)
    assert of(take(hub.out), Close) == [Close(calls[-1].conn)]
    hub.hub.call_over(calls[0], 0)
    another = hub.called("another")
    hub.hub.on_holder_found(another, found(), 0)
    assert of(take(hub.out), Close) == []


def test_a_holder_that_goes_away_is_not_asked_any_more() -> None:
    hub = searching()
    call = hub.called("h")
    hub.hub.on_holder_found(call, found(), 0)
    take(hub.out)
    hub.hub.call_over(call, 0)
    assert hub.hub.sources.conn(node_id("h")) is None
    with pytest.raises(RemoteProtocolError):
        hub.hub.on_holder_batch(call, BatchFrame(chain(1)[0], 1, How.PULLED), 0)


# ---- time


def search_over(hub: Hub, *others: str, heard_at_ms: int = 0, is_heard: bool = False) -> None:
    """A search has had its time, 10 s after the one before. `others` are no neighbours and may keep what is missing."""
    hub.timers.cancel(HolderSearchDue(S))
    hub.searched_ms += 10_000
    candidates = [Candidate(contact(name), heard_at_ms, is_heard) for name in others]
    hub.hub.timer(HolderSearchDue(S), lambda _: candidates, hub.searched_ms)


def test_a_skip_is_told_to_those_who_are_not_level() -> None:
    hub = searching()
    hub.link("b")
    hub.holdings_of("b")
    search_over(hub)
    assert hub.holdings.open(S).next == 1, "the near search only"
    search_over(hub)
    assert hub.holdings.open(S).next == 4
    take(hub.out)
    hub.hub.timer(FrontierDue(hub.conn("b")), lambda _: [], 0)
    assert hub.told("b", FrontierStmt) == [FrontierStmt((FrontierEntry(*S, 4),))]


def inquired(hub: Hub, name: str) -> Call:
    """A node that may keep what is missing was called, and said hello."""
    (dial,) = of(take(hub.out), Dial)
    assert dial.address == contact(name).address
    call = hub.calls.get(dial.conn)
    assert call is not None and isinstance(call.purpose, Inquiry)
    call.peer, call.version = contact(name), HELD_VERSION
    hub.hub.inquiry_ready(call, call.purpose, hub.searched_ms)
    return call


def test_before_a_skip_everybody_who_may_keep_the_rows_is_asked() -> None:
    hub = searching()
    search_over(hub)
    take(hub.out)
    search_over(hub, "z")
    assert hub.holdings.open(S).next == 1
    call = inquired(hub, "z")
    (asked,) = sends(take(hub.out), PullCall)
    assert asked == (call.conn, PullCall(*S, 1, 2, hub.config.pull_window_bytes))
    hub.hub.on_holder_answer(call, PullResp(*S, 1, 1, 4, 7), hub.searched_ms)
    assert hub.calls.get(call.conn) is None, "it was called for nothing else"
    hub.hub.call_over(call, hub.searched_ms)
    search_over(hub, "z")
    assert hub.holdings.open(S).next == 4


def test_whoever_has_the_rows_after_all_serves_them() -> None:
    hub = searching()
    search_over(hub)
    take(hub.out)
    search_over(hub, "z")
    call = inquired(hub, "z")
    for batch in chain(2):
        hub.hub.on_holder_batch(call, BatchFrame(batch, 1, How.PULLED), hub.searched_ms)
    hub.hub.on_holder_answer(call, PullResp(*S, 1, 3, 1, 4), hub.searched_ms)
    assert hub.holdings.open(S).next == 3
    assert sends(take(hub.out), PullCall)[-1][0] == call.conn, "the rest of it, too"


@pytest.mark.parametrize(("silent_ms", "waits"), [(ABSENT_PATIENCE_MS - 1, True), (ABSENT_PATIENCE_MS, False)])
def test_a_node_that_cannot_be_reached_is_waited_for_as_long_as_it_may_come_back(silent_ms: int, waits: bool) -> None:
    hub = searching()
    hub.searched_ms = 10 * ABSENT_PATIENCE_MS
    search_over(hub)
    take(hub.out)
    search_over(hub, "z", heard_at_ms=0)
    (dial,) = of(take(hub.out), Dial)
    call = hub.calls.lost(dial.conn)
    assert call is not None
    hub.hub.call_over(call, hub.searched_ms + 5_000)
    search_over(hub, "z", heard_at_ms=hub.searched_ms + 10_000 - silent_ms)
    assert (hub.holdings.open(S).next == 1) is waits


def test_a_node_whose_beacons_come_is_asked_until_it_answers() -> None:
    hub = searching()
    hub.searched_ms = 10 * ABSENT_PATIENCE_MS
    search_over(hub)
    take(hub.out)
    for _ in range(3):
        search_over(hub, "z", is_heard=True)
        (dial,) = of(take(hub.out), Dial)
        call = hub.calls.lost(dial.conn)
        assert call is not None
        hub.hub.call_over(call, hub.searched_ms)
        assert hub.holdings.open(S).next == 1


def test_a_node_of_an_older_version_cannot_be_asked_and_the_search_has_to_do() -> None:
    hub = searching()
    search_over(hub)
    take(hub.out)
    search_over(hub, "z")
    (dial,) = of(take(hub.out), Dial)
    call = hub.calls.get(dial.conn)
    assert call is not None and isinstance(call.purpose, Inquiry)
    call.peer, call.version = contact("z"), HELD_VERSION - 1
    hub.hub.inquiry_ready(call, call.purpose, hub.searched_ms)
    assert not sends(take(hub.out), PullCall)
    hub.hub.call_over(call, hub.searched_ms)
    search_over(hub, "z")
    assert hub.holdings.open(S).next == 4


def test_nothing_is_given_up_while_a_new_neighbour_has_not_said_what_it_has() -> None:
    hub = searching()
    search_over(hub)
    hub.link("b")
    search_over(hub)
    assert hub.holdings.open(S).next == 1
    hub.holdings_of("b")
    search_over(hub)
    assert hub.holdings.open(S).next == 4


def test_pulls_that_expire_and_wants_are_seen_to() -> None:
    hub = Hub()
    hub.hear("a", AnnounceStmt(*S, 1, 4, 9))
    hub.hear("b", AnnounceStmt(*S, 1, 4, 9))
    take(hub.out)
    hub.hub.timer(PullTimeout(S, 1), lambda _: [], 5_000)
    assert len(hub.told("b", PullCall)) == 1
    hub.hear("b", PullResp(*S, 1, 1, 1, 4))
    take(hub.out)
    hub.hub.timer(WantDue(S), lambda _: [], 9_000)
    assert len(sends(hub.out, PullCall)) == 1


def test_searches_of_another_life_have_other_numbers() -> None:
    """Others remember those of the last one, and would not pass on what looks the same."""
    hub = Hub("a")
    hub.holdings_of("a", held(S, 4, 6))
    (search,) = hub.told("a", HolderSearchStmt)
    to_avro(search)
    assert search.search == (5 << 32) + 1


# ---- long transfers from a holder


def helped() -> tuple[Hub, Call]:
    """Neighbour a keeps only 4 to 5 of the stream; holder h was found and is asked for the rest."""
    hub = searching()
    call = hub.called("h")
    hub.hub.on_holder_found(call, found(), 0)
    take(hub.out)
    return hub, call


def test_another_search_does_not_go_to_holders_that_are_no_neighbours() -> None:
    hub, _ = helped()
    hub.holdings_of("a", held(stream_id("p"), 4, 6))
    assert [conn for conn, _ in sends(hub.out, HolderSearchStmt)] == [hub.conn("a")]


def test_a_holder_has_heartbeats_while_it_has_something_to_answer() -> None:
    hub, call = helped()
    assert hub.hub.sources.busy_helpers() == [call.conn], "and no neighbour, though it was asked too"
    hub.accept(*chain(4))
    hub.hub.on_holder_answer(call, PullResp(*S, 1, 5, 1, 5), 50)
    assert hub.hub.sources.busy_helpers() == []


def test_a_holder_that_becomes_a_neighbour_has_the_heartbeats_of_one() -> None:
    hub, _ = helped()
    hub.link("h")
    hub.hub.pulling.want(hub.holdings.open(S), None, 0)
    assert hub.hub.sources.busy_helpers() == []


def test_what_a_holder_sends_on_its_call_when_it_has_become_a_neighbour_is_taken() -> None:
    hub, call = helped()
    hub.link("h")
    hub.hub.on_holder_batch(call, BatchFrame(chain(1)[0], 1, How.PULLED), 50)
    assert len(hub.events) == 1


def test_heartbeats_keep_the_call_of_a_holder_alive_and_no_other() -> None:
    hub = Hub(streams={S: StoredStream(4, 7, 0)})
    hub.hub.holders.offer(search(4), 0)
    call = helping(hub)
    hub.hub.on_requester_heartbeat(call, Heartbeat(7), 2_000)
    assert hub.timers._due[CallTimeout(call.conn)] == 2_000 + 2 * 3_000
    with pytest.raises(RemoteProtocolError):
        hub.hub.on_requester_heartbeat(hub.called("x"), Heartbeat(7), 0)


def test_a_holder_that_was_found_and_lost_is_searched_for_again_before_anything_is_skipped() -> None:
    hub = searching()
    search_over(hub)  # now over all hops
    call = hub.called("h")
    hub.hub.on_holder_found(call, found(), 0)
    hub.hub.call_over(call, 500)
    take(hub.out)
    search_over(hub)
    assert hub.holdings.open(S).next == 1
    assert len(sends(take(hub.out), HolderSearchStmt)) == 1
    search_over(hub)
    assert hub.holdings.open(S).next == 4, "this search brought nobody"


def test_a_holder_of_something_else_does_not_put_off_a_skip() -> None:
    hub = searching()
    search_over(hub)
    hub.hub.on_holder_found(hub.called("h"), found(low=3), 0)
    search_over(hub)
    assert hub.holdings.open(S).next == 3
