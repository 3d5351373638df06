"""Beacons and the roster: every node's periodic report about itself, and who is therefore expected to receive.

A beacon floods. The entry with the larger (incarnation, counter) wins and only news is passed on, so a beacon costs at
most one copy per link and direction. The interval grows with the number of nodes, which keeps the channel's total
beacon rate constant. One mechanism serves four needs: addresses to rejoin by, detection of other components, the
picture of the topology, and the audit's question who was expected.

A node that its neighbours lost is marked as failed by their flooded report, long before its beacons are missed. The
report names the last beacon that they received: any later beacon refutes it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS, Candidate
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Recovered, RosterChanged
from m4cast.overlay.protocol.roster.passive_list import PassiveList
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.messages import ENTRIES_PER_MESSAGE, RosterEntry
from m4cast.overlay.value import value

ENTRIES_MAX = 20_000
"""Nodes that are remembered, including those that are gone; when it is full, one of these makes room for a new one."""
PASSED_ON_MAX = 4_096
"""Nodes beyond that limit whose last beacons are remembered, so that each is passed on once. A flood lasts for a
second, and all nodes together send about 200 beacons a second (`beacon_ms_per_node`); guess."""
SILENT_AFTER_BEACONS = 3
"""A node is silent when this many of its beacons in a row did not arrive; guess."""


@dataclass(slots=True)
class RosterMember:
    entry: RosterEntry
    heard_at_ms: int
    failed_at_ms: int | None = None
    """The time at which others reported that it failed; None if nobody did, or a beacon refuted it."""
    has_spoken: bool = False
    """A beacon of its own has arrived since this node started."""
    is_remembered: bool = False
    """Known from the store alone: nothing was heard of it since this node started."""
    first_incarnation: int = 0
    """The first that this node has heard of, as far as it remembers."""
    version: int = 0
    """The protocol version that its last beacon stated; 0: none."""
    batches_seen: int = 0
    """The greatest `origin_batch` of its batches of selective topics that came by here."""

    @property
    def present(self) -> bool:
        return not self.entry.leaving and self.failed_at_ms is None


@value
class BeaconDue(Timer):
    """Flood this node's next beacon."""


class Roster:
    def __init__(self, context: Context, recovered: Recovered) -> None:
        config = context.config
        self.own = RosterEntry(
            node_id=context.me.node_id,
            incarnation=context.incarnation,
            counter=0,
            address=context.me.address,
            door=config.advertised_door,
            name=config.name,
            site=config.site,
            origin_batch=recovered.origin_batch,
            leaving=False,
            beacon_interval_ms=context.cluster.beacon_interval_ms,
            neighbours=(),
        )
        """This node's last beacon."""
        self.passive = PassiveList(context.me.node_id, config.passive_max, context.random)
        self._cluster = context.cluster
        self._timers = context.timers
        self._random = context.random
        self._out = context.out
        self._members: dict[NodeId, RosterMember] = {}
        self._present = 0
        """Number of members that are present."""
        self._left: dict[NodeId, None] = {}  # members that have left, longest ago first
        self._failed: dict[NodeId, None] = {}  # members that have failed, longest ago first
        self._passed_on: dict[NodeId, tuple[int, int]] = {}  # last beacons of nodes that there is no room for
        self.changes = 0
        """Counts what changes the picture of the graph."""
        self.latest_own = (0, 0)
        """The latest beacon of this node that others are known to have heard: (incarnation, counter)."""
        for entry in recovered.roster:
            if entry.node_id != self.own.node_id and self._make_room():
                self._put(RosterMember(entry, 0, is_remembered=True, first_incarnation=entry.incarnation))

    def _put(self, member: RosterMember) -> None:
        old = self._members.get(member.entry.node_id)
        self._present += member.present - (old is not None and old.present)
        if old is None or (old.present, old.entry.neighbours, old.version) != (
            member.present,
            member.entry.neighbours,
            member.version,
        ):
            self.changes += 1
        node_id = member.entry.node_id
        self._members[node_id] = member
        _keep(self._left, node_id, member.entry.leaving)
        _keep(self._failed, node_id, member.failed_at_ms is not None)

    def _make_room(self) -> bool:
        """Make room for one more: the node that left longest ago goes, else one that failed, never one that is
        present."""
        if len(self._members) < ENTRIES_MAX:
            return True
        gone = self._left or self._failed
        if not gone:
            return False
        node_id = next(iter(gone))
        self._left.pop(node_id, None)
        self._failed.pop(node_id, None)
        del self._members[node_id]
        self.changes += 1
        return True

    def start(self, now_ms: int) -> None:
        """No node is silent yet: those known from the store have had no time to send a beacon."""
        for member in self._members.values():
            member.heard_at_ms = now_ms

    def get(self, node_id: NodeId) -> RosterEntry | None:
        member = self._members.get(node_id)
        return member.entry if member else None

    def saw_batch(self, origin: NodeId, origin_batch: int) -> None:
        """A batch of a selective topic came by, or is in the store: neighbours of its origin need not have it."""
        member = self._members.get(origin)
        if member is not None and origin_batch > member.batches_seen:
            member.batches_seen = origin_batch

    def as_seen(self, node_id: NodeId) -> RosterEntry | None:
        """The node's last beacon, with as many batches as this node knows of: what it is told about itself."""
        member = self._members.get(node_id)
        if member is None or member.batches_seen <= member.entry.origin_batch:
            return member.entry if member else None
        return member.entry._replace(origin_batch=member.batches_seen)

    def may_return(self, node_id: NodeId, patience_ms: int, now_ms: int) -> bool:
        """True if a node that is not present may come back with its store: it has not left, no other node has its
        address, and it has not been absent for longer than this."""
        member = self._members.get(node_id)
        if member is None or member.entry.leaving:
            return False
        others = (each for each in self._members.values() if each is not member and each.present)
        is_replaced = member.entry.address == self.own.address or any(
            each.entry.address == member.entry.address for each in others
        )
        return not is_replaced and self.absent_for(node_id, now_ms, now_ms) < patience_ms

    def population(self) -> int:
        """This node and all it has heard of that have not left or failed."""
        return 1 + self._present

    def members(self) -> Iterator[RosterEntry]:
        """This node and all others that are known, those that have left as well."""
        yield self.own
        for member in self._members.values():
            yield member.entry

    def entries(self) -> tuple[RosterEntry, ...]:
        """The roster for a newcomer: this node and others, as many as a message takes."""
        present = (member.entry for member in self._members.values() if not member.entry.leaving)
        return (self.own, *islice(present, ENTRIES_PER_MESSAGE - 1))

    def last_words(self) -> dict[NodeId, tuple[RosterEntry, int]]:
        """The last beacon of every other node, and when it arrived, or when this node began to wait for it."""
        return {node_id: (member.entry, member.heard_at_ms) for node_id, member in self._members.items()}

    def hears(self, node_id: NodeId, now_ms: int) -> bool:
        """A beacon of that node has arrived lately."""
        member = self._members.get(node_id)
        return member is not None and self._heard_lately(member, now_ms)

    def able(self, version: int) -> list[NodeId]:
        """The nodes that are present, but for this one, and state this protocol version or a later one."""
        return [node_id for node_id, member in self._members.items() if member.present and member.version >= version]

    def is_able(self, node_id: NodeId, version: int) -> bool:
        member = self._members.get(node_id)
        return member is not None and member.present and member.version >= version

    def unable(self, version: int) -> list[str]:
        """The names of the nodes that are present and have not stated this version. A node that never spoke was
        replaced if one that did has its address: it died before this one started, and only others told of it."""
        present = [member for member in self._members.values() if member.present]
        taken = {self.own.address, *(member.entry.address for member in present if member.has_spoken)}
        return [
            member.entry.name
            for member in present
            if member.version < version and (member.has_spoken or member.entry.address not in taken)
        ]

    def is_present(self, node_id: NodeId, now_ms: int) -> bool:
        """A beacon of that node has arrived lately, and it has not left."""
        member = self._members.get(node_id)
        return member is not None and not member.entry.leaving and self._heard_lately(member, now_ms)

    def _heard_lately(self, member: RosterMember, now_ms: int) -> bool:
        return member.failed_at_ms is None and now_ms - member.heard_at_ms <= self._patience_ms(member)

    def in_hearing(self, now_ms: int) -> int:
        """The size of this component: this node and all whose beacons arrive. Costs a look at each."""
        members = self._members.values()
        return 1 + sum(not member.entry.leaving and self._heard_lately(member, now_ms) for member in members)

    def absent_for(self, node_id: NodeId, met_at_ms: int, now_ms: int) -> int:
        """Return the time for which a node has been absent: since it failed, since its beacons were missed, or since it
        was met if none arrived; 0 for those that are present or have left."""
        member = self._members.get(node_id)
        if member is None:
            return max(0, now_ms - met_at_ms - SILENT_AFTER_BEACONS * self.interval_ms())
        if member.entry.leaving:
            return 0
        if member.failed_at_ms is not None:
            return max(1, now_ms - member.failed_at_ms)
        return max(0, now_ms - member.heard_at_ms - self._patience_ms(member))

    def has_gone(self, node_id: NodeId) -> bool:
        """It left or failed, or was never heard of."""
        member = self._members.get(node_id)
        return member is None or not member.present

    def is_known_gone(self, node_id: NodeId) -> bool:
        """It left or failed."""
        member = self._members.get(node_id)
        return member is not None and not member.present

    def knew(self, node_id: NodeId, incarnation: int) -> bool:
        """True if this node has heard of an earlier incarnation of that one."""
        member = self._members.get(node_id)
        return member is not None and member.first_incarnation < incarnation

    def expected(self, now_ms: int) -> list[Candidate]:
        """All nodes that have not left: each may keep what is missing here."""
        return [
            Candidate(
                Contact(node_id, member.entry.address),
                member.heard_at_ms,
                is_heard=member.has_spoken and self._heard_lately(member, now_ms),
            )
            for node_id, member in self._members.items()
            if not member.entry.leaving
        ]

    def _patience_ms(self, member: RosterMember) -> int:
        return SILENT_AFTER_BEACONS * max(member.entry.beacon_interval_ms, self._cluster.beacon_interval_ms)

    def interval_ms(self) -> int:
        return max(self._cluster.beacon_interval_ms, self._cluster.beacon_ms_per_node * self.population())

    def beacon(self, origin_batch: int, neighbours: tuple[NodeId, ...], leaving: bool, now_ms: int) -> RosterEntry:
        """This node's next beacon; sets the timer for the one after it."""
        interval_ms = self.interval_ms()
        self.own = self.own._replace(
            counter=self.own.counter + 1,
            origin_batch=origin_batch,
            neighbours=neighbours,
            leaving=leaving,
            beacon_interval_ms=interval_ms,
        )
        self._timers.set(BeaconDue(), now_ms + interval_ms * 3 // 4 + self._random.randrange(interval_ms // 4 + 1))
        return self.own

    def heard(self, entry: RosterEntry, now_ms: int, *, second_hand: bool = False, version: int = 0) -> bool:
        """Take a node's beacon; True when it is news. A second-hand one (from a portal's roster) is not passed on, and
        the node counts as just heard, so that it does not count as silent before it had time to send a beacon."""
        if entry.node_id == self.own.node_id:
            self.heard_own(entry.incarnation, entry.counter)
            return False
        member = self._members.get(entry.node_id)
        if member is not None and (entry.incarnation, entry.counter) <= (
            member.entry.incarnation,
            member.entry.counter,
        ):
            return False
        if member is None and not self._make_room():
            return not second_hand and self._is_to_pass_on(entry)
        changed = member is None or (entry.incarnation, entry.address, entry.leaving) != (
            member.entry.incarnation,
            member.entry.address,
            member.entry.leaving,
        )
        spoke = not second_hand or (member is not None and member.has_spoken)
        news = RosterMember(entry, now_ms, has_spoken=spoke, first_incarnation=entry.incarnation, version=version)
        if member is not None:
            news.first_incarnation, news.batches_seen = member.first_incarnation, member.batches_seen
        self._put(news)
        if changed:
            self._out.append(RosterChanged(entry))
        return not second_hand

    def heard_own(self, incarnation: int, counter: int) -> None:
        """Another node has heard this beacon of this one."""
        self.latest_own = max(self.latest_own, (incarnation, counter))

    def _is_to_pass_on(self, entry: RosterEntry) -> bool:
        """Other nodes may have room for it; but each beacon is passed on once, else it would circulate for ever."""
        word = (entry.incarnation, entry.counter)
        if word <= self._passed_on.get(entry.node_id, (-1, -1)):
            return False
        self._passed_on.pop(entry.node_id, None)
        if len(self._passed_on) >= PASSED_ON_MAX:
            del self._passed_on[next(iter(self._passed_on))]
        self._passed_on[entry.node_id] = word
        return True

    def failed(self, node_id: NodeId, incarnation: int, counter: int, now_ms: int) -> bool:
        """Take others' report that a node failed; True when it is news and no later beacon refutes it."""
        member = self._members.get(node_id)
        if member is None or not member.present:
            return False
        if (incarnation, counter) < (member.entry.incarnation, member.entry.counter):
            return False
        self._put(replace(member, failed_at_ms=now_ms))
        return True

    def absentees(self, now_ms: int) -> tuple[RosterEntry, ...]:
        """The entries for a new neighbour: nodes that may return, were heard of not long ago (or before this node
        started), and are not heard now."""
        absent = (
            member.entry
            for member in self._members.values()
            if not member.entry.leaving
            and (member.is_remembered or not self._heard_lately(member, now_ms))
            and now_ms - member.heard_at_ms < ABSENT_PATIENCE_MS
        )
        return tuple(islice(absent, ENTRIES_PER_MESSAGE))

    def take_absent(self, entries: Iterable[RosterEntry], now_ms: int) -> tuple[RosterEntry, ...]:
        """Take a neighbour's report of nodes that are absent, until a beacon of theirs refutes it; those that are
        news."""
        news = []
        for entry in entries:
            is_new = entry.node_id != self.own.node_id and entry.node_id not in self._members
            if is_new and not entry.leaving and self._make_room():
                self._put(RosterMember(entry, now_ms, failed_at_ms=now_ms, first_incarnation=entry.incarnation))
                self._out.append(RosterChanged(entry))
                news.append(entry)
        return tuple(news)

    def unknown(self, addresses: Iterable[str]) -> list[str]:
        """Those of these addresses that no node on the roster has."""
        known = {self.own.address, *(member.entry.address for member in self._members.values())}
        return [address for address in addresses if address not in known]

    def graph(self, now_ms: int, version: int = 0) -> dict[NodeId, tuple[NodeId, ...]]:
        """The neighbours of every node that is heard, by its own last beacon, without those that are gone; only of
        nodes whose beacons state this protocol version or a later one."""
        gone = {
            node_id
            for node_id, member in self._members.items()
            if member.entry.leaving or member.version < version or not self._heard_lately(member, now_ms)
        }
        return {
            node_id: tuple(each for each in member.entry.neighbours if each not in gone)
            for node_id, member in self._members.items()
            if node_id not in gone
        }


def _keep(ordered: dict[NodeId, None], node_id: NodeId, is_in: bool) -> None:
    """Put the node in, or take it out; one that is in already keeps its place."""
    if is_in:
        ordered.setdefault(node_id)
    else:
        ordered.pop(node_id, None)
