"""A question to all gatekeepers, each asked once: an echo over their links.

A gatekeeper passes a question on to all its other links, and answers when all that it asked have answered: so the last
answer is everybody's, and no time decides. Who was cut off meanwhile counts as having said nothing, and the answer says
so.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.net.gateways.link import GatewayLink

ASKS_MAX = 4_096
"""Questions that are remembered; the oldest are forgotten first. Raising it costs memory."""
ASK_S_MAX = 30.0
"""An own question that is not answered by then is over: somebody could not be asked."""
HOPS_MAX = 64


class EchoCall(Protocol):
    """A question, which names who asks, by which number, and how many gatekeepers it has passed."""

    @property
    def asker(self) -> UnitId: ...
    @property
    def ask(self) -> int: ...
    @property
    def hops(self) -> int: ...


Call = TypeVar("Call", bound=EchoCall)
Found = TypeVar("Found")


@dataclass(slots=True)
class _EchoAsk(Generic[Call, Found]):
    call: Call
    back: GatewayLink | None
    """The link that it came from; None: it is this gatekeeper's own."""
    found: Found
    answer: Callable[[Found, bool], None] | None = None
    pending: dict[int, None] = field(default_factory=dict)
    is_cut: bool = False
    at_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Echo(Generic[Call, Found]):
    """`links` are those that are up. `here` is what this gatekeeper finds itself, `merged` what two found together,
    `onward` the call as it is passed on, `response` the message that answers it."""

    links: dict[int, GatewayLink]
    here: Callable[[Call], Found]
    merged: Callable[[Found, Found], Found]
    onward: Callable[[Call], Any]
    response: Callable[[Call, Found, bool], Any]
    nothing: Found
    _asked: dict[tuple[UnitId, int], _EchoAsk[Call, Found]] = field(default_factory=dict)

    def ask(self, call: Call, found: Found, answer: Callable[[Found, bool], None]) -> None:
        """Ask a question of this gatekeeper's own; `found`: what it knows itself. The answer has what was found, and
        whether somebody could not be asked."""
        self._ask(_EchoAsk(call, None, found, answer))

    def called(self, link: GatewayLink, call: Call) -> None:
        if (call.asker, call.ask) in self._asked:
            link.send(self.response(call, self.nothing, False))
        else:
            self._ask(_EchoAsk(call, link, self.here(call)))

    def answered(self, link: GatewayLink, asker: UnitId, number: int, found: Found, *, is_cut: bool) -> None:
        asked = self._asked.get((asker, number))
        if asked is not None and link.conn in asked.pending:
            asked.is_cut |= is_cut
            asked.found = self.merged(asked.found, found)
            self._heard(asked, link)

    def look(self) -> None:
        """Give up what takes too long."""
        now_s = time.monotonic()
        for asked in [each for each in self._asked.values() if each.answer and now_s - each.at_s > ASK_S_MAX]:
            asked.is_cut = True
            self._end(asked)

    def link_down(self, link: GatewayLink) -> None:
        for asked in list(self._asked.values()):
            if link.conn in asked.pending:
                asked.is_cut = True
                self._heard(asked, link)

    def _ask(self, asked: _EchoAsk[Call, Found]) -> None:
        call = asked.call
        self._asked[call.asker, call.ask] = asked
        while len(self._asked) > ASKS_MAX:
            self._forget(self._asked.pop(next(iter(self._asked))))
        asked.is_cut = call.hops >= HOPS_MAX  # those beyond are not asked
        if not asked.is_cut:
            onward = self.onward(call)
            for link in self.links.values():
                if link is not asked.back:
                    asked.pending[link.conn] = None
                    link.send(onward)
        if not asked.pending:
            self._end(asked)

    def _forget(self, asked: _EchoAsk[Call, Found]) -> None:
        """There are too many: one that is not answered yet ends as if all that it waits for were cut off."""
        if asked.pending:
            asked.pending, asked.is_cut = {}, True
            self._end(asked)

    def _heard(self, asked: _EchoAsk[Call, Found], link: GatewayLink) -> None:
        del asked.pending[link.conn]
        if not asked.pending:
            self._end(asked)

    def _end(self, asked: _EchoAsk[Call, Found]) -> None:
        """All have answered. The question is remembered: it may come by another link."""
        if asked.back is not None:
            asked.back.send(self.response(asked.call, asked.found, asked.is_cut))
        answer, asked.answer = asked.answer, None
        if answer is not None:
            answer(asked.found, asked.is_cut)
