"""Selective streams of other channels, at a gatekeeper (PROTOCOL.md 22.6).

Beyond the gateways such a stream has an origin that can be asked, though it is no node here: calls to it go across, and
come to a gatekeeper of its channel that has every row. In this channel the gatekeeper has the registrations of the
others as its own, hands over what comes to those who want it, and speaks inside its own coverage (H49): what it cannot
answer it asks across in the asker's name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.selective.contract import SelectiveOutput
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.selective.fetching import Fetching
from m4cast.overlay.protocol.selective.receiving import Receiving, SelectedStream
from m4cast.overlay.protocol.selective.speaking import Speaking, route
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.selective import (
    BeginCall,
    BeginResp,
    CoverStmt,
    Destination,
    RoutedFrame,
    SelectPullCall,
    SelectPullResp,
)

PROXIED_MAX = 1_024
"""Calls in others' names; the oldest are forgotten first."""


@dataclass(slots=True)
class Across:
    me: NodeId
    demand: Demand
    receiving: Receiving
    speaking: Speaking
    fetching: Fetching
    out: list[SelectiveOutput]
    answer: Callable[[NodeId, SelectPullCall | BeginCall], None]
    """Answers a call of another channel."""
    answer_here: Callable[[NodeId, SelectPullCall], None]
    """Answers a call of a node of this channel."""
    is_gatekeeper: bool = False
    foreign: dict[NodeId, None] = field(default_factory=dict)
    """Origins beyond the gateways."""
    kept: dict[NodeId, None] = field(default_factory=dict)
    """Origins of this channel whose streams a gatekeeper keeps, whether they ask for it or not."""
    asked: dict[NodeId, None] = field(default_factory=dict)
    """Origins that chose this node as a keeper."""
    _proxied: dict[int, tuple[NodeId, int]] = field(default_factory=dict)
    """Own call -> who asked, and by which call."""
    _waiting: dict[tuple[StreamId, NodeId], SelectPullCall] = field(default_factory=dict)
    """Calls of nodes here about what this node itself is asking for."""

    def ask(self, origin: NodeId, *, keep: bool) -> None:
        """An origin chooses this node as a keeper, or no longer does."""
        if keep:
            self.asked[origin] = None
        else:
            self.asked.pop(origin, None)

    # ---- from beyond

    def came(self, frame: RoutedFrame, now_ms: int) -> None:
        content = frame.content
        match content:
            case Batch():
                self.foreign[content.stream.origin] = None
                stream = self.receiving.open(content.stream)
                if stream is not None:
                    if self.receiving.batch(stream, content, frame.speaker, now_ms, frame.hops):
                        self._pass_on(content)
                    self.fetching.look(stream, now_ms)
            case CoverStmt(origin, entries):
                self.foreign[origin] = None
                for entry in entries:
                    stream = self.receiving.open(StreamId(origin, entry.topic))
                    if stream is not None:
                        stream.heard = max(stream.heard, entry.next)
                        self.fetching.look(stream, now_ms)
            case SelectPullCall() | BeginCall():
                self.answer(frame.speaker, content)
            case SelectPullResp() | BeginResp():
                self._answered(content, now_ms)
            case _:
                pass

    def _pass_on(self, batch: Batch) -> None:
        """Send a batch to the nodes of this channel that want it, without a statement: they ask for whatever lies
        before it."""
        takers = [node_id for node_id in self.demand.takers(batch) if node_id != self.me]
        route(self.out, self.me, [Destination(each, batch.first_sequence, 0) for each in takers], batch)

    def _answered(self, resp: SelectPullResp | BeginResp, now_ms: int) -> None:
        asker = self._proxied.pop(resp.call, None)
        if asker is not None:
            route(self.out, self.me, [Destination(asker[0], 0, 0)], replace(resp, call=asker[1]))
        elif isinstance(resp, SelectPullResp):
            self.fetching.on_pull_answer(resp.origin, resp, now_ms, is_from_beyond=True)
        else:
            self.fetching.on_begin_answer(resp.origin, resp, now_ms)

    # ---- from here

    def asks_beyond(self, sender: NodeId, call: SelectPullCall | BeginCall) -> bool:
        """Ask across in the sender's name, if this node cannot say anything itself."""
        if call.origin not in self.foreign:
            return False
        if isinstance(call, SelectPullCall):
            stream = StreamId(call.origin, call.topic)
            if self._can_answer(stream, call):
                return False
            if self.fetching.is_asking(stream):
                self._waiting[stream, sender] = call
                while len(self._waiting) > PROXIED_MAX:
                    self._waiting.pop(next(iter(self._waiting)))
                return True
        self.fetching.last_call += 1
        self._proxied[self.fetching.last_call] = (sender, call.call)
        while len(self._proxied) > PROXIED_MAX:
            self._proxied.pop(next(iter(self._proxied)))
        beyond = [Destination(call.origin, 0, 0)]
        route(self.out, self.me, beyond, replace(call, call=self.fetching.last_call))
        return True

    def _can_answer(self, stream: StreamId, call: SelectPullCall) -> bool:
        return self.receiving.authority(stream, call.first_sequence, call.profiles).next > call.first_sequence

    def moved(self, stream: SelectedStream, now_ms: int) -> None:
        """More of a foreign stream is on disk: those who want something of it hear that it moved, and those who asked
        are answered."""
        for of, asker in [key for key in self._waiting if key[0] == stream.id]:
            if self._can_answer(of, call := self._waiting[of, asker]):
                del self._waiting[of, asker]
                self.answer_here(asker, call)
        if stream.id.origin in self.foreign and stream.durable.end > 1:
            self.speaking.open(stream.id, stream.durable.end, 0, now_ms)
