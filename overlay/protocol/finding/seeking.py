"""Seeking: how a node without neighbours finds the channel through portals, or founds it (the patents' figures 8-12).

A round calls every known address (the portals of the configuration and the nodes of the roster) in random order, a few
at a time; then it searches the ports of portal hosts, if there are any. The first that is on the channel is asked to
bring this node in. Two seekers that meet do not connect, else two channels could form; but they remember each other,
and the one that is brought in notifies the other. When no node is on the channel, a node that is itself a portal founds
it, unless it met a seeking portal with a smaller address: then that one does. Nor does it found one while a node of the
channel answers and one of the two refuses the other (their settings or versions differ): that would be a silent split.
All other nodes go on asking.

Limits, as in the patents: portals that cannot reach each other while they start each found a channel of their own
(the roster brings them together later, see membership.merge_with).
"""

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send, Trace
from m4cast.overlay.protocol.finding.port_order import port_order
from m4cast.overlay.protocol.finding.port_search import PortSearch
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.messages import ConnectedStmt, SeekingConnectionCall, SeekingConnectionResp
from m4cast.overlay.value import value

CALLS_AT_ONCE = 3
"""Portals asked at the same time; guess. Raising it finds the channel faster past dead portals and costs dials."""
RETRY_MS_MAX = 10_000
STRIKES_WITH_PAST = 3
"""Rounds without an answer before a portal that knew other nodes founds the channel again; guess."""
FELLOWS_MAX = 64
"""Fellow seekers that are remembered; guess. Raising it costs a call each when this node is brought in."""


ASKED, ANSWERED = 1, 2
"""Stages of a call whose node is on the channel: it was asked to bring this one in; it has answered."""


@value
class Seek:
    """Purpose of a call: are you on the channel?"""

    address: str
    round: int


@value
class NotifyFellow:
    """Purpose of a call: I am on the channel now, fellow seeker."""


@value
class SeekDue(Timer):
    """Look for the channel again, if there is still no neighbour."""


class Seeking:
    def __init__(self, context: Context) -> None:
        config = context.config
        self._my_address = context.me.address
        self._config = config
        self._random = context.random
        self._calls = context.calls
        self._timers = context.timers
        self._out = context.out
        order = port_order(context.cluster, config.portal_depth) if config.portal_hosts else ()
        self._ports = PortSearch(config.portal_hosts, order, config.portal_shuffle, context.random)
        self._is_portal = self._names_portal(self._my_address) or not (config.portals or config.portal_hosts)
        self._fellows: dict[NodeId, Contact] = {}
        self._round = 0
        self._left: list[str] = []
        self._open: dict[int, None] = {}  # connections of this round's calls that have not been answered
        self._rival = False
        self._strikes = 0
        self._retry_ms = config.seek_retry_ms
        self._active = False
        self._asked = False
        """A node on the channel was asked to bring this one in, and may still do so."""

    def _names_portal(self, address: str) -> bool:
        return address in self._config.portals or address.rpartition(":")[0] in self._config.portal_hosts

    @property
    def portals(self) -> list[str]:
        """Addresses at which nodes of the channel should be."""
        return [*self._config.portals, *self._ports.first_addresses]

    def begin(self, known_addresses: list[str], now_ms: int) -> bool:
        """Start a round; True when this node is to found the channel, there being nobody to ask."""
        addresses = list(dict.fromkeys([*self._config.portals, *known_addresses]))
        self._random.shuffle(addresses)
        self._ports.begin()
        self._start_round(addresses, now_ms)
        return not self._open and self._is_portal

    def _start_round(self, addresses: list[str], now_ms: int) -> None:
        self._round += 1
        self._active = True
        self._asked = False
        self._rival = False
        self._open = {}
        self._left = [address for address in addresses if address != self._my_address]
        self._dial_more(now_ms)

    def stop(self) -> None:
        """The node has a neighbour, or founded the channel."""
        self._active = False
        self._ports.stop()
        self._strikes = 0
        self._retry_ms = self._config.seek_retry_ms
        self._timers.cancel(SeekDue())

    def _dial_more(self, now_ms: int) -> None:
        while len(self._open) < CALLS_AT_ONCE:
            while not self._left and not self._open and (depth := self._ports.next()):
                self._left = [address for address in reversed(depth) if address != self._my_address]
            if not self._left:
                return
            address = self._left.pop()
            self._open[self._calls.dial(address, Seek(address, self._round), now_ms)] = None

    def call_ready(self, call: Call) -> None:
        self._out.append(Send(call.conn, SeekingConnectionCall(seeking=True, depth=self._ports.searched)))

    # ---- fellow seekers

    @property
    def depth(self) -> int:
        """The number of ports searched so far, which fellow seekers exchange."""
        return self._ports.searched

    def met(self, fellow: Contact, depth: int) -> None:
        """Another seeker called or answered this one, which seeks too."""
        self._ports.share(depth)
        if self._names_portal(fellow.address) and fellow.address < self._my_address:
            self._rival = True
        self._fellows.pop(fellow.node_id, None)
        if len(self._fellows) >= FELLOWS_MAX:
            del self._fellows[next(iter(self._fellows))]
        self._fellows[fellow.node_id] = fellow

    def notify_fellows(self, now_ms: int) -> None:
        """This node is on the channel: those that still seek can come in through it."""
        fellows, self._fellows = self._fellows, {}
        for fellow in fellows.values():
            self._calls.dial(fellow.address, NotifyFellow(), now_ms, fellow)

    def notify(self, call: Call) -> None:
        self._out.append(Send(call.conn, ConnectedStmt()))
        self._calls.close(call.conn)

    def fellow_connected(self, fellow: Contact, now_ms: int) -> None:
        """A fellow seeker is on the channel now: ask it alone."""
        if self._fellows.pop(fellow.node_id, None) is None or self._asked:
            return
        self._ports.stop()
        self._start_round([fellow.address], now_ms)
        self._rival = True  # whatever it answers, a channel exists: none is to be founded

    # ---- answers

    def answered(self, call: Call, resp: SeekingConnectionResp, now_ms: int, knew_others: bool) -> tuple[bool, bool]:
        """(this call's node is on the channel and is to be asked, this node is to found the channel)"""
        if not isinstance(call.purpose, Seek) or call.purpose.round != self._round or not self._active:
            self._calls.close(call.conn)
            return False, False
        if resp.full:
            self._active = False
            self._asked = True
            call.stage = ASKED
            # Walks take a while; if none has succeeded by then, seek again.
            self._timers.set(SeekDue(), now_ms + self._config.walk_timeout_ms + self._jitter())
            return True, False
        assert call.peer is not None
        self.met(call.peer, resp.depth)
        self._calls.close(call.conn)
        return False, self._one_less(call, now_ms, knew_others)

    def request_answered(self, call: Call) -> None:
        """The node that was asked to bring this one in has answered."""
        if isinstance(call.purpose, Seek):
            call.stage = ANSWERED

    def call_failed(self, call: Call, now_ms: int, knew_others: bool) -> bool:
        """True when this node is to found the channel. A call that was answered, or failed before, changes nothing."""
        if not isinstance(call.purpose, Seek) or call.purpose.round != self._round:
            return False
        if call.stage == ASKED:  # it agreed, then went away or refused: ask again soon
            call.stage = ANSWERED
            self._asked = False
            self._timers.set(SeekDue(), now_ms + self._jitter())
            return False
        if call.conn not in self._open:
            return False
        if call.peer is not None or call.is_at_odds:
            self._rival = True  # a node exists and refused: that is no reason to found another channel
        return self._active and self._one_less(call, now_ms, knew_others)

    def _one_less(self, call: Call, now_ms: int, knew_others: bool) -> bool:
        del self._open[call.conn]
        self._dial_more(now_ms)
        if self._open:
            return False
        self._active = False
        self._strikes += 1
        if self._is_portal and not self._rival and self._strikes >= (STRIKES_WITH_PAST if knew_others else 1):
            return True
        self._out.append(Trace("no-portal", (("strikes", self._strikes),)))
        self._timers.set(SeekDue(), now_ms + self._jitter())
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)
        return False

    def _jitter(self) -> int:
        return self._retry_ms // 2 + self._random.randrange(self._retry_ms // 2 + 1)
