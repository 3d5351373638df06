"""The receiving half of a node, with neighbours played by the test: for tests of Ordering, Pulling and Searching."""

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import StoredStream, Trace
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.streams.hold_back import Backlogs
from m4cast.overlay.protocol.streams.ordering import Accepted, Ordering, OrderingEvent, Receipt
from m4cast.overlay.protocol.streams.pulling import Pulling
from m4cast.overlay.protocol.streams.searching import Searching
from m4cast.overlay.protocol.streams.sources import Sources
from m4cast.overlay.protocol.streams.timers import HolderSearchDue, PullTimeout, WantDue
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import HolderSearchStmt, PullCall, PullResp
from tests.overlay.protocol.stream_parts import contact, context_of_m, node_id, of, pushed, sends, stream_id, take

S = stream_id()
CONNS = {"a": 2, "b": 4, "c": 6, "o": 8}
NAMES = {conn: name for name, conn in CONNS.items()}
PULL_MS, SEARCH_MS = 2_000, 2_000


class Receiver:
    """The receiving half of node m, linked to a and b."""

    def __init__(self, stored: dict[StreamId, StoredStream] | None = None, links: str = "ab", **limits: int) -> None:
        self.config = NodeConfig(listen="m:7400", **limits)  # type: ignore[arg-type]  # limits are whole numbers
        self.holdings = Holdings(stored or {})
        self.context = context = context_of_m(self.config, incarnation=0)
        self.timers, self.out = context.timers, context.out
        self.events: list[OrderingEvent] = []
        self.told_durable = 0
        self.now_ms = 0
        self.search_numbers: list[int] = []
        self.give_up_at_ms = 0
        """When a missing row may be given up: everybody who may keep it has been asked."""
        self.backlogs = Backlogs(context)
        self.sources = Sources(context)
        self.ordering = Ordering(context, self.holdings, self.backlogs, lambda append: append, self.events.append)
        self.searching = Searching(context, self.backlogs, self.sources)
        self.pulling = Pulling(context, self.holdings, self.backlogs, self.sources, self.ordering, self.searching)
        for name in links:
            self.sources.up(node_id(name), CONNS[name])

    @property
    def tokens(self) -> int:
        return self.context.last_token

    @property
    def stream(self) -> Stream:
        return self.holdings.open(S)

    def receive(self, *batches: Batch, sender: str = "a") -> list[Receipt]:
        """Batches come; what became of each."""
        receipts = []
        for batch in batches:
            receipts.append(self.ordering.receive(pushed(batch), node_id(sender), self.now_ms))
            self.pulling.received(receipts[-1], batch, node_id(sender), self.now_ms)
        return receipts

    def claim(self, sender: str, next_sequence: int, low: int = 1) -> None:
        """The sender announces what it has."""
        self.stream.claim(node_id(sender), low, next_sequence)
        self.pulling.want(self.stream, node_id(sender), self.now_ms)

    def answer(self, sender: str, first: int, served_next: int, low: int, next_sequence: int) -> None:
        resp = PullResp(S.origin, S.topic, first, served_next, low, next_sequence)
        self.pulling.answered(resp, node_id(sender), self.now_ms)

    def pass_time(self, for_ms: int) -> None:
        """Let timers fire as they come due."""
        end_ms = self.now_ms + for_ms
        while (at_ms := self.timers.next_at()) is not None and at_ms <= end_ms:
            self.now_ms = at_ms
            match self.timers.pop_due(at_ms):
                case PullTimeout(stream, first):
                    self.pulling.expired(stream, first, at_ms)
                case WantDue(stream):
                    self.pulling.want_again(stream, at_ms)
                case HolderSearchDue(stream):
                    self.pulling.search_over(self.holdings.streams[stream], self._look_again_at, at_ms)
                case other:
                    raise AssertionError(other)
        self.now_ms = end_ms

    def _look_again_at(self, stream: Stream, now_ms: int) -> int | None:
        return self.give_up_at_ms if self.give_up_at_ms > now_ms else None

    def sync(self, upto: int | None = None) -> None:
        """All appends (or those up to this token) are on disk."""
        for token in range(self.told_durable + 1, (upto or self.tokens) + 1):
            self.durable(token)
            self.told_durable = token

    def durable(self, token: int) -> None:
        if self.ordering.durable(token):
            self.pulling.disk_caught_up(self.now_ms)

    def failed(self, token: int, now_ms: int | None = None) -> None:
        """This append and all later ones were not kept."""
        self.pulling.disk_failed(self.now_ms if now_ms is None else now_ms)
        self.ordering.failed(token, self.now_ms if now_ms is None else now_ms)

    def accepted(self) -> list[int]:
        return [event.frame.batch.first_sequence for event in self.events if isinstance(event, Accepted)]

    def pulls(self) -> list[tuple[str, int, int]]:
        """The pulls sent since the last look: (from whom, first, next)."""
        calls = sends(take(self.out), PullCall)
        return [(NAMES[conn], call.first_sequence, call.next_sequence) for conn, call in calls]

    def searches(self) -> list[tuple[str, int, int]]:
        """The holder searches sent since the last look: (to whom, sequence, hops)."""
        found = sends(take(self.out), HolderSearchStmt)
        for _, search in found:
            assert (search.requester, search.origin, search.topic, search.hops) == (contact("m"), *S, 1)
        self.search_numbers += dict.fromkeys(search.search for _, search in found)
        assert len(set(self.search_numbers)) == len(self.search_numbers), "each search has a number of its own"
        return [(NAMES[conn], search.sequence, search.hops_max) for conn, search in found]

    def traces(self, name: str) -> list[dict[str, object]]:
        return [dict(trace.detail) for trace in of(self.out, Trace) if trace.name == name]
