"""Finding rows beyond the gateways: an echo over all gatekeepers, then a pull along its way.

A question goes on to every link that its topic may pass, each gatekeeper is asked once, and answers when all that it
asked have answered: so the last answer is everybody's, and no time decides. The asker then pulls from where most was
found, link by link. Where somebody was cut off meanwhile, an answer counts only if it lacks nothing: else those who
were not heard may keep the rest, and the asker asks again (H43).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.rules import allows, is_banned, may_enter, may_leave
from m4cast.overlay.net.gateways.wire.messages import (
    AcrossFrame,
    FindMessage,
    PulledBatch,
    StreamFindCall,
    StreamFindResp,
    StreamPullCall,
    StreamPullResp,
)
from m4cast.overlay.protocol.wire.batch import Batch

ASKS_MAX = 4_096
"""Questions that are remembered; the oldest are forgotten first. Raising it costs memory."""
ASK_S_MAX = 30.0
"""An own question that is not answered by then is asked again."""
HOPS_MAX = 64


class FoundRows(NamedTuple):
    """`low .. next - 1` of the stream is kept; 0: nobody keeps any. `first`: where to begin."""

    stream: StreamId
    asked: int
    low: int
    next: int
    first: int
    ask: int


@dataclass(slots=True)
class _Ask:
    call: StreamFindCall
    back: GatewayLink | None
    """The link that it came from; None: it is this gatekeeper's own."""
    pending: dict[int, None] = field(default_factory=dict)
    best: tuple[int, int, int] = (0, 0, 0)
    best_conn: int | None = None
    """The link behind which it is; None: it is here."""
    at_s: float = 0.0
    is_cut: bool = False
    answer: Callable[[FoundRows | None], None] | None = None

    @property
    def stream(self) -> StreamId:
        return StreamId(self.call.origin, self.call.topic)

    @property
    def is_sure(self) -> bool:
        """True if all were heard, or nothing is missing: what they did not find, nobody keeps."""
        low, _, first = self.best
        return not (self.pending or self.is_cut) or 0 < low <= first


class StreamFinding:
    """`links` are those that are up; `pulled` and `pull_over` are told what own pulls bring."""

    def __init__(self, side: ChannelSide, me: UnitId, links: dict[int, GatewayLink]) -> None:
        self.pulled: Callable[[Batch, NodeId], None] = lambda batch, sender: None
        self.pull_over: Callable[[StreamId], None] = lambda stream: None
        self.serve: Callable[[GatewayLink, StreamPullCall, StreamId], None] = lambda link, call, stream: None
        """Sends batches of the log."""
        self.is_final: Callable[[StreamId], bool] = lambda stream: False
        """True if another channel's stream must not be passed on."""
        self.note_final: Callable[[StreamId, str, bool], None] = lambda stream, channel, is_final: None
        self.frame_here: Callable[[AcrossFrame, bytes], None] = lambda message, frame: None
        """Takes a frame that is for this gatekeeper, from one that asks or that was asked."""
        self._side = side
        self._me = me
        self._links = links
        self._asks: dict[tuple[UnitId, int], _Ask] = {}
        self._last = int(time.time() * 1000)
        self._pulls: dict[int, tuple[StreamId, float]] = {}

    # ---- own questions

    def find(self, stream: StreamId, first: int, begin_ms: int, answer: Callable[[FoundRows | None], None]) -> None:
        self._last += 1
        call = StreamFindCall(
            asker=self._me,
            ask=self._last,
            origin=stream.origin,
            topic=stream.topic,
            first=first,
            begin_ms=begin_ms,
            hops=1,
        )
        self._ask(_Ask(call, None, answer=answer))

    def pull(self, found: FoundRows, first: int, until: int, bytes_max: int) -> None:
        """Have what was found sent; `pulled` and at last `pull_over` follow."""
        call = StreamPullCall(self._me, found.ask, first, until, bytes_max)
        ask = self._asks.get((self._me, found.ask))
        link = None if ask is None or ask.best_conn is None else self._links.get(ask.best_conn)
        if link is None:
            self.pull_over(found.stream)
        else:
            self._pulls[found.ask] = (found.stream, time.monotonic())
            link.send(call)

    def send_frame(self, number: int, frame: bytes) -> bool:
        """Send a frame along the way of an own find; False if there is no such way any more."""
        ask = self._asks.get((self._me, number))
        link = None if ask is None or ask.best_conn is None else self._links.get(ask.best_conn)
        if link is not None:
            link.send(AcrossFrame(self._me, number, is_back=False), frame)
        return link is not None

    def send_back(self, asker: UnitId, number: int, frame: bytes) -> None:
        ask = self._asks.get((asker, number))
        if ask is not None and ask.back is not None and not ask.back.is_full:
            ask.back.send(AcrossFrame(asker, number, is_back=True), frame)

    def stream_of(self, message: AcrossFrame) -> StreamId | None:
        """The stream that the find of this frame's way was for: the rules were held against it, and no other."""
        ask = self._asks.get((message.asker, message.ask))
        return None if ask is None else ask.stream

    def look(self) -> None:
        """Give up what takes too long."""
        now_s = time.monotonic()
        for ask in [each for each in self._asks.values() if each.answer and now_s - each.at_s > ASK_S_MAX]:
            self._end(ask)
        for number in [number for number, (_, at_s) in self._pulls.items() if now_s - at_s > ASK_S_MAX]:
            self.pull_over(self._pulls.pop(number)[0])

    # ---- questions

    def _ask(self, ask: _Ask) -> None:
        call = ask.call
        self._asks[call.asker, call.ask] = ask
        while len(self._asks) > ASKS_MAX:
            self._forget(self._asks.pop(next(iter(self._asks))))
        ask.at_s = time.monotonic()
        onward = StreamFindCall(
            call.asker, call.ask, call.origin, call.topic, call.first, call.begin_ms, min(call.hops + 1, HOPS_MAX)
        )
        if self._may_answer(ask):
            is_here = self._is_here(ask)
            ask.is_cut = not is_here and call.hops >= HOPS_MAX  # those beyond are not asked
            for link in [] if call.hops >= HOPS_MAX else self._links.values():
                if link is ask.back or (is_here and not self._may_forbid(ask, link)):
                    continue
                if self._may_pass(ask.back, link, call.topic):
                    ask.pending[link.conn] = None
                    link.send(onward)
        if not ask.pending:
            self._end(ask)

    def _forget(self, ask: _Ask) -> None:
        """There are too many: one that is not answered yet ends as if all that it waits for were cut off."""
        if ask.pending:
            ask.pending, ask.is_cut = {}, True
            self._end(ask)

    def _may_answer(self, ask: _Ask) -> bool:
        """True if rows of the stream may go where the question came from: if not, they do not get there by way of
        another gatekeeper of this channel, either, whose log has them, too."""
        call, back = ask.call, ask.back
        if back is None or back.gateway is None:
            return True
        is_own = self._side.is_own(call.origin)
        return may_leave(back.gateway, call.topic, is_own=is_own) and (is_own or not self.is_final(ask.stream))

    def _may_forbid(self, ask: _Ask, link: GatewayLink) -> bool:
        """True if a gatekeeper of this channel is to be heard before another channel gets rows of a third one: the ban
        came with the copies, perhaps not by this gatekeeper."""
        is_passing = ask.back is not None and ask.back.gateway is not None and not self._side.is_own(ask.call.origin)
        return is_passing and link.gateway is None

    def _is_here(self, ask: _Ask) -> bool:
        """Note what this gatekeeper keeps itself; whether that is what is asked for."""
        if ask.back is None:
            return False
        call, stream = ask.call, ask.stream
        first = call.first
        if self._side.speaks_for(stream):
            ask.best = (first, first + 1, first)
            return True
        if call.begin_ms:
            head = self._side.head(stream)
            first = self._side.sequence_at(stream, call.begin_ms) or (head.next if head else first)
        low, next_sequence = self._side.first_kept(stream, first)
        if not low:
            return False
        ask.best = (low, next_sequence, first)
        return low == first

    @staticmethod
    def _may_pass(back: GatewayLink | None, link: GatewayLink, topic: str) -> bool:
        """True if rows of the topic may come in by the link and go out where the question came from."""
        if back is None or back.gateway is None:
            return may_enter(link.gateway, topic)
        inside = link.gateway is None or allows(link.gateway.transits, topic)
        return inside and allows(back.gateway.transits, topic)

    def _end(self, ask: _Ask) -> None:
        """All have answered."""
        if not self._may_answer(ask):
            ask.best, ask.best_conn = (0, 0, 0), None
        low, next_sequence, first = ask.best
        if ask.back is not None:
            if ask.is_sure:
                is_own = self._side.is_own(ask.call.origin)
                is_final = is_banned(ask.back.gateway, ask.call.topic) if is_own else self.is_final(ask.stream)
                ask.back.send(StreamFindResp(ask.call.asker, ask.call.ask, low, next_sequence, first, is_final))
            else:
                ask.back.send(StreamFindResp(ask.call.asker, ask.call.ask, 0, 0, 1))  # not everybody could be asked
            return
        answer, ask.answer = ask.answer, None
        if answer is not None:
            found = FoundRows(ask.stream, ask.call.first, low, next_sequence, first, ask.call.ask)
            answer(found if ask.is_sure else None)

    def link_down(self, link: GatewayLink) -> None:
        for ask in list(self._asks.values()):
            if link.conn in ask.pending:
                del ask.pending[link.conn]
                ask.is_cut = True
                if not ask.pending:
                    self._end(ask)
        for number in list(self._pulls):
            pulled = self._asks.get((self._me, number))
            if pulled is not None and pulled.best_conn == link.conn:
                self.pull_over(self._pulls.pop(number)[0])

    # ---- messages

    def across(self, link: GatewayLink, message: AcrossFrame, frame: bytes) -> None:
        """A frame on the way of a find."""
        ask = self._asks.get((message.asker, message.ask))
        if ask is None:
            return  # the asker finds another way
        if message.is_back and ask.best_conn == link.conn:
            if ask.back is None:
                self.frame_here(message, frame)
            elif not ask.back.is_full:
                ask.back.send(message, frame)
        elif not message.is_back and ask.back is link and self._may_answer(ask):
            onward = None if ask.best_conn is None else self._links.get(ask.best_conn)
            if ask.best_conn is None and ask.best[0]:
                self.frame_here(message, frame)
            elif onward is not None and not onward.is_full:
                onward.send(message, frame)

    def heard(self, link: GatewayLink, message: FindMessage, batch: Batch | None) -> None:
        match message:
            case AcrossFrame():
                raise AssertionError("frames have a way of their own")
            case StreamFindCall(asker, number):
                if (asker, number) in self._asks:
                    link.send(StreamFindResp(asker, number, 0, 0, 0))
                else:
                    self._ask(_Ask(message, link))
            case StreamFindResp():
                self._answered(link, message)
            case StreamPullCall(asker, number):
                self._pulled_from(link, message, self._asks.get((asker, number)))
            case PulledBatch(asker, number) | StreamPullResp(asker, number):
                self._pull_came(link, message, batch, self._asks.get((asker, number)))

    def _answered(self, link: GatewayLink, resp: StreamFindResp) -> None:
        ask = self._asks.get((resp.asker, resp.ask))
        if ask is None or link.conn not in ask.pending:
            return
        del ask.pending[link.conn]
        if resp.low == 0 and resp.first == 1:
            ask.is_cut = True
        low, next_sequence, _ = ask.best
        if not self._side.is_own(ask.call.origin):
            is_news = resp.low > 0 if link.gateway is not None else resp.is_final and not self.is_final(ask.stream)
            if is_news:
                self.note_final(ask.stream, link.hello.channel, resp.is_final)
        may_pass = ask.back is None or ask.back.gateway is None or not resp.is_final
        if resp.low and may_pass and (not low or (resp.low, -resp.next) < (low, -next_sequence)):
            ask.best, ask.best_conn = (resp.low, resp.next, resp.first), link.conn
        if not ask.pending:
            self._end(ask)

    def _pulled_from(self, link: GatewayLink, call: StreamPullCall, ask: _Ask | None) -> None:
        onward = None if ask is None or ask.best_conn is None else self._links.get(ask.best_conn)
        if ask is not None and not self._may_answer(ask):
            link.send(StreamPullResp(call.asker, call.ask, 0))  # it was forbidden meanwhile
        elif ask is not None and ask.back is link and ask.best_conn is None and ask.best[0]:
            self.serve(link, call, ask.stream)
        elif ask is not None and ask.back is link and onward is not None:
            onward.send(call)
        else:
            link.send(StreamPullResp(call.asker, call.ask, 0))

    def _pull_came(
        self, link: GatewayLink, message: PulledBatch | StreamPullResp, batch: Batch | None, ask: _Ask | None
    ) -> None:
        if ask is None or ask.best_conn != link.conn:
            return
        if ask.back is not None:
            if isinstance(message, StreamPullResp) or not ask.back.is_full:  # what is dropped is asked for again
                ask.back.send(message, batch)
        elif isinstance(message, StreamPullResp):
            if message.ask in self._pulls:
                self.pull_over(self._pulls.pop(message.ask)[0])
        elif batch is not None and batch.stream == ask.stream:
            stream, _ = self._pulls.get(message.ask, (ask.stream, 0.0))
            self._pulls[message.ask] = (stream, time.monotonic())
            self.pulled(batch, NodeId(link.hello.node))
