"""Brings a gatekeeper into the federation, and keeps its links.

It first becomes a member of its channel's unit (`join`); then it asks for the gateways of its configuration: with its
whole unit, if that is alone above, else for one more link. A link that was made once is made again when it is lost,
less and less often, up to `RETRY_S_MAX`.

A unit that is part of a larger one cannot be added to another any more. So units come about from below: until a
gateway has been made, its gatekeeper neither asks for nor grants links of higher levels.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from m4cast.overlay.config.federation import FederationConfig
from m4cast.overlay.federation.contract import (
    AdditionDone,
    AdditionFailed,
    FederationInput,
    JoinUnit,
    MergeUnit,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.units import members
from m4cast.overlay.net.gateways.kept import KeptRows
from m4cast.overlay.net.gateways.link import GatewayLink

log = logging.getLogger("m4cast.gateway")

RETRY_S, RETRY_S_MAX = 0.2, 15.0
"""The delay before a missing link is retried, at first and at most. Guess."""


@dataclass(slots=True)
class _Wish:
    """A gatekeeper that this one is to be linked to."""

    level: int
    wait_s: float = RETRY_S
    try_at_s: float = 0.0


@dataclass(slots=True)
class GatewayPlaces:
    """`dial` makes a link, `links` are those that are up."""

    config: FederationConfig
    machine: Federation
    feed: Callable[[FederationInput], None]
    dial: Callable[[str], None]
    links: Callable[[], list[GatewayLink]]
    kept: KeptRows
    _wishes: dict[str, _Wish] = field(default_factory=dict)
    _linked: dict[str, None] = field(default_factory=dict)
    """Addresses that were linked to: no request is needed any more."""
    _random: Random = field(default_factory=Random)
    unsynced_s: float = field(default_factory=time.monotonic)
    """The time since which its neighbours have not confirmed that this node knows everything."""
    failure: str = ""
    """Why the last request failed; empty: it did not."""

    def start(self) -> None:
        for address in self.kept.links():
            self._linked[address] = None
            self._wishes[address] = _Wish(0)
        if self.config.join:
            self._wishes[self.config.join] = _Wish(0)
        for gateway in self.config.gateways:
            if gateway.address:
                self._wishes[gateway.address] = _Wish(gateway.level)
        self.look()

    @property
    def is_in(self) -> bool:
        """True if it is in its channel's unit. Until then other channels are refused: they would be linked with a unit
        that is the node's alone, and that it could not leave."""
        return not self.config.join or self.config.join in self._linked

    @property
    def level_first(self) -> int:
        """The lowest level of the gateways that were never made; above the top if there are none."""
        levels = [each.level for each in self.config.gateways if each.address and each.address not in self._linked]
        return min(levels, default=self.config.top + 1)

    def refusal(self, bits: int, *, is_fellow: bool) -> str:
        """The reason why a request of another gatekeeper cannot be granted yet; empty if it can."""
        level, first = bits.bit_length() - 1, self.level_first
        if (is_fellow and first < self.config.top) or (not is_fellow and level > first):
            return f"waits for its own gateway of level {first}, before which no other of a higher level is made"
        return ""

    def look(self) -> None:
        """Try what is missing and due."""
        now_s = time.monotonic()
        up = {address for link in self.links() for address in (link.dialled, link.hello.address)}
        for address, wish in list(self._wishes.items()):
            if address in up:
                wish.wait_s = RETRY_S
                continue
            if now_s < wish.try_at_s:
                continue
            if address not in self._linked and not self._request(address, wish):
                continue  # it waits for its turn
            if address in self._linked:
                self.dial(address)
            wish.try_at_s = now_s + wish.wait_s * self._random.uniform(0.75, 1.25)
            wish.wait_s = min(2 * wish.wait_s, RETRY_S_MAX)

    def _request(self, address: str, wish: _Wish) -> bool:
        vertex, join = self.machine.vertex, self.config.join
        if self.machine.addition.requests or self.machine.addition.is_moving:
            return False
        if address != join and (not self.is_in or wish.level > self.level_first):
            return False
        if address == join:
            self.feed(JoinUnit(1, address))
        elif self._is_alone(wish.level):
            self.feed(MergeUnit(wish.level, address))
        elif not vertex.is_synced:
            return False
        else:
            self.feed(JoinUnit(1 << wish.level, address))
        return True

    def _is_alone(self, level: int) -> bool:
        vertex = self.machine.vertex
        records = vertex.records.values()
        return all(len(members(records, each, vertex.unit(each + 1).id)) == 1 for each in range(level, vertex.top + 1))

    def connect(self, address: str) -> None:
        """The machine was granted a link."""
        self._linked[address] = None
        self._wishes.setdefault(address, _Wish(0)).try_at_s = time.monotonic() + RETRY_S
        self.dial(address)

    def done(self, done: AdditionDone) -> None:
        self.failure = ""
        for address in self._linked:
            self.kept.keep_link(address, is_wanted=True)
        log.info("in the federation: request %s granted", bin(done.bits))

    def failed(self, failed: AdditionFailed) -> None:
        if failed.reason != self.failure:
            log.warning("not linked yet: %s", failed.reason)
        self.failure = failed.reason
        known = dict.fromkeys(self.kept.links())
        for address in [address for address in self._linked if address not in known]:
            if not any(address in (link.dialled, link.hello.address) for link in self.links()):
                del self._linked[address]

    def forget(self, address: str) -> None:
        """The link is not to be made again."""
        self._wishes.pop(address, None)
        self._linked.pop(address, None)
        self.kept.keep_link(address, is_wanted=False)
