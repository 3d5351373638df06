"""Beacon and roster: every node's periodic word about itself, and who is therefore expected to receive.

A beacon floods; the entry with the larger (incarnation, counter) wins and only news is passed on, so a beacon
costs at most one copy per link and direction. The interval grows with the number of nodes, which keeps the
channel's total beacon rate constant. One mechanism serves four needs: addresses to rejoin by, detection of other
components, the picture of the topology, and the audit's question who was expected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import Output, RosterChanged
from m4cast.overlay.protocol.messages import ENTRIES_PER_MESSAGE, RosterEntry
from m4cast.overlay.protocol.neighbours import NeighbourTable
from m4cast.overlay.protocol.timers import Timers

ENTRIES_MAX = 20_000
SILENT_AFTER_BEACONS = 3
"""A node is silent when this many of its beacons in a row did not come; guess."""
PROBES_MAX = 8
"""Silent nodes are called this often, each time after twice as many beacons; guess."""


@dataclass(slots=True)
class Member:
    entry: RosterEntry
    heard_at_ms: int
    probes: int = 0


class Roster:
    def __init__(
        self,
        own: RosterEntry,
        known: tuple[RosterEntry, ...],
        cluster: ClusterConfig,
        timers: Timers,
        random: Random,
        out: list[Output],
    ) -> None:
        self.own = own
        self._cluster = cluster
        self._timers = timers
        self._random = random
        self._out = out
        self._members: dict[NodeId, Member] = {}
        for entry in known:
            if entry.node_id != own.node_id:
                self._members[entry.node_id] = Member(entry, 0)

    def start(self, now_ms: int) -> None:
        """Nobody is silent yet: those known from the store have had no time to speak."""
        for member in self._members.values():
            member.heard_at_ms = now_ms

    def get(self, node_id: NodeId) -> RosterEntry | None:
        member = self._members.get(node_id)
        return member.entry if member else None

    def population(self) -> int:
        """This node and all it has heard of that have not left."""
        return 1 + sum(1 for member in self._members.values() if not member.entry.leaving)

    def members(self) -> Iterator[RosterEntry]:
        """This node and all others that are known, those that have left as well."""
        yield self.own
        for member in self._members.values():
            yield member.entry

    def entries(self) -> tuple[RosterEntry, ...]:
        """For a newcomer: this node and others, as many as a message takes."""
        present = (member.entry for member in self._members.values() if not member.entry.leaving)
        return (self.own, *islice(present, ENTRIES_PER_MESSAGE - 1))

    def last_words(self) -> dict[NodeId, tuple[RosterEntry, int]]:
        """What every other node said last, and when; or when this one began to wait for its word."""
        return {node_id: (member.entry, member.heard_at_ms) for node_id, member in self._members.items()}

    def addresses(self) -> list[str]:
        return [member.entry.address for member in self._members.values() if not member.entry.leaving]

    def hears(self, node_id: NodeId, now_ms: int) -> bool:
        """A beacon of that node came lately."""
        member = self._members.get(node_id)
        return member is not None and now_ms - member.heard_at_ms <= self._patience_ms(member)

    def everybody_heard(self, now_ms: int) -> bool:
        """No node that has not left is silent."""
        return all(
            member.entry.leaving or now_ms - member.heard_at_ms <= self._patience_ms(member)
            for member in self._members.values()
        )

    def _patience_ms(self, member: Member) -> int:
        return SILENT_AFTER_BEACONS * max(member.entry.beacon_interval_ms, self._cluster.beacon_interval_ms)

    def interval_ms(self) -> int:
        return max(self._cluster.beacon_interval_ms, self._cluster.beacon_ms_per_node * self.population())

    def beacon(self, origin_batch: int, neighbours: tuple[NodeId, ...], leaving: bool, now_ms: int) -> RosterEntry:
        """My next word about myself; sets the timer for the one after it."""
        interval_ms = self.interval_ms()
        self.own = self.own._replace(
            counter=self.own.counter + 1,
            origin_batch=origin_batch,
            neighbours=neighbours,
            leaving=leaving,
            beacon_interval_ms=interval_ms,
        )
        self._timers.set(("beacon",), now_ms + interval_ms * 3 // 4 + self._random.randrange(interval_ms // 4 + 1))
        return self.own

    def heard(self, entry: RosterEntry, now_ms: int, *, second_hand: bool = False) -> bool:
        """Take somebody's word; True when it is news. Second-hand word (a portal's roster) is old news: the node
        counts as just heard, so that it is not called silent before it had the time to speak."""
        if entry.node_id == self.own.node_id:
            return False
        member = self._members.get(entry.node_id)
        if member is not None and (entry.incarnation, entry.counter) <= (
            member.entry.incarnation,
            member.entry.counter,
        ):
            return False
        if member is None and len(self._members) >= ENTRIES_MAX:
            return False
        changed = member is None or (entry.incarnation, entry.address, entry.leaving) != (
            member.entry.incarnation,
            member.entry.address,
            member.entry.leaving,
        )
        self._members[entry.node_id] = Member(entry, now_ms)
        if changed:
            self._out.append(RosterChanged(entry))
        return not second_hand

    def address_beyond(self, table: NeighbourTable) -> str | None:
        """A random node that has not left and is not a neighbour."""
        beyond = [
            member.entry.address
            for node_id, member in self._members.items()
            if not member.entry.leaving and node_id not in table.neighbours
        ]
        return self._random.choice(beyond) if beyond else None

    def silent_address(self, portals: tuple[str, ...], now_ms: int) -> str | None:
        """Now and then, the address of a node that should be here but is silent, or of a portal that nobody here
        is: is it in another component? About two nodes of a channel ask at a time, whatever its size."""
        silent = [
            member
            for member in self._members.values()
            if not member.entry.leaving
            and member.probes < PROBES_MAX
            and now_ms - member.heard_at_ms > self._patience_ms(member) << member.probes
        ]
        known = {self.own.address, *(member.entry.address for member in self._members.values())}
        strangers = [address for address in portals if address not in known]
        if not silent and not strangers:
            return None
        if self._random.random() * (self.population() - len(silent)) > 2:
            return None
        chosen = self._random.randrange(len(silent) + len(strangers))
        if chosen >= len(silent):
            return strangers[chosen - len(silent)]
        silent[chosen].probes += 1
        return silent[chosen].entry.address
