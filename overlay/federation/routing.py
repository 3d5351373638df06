"""Event routing (A13): a batch, and what is left to do for it.

A copy carries *charges*: `UNIT u`, bring it into u; `NEED u`, bring it to a gatekeeper of u, to have u's sub-units
matched. The node where it is published issues a need for each of its units, up to the whole federation. Whoever can
carry a charge out does, and issues what follows; everything else goes to the next hop, one copy per link with all that
goes this way. Each charge has a *trail* of the units that it crossed: views of foreign units are coarse, and without it
two units may each take the other for nearer.

Nothing is forgotten: a copy is on disk, with its charges, before it is acknowledged to the neighbour; it stays there
until each charge is carried out or acknowledged by the next hop; what has no way is kept, and tried again when the
graph changes. A charge that is tried another way gets a higher *turn*, unique to the node that does so. A copy is a
duplicate, and ends, where the same or a higher turn of its charge has been, or where the charge was carried out: the
copy with the highest turn is never dropped, since its trail keeps it from coming back.

A match is *in doubt* while part of the unit is out of reach: that part may have buried this node, and then wants are
confirmed that it does not know. The batch stays on disk with its need, which is carried out again when the unit is
whole, or when this node has heard that it was buried. Units that were charged with it are not charged again.

Batches are delivered once: what a node has had is remembered, the last `events_max` of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from m4cast.overlay.federation.answers import Answers
from m4cast.overlay.federation.contract import (
    DeliverEvent,
    KeepValue,
    KeptClient,
    KeptEvent,
    MatchedUnits,
    UnsendCopies,
)
from m4cast.overlay.federation.gateways import Gateways, crossed
from m4cast.overlay.federation.interest import UnitInterest
from m4cast.overlay.federation.messages import (
    CarriedCharge,
    Charge,
    ChargeKind,
    EventCopy,
    EventId,
    Turn,
    UnitEvent,
)
from m4cast.overlay.federation.roaming import Roaming
from m4cast.overlay.federation.units import Chain, Unit
from m4cast.overlay.federation.vertex import SentCopy, StuckDue, UnitLink, Vertex


@dataclass(slots=True)
class EventState:
    """A batch at this node."""

    id: EventId
    event: UnitEvent | None
    """None: done with; what is left only tells copies that come again."""
    served: Chain = ()
    served_from: int = 0
    open: dict[Charge, CarriedCharge] = field(default_factory=dict)
    """The charges that this node is responsible for: kept, or sent and not acknowledged."""
    stuck: dict[Charge, None] = field(default_factory=dict)
    """Those of the open charges that have no route."""
    taken: dict[Charge, Turn | None] = field(default_factory=dict)
    is_delivered: bool = False


NEVER = -1
SETTLED_AT_ONCE = 1_024
"""Batches in doubt that are matched again at one check: there may be as many as were published in `absent_ms`. Guess.
More: the node does nothing else for longer."""


class EventRouting:
    def __init__(
        self, vertex: Vertex, gateways: Gateways, interest: UnitInterest, answers: Answers, roaming: Roaming
    ) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self._interest = interest
        self._answers = answers
        self._roaming = roaming
        self.events: dict[EventId, EventState] = {}
        """Events in the order of their arrival."""
        self._stuck: dict[EventId, None] = {}
        self.doubted: dict[EventId, dict[Charge, tuple[CarriedCharge, int]]] = {}
        """Needs that were carried out here in doubt, and when. On disk they are open: a restart carries them out
        again."""
        self._settled = (gateways.partitions.apart, NEVER)
        """The lowest level that is not whole, and the time before which there are no doubts otherwise."""
        self._unsettled: list[EventId] = []
        """Batches that are still to be looked at for these."""
        self._buried_ms = NEVER
        """The last time at which this node heard that it had been buried."""
        self._touched: dict[EventId, None] = {}

    def recover(self, kept: Iterable[tuple[EventId, KeptEvent]]) -> None:
        for event_id, each in kept:
            state = self.events[event_id] = EventState(event_id, each.event, each.served, each.served_from)
            state.open = {carried.charge: carried for carried in each.open}
            state.taken, state.is_delivered = dict(each.taken), each.is_delivered
            for charge in state.open:
                self._keep_stuck(state, charge)

    # ---- in

    def publish(self, event: UnitEvent) -> None:
        """Issue a batch of this node's own."""
        if event.id in self.events:
            return
        vertex = self._vertex
        issued = replace(event, origin=vertex.chain)
        state = self.events[event.id] = EventState(event.id, issued, vertex.chain)
        self._deliver(state)
        turn = Turn(0, vertex.me.id)
        is_quenched = self._answers.is_quenched(event.topic)
        levels = range(1, 1 if is_quenched else vertex.top + 2)
        needs = [Charge(ChargeKind.NEED, vertex.unit(level)) for level in levels]
        self._work(state, [CarriedCharge(charge, turn) for charge in needs])

    def hand_over(self, name: str, event: UnitEvent) -> None:
        """Send a batch that is here to a client that has moved to another node."""
        gone = self._roaming.gone(name)
        if gone is not None:
            self._work(self._state(event), [self._handed(name, gone, Turn(0, self._vertex.me.id))])

    def _handed(self, name: str, gone: KeptClient, turn: Turn) -> CarriedCharge:
        charge = Charge(ChargeKind.HAND, Unit(0, gone.to[0]), name, gone.incarnation)
        return CarriedCharge(charge, turn, chain=gone.to)

    def _state(self, event: UnitEvent) -> EventState:
        state = self.events.setdefault(event.id, EventState(event.id, None))
        state.event = event
        return state

    def receive(self, copy: EventCopy) -> None:
        state = self._state(copy.event)
        if not state.served or copy.served_from < state.served_from:
            state.served, state.served_from = copy.served, copy.served_from
        self._deliver(state)
        self._work(state, [*copy.charges, *self._late(state)])

    def _late(self, state: EventState) -> list[CarriedCharge]:
        """A batch that was on its way here when a client left goes after it."""
        assert state.event is not None
        turn = Turn(0, self._vertex.me.id)
        late = [(name, self._roaming.gone(name)) for name in self._roaming.late(state.event)]
        return [self._handed(name, gone, turn) for name, gone in late if gone is not None]

    # ---- work

    def _deliver(self, state: EventState) -> None:
        if state.is_delivered or state.event is None:
            return
        names = tuple(name for name in self._interest.names_for(state.event) if self._roaming.gone(name) is None)
        if names:
            state.is_delivered = True
            self._touched[state.id] = None
            self._vertex.out.append(DeliverEvent(state.event, names))
            self._interest.saw(names, self._issued_in(state))

    def _issued_in(self, state: EventState) -> int:
        """The lowest level of an own unit that the batch was issued in."""
        shared = (
            level
            for level, unit in enumerate(state.served, start=state.served_from)
            if unit == self._vertex.chain[level]
        )
        return next(shared, self._vertex.top + 1)

    def _work(self, state: EventState, work: list[CarriedCharge]) -> None:
        """Carry out what can be carried out here, and send the rest on."""
        self._touched[state.id] = None
        by_link: dict[int, list[CarriedCharge]] = {}
        while work:
            carried = work.pop(0)
            charge = carried.charge
            if charge in state.taken:
                before = state.taken[charge]
                if before is None or carried.turn <= before:
                    continue
            state.taken[charge] = carried.turn
            follows = self._carried_out(state, carried)
            if follows is not None:
                state.taken[charge] = None
                state.open.pop(charge, None)
                if charge.kind is ChargeKind.NEED and charge.unit.level > self._gateways.partitions.apart:
                    self.doubted.setdefault(state.id, {})[charge] = (carried, self._vertex.now_ms)
                work += follows
                continue
            state.open[charge] = carried
            link = self._next_link(carried)
            if link is None:
                self._keep_stuck(state, charge)
            else:
                by_link.setdefault(link.conn, []).append(carried)
        self._send(state, by_link)

    def _carried_out(self, state: EventState, carried: CarriedCharge) -> list[CarriedCharge] | None:
        """Return the charges that follow from one that this node can carry out; None if it cannot."""
        kind, unit = carried.charge[:2]
        if not self._can_carry_out(carried.charge):
            return None
        turn = Turn(carried.turn.attempt, self._vertex.me.id)
        if kind is ChargeKind.HAND:
            return self._hand(state, carried, turn)
        if kind is ChargeKind.UNIT:
            if unit.level == 0:
                return []
            return [CarriedCharge(Charge(ChargeKind.NEED, unit), turn)]
        hits = self._hits(state, unit.level)
        self._vertex.out.append(MatchedUnits(state.id, unit, tuple(hits)))
        assert state.event is not None
        self._answers.matched(state.event, unit.level, hits)
        return [CarriedCharge(Charge(ChargeKind.UNIT, hit), turn) for hit in hits]

    def _can_carry_out(self, charge: Charge) -> bool:
        if charge.kind is ChargeKind.NEED:  # always for the unit where it is: it does not leave it, even if that merges
            return self._vertex.is_synced and self._gateways.may_match(charge.unit.level)
        return self._vertex.is_mine(charge.unit)

    def _hand(self, state: EventState, carried: CarriedCharge, turn: Turn) -> list[CarriedCharge]:
        """A batch for a client that moved here; it may have moved on."""
        assert state.event is not None
        name = carried.charge.client
        gone = self._roaming.gone(name)
        if gone is not None:
            return [self._handed(name, gone, turn)]
        self._vertex.out.append(DeliverEvent(state.event, (name,), is_handed_over=True))
        return []

    def _hits(self, state: EventState, level: int) -> list[Unit]:
        """The sub-units of the own unit that get the batch. Where it was issued, those that it was issued in have needs
        of their own."""
        if level > self._vertex.top and not self._vertex.settings.top_filter:
            hits = [self._vertex.unit(level - 1), *self._gateways.graph.units(level - 1)]
        else:
            assert state.event is not None
            hits = self._interest.tables.hits(level, state.event)
        served = dict(enumerate(state.served, start=state.served_from))
        is_issuing = level > self._vertex.top or served.get(level) == self._vertex.chain[level]
        return [hit for hit in hits if not is_issuing or hit.id != served.get(level - 1)]

    def _next_link(self, carried: CarriedCharge) -> UnitLink | None:
        kind, unit = carried.charge[:2]
        graph = self._gateways.graph
        if kind is ChargeKind.HAND:
            path = graph.path(self._gateways.towards(carried.chain), carried.trail)
        elif kind is ChargeKind.UNIT:
            path = graph.path(unit, carried.trail)
        elif self._vertex.is_synced:
            units = (self._gateways.unit_of(gate) for gate in self._gateways.gates(unit.level))
            path = graph.nearest(dict.fromkeys(each for each in units if each is not None), carried.trail)
        else:
            path = None
        return None if path is None else self._vertex.link_to(path.next_hop())

    def _send(self, state: EventState, by_link: dict[int, list[CarriedCharge]]) -> None:
        assert state.event is not None
        for conn, charges in by_link.items():
            link = self._vertex.links[conn]
            unit = self._vertex.unit(link.level)
            link.last_number += 1
            link.unacked[link.last_number] = SentCopy(state.id, tuple(charges), self._vertex.now_ms)
            served_from = max(state.served_from, link.level)
            copy = EventCopy(
                number=link.last_number,
                event=state.event,
                served=state.served[served_from - state.served_from :],
                served_from=served_from,
                charges=tuple(replace(each, trail=crossed(each.trail, unit)) for each in charges),
            )
            self._vertex.send(link, copy)

    # ---- acknowledged, and not

    def acknowledged(self, link: UnitLink, number: int) -> None:
        for each in [each for each in link.unacked if each <= number]:
            sent = link.unacked.pop(each)
            state = self.events[sent.event]
            for carried in sent.charges:
                if state.open.get(carried.charge) == carried:
                    del state.open[carried.charge]
            self._touched[sent.event] = None

    def withdraw(self, link: UnitLink) -> None:
        """The link is gone or suspected: what it has not acknowledged goes another way, in order, before anything
        newer (A16)."""
        unacked, link.unacked = link.unacked, {}
        if unacked:
            self._vertex.out.append(UnsendCopies(link.conn, tuple(unacked)))
        for sent in unacked.values():
            state = self.events[sent.event]
            again = [each for each in sent.charges if state.open.get(each.charge) == each]
            if again:
                self._work(state, [replace(each, turn=self._later(state, each)) for each in again])

    def _later(self, state: EventState, carried: CarriedCharge) -> Turn:
        latest = state.taken.get(carried.charge) or carried.turn
        return Turn(max(latest, carried.turn).attempt + 1, self._vertex.me.id)

    # ---- stuck

    def _keep_stuck(self, state: EventState, charge: Charge) -> None:
        state.stuck[charge] = None
        self._stuck[state.id] = None
        settings = self._vertex.settings
        self._vertex.timers.set_sooner(StuckDue(), self._vertex.now_ms + settings.retry_ms)

    def retry(self) -> None:
        """Try what is stuck again: first as it was, then without its trail. The pace keeps two nodes that disagree from
        sending a batch to and fro. What has no way yet is left as it is: while a unit is out of reach, there may be
        very many of these, and nothing new is to be kept of them."""
        stuck, self._stuck = self._stuck, {}
        known: dict[tuple[object, ...], bool] = {}
        for event_id in stuck:
            state = self.events[event_id]
            charges, state.stuck = state.stuck, {}
            again = []
            for charge in charges:
                carried = state.open.get(charge)
                if carried is None:
                    continue
                way = (charge.kind, charge.unit, carried.chain, carried.trail)
                if way not in known:
                    known[way] = self._has_way(carried)
                if not known[way]:
                    self._keep_stuck(state, charge)
                    continue
                if self._next_link(carried) is None:
                    carried = replace(carried, trail=())
                again.append(replace(carried, turn=self._later(state, carried)))
            if again:
                self._work(state, again)

    def _has_way(self, carried: CarriedCharge) -> bool:
        """True if it can be carried out here, or sent on, at least without its trail."""
        if self._can_carry_out(carried.charge):
            return True
        ways = (carried, replace(carried, trail=()))
        return any(self._next_link(each) is not None for each in ways)

    def sync_retry(self) -> None:
        """Retry at once what waited for the first news of a neighbour, regardless of the pace."""
        if self._stuck:
            self.retry()

    # ---- in doubt

    def buried(self) -> None:
        """This node heard that it had been buried."""
        self._buried_ms = self._vertex.now_ms

    def settle(self) -> None:
        """Carry out again what is no longer in doubt, and what was carried out before this node heard that it had been
        buried. In the latter case announcers have a moment to speak first: units that they have not spoken for get
        everything."""
        is_fresh = self._vertex.now_ms - self._buried_ms < self._vertex.settings.retry_ms
        buried_ms = self._settled[1] if is_fresh else self._buried_ms
        settled = (self._gateways.partitions.apart, buried_ms)
        if settled != self._settled:
            self._settled, self._unsettled = settled, list(self.doubted)
        due, self._unsettled = self._unsettled[:SETTLED_AT_ONCE], self._unsettled[SETTLED_AT_ONCE:]
        for event_id in due:
            self._match_again(self.events[event_id], *settled)

    def _match_again(self, state: EventState, apart: int, buried_ms: int) -> None:
        doubted = self.doubted[state.id]
        again = [
            carried for charge, (carried, at_ms) in doubted.items() if charge.unit.level <= apart or at_ms <= buried_ms
        ]
        for carried in again:
            del state.taken[carried.charge]
        if again:
            self._work(state, [self._as_new(state, carried) for carried in again])
        for carried in again:
            doubted.pop(carried.charge, None)
        if not doubted:
            del self.doubted[state.id]

    def _as_new(self, state: EventState, carried: CarriedCharge) -> CarriedCharge:
        """Here, the turn that it had keeps units from being charged again; elsewhere, it would make it a duplicate."""
        if self._can_carry_out(carried.charge):
            return carried
        return replace(carried, turn=self._later(state, carried), trail=())

    # ---- what is kept

    def flush(self) -> None:
        """Keep what changed, once per input, and let go of batches that are done with."""
        touched, self._touched = self._touched, {}
        for event_id in touched:
            state = self.events[event_id]
            doubted = self.doubted.get(event_id, {})
            if state.open or doubted:
                kept = KeptEvent(
                    event=state.event,
                    served=state.served,
                    served_from=state.served_from,
                    open=(*state.open.values(), *(carried for carried, _ in doubted.values())),
                    taken=tuple(each for each in state.taken.items() if each[0] not in doubted),
                    is_delivered=state.is_delivered,
                )
                self._vertex.out.append(KeepValue(("event", event_id), kept))
            else:
                state.event = None
                done = KeptEvent(None, is_delivered=True) if state.is_delivered else None
                self._vertex.out.append(KeepValue(("event", event_id), done))
        self._shed()

    def _shed(self) -> None:
        """Forget the oldest batches that are done with, beyond `events_max`."""
        excess = len(self.events) - self._vertex.settings.events_max
        if excess <= 0:
            return
        done = (event_id for event_id, state in self.events.items() if not state.open and event_id not in self.doubted)
        for event_id in list(islice(done, excess)):
            del self.events[event_id]
            self._vertex.out.append(KeepValue(("event", event_id), None))
