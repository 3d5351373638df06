"""Liveness: who is on the channel and who is not, by heartbeats, beacons, failures and absences (PROTOCOL.md 4.6, 7).

Heartbeats show neighbours that this node lives; a neighbour that sends none for `heartbeat_timeout_ms` is lost. It is
called once more (`CheckAlive`), and if it cannot be reached the channel hears that it failed. Beacons show all others
that a node lives, and refute that it failed. New neighbours hear of nodes that are absent: rows that only those keep
must not be given up by a node that has never heard of them.
"""

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send, Trace
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.publishing.publishing import Publishing
from m4cast.overlay.protocol.roster.roster import BeaconDue, Roster
from m4cast.overlay.protocol.selection.selection import Selection
from m4cast.overlay.protocol.streams.dissemination import Dissemination
from m4cast.overlay.protocol.streams.past import ORIGINS_MAX
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.messages import (
    HELD_VERSION,
    AbsentStmt,
    BeaconStmt,
    FailedStmt,
    Heartbeat,
    HeldCall,
    RosterEntry,
)
from m4cast.overlay.value import value

PROMPT_BEACON_NODES = 64
"""A newcomer's first beacon goes out at once in channels up to this size; in larger ones at its turn."""
PROMPT_BEACON_MS = 200
"""A change of neighbours is in a beacon after this long, where routes are wanted; guess. Raising it sends fewer beacons
when much changes, and routes are wrong for longer."""
LOST = ("broken", "silent", "violation")
"""Ways to lose a neighbour that may mean that it failed."""


@value
class CheckAlive:
    """Purpose of a call: is this neighbour, which was lost, still there?"""

    contact: Contact


@value
class HeartbeatDue(Timer):
    """Send heartbeats, and look for neighbours that are silent."""


class Liveness:
    def __init__(
        self,
        context: Context,
        membership: Membership,
        roster: Roster,
        dissemination: Dissemination,
        publishing: Publishing,
        selection: Selection,
    ) -> None:
        self._context = context
        self._membership = membership
        self._roster = roster
        self._passive = roster.passive
        self._dissemination = dissemination
        self._past = dissemination.past
        self._publishing = publishing
        self._selection = selection
        self._refuted_at_ms = 0
        self._states_version = selection.interest.is_active
        """Somebody wants something, or another node states its version because of that."""

    def start(self, now_ms: int) -> None:
        interval_ms = self._context.cluster.heartbeat_interval_ms
        self._context.timers.set(HeartbeatDue(), now_ms + self._context.random.randrange(interval_ms) + 1)
        self._roster.start(now_ms)
        for entry in self._roster.members():
            if not entry.leaving:
                self._passive.meet(Contact(entry.node_id, entry.address), now_ms)

    # ---- neighbours

    def heartbeat(self, now_ms: int) -> None:
        context, neighbours = self._context, self._context.table.neighbours
        beat = Heartbeat(self._dissemination.holdings.digest, max(now_ms + context.clocks.offset_ms, 0))
        for neighbour in list(neighbours.values()):
            if now_ms - neighbour.heard_at_ms > context.cluster.heartbeat_timeout_ms:
                self._membership.links.silent(neighbour, now_ms)
            else:
                context.out.append(Send(neighbour.conn, beat))
        if former := self._publishing.acks.former_origins():
            for neighbour in neighbours.values():
                if self._knows_held(neighbour):
                    held_call = HeldCall((context.me.node_id, *former[: ORIGINS_MAX - 1]))
                    context.out.append(Send(neighbour.conn, held_call))
        for conn in self._dissemination.sources.busy_helpers():  # else they would take a long transfer for silence
            context.out.append(Send(conn, beat))

    def _knows_held(self, neighbour: Neighbour) -> bool:
        """True if the neighbour's version has `HeldCall` and `AbsentStmt`."""
        link = self._context.calls.get(neighbour.conn)
        return link is not None and link.version >= HELD_VERSION

    def neighbour_up(self, neighbour: Neighbour, now_ms: int) -> None:
        self._report_absent(neighbour, self._roster.absentees(now_ms))
        if self._past.is_asking and (call := self._context.calls.get(neighbour.conn)) is not None:
            self._past.linked(call)

    def neighbour_down(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        contact = neighbour.contact
        self._context.clocks.forget(contact.node_id)
        if self._roster.get(contact.node_id) is None:  # no beacon of it ever came: there is nobody to find again
            self._passive.forget(contact.node_id)
        self._context.out.append(Trace("neighbour-down", (("peer", contact.address), ("why", why))))
        if why in LOST and not self._membership.leaving:
            self._context.calls.dial(contact.address, CheckAlive(contact), now_ms, contact)

    # ---- beacons

    def first_beacon(self, now_ms: int) -> None:
        """This node is on the channel now."""
        self._compare_own_beacons()
        self._update_population()
        delay_ms = 0
        if self._roster.population() > PROMPT_BEACON_NODES:
            delay_ms = self._context.random.randrange(self._roster.interval_ms())
        self._context.timers.set(BeaconDue(), now_ms + delay_ms)

    def beacon(self, now_ms: int, *, leaving: bool = False) -> None:
        neighbours = tuple(self._context.table.neighbours)
        entry = self._roster.beacon(self._publishing.origin_batch, neighbours, leaving, now_ms)
        version = self._context.calls.version_max if self._states_version else 0
        self._membership.links.send_all(BeaconStmt(entry, 1, version))

    def beacon_soon(self, now_ms: int) -> None:
        """The neighbours have changed: while somebody wants something, others hear of it soon, so that all compute
        routes from the graph as it is. Changes in the meantime share a beacon."""
        if self._membership.state is State.FULL and not self._membership.leaving:
            self._context.timers.set_sooner(BeaconDue(), now_ms + PROMPT_BEACON_MS)

    def version_wanted(self, now_ms: int) -> None:
        """Called when a node wants something for the first time: from now on beacons state this node's version, and so
        do those of all nodes that hear it. In large channels each waits for a turn of its own, since all nodes hear of
        it at once."""
        self._states_version = True
        self._compare_own_beacons()
        delay_ms = PROMPT_BEACON_MS
        if self._roster.population() > PROMPT_BEACON_NODES:
            delay_ms += self._context.random.randrange(self._roster.interval_ms())
        if self._membership.state is State.FULL and not self._membership.leaving:
            self._context.timers.set_sooner(BeaconDue(), now_ms + delay_ms)

    def on_beacon(self, sender: Neighbour, beacon: BeaconStmt, now_ms: int) -> None:
        entry = beacon.entry
        if entry.node_id == self._context.me.node_id:
            self._past.heard_own_beacon(entry.incarnation)
            self._roster.heard_own(entry.incarnation, entry.counter)
            self._compare_own_beacons()
        elif self._roster.heard(entry, now_ms, version=beacon.version):
            if beacon.version and not self._states_version:
                self.version_wanted(now_ms)
            if entry.leaving:
                self._passive.forget(entry.node_id)
                self._publishing.acks.gone(entry.node_id)
                self._selection.departed(entry.node_id, now_ms)
            else:
                self._met(entry, now_ms)
                if self._selection.interest.is_active:
                    self._selection.heard(entry.node_id, now_ms)
            self._update_population()
            self._membership.assess_distance(beacon.hops)
            onward = BeaconStmt(entry, min(beacon.hops + 1, 255), beacon.version)
            self._membership.links.send_all(onward, but=sender)

    def _compare_own_beacons(self) -> None:
        """Others take notice of none of this node's beacons before one that is later than those that they have heard.
        In a life that began on an older store that may be never: no row that goes to some nodes would come here."""
        incarnation, counter = self._roster.latest_own
        if self._states_version and (incarnation, counter) > (self._context.incarnation, self._roster.own.counter):
            self._past.heard_later_beacon(incarnation, counter)

    def _met(self, entry: RosterEntry, now_ms: int) -> None:
        contact = Contact(entry.node_id, entry.address)
        self._passive.meet(contact, now_ms)
        if self._past.is_asking:
            self._past.heard_of(contact, now_ms)

    def _update_population(self) -> None:
        self._membership.diameter.resize(self._roster.population())

    # ---- failures and absences

    def accuse(self, lost: Contact, now_ms: int) -> None:
        """A neighbour was lost, and a call to it failed, too."""
        entry = self._roster.get(lost.node_id)
        if entry is not None:
            self.on_failed(None, FailedStmt(entry.node_id, entry.incarnation, entry.counter), now_ms)

    def on_failed(self, sender: Neighbour | None, report: FailedStmt, now_ms: int) -> None:
        if report.node_id == self._context.me.node_id:
            self._roster.heard_own(report.incarnation, report.counter)
            self._compare_own_beacons()
            interval_ms = self._context.cluster.heartbeat_interval_ms
            if report.incarnation == self._context.incarnation and now_ms - self._refuted_at_ms >= interval_ms:
                self._refuted_at_ms = now_ms
                self.beacon(now_ms)
        elif self._roster.failed(report.node_id, report.incarnation, report.counter, now_ms):
            self._context.out.append(Trace("failed", (("node", report.node_id.hex()),)))
            self._publishing.acks.gone(report.node_id)
            self._selection.departed(report.node_id, now_ms)
            self._update_population()
            self._membership.links.send_all(report, but=sender)

    def on_absent(self, sender: Neighbour, report: AbsentStmt, now_ms: int) -> None:
        news = self._roster.take_absent(report.entries, now_ms)
        for entry in news:
            self._met(entry, now_ms)
        for neighbour in list(self._context.table.neighbours.values()):
            if neighbour is not sender:
                self._report_absent(neighbour, news)

    def _report_absent(self, neighbour: Neighbour, absent: tuple[RosterEntry, ...]) -> None:
        if absent and self._knows_held(neighbour):
            self._context.out.append(Send(neighbour.conn, AbsentStmt(absent)))

    def sweep_interest(self, now_ms: int) -> None:
        """Entries of nodes whose beacons are missed are not used any longer."""

        def is_silent(node_id: NodeId, known_since_ms: int) -> bool:
            return self._roster.absent_for(node_id, known_since_ms, now_ms) > 0

        self._selection.interest.sweep(is_silent, now_ms)
        self._selection.sweep(now_ms)
