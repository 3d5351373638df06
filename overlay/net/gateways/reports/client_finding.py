"""Finding the channel that a client came from: an echo over all gatekeepers, each asked once.

Who asks hears of the newest row of the client that is older than its own. As with streams (`finding`), a gatekeeper
answers when all that it asked have answered, so that the last answer is everybody's and no time decides.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from m4cast.overlay.federation.units import Chain, UnitId
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.messages import ClientFindCall, ClientFindResp

ASKS_MAX = 4_096
"""Questions that are remembered; the oldest are forgotten first. Raising it costs memory."""
ASK_S_MAX = 30.0
"""An own question that is not answered by then is asked again."""
HOPS_MAX = 64


class FoundClient(NamedTuple):
    """The session of an older row, and the units of the gatekeeper that knows it; 0: nobody has one."""

    session: int = 0
    at: Chain = ()


@dataclass(slots=True)
class _ClientAsk:
    call: ClientFindCall
    back: GatewayLink | None
    """The link that it came from; None: it is this gatekeeper's own."""
    best: FoundClient
    answer: Callable[[FoundClient | None], None] | None = None
    pending: dict[int, None] = field(default_factory=dict)
    is_cut: bool = False
    at_s: float = field(default_factory=time.monotonic)


class ClientFinding:
    """`links` are those that are up; `older` is what this gatekeeper's own channel knows."""

    def __init__(
        self, me: UnitId, links: dict[int, GatewayLink], older: Callable[[ClientFindCall], FoundClient]
    ) -> None:
        self._me = me
        self._links = links
        self._older = older
        self._asks: dict[tuple[UnitId, int], _ClientAsk] = {}
        self._last = int(time.time() * 1000)

    def find(self, key: str, digest: bytes, session: int, answer: Callable[[FoundClient | None], None]) -> None:
        """Ask; the answer is None if nobody was found and somebody could not be asked."""
        self._last += 1
        call = ClientFindCall(self._me, self._last, key, digest, session, 1)
        self._ask(_ClientAsk(call, None, FoundClient(), answer))

    def look(self) -> None:
        """Give up what takes too long."""
        now_s = time.monotonic()
        for ask in [each for each in self._asks.values() if each.answer and now_s - each.at_s > ASK_S_MAX]:
            ask.is_cut = True
            self._end(ask)

    def link_down(self, link: GatewayLink) -> None:
        for ask in list(self._asks.values()):
            if link.conn in ask.pending:
                ask.is_cut = True
                self._answered(ask, link)

    def heard(self, link: GatewayLink, message: ClientFindCall | ClientFindResp) -> None:
        ask = self._asks.get((message.asker, message.ask))
        if isinstance(message, ClientFindCall):
            if ask is not None:
                link.send(ClientFindResp(message.asker, message.ask, 0, (), is_cut=False))
            else:
                self._ask(_ClientAsk(message, link, self._older(message)))
        elif ask is not None and link.conn in ask.pending:
            ask.is_cut |= message.is_cut
            ask.best = max(ask.best, FoundClient(message.session, message.at))
            self._answered(ask, link)

    def _ask(self, ask: _ClientAsk) -> None:
        call = ask.call
        self._asks[call.asker, call.ask] = ask
        while len(self._asks) > ASKS_MAX:
            self._asks.pop(next(iter(self._asks)))
        if call.hops < HOPS_MAX:
            onward = ClientFindCall(call.asker, call.ask, call.key, call.digest, call.session, call.hops + 1)
            for link in self._links.values():
                if link is not ask.back:
                    ask.pending[link.conn] = None
                    link.send(onward)
        if not ask.pending:
            self._end(ask)

    def _answered(self, ask: _ClientAsk, link: GatewayLink) -> None:
        del ask.pending[link.conn]
        if not ask.pending:
            self._end(ask)

    def _end(self, ask: _ClientAsk) -> None:
        """All have answered. The question is remembered: it may come by another link."""
        if ask.back is not None:
            ask.back.send(ClientFindResp(ask.call.asker, ask.call.ask, *ask.best, is_cut=ask.is_cut))
        answer, ask.answer = ask.answer, None
        if answer is not None:
            answer(None if ask.is_cut and not ask.best.session else ask.best)
