"""Finding the channel that a client came from: who asks hears of the newest row of the client that is older than its
own."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from m4cast.overlay.federation.units import Chain, UnitId
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.reports.echo import Echo
from m4cast.overlay.net.gateways.wire.messages import ClientFindCall, ClientFindResp


class FoundClient(NamedTuple):
    """The session of an older row, and the units of the gatekeeper that knows it; 0: nobody has one."""

    session: int = 0
    at: Chain = ()


class ClientFinding:
    """`links` are those that are up; `older` is what this gatekeeper's own channel knows."""

    def __init__(
        self, me: UnitId, links: dict[int, GatewayLink], older: Callable[[ClientFindCall], FoundClient]
    ) -> None:
        self._me = me
        self._last = int(time.time() * 1000)
        self.echo: Echo[ClientFindCall, FoundClient] = Echo(
            links,
            here=older,
            merged=max,
            onward=lambda call: replace(call, hops=call.hops + 1),
            response=lambda call, found, is_cut: ClientFindResp(call.asker, call.ask, *found, is_cut=is_cut),
            nothing=FoundClient(),
        )

    def find(self, key: str, digest: bytes, session: int, answer: Callable[[FoundClient | None], None]) -> None:
        """Ask; the answer is None if nobody was found and somebody could not be asked."""
        self._last += 1
        call = ClientFindCall(self._me, self._last, key, digest, session, 1)
        self.echo.ask(
            call, FoundClient(), lambda found, is_cut: answer(None if is_cut and not found.session else found)
        )

    def heard(self, link: GatewayLink, message: ClientFindCall | ClientFindResp) -> None:
        if isinstance(message, ClientFindCall):
            self.echo.called(link, message)
        else:
            found = FoundClient(message.session, message.at)
            self.echo.answered(link, message.asker, message.ask, found, is_cut=message.is_cut)
