"""The lookout: looks beyond the neighbours, for other components and for weak places (PROTOCOL.md 4.9, 4.10, 7).

With heartbeats and beacons a node checks what no message reports: whether a node that went silent, or an unknown
portal, lives on in another component; whether this component is only a fragment; whether few nodes could split the
graph. What it finds is left to the machines that act on it: merging and swaps.
"""

from collections.abc import Iterable

from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Trace
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.roster.connectivity import Connectivity
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.value import value

BEYOND_WAIT_MS_MAX = 60_000
"""The longest pause between calls of a fragment that are not answered; guess."""
COUNT_MS = 5_000
COUNTS_PER_BEACON = 8
"""The interval at which the nodes that are heard are counted: this long, or this many times between two beacons if that
is less often, since each count looks at all of them; guess."""


@value
class FlipDue(Timer):
    """Mix the graph by one random swap."""


class Lookout:
    def __init__(self, context: Context, membership: Membership, roster: Roster) -> None:
        self._membership = membership
        self._table = context.table
        self._roster = roster
        self._passive = roster.passive
        self._flip_interval_ms = context.config.flip_interval_ms
        self._timers = context.timers
        self._interval_ms = context.cluster.heartbeat_interval_ms
        self._random = context.random
        self._out = context.out
        self._connectivity = Connectivity(context.me.node_id, context.cluster.degree, context.random)
        self._beyond_at_ms = 0
        self._count = 1
        self._count_at_ms = 0
        self._beyond_wait_ms = self._interval_ms

    def start(self, now_ms: int) -> None:
        if self._flip_interval_ms:
            self._timers.set(FlipDue(), now_ms + self._random.randrange(self._flip_interval_ms) + 1)

    # ---- other components

    def look_beyond(self, now_ms: int) -> None:
        """A complete component has no further nodes. If the roster knows others, it is a fragment: call one of them,
        more and more rarely."""
        if self._membership.state is not State.FULL or not self._table.complete():
            self._beyond_wait_ms = self._interval_ms
        elif now_ms >= self._beyond_at_ms:
            contact = self._passive.beyond(self._table)
            if contact is not None:
                self._beyond_at_ms = now_ms + self._beyond_wait_ms
                self._beyond_wait_ms = min(2 * self._beyond_wait_ms, BEYOND_WAIT_MS_MAX)
                self._membership.merging.merge_with(contact.address, now_ms, surely_apart=True)

    def look_for_absent(self, now_ms: int) -> None:
        """Now and then call an absent node: it may be in another component. About one node of a component does so with
        each heartbeat, whatever its size."""
        if self._membership.state is State.FULL and self._random.random() * self._in_hearing(now_ms) < 1:
            contact = self._passive.absent(self._roster.absent_for, now_ms)
            if contact is not None:
                self._membership.merging.merge_with(contact.address, now_ms)

    def look_for_strangers(self, portals: Iterable[str], now_ms: int) -> None:
        """A portal that is not on the roster may be in another component. About two nodes of a channel call one with
        each beacon."""
        if self._membership.state is State.FULL and self._random.random() * self._in_hearing(now_ms) < 2:
            strangers = self._roster.unknown(portals)
            if strangers:
                self._membership.merging.merge_with(self._random.choice(strangers), now_ms)

    def _in_hearing(self, now_ms: int) -> int:
        """The number of nodes in this component, as of a few seconds ago."""
        if now_ms >= self._count_at_ms:
            self._count_at_ms = now_ms + max(COUNT_MS, self._roster.interval_ms() // COUNTS_PER_BEACON)
            self._count = self._roster.in_hearing(now_ms)
        return self._count

    # ---- this one

    def look_for_weakness(self, now_ms: int) -> None:
        if not self._may_swap():
            return
        mine, changes = list(self._table.neighbours), self._roster.changes
        weakness = self._connectivity.look(self._roster.graph, mine, changes, now_ms)
        other = self._roster.get(weakness.other) if weakness is not None else None
        if weakness is not None and other is not None:
            self._out.append(Trace("weakness", (("other", other.address),)))
            contact = Contact(other.node_id, other.address)
            self._membership.swaps.mend(contact, weakness.partner, weakness.give_up, now_ms)

    def flip_due(self, due: FlipDue, now_ms: int) -> None:
        self._timers.set(due, now_ms + self._flip_interval_ms)
        self.flip(now_ms)

    def flip(self, now_ms: int) -> None:
        """A random path a-b-c-d from here becomes a-c, b-d: with b-c, which stays, it hangs together as before."""
        if not self._may_swap():
            return
        me = self._membership.links.me.node_id
        b = self._random.choice(list(self._table.neighbours.values()))
        beyond = [each for each in b.its_neighbours or () if each != me and not self._table.knows(each)]
        entry = self._roster.get(self._random.choice(beyond)) if beyond else None
        if entry is not None:
            self._membership.swaps.mend(Contact(entry.node_id, entry.address), b.contact.node_id, (), now_ms)

    def _may_swap(self) -> bool:
        membership = self._membership
        return self._table.holes() == 0 and membership.state is State.FULL and not membership.leaving
