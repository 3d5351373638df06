"""The passive list: addresses of other nodes, kept for the day when the neighbours are gone (PROTOCOL.md 7).

Every node that is met, as a neighbour or in a beacon, a walk or a search that neighbours pass on, is remembered, up to
`passive_max`. Beyond that a random one makes room, so the list stays a random part of a large channel. A node that
fails is not removed: it may only be out of reach. The list serves three needs: a node without neighbours asks all of
them for the channel, a complete fragment calls them, and absent nodes are called now and then, in case they live on in
another component.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.neighbours import NeighbourTable

RETRY_MS_MAX = 30_000
"""A node that has been absent for up to an hour is called by each other one this often at least; guess."""
RETRY_PART = 8
RETRY_PART_LATER = 120
"""After an absence of T the next call comes after T / 8, and after T / 120 once that is longer than `RETRY_MS_MAX`:
what is gone for good is called less and less; guess."""


@dataclass(slots=True)
class Acquaintance:
    contact: Contact
    met_at_ms: int
    called_at_ms: int
    place: int
    """Its index in the order by which one is chosen at random."""


class PassiveList:
    def __init__(self, me: NodeId, passive_max: int, random: Random) -> None:
        self._me = me
        self._max = passive_max
        self._random = random
        self._known: dict[NodeId, Acquaintance] = {}
        self._order: list[NodeId] = []

    def meet(self, contact: Contact, now_ms: int) -> None:
        """Remember where a node can be reached. Costs one look-up if it is known."""
        known = self._known.get(contact.node_id)
        if known is not None:
            known.met_at_ms = now_ms
            if known.contact.address != contact.address:
                known.contact = contact
        elif contact.node_id != self._me and self._max > 0:
            place = len(self._order)
            if place < self._max:
                self._order.append(contact.node_id)
            else:
                place = self._random.randrange(self._max)
                del self._known[self._order[place]]
                self._order[place] = contact.node_id
            self._known[contact.node_id] = Acquaintance(contact, now_ms, now_ms, place)

    def forget(self, node_id: NodeId) -> None:
        """It has left the channel."""
        gone = self._known.pop(node_id, None)
        if gone is not None:
            last = self._order.pop()
            if last != node_id:
                self._order[gone.place] = last
                self._known[last].place = gone.place

    def addresses(self) -> list[str]:
        return [acquaintance.contact.address for acquaintance in self._known.values()]

    def beyond(self, table: NeighbourTable) -> Contact | None:
        """A random one that is not a neighbour."""
        beyond = [each.contact for node_id, each in self._known.items() if node_id not in table.neighbours]
        return self._random.choice(beyond) if beyond else None

    def absent(self, absent_for: Callable[[NodeId, int, int], int], now_ms: int) -> Contact | None:
        """A random one that is absent and has not been called for long enough. `absent_for(node_id, met_at_ms, now_ms)`
        is 0 for those that are here."""
        due = []
        for node_id, each in self._known.items():
            absence_ms = absent_for(node_id, each.met_at_ms, now_ms)
            if absence_ms > 0 and now_ms - each.called_at_ms >= retry_ms(absence_ms):
                due.append(each)
        if not due:
            return None
        chosen = self._random.choice(due)
        chosen.called_at_ms = now_ms
        return chosen.contact


def retry_ms(absence_ms: int) -> int:
    return max(min(absence_ms // RETRY_PART, RETRY_MS_MAX), absence_ms // RETRY_PART_LATER)
