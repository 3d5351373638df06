"""Spreading: what each link is told, in what form and order, and how pulls are served."""

from dataclasses import replace

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import ReadRange, Send, Trace
from m4cast.overlay.protocol.holdings import BUCKETS, ORIGIN_PATIENCE_MS, Holdings, Stream
from m4cast.overlay.protocol.streams.pruning import PRUNE_AFTER, Pruning
from m4cast.overlay.protocol.streams.spreading import (
    FRONTIER_DELAY_MS,
    HOPS_MAX,
    PRUNED_DELAY_MS,
    PULLS_WAITING_MAX,
    Spreading,
)
from m4cast.overlay.protocol.streams.timers import FrontierDue
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How, Skip, SkipReason, StoredPayload
from m4cast.overlay.protocol.wire.messages import (
    ENTRIES_PER_MESSAGE,
    AnnounceStmt,
    FrontierEntry,
    FrontierStmt,
    HoldingEntry,
    HoldingsStmt,
    PruneStmt,
    PullCall,
    PullResp,
    SummaryStmt,
)
from tests.overlay.protocol.stream_parts import chain, context_of_m, node_id, of, pushed, sends, stream_id, take

S = stream_id()
A, B = 2, 4
PUSH_BYTES_MAX = 100


class Sender:
    """The sending half of node m, linked to a and b, with whom it has exchanged holdings."""

    def __init__(
        self, links: tuple[int, ...] = (A, B), pull_window_bytes: int = 4_096, recent_bytes_max: int = 10**6
    ) -> None:
        config = NodeConfig(
            listen="m:7400",
            push_bytes_max=PUSH_BYTES_MAX,
            pull_window_bytes=pull_window_bytes,
            recent_bytes_max=recent_bytes_max,
        )
        self.of_origin: set[NodeId] = set()
        """Neighbours that the origin pushes to itself."""
        self.holdings = Holdings({})
        context = context_of_m(config)
        self.timers, self.out = context.timers, context.out
        self.spreading = Spreading(context, self.holdings, lambda origin, node: node in self.of_origin)
        self.pruning = Pruning(context, self.holdings, self.spreading.links)
        for conn in links:
            self.spreading.link_up(node_id("ab"[conn // 4]), conn)
            self.spreading.on_holdings(conn, (), True, 0)
        take(self.out)

    def accept(self, *batches: Batch, spread: bool = True, durable: bool = False) -> Stream:
        """Batches that were just accepted, and perhaps are on disk."""
        for batch in batches:
            stream = self.holdings.open(batch.stream)
            self.holdings.advance(stream, batch.next_sequence, batch.checksum)
            if durable:
                stream.durable_next = batch.next_sequence
            else:
                stream.undurable.append(pushed(batch))
            if spread:
                self.spreading.spread(stream, pushed(batch), 0)
        return self.holdings.open(batches[0].stream)

    def told(self, conn: int) -> list[str]:
        """A short form of what the link was told since the last call."""
        words = []
        for sent_to, message in sends(self.out, object):
            if sent_to == conn:
                match message:
                    case BatchFrame(batch, _, How.PUSHED):
                        words.append(f"push {batch.first_sequence}")
                    case BatchFrame(batch, _, How.PULLED):
                        words.append(f"send {batch.first_sequence}")
                    case AnnounceStmt(first_sequence=first, next_sequence=next_sequence):
                        words.append(f"announce {first}-{next_sequence}")
                    case FrontierStmt(entries):
                        words += [f"frontier {entry.next}" for entry in entries]
                    case PullResp():
                        words.append(f"served {message.served_next} of {message.low}-{message.next}")
                    case _:
                        words.append(type(message).__name__)
        self.out[:] = [output for output in self.out if not (isinstance(output, Send) and output.conn == conn)]
        return words

    def pull(self, first: int, next_sequence: int, *, conn: int = A, bytes_max: int = 10**6, topic: str = "t") -> bool:
        return self.spreading.on_pull(conn, PullCall(S.origin, topic, first, next_sequence, bytes_max))

    def frontier_due(self, conn: int) -> int | None:
        return self.timers._due.get(FrontierDue(conn))


def holding(stream: StreamId, low: int, next_sequence: int) -> HoldingEntry:
    return HoldingEntry(stream.origin, stream.topic, low, next_sequence)


# ---- passing on


@pytest.mark.parametrize(
    ("size", "word"),
    [(0, "push 1"), (PUSH_BYTES_MAX, "push 1"), (PUSH_BYTES_MAX + 1, "announce 1-4")],
)
def test_small_batches_are_pushed_and_large_ones_announced(size: int, word: str) -> None:
    sender = Sender()
    sender.accept(*chain(1, size=size, rows=3))
    assert sender.told(A) == sender.told(B) == [word]


def test_what_was_committed_from_the_stage_is_announced_however_small() -> None:
    sender = Sender(links=(A,))
    (batch,) = chain(1, size=10, rows=3)
    sender.accept(replace(batch, payload=StoredPayload(10, 1)))
    assert take(sender.out) == [Send(A, AnnounceStmt(S.origin, S.topic, 1, 4, 10))]


def test_an_announcement_says_what_and_how_large() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(1, size=500, rows=3))
    assert take(sender.out) == [Send(A, AnnounceStmt(S.origin, S.topic, 1, 4, 500))]


@pytest.mark.parametrize(("hops", "onward"), [(0, 1), (7, 8), (HOPS_MAX - 1, HOPS_MAX), (HOPS_MAX, HOPS_MAX)])
def test_a_push_has_gone_one_hop_more(hops: int, onward: int) -> None:
    sender = Sender(links=(A,))
    (batch,) = chain(1)
    sender.spreading.spread(sender.accept(batch, spread=False), BatchFrame(batch, hops, How.PULLED), 0)
    assert take(sender.out) == [Send(A, BatchFrame(batch, onward, How.PUSHED))]


def test_a_holder_gets_no_announcement() -> None:
    sender = Sender()
    sender.spreading.peer_has(A, S, 2)
    sender.accept(*chain(2))
    assert sender.told(A) == ["push 2"]
    assert sender.told(B) == ["push 1", "push 2"]
    assert sender.timers.next_at() is None


def test_a_batch_is_announced_once_per_link() -> None:
    sender = Sender()
    (batch,) = chain(1)
    stream = sender.accept(batch)
    sender.spreading.spread(stream, pushed(batch), 0)
    assert sender.told(A) == sender.told(B) == ["push 1"]


def test_each_link_carries_each_stream_in_order() -> None:
    """Small and large ones mixed, and streams side by side."""
    sender = Sender(links=(A,))
    first = chain(1, size=PUSH_BYTES_MAX)
    second = chain(1, size=PUSH_BYTES_MAX + 1, after=first[0])
    third = chain(1, after=second[0])
    sender.accept(*first, *chain(1, stream=stream_id("p")), *second, *third)
    assert sender.told(A) == ["push 1", "push 1", "announce 2-3", "push 3"]


def test_what_a_peer_showed_does_not_go_back() -> None:
    sender = Sender(links=(A,))
    sender.spreading.peer_has(A, S, 3)
    sender.spreading.peer_has(A, S, 2)
    sender.accept(*chain(2))
    assert sender.told(A) == []


# ---- falling behind


def test_a_blocked_link_hears_one_frontier_when_it_is_ready() -> None:
    sender = Sender()
    sender.spreading.blocked(A)
    sender.accept(*chain(3), *chain(2, stream=stream_id("p")))
    assert sender.told(A) == []
    assert sender.told(B) == ["push 1", "push 2", "push 3", "push 1", "push 2"]
    shed = Trace("shed", (("reason", "link-queue"), ("topic", "t")))
    assert take(sender.out) == [shed] * 5
    assert sender.frontier_due(A) is None
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == []
    sender.spreading.ready(A, 50)
    assert sender.frontier_due(A) == 50
    sender.spreading.send_frontier(A, 0)
    entries = (FrontierEntry(*S, 4), FrontierEntry(*stream_id("p"), 3))
    assert take(sender.out) == [Send(A, FrontierStmt(entries))]
    sender.spreading.send_frontier(A, 0)
    assert take(sender.out) == []


def test_a_link_that_was_ready_all_the_time_has_nothing_to_hear() -> None:
    sender = Sender(links=(A,))
    sender.spreading.blocked(A)
    sender.spreading.ready(A, 0)
    assert sender.frontier_due(A) is None
    sender.accept(*chain(1))
    assert sender.told(A) == ["push 1"]


def test_one_who_is_behind_is_not_chased_but_hears_a_frontier_now_and_then() -> None:
    sender = Sender(links=(A,))
    sender.spreading.blocked(A)
    batches = chain(4)
    sender.accept(batches[0])
    sender.spreading.ready(A, 0)
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 2"]
    sender.timers.cancel(FrontierDue(A))
    take(sender.out)
    sender.accept(batches[1], batches[2])
    assert take(sender.out) == []
    assert sender.frontier_due(A) == FRONTIER_DELAY_MS
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 4"]


def test_when_its_pull_reaches_the_end_pushing_goes_on() -> None:
    sender = Sender(links=(A,))
    batches = chain(5)
    sender.spreading.blocked(A)
    sender.accept(*batches[:3])
    sender.spreading.ready(A, 0)
    sender.pull(1, 3)
    assert sender.told(A) == ["send 1", "send 2", "served 3 of 1-4"]
    sender.accept(batches[3])
    assert sender.told(A) == [], "it has not got 3 yet"
    sender.pull(3, 5)
    assert sender.told(A) == ["send 3", "send 4", "served 5 of 1-5"]
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == [], "it has heard of everything"
    sender.accept(batches[4])
    assert sender.told(A) == ["push 5"]


def test_after_a_skip_whoever_is_not_level_hears_where_the_stream_is() -> None:
    sender = Sender()
    stream = sender.accept(*chain(2))
    sender.told(A), sender.told(B)
    sender.holdings.advance(stream, 9, 0)
    sender.spreading.peer_has(B, S, 9)
    sender.spreading.skipped(stream, 0)
    assert sender.frontier_due(A) == FRONTIER_DELAY_MS
    assert sender.frontier_due(B) is None
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 9"]


def test_a_link_that_is_down_is_forgotten() -> None:
    sender = Sender()
    sender.accept(*chain(1))
    sender.spreading.blocked(A)
    sender.accept(*chain(2)[1:])
    sender.spreading.ready(A, 0)
    sender.spreading.down(A)
    assert sender.frontier_due(A) is None
    sender.told(A)
    sender.spreading.send_frontier(A, 0)
    sender.spreading.ready(A, 0)
    sender.spreading.blocked(A)
    sender.spreading.peer_has(A, S, 9)
    sender.accept(*chain(3)[2:])
    assert sender.told(A) == []
    assert not sender.pull(1, 2)


# ---- the exchange of holdings


def test_a_new_link_begins_with_a_summary_and_hears_nothing_before_the_holdings() -> None:
    sender = Sender(links=())
    batches = chain(3)
    sender.accept(batches[0])
    sender.spreading.link_up(node_id("a"), A)
    assert take(sender.out) == [Send(A, SummaryStmt(tuple(sender.holdings.digests)))]
    assert not sender.spreading.all_exchanged()
    sender.accept(batches[1], *chain(1, stream=stream_id("new")))
    assert sender.told(A) == []
    assert sender.frontier_due(A) is None
    sender.spreading.on_holdings(A, (holding(S, 1, 2),), False, 10)
    assert not sender.spreading.all_exchanged()
    sender.spreading.on_holdings(A, (), True, 20)
    assert sender.spreading.all_exchanged()
    assert sender.frontier_due(A) == 20, "what happened meanwhile"
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 3", "frontier 2"]


def test_who_said_that_it_is_level_is_pushed_to_at_once() -> None:
    sender = Sender(links=())
    batches = chain(3)
    sender.accept(*batches[:2])
    sender.spreading.link_up(node_id("a"), A)
    sender.spreading.on_holdings(A, (holding(S, 1, 3),), True, 0)
    take(sender.out)
    sender.accept(batches[2])
    assert sender.told(A) == ["push 3"]


def test_only_streams_of_buckets_that_differ_are_answered_and_the_others_are_level() -> None:
    mine, theirs = Sender(links=()), Sender(links=())
    for number in range(300):
        for side in (mine, theirs):
            side.accept(*chain(1, stream=stream_id(f"o{number}")), spread=False)
    batches = chain(2, stream=stream_id("o7"))
    mine.accept(batches[1], spread=False)
    mine.spreading.link_up(node_id("a"), A)
    mine.spreading.on_holdings(A, (), True, 0)
    take(mine.out)
    mine.spreading.on_summary(A, SummaryStmt(tuple(theirs.holdings.digests)), 5, 6)
    (answer,) = sends(take(mine.out), HoldingsStmt)
    bucket = mine.holdings.streams[stream_id("o7")].key % BUCKETS
    assert answer == (A, HoldingsStmt(tuple(mine.holdings.entries({bucket})), 5, 6, last=True))
    assert 1 <= len(answer[1].entries) < 20
    level = next(stream for stream in mine.holdings.streams.values() if stream.key % BUCKETS != bucket)
    mine.accept(*chain(2, stream=level.id)[1:])
    assert mine.told(A) == ["push 2"]
    mine.accept(*chain(3, stream=stream_id("o7"))[2:])
    assert mine.told(A) == [], "it has not said yet how far it is there"


def test_equal_summaries_are_answered_by_nothing_but_the_end() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(1))
    take(sender.out)
    sender.spreading.on_summary(A, SummaryStmt(tuple(sender.holdings.digests)), 1, 0)
    assert take(sender.out) == [Send(A, HoldingsStmt((), 1, 0, last=True))]


@pytest.mark.parametrize(
    ("streams", "parts"),
    [
        (0, [0]),
        (1, [1]),
        (ENTRIES_PER_MESSAGE, [ENTRIES_PER_MESSAGE]),
        (ENTRIES_PER_MESSAGE + 1, [ENTRIES_PER_MESSAGE, 1]),
        (2 * ENTRIES_PER_MESSAGE + 5, [ENTRIES_PER_MESSAGE, ENTRIES_PER_MESSAGE, 5]),
    ],
)
def test_many_holdings_go_in_parts_and_the_last_says_so(streams: int, parts: list[int]) -> None:
    sender = Sender(links=(A,))
    for number in range(streams):
        sender.holdings.advance(sender.holdings.open(stream_id(f"o{number}")), 2, 0)
    others = tuple(digest ^ 1 for digest in sender.holdings.digests)
    sender.spreading.on_summary(A, SummaryStmt(others), 1, 0)
    messages = [message for _, message in sends(sender.out, HoldingsStmt)]
    assert [len(message.entries) for message in messages] == parts
    assert [message.last for message in messages] == [False] * (len(parts) - 1) + [True]
    assert len({entry for message in messages for entry in message.entries}) == streams


# ---- heartbeats


def test_digests_that_differ_twice_while_nothing_moves_start_an_exchange() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(1))
    take(sender.out)
    sender.spreading.on_heartbeat(A, 77)
    assert take(sender.out) == []
    sender.spreading.on_heartbeat(A, 77)
    assert sends(take(sender.out), SummaryStmt) == [(A, SummaryStmt(tuple(sender.holdings.digests)))]


def test_digests_start_no_exchange_when_they_agree_or_while_something_moves() -> None:
    sender = Sender(links=(A,))
    batches = chain(2)
    sender.accept(batches[0])
    take(sender.out)
    for _ in range(3):
        sender.spreading.on_heartbeat(A, sender.holdings.digest)
    sender.spreading.on_heartbeat(A, 77)
    sender.spreading.on_heartbeat(A, 78)  # they moved
    sender.accept(batches[1])  # I moved
    sender.told(A)
    sender.spreading.on_heartbeat(A, 78)
    sender.spreading.on_heartbeat(A, sender.holdings.digest)
    sender.spreading.on_heartbeat(A, 78)  # differs again, for the first time
    assert take(sender.out) == []


def test_links_are_watched_apart() -> None:
    sender = Sender()
    sender.spreading.on_heartbeat(A, 77)
    sender.spreading.on_heartbeat(B, 77)
    assert take(sender.out) == []


# ---- serving pulls


def test_what_is_not_on_disk_yet_is_served_from_memory() -> None:
    sender = Sender(links=(A,))
    batches = chain(3)
    sender.accept(*batches, spread=False)
    sender.pull(2, 4)
    frames = [BatchFrame(batch, 2, How.PULLED) for batch in batches[1:]]
    assert take(sender.out) == [*(Send(A, frame) for frame in frames), Send(A, PullResp(*S, 2, 4, 1, 4))]


def test_what_is_on_disk_is_read_and_then_served() -> None:
    sender = Sender(links=(A,))
    batches = chain(4)
    sender.accept(*batches[:3], spread=False, durable=True)
    sender.accept(batches[3], spread=False)
    sender.pull(2, 9)
    assert take(sender.out) == [ReadRange(1, S, 2, 4, 4_096)]
    sender.spreading.range_read(1, tuple(batches[1:3]))
    frames = [BatchFrame(batch, 1, How.PULLED) for batch in batches[1:3]]
    assert take(sender.out) == [*(Send(A, frame) for frame in frames), Send(A, PullResp(*S, 2, 4, 1, 5))]


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (1, "served 1 of 4-8"),  # below low
        (3, "served 3 of 4-8"),
        (5, "served 5 of 7-8"),  # in a skip: the data goes on behind it
        (8, "served 8 of 4-8"),  # not yet: says nothing about what is kept before it
        (20, "served 20 of 4-8"),
    ],
)
def test_what_is_not_here_is_answered_by_why(first: int, answer: str) -> None:
    sender = Sender(links=(A,))
    stream = sender.accept(*chain(7), spread=False, durable=True)
    stream.low = 4
    stream.skips.append(Skip(S, 5, 6, SkipReason.EXPIRED, node_id("m")))
    sender.pull(first, first + 5)
    assert sender.told(A) == [answer]


def test_a_stream_that_is_not_known_is_not_here_yet() -> None:
    sender = Sender(links=(A,))
    sender.pull(3, 9, topic="unknown")
    assert sender.told(A) == ["served 3 of 1-1"]
    assert sender.holdings.get(stream_id("o", "unknown")) is None


def test_what_retention_took_in_the_meantime_is_below_low() -> None:
    sender = Sender(links=(A,))
    stream = sender.accept(*chain(5), spread=False, durable=True)
    sender.pull(2, 6)
    stream.low = 4
    sender.spreading.range_read(1, ())
    assert sender.told(A) == ["served 2 of 4-6"]
    sender.pull(4, 6)
    sender.spreading.range_read(2, ())
    assert sender.told(A) == ["served 4 of 5-6"], "even if this node was not told yet how much it took"


def test_a_batch_that_cannot_be_read_is_below_low_as_a_whole() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(3, rows=100), spread=False, durable=True)
    sender.pull(101, 301)
    sender.spreading.range_read(1, (), following=201)
    assert sender.told(A) == ["served 0 of 201-301"], "0: it is here, and damaged"


@pytest.mark.parametrize("durable", [True, False])
def test_who_asks_from_within_a_batch_gets_it_whole(durable: bool) -> None:
    """Only a node with another history of the stream does, and it has to see that."""
    sender = Sender(links=(A,))
    batches = chain(2, rows=3)
    sender.accept(*batches, spread=False, durable=durable)
    sender.pull(2, 7)
    if durable:
        sender.spreading.range_read(1, tuple(batches))
    assert sender.told(A) == ["send 1", "send 4", "served 7 of 1-7"]


def test_a_pull_of_what_was_announced_earlier_does_not_put_a_link_back() -> None:
    sender = Sender(links=(A,))
    large = chain(2, size=PUSH_BYTES_MAX + 1)
    sender.accept(*large)
    sender.pull(1, 2)
    sender.told(A)
    sender.accept(*chain(1, after=large[1]))
    assert sender.told(A) == ["push 3"]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("bytes_max", "window", "served"),
    [(10**6, 3_000, 3), (10**6, 2_999, 2), (2_999, 10**6, 2), (10**6, 1_024, 1), (1, 10**6, 1), (0, 10**6, 1)],
)
def test_a_pull_is_served_up_to_its_limit_and_the_window_but_at_least_one_batch(
    in_memory: bool, bytes_max: int, window: int, served: int
) -> None:
    sender = Sender(links=(A,), pull_window_bytes=window)
    batches = chain(5, size=1_000)
    sender.accept(*batches, spread=False, durable=not in_memory)
    sender.pull(1, 6, bytes_max=bytes_max)
    if not in_memory:
        (read,) = of(sender.out, ReadRange)
        assert read.bytes_max == min(bytes_max, window)
        sender.spreading.range_read(read.token, tuple(batches))
    assert sender.told(A)[-1] == f"served {served + 1} of 1-6"


def test_what_was_announced_is_sent_from_memory_and_the_oldest_is_forgotten() -> None:
    sender = Sender(recent_bytes_max=1_000)
    sender.accept(*chain(3, size=500), durable=True)
    take(sender.out)
    sender.pull(2, 4)
    sender.pull(2, 4, conn=B)
    assert sender.told(A) == sender.told(B) == ["send 2", "send 3", "served 4 of 1-4"]
    sender.pull(1, 4)
    assert [read.first_sequence for read in of(take(sender.out), ReadRange)] == [1]


def test_what_retention_removed_is_not_sent_from_memory() -> None:
    sender = Sender(links=(A,))
    stream = sender.accept(*chain(2, size=500), durable=True)
    take(sender.out)
    stream.low = 2
    sender.pull(1, 3)
    assert sender.told(A) == ["served 1 of 2-3"]


def test_the_next_window_is_read_while_one_travels() -> None:
    sender = Sender(links=(A,), pull_window_bytes=2_000)
    batches = chain(5, size=1_000)
    sender.accept(*batches, spread=False, durable=True)
    sender.pull(1, 6)
    (read,) = of(take(sender.out), ReadRange)
    sender.spreading.range_read(read.token, tuple(batches[:2]))
    assert sender.told(A) == ["send 1", "send 2", "served 3 of 1-6"]
    (ahead,) = of(take(sender.out), ReadRange)
    assert (ahead.first_sequence, ahead.next_sequence, ahead.bytes_max) == (3, 6, 2_000)
    sender.spreading.range_read(ahead.token, tuple(batches[2:4]))
    assert sender.told(A) == [], "nobody has asked for it yet"
    sender.pull(3, 6)
    assert sender.told(A) == ["send 3", "send 4", "served 5 of 1-6"], "at once"
    (last,) = of(take(sender.out), ReadRange)
    sender.spreading.range_read(last.token, tuple(batches[4:]))
    sender.pull(1, 2)
    (other,) = of(take(sender.out), ReadRange)
    assert other.first_sequence == 1, "what was read ahead is not what is asked for"


def test_an_origin_pushes_to_its_neighbours_whatever_the_size() -> None:
    sender = Sender()
    (batch,) = chain(1, size=PUSH_BYTES_MAX + 1)
    sender.spreading.spread(sender.accept(batch, spread=False), BatchFrame(batch, 0, How.PUBLISHED), 0)
    assert sender.told(A) == sender.told(B) == ["push 1"]


def test_what_the_origin_pushes_to_a_neighbour_is_told_there_only_later() -> None:
    sender = Sender()
    sender.of_origin = {node_id("a")}
    batches = chain(2, size=PUSH_BYTES_MAX + 1)
    sender.accept(*batches)
    assert sender.told(A) == []
    assert sender.told(B) == ["announce 1-2", "announce 2-3"]
    assert sender.frontier_due(A) == ORIGIN_PATIENCE_MS
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 3"]
    sender.accept(*chain(1, size=PUSH_BYTES_MAX + 1, after=batches[1]))
    assert sender.frontier_due(A) == ORIGIN_PATIENCE_MS, "it is not chased"


def test_no_more_is_sent_than_was_asked_for() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(5), spread=False)
    sender.pull(2, 4)
    assert sender.told(A) == ["send 2", "send 3", "served 4 of 1-6"]


def test_pulls_of_a_link_are_served_one_after_the_other_and_those_of_links_side_by_side() -> None:
    sender = Sender()
    batches = chain(5)
    sender.accept(*batches, spread=False, durable=True)
    sender.pull(1, 3)
    sender.pull(3, 5)
    sender.pull(5, 6, conn=B)
    reads = of(take(sender.out), ReadRange)
    assert [read.first_sequence for read in reads] == [1, 5]
    sender.spreading.range_read(reads[0].token, tuple(batches[:2]))
    assert sender.told(A) == ["send 1", "send 2", "served 3 of 1-6"]
    (read,) = of(take(sender.out), ReadRange)
    assert read.first_sequence == 3
    sender.spreading.range_read(reads[1].token, tuple(batches[4:]))
    assert sender.told(B) == ["send 5", "served 6 of 1-6"]
    sender.spreading.range_read(read.token, tuple(batches[2:4]))
    assert sender.told(A) == ["send 3", "send 4", "served 5 of 1-6"]


def test_pulls_of_a_blocked_link_wait() -> None:
    sender = Sender(links=(A,))
    sender.accept(*chain(2), spread=False)
    sender.spreading.blocked(A)
    assert sender.pull(1, 2)
    assert sender.pull(2, 3)
    assert sender.told(A) == []
    sender.spreading.ready(A, 0)
    assert sender.told(A) == ["send 1", "served 2 of 1-3", "send 2", "served 3 of 1-3"]


def test_a_link_may_have_so_many_pulls_waiting_and_no_more() -> None:
    sender = Sender()
    sender.accept(*chain(1), spread=False)
    sender.spreading.blocked(A)
    assert all(sender.pull(1, 2) for _ in range(PULLS_WAITING_MAX))
    assert not sender.pull(1, 2)
    assert sender.pull(1, 2, conn=B), "the others are not concerned"
    sender.spreading.ready(A, 0)
    assert len(sender.told(A)) == 2 * PULLS_WAITING_MAX
    assert sender.pull(1, 2)


def test_pulls_are_served_on_a_call_that_is_open_for_them_and_on_no_other() -> None:
    sender = Sender(links=())
    sender.accept(*chain(1), spread=False)
    assert not sender.pull(1, 2, conn=8)
    sender.spreading.serve_on(node_id("c"), 8)
    assert sender.pull(1, 2, conn=8)
    assert sender.told(8) == ["send 1", "served 2 of 1-2"]
    sender.accept(*chain(2)[1:])
    assert sender.told(8) == [], "but nothing is pushed on it"


def test_a_read_for_a_link_that_went_away_is_passed_over() -> None:
    """The same holds when another connection has its number by now, and when the store answers twice."""
    sender = Sender(links=(A,))
    batches = chain(1)
    sender.accept(*batches, spread=False, durable=True)
    sender.pull(1, 2)
    sender.spreading.down(A)
    sender.spreading.link_up(node_id("a"), A)
    take(sender.out)
    sender.spreading.range_read(1, tuple(batches))
    sender.spreading.range_read(1, tuple(batches))
    sender.spreading.range_read(99, tuple(batches))
    assert take(sender.out) == []
    assert sender.pull(1, 2)
    assert len(of(sender.out, ReadRange)) == 1


# ---- pruning


def test_a_pruned_stream_is_not_pushed_and_a_frontier_takes_its_place() -> None:
    sender = Sender()
    batches = chain(3)
    sender.accept(batches[0])
    sender.pruning.on_prune(A, S)
    take(sender.out)
    sender.accept(*batches[1:])
    sender.accept(*chain(1, stream=stream_id("p")))
    assert sender.told(A) == ["push 1"], "the other stream is not pruned"
    assert sender.told(B) == ["push 2", "push 3", "push 1"]
    assert sender.frontier_due(A) == PRUNED_DELAY_MS
    sender.spreading.send_frontier(A, 0)
    assert sender.told(A) == ["frontier 4"]


def test_where_the_origin_pushes_itself_the_frontier_of_a_pruned_stream_has_time() -> None:
    sender = Sender(links=(A,))
    sender.of_origin = {node_id("a")}
    batches = chain(2)
    sender.accept(batches[0])
    sender.pruning.on_prune(A, S)
    sender.accept(batches[1])
    assert sender.frontier_due(A) == ORIGIN_PATIENCE_MS


def test_who_pulls_a_pruned_stream_is_pushed_to_again() -> None:
    sender = Sender(links=(A,))
    batches = chain(3)
    sender.accept(batches[0])
    sender.pruning.on_prune(A, S)
    sender.accept(batches[1])
    take(sender.out)
    sender.pull(2, 3)
    assert sender.told(A) == ["send 2", "served 3 of 1-3"]
    sender.accept(batches[2])
    assert sender.told(A) == ["push 3"]


def test_an_origin_pushes_what_is_its_own_whoever_prunes_it() -> None:
    sender = Sender(links=(A,))
    first, second = chain(2)
    sender.accept(first)
    sender.pruning.on_prune(A, S)
    take(sender.out)
    sender.spreading.spread(sender.accept(second, spread=False), BatchFrame(second, 0, How.PUBLISHED), 0)
    assert sender.told(A) == ["push 2"]


def test_a_stream_that_is_unknown_here_cannot_be_pruned() -> None:
    sender = Sender(links=(A,))
    sender.pruning.on_prune(A, S)
    sender.accept(*chain(1))
    assert sender.told(A) == ["push 1"]


def test_a_link_that_brings_only_duplicates_is_asked_to_stop() -> None:
    sender = Sender()
    for _ in range(PRUNE_AFTER - 1):
        sender.pruning.pushed_here(A, S, is_duplicate=True)
    sender.pruning.pushed_here(A, S, is_duplicate=False)
    for _ in range(PRUNE_AFTER - 1):
        sender.pruning.pushed_here(A, S, is_duplicate=True)
        sender.pruning.pushed_here(A, stream_id("p"), is_duplicate=True)
        sender.pruning.pushed_here(B, S, is_duplicate=True)
    assert take(sender.out) == []
    sender.pruning.pushed_here(A, S, is_duplicate=True)
    assert take(sender.out) == [Send(A, PruneStmt(S.origin, S.topic))]
    sender.pruning.pushed_here(A, S, is_duplicate=True)
    assert take(sender.out) == [], "what is on its way need not be answered"


def test_an_origin_is_never_asked_to_stop() -> None:
    sender = Sender(links=(A,))
    for _ in range(2 * PRUNE_AFTER):
        sender.pruning.pushed_here(A, StreamId(node_id("a"), "t"), is_duplicate=True)
    assert take(sender.out) == []


# ---- more streams than a message takes


def test_a_frontier_that_does_not_fit_a_message_goes_on_in_the_next() -> None:
    sender = Sender(links=(A,))
    sender.spreading.blocked(A)
    count = 2 * ENTRIES_PER_MESSAGE + 1
    for number in range(count):
        sender.accept(*chain(1, stream=stream_id("o", f"t{number}")))
    sender.spreading.ready(A, 0)
    told: list[str] = []
    now_ms = 0
    while sender.timers.is_set(FrontierDue(A)):
        take(sender.out)
        sender.timers.cancel(FrontierDue(A))
        sender.spreading.send_frontier(A, now_ms)
        (told_now,) = [message for _, message in sends(sender.out, FrontierStmt)]
        told += [entry.topic for entry in told_now.entries]
        now_ms += FRONTIER_DELAY_MS
        assert sender.frontier_due(A) in (now_ms, None)
    assert told == [f"t{number}" for number in range(count)]
