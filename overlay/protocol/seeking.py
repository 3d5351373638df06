"""Seeking: how a node without neighbours finds the channel through portals, or founds it (seed-swan 1.5, figs 8-12).

A round calls every known address (the portals of the configuration, then the nodes of the roster) in random
order, a few at a time. The first that is on the channel is asked to bring this node in. Two seekers that meet do
not connect, else two channels could form. When nobody is on the channel, a node that is itself a portal founds
it, unless a seeking portal with a smaller address answered: then that one does. Everybody else goes on asking.

Limits, as in the seeds: portals that cannot reach each other while they start each found a channel of their own
(the roster brings them together later, see membership.merge_with).
"""

from dataclasses import dataclass
from random import Random

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.calls import Call, Calls
from m4cast.overlay.protocol.effects import Output, Send, Trace
from m4cast.overlay.protocol.messages import SeekingConnectionCall, SeekingConnectionResp
from m4cast.overlay.protocol.timers import Timers

CALLS_AT_ONCE = 3
"""Portals asked at the same time; guess. Raising it finds the channel faster past dead portals and costs dials."""
RETRY_MS_MAX = 10_000
STRIKES_WITH_PAST = 3
"""Rounds without an answer before a portal that knew other nodes founds the channel again; guess."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Purpose of a call: are you on the channel?"""

    address: str
    round: int


class Seeking:
    def __init__(
        self,
        my_address: str,
        config: NodeConfig,
        random: Random,
        calls: Calls,
        timers: Timers,
        out: list[Output],
    ) -> None:
        self._my_address = my_address
        self._config = config
        self._random = random
        self._calls = calls
        self._timers = timers
        self._out = out
        self._is_portal = not config.portals or my_address in config.portals
        self._round = 0
        self._left: list[str] = []
        self._open = 0
        self._rival = False
        self._strikes = 0
        self._retry_ms = config.seek_retry_ms
        self._active = False

    def begin(self, known_addresses: list[str], now_ms: int) -> bool:
        """Start a round; True when this node is to found the channel, there being nobody to ask."""
        self._round += 1
        self._active = True
        self._rival = False
        self._open = 0
        self._left = list(dict.fromkeys([*self._config.portals, *known_addresses]))
        self._left = [address for address in self._left if address != self._my_address]
        self._random.shuffle(self._left)
        if not self._left and self._is_portal:
            return True
        self._dial_more(now_ms)
        return False

    def stop(self) -> None:
        """The node has a neighbour, or founded the channel."""
        self._active = False
        self._strikes = 0
        self._retry_ms = self._config.seek_retry_ms
        self._timers.cancel(("seek",))

    def _dial_more(self, now_ms: int) -> None:
        while self._left and self._open < CALLS_AT_ONCE:
            address = self._left.pop()
            self._open += 1
            self._calls.dial(address, Seek(address, self._round), now_ms)

    def call_ready(self, call: Call) -> None:
        self._out.append(Send(call.conn, SeekingConnectionCall()))

    def answered(self, call: Call, resp: SeekingConnectionResp, now_ms: int, knew_others: bool) -> tuple[bool, bool]:
        """(this call's node is on the channel and is to be asked, this node is to found the channel)"""
        if not isinstance(call.purpose, Seek) or call.purpose.round != self._round or not self._active:
            self._calls.close(call.conn)
            return False, False
        if resp.full:
            self._active = False
            call.stage = 1
            # Walks may need their time; if nothing came of it by then, seek again.
            self._timers.set(("seek",), now_ms + self._config.walk_timeout_ms + self._jitter())
            return True, False
        assert call.peer is not None
        if call.peer.address in self._config.portals and call.peer.address < self._my_address:
            self._rival = True
        self._calls.close(call.conn)
        return False, self._one_less(now_ms, knew_others)

    def call_failed(self, call: Call, now_ms: int, knew_others: bool) -> bool:
        """True when this node is to found the channel."""
        if not isinstance(call.purpose, Seek) or call.purpose.round != self._round:
            return False
        if call.stage == 1:  # it had said yes, then went away or refused: ask again soon
            self._timers.set(("seek",), now_ms + self._jitter())
            return False
        if call.peer is not None:
            self._rival = True  # there is a node, it only had no good word for us: no reason to found another channel
        return self._active and self._one_less(now_ms, knew_others)

    def _one_less(self, now_ms: int, knew_others: bool) -> bool:
        self._open -= 1
        self._dial_more(now_ms)
        if self._open > 0:
            return False
        self._active = False
        self._strikes += 1
        if self._is_portal and not self._rival and self._strikes >= (STRIKES_WITH_PAST if knew_others else 1):
            return True
        self._out.append(Trace("no-portal", (("strikes", self._strikes),)))
        self._timers.set(("seek",), now_ms + self._jitter())
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)
        return False

    def _jitter(self) -> int:
        return self._retry_ms // 2 + self._random.randrange(self._retry_ms // 2 + 1)
