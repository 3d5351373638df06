"""Gateway propagation (A4): every node learns the links inside its cluster, those between the clusters of its
super-cluster, and so on, each seen from as far away as it is.

A connection of level l is told inside the unit of level l + 1 that both its ends are in, and never outside. When it
crosses a link of level p, its inner end becomes the sender's unit of level p: who is outside a unit needs to know only
that the unit has the gateway. A version in which an end is one of the receiver's own units is dropped: the finer one
comes from inside. So the order in which versions arrive does not matter.

Each end of a connection states, with a generation, that it is up, suspected or removed, and what it costs: the higher
generation of each side counts. A gatekeeper that died with the other end of its link is declared gone by the nodes of
its cluster when they cannot reach it; should it live, it refutes that by a higher generation. Until it has heard of it,
it may match by old wants: so it keeps what it matches while a part of its own unit is out of reach (`Partitions`).
"""

from collections.abc import Iterator
from dataclasses import replace

from m4cast.overlay.federation.graph import ConnectivityGraph, Edge, edge_of
from m4cast.overlay.federation.messages import (
    GateId,
    GatewayConnection,
    GatewayNews,
    GatewaySide,
    GatewayStatus,
    NoteBody,
    RoutedNote,
    WantsNews,
)
from m4cast.overlay.federation.partitions import Partitions
from m4cast.overlay.federation.units import Chain, Unit, UnitRecord, level_between
from m4cast.overlay.federation.vertex import NewsDue, UnitLink, Vertex

EXTRA_MAX = 8
EXTRA_STEP_MS = 10
"""GES A6 (ours): a cost of 1 for each 10 ms that messages wait for the link, at most 8."""
SMOOTHING = 0.3
"""The share of the latest measurement in a link's delay; guess. Higher: quicker to react, and to err."""
NEWS_DUE = NewsDue()


class Gateways:
    """The table of connections and the graph made of it."""

    def __init__(self, vertex: Vertex) -> None:
        self._vertex = vertex
        self.graph = ConnectivityGraph(vertex.me, vertex.top)
        self.partitions = Partitions(vertex, self.graph)
        self.connections: dict[bytes, GatewayConnection] = {}
        self.removed: dict[bytes, tuple[GatewayConnection, int]] = {}
        """Removed connections, and the times: remembered for a while, so that older news does not revive them."""
        self._alive: dict[int, dict[bytes, None]] = {level: {} for level in range(vertex.top + 1)}
        """Level -> connections whose ends, one or both, have not been removed."""
        self.revisions = [0] * (vertex.top + 1)
        """The number of changes of connections up to each level: the last counts all changes."""
        self.losses = 0
        """Counts connections that were removed or forgotten."""
        self._own: dict[bytes, UnitLink] = {}
        self._coarse: dict[bytes, tuple[GatewayConnection, int]] = {}
        """Gateways that others believe an own unit to have, and that nobody inside has told of -> since when."""
        self._denied: dict[bytes, None] = {}
        self._lost: dict[bytes, int] = {}
        """Connections of which an end in the own cluster, or both ends, cannot be reached -> since when."""
        self._checked = (-1, -1)
        """The revisions of the table and of the records at the last check."""
        self.burials = 0
        """The number of times that this node heard that it had been buried."""
        self._gates: dict[int, tuple[int, tuple[tuple[GateId, ...], tuple[GateId, ...]]]] = {}
        """Level -> the revision, and by it the gates, and those that are this node's."""
        self.notes: list[tuple[NoteBody, tuple[GateId, ...]]] = []
        """Notes for this node, with the gates that they were sent to: they are handled next."""

    # ---- own links

    def link_up(self, link: UnitLink, connection: bytes) -> None:
        """The link's level is known: make its connection, and tell the other end everything (G-M9, G-M11)."""
        vertex = self._vertex
        link.level = level_between(vertex.chain, link.peer)
        link.connection = connection
        link.side = 0 if vertex.me.id < link.peer[0] else 1
        near, far = vertex.me, Unit(link.level, link.peer[link.level])
        mine, theirs = vertex.address, link.address
        self._own[connection] = link
        self._send_whole(link)
        self.learn(
            GatewayConnection(
                id=connection,
                level=link.level,
                ends=(near, far) if link.side == 0 else (far, near),
                sides=(GatewaySide(1), GatewaySide(1)),
                addresses=(mine, theirs) if link.side == 0 else (theirs, mine),
            )
        )

    def link_down(self, link: UnitLink) -> None:
        if self._own.pop(link.connection, None) is not None:
            self._state(link, status=GatewayStatus.REMOVED)

    def suspect(self, link: UnitLink) -> None:
        link.is_suspected = link.is_behind = True
        self._state(link, status=GatewayStatus.SUSPECTED)

    def restore(self, link: UnitLink) -> None:
        link.is_suspected = False
        self._state(link, status=GatewayStatus.UP)

    def _state(self, link: UnitLink, *, status: GatewayStatus | None = None, extra: int | None = None) -> None:
        connection = self._held(link.connection)
        if connection is None:
            return
        side = connection.sides[link.side]
        self._learn_side(
            connection,
            link.side,
            GatewaySide(
                side.generation + 1,
                side.status if status is None else status,
                side.extra if extra is None else extra,
            ),
        )

    def _learn_side(self, connection: GatewayConnection, at: int, side: GatewaySide) -> None:
        sides = (side, connection.sides[1]) if at == 0 else (connection.sides[0], side)
        self.learn(replace(connection, sides=sides))

    def load(self, link: UnitLink, delay_ms: int) -> None:
        link.delay_ms += SMOOTHING * (delay_ms - link.delay_ms)

    def check_loads(self) -> None:
        """A rise is told when two checks in a row found it; a fall goes one step at a time (G25: no flapping)."""
        for link in list(self._own.values()):
            found = min(EXTRA_MAX, int(link.delay_ms // EXTRA_STEP_MS))
            extra = link.extra
            if found > link.extra and link.extra_seen > link.extra:
                extra = min(found, link.extra_seen)
            elif found < link.extra:
                extra = link.extra - 1
            link.extra_seen = found
            if extra != link.extra:
                link.extra = extra
                self._state(link, extra=extra)

    # ---- learning

    def learn(self, news: GatewayConnection, sender: UnitLink | None = None) -> bool:
        """Take what is newer; False if nothing was."""
        held = self._held(news.id)
        if held is not None and held.sides == news.sides:
            return False  # most news comes by several ways
        own = self._own.get(news.id)
        if own is not None and sender is not None:
            self._hear_burial(own, news.sides[own.side])
        if held is None and sender is not None and self._is_coarse(news):
            self._coarse.setdefault(news.id, (news, self._vertex.now_ms))
            return False
        finer = news if held is None or self._is_coarse(held) else held
        sides = news.sides if held is None else _later_sides(held, news)
        merged = finer if finer.sides == sides else replace(finer, sides=sides)
        if sender is not None and sender.level <= merged.level and merged.sides != news.sides:
            sender.news[news.id] = None  # it has missed something
            self.news_due()
        if held is not None and merged.sides == held.sides:
            return False
        if merged.status is not GatewayStatus.REMOVED and self._is_coarse(merged):
            if self.removed.pop(news.id, None) is not None:
                self._drop(merged)
            return False  # refuted: some other part of the own unit has the gateway
        if own is not None and sender is not None and merged.sides[own.side] != held_side(held, own.side):
            self._refute(merged, own)
            return True
        self._store(merged)
        self._tell(merged.id, sender)
        if own is None and self._vertex.me in merged.ends:
            self._disown(merged)
        return True

    def _hear_burial(self, own: UnitLink, stated: GatewaySide) -> None:
        """Others declared this node's end gone, once for each generation. It counts even if the end has a higher one by
        now: somebody believed it."""
        if stated.status is GatewayStatus.REMOVED and stated.generation > own.buried:
            own.buried = stated.generation
            self.burials += 1

    def _disown(self, connection: GatewayConnection) -> None:
        """A link of this node from before it restarted: nobody else can say that this end of it is gone."""
        at = connection.ends.index(self._vertex.me)
        side = connection.sides[at]
        if side.status is not GatewayStatus.REMOVED:
            self._learn_side(connection, at, GatewaySide(side.generation + 1, GatewayStatus.REMOVED))

    def _held(self, connection: bytes) -> GatewayConnection | None:
        found = self.connections.get(connection)
        if found is None and connection in self.removed:
            found, _ = self.removed[connection]
        return found

    def _is_coarse(self, connection: GatewayConnection) -> bool:
        """True if an end is one of the own units, as others see it."""
        (low, low_id), (high, high_id) = connection.ends
        place = self._vertex.place
        return (low >= 1 and place[low] == low_id) or (high >= 1 and place[high] == high_id)

    def _refute(self, merged: GatewayConnection, own: UnitLink) -> None:
        """Others declared this node's end gone, or speak of a state that it is not in."""
        status = GatewayStatus.SUSPECTED if own.is_suspected else GatewayStatus.UP
        generation = merged.sides[own.side].generation + 1
        self._learn_side(merged, own.side, GatewaySide(generation, status, own.extra))

    def _store(self, connection: GatewayConnection) -> None:
        self._count_change(connection)
        edge, status = _edge(connection), connection.status
        self.connections.pop(connection.id, None)
        self.removed.pop(connection.id, None)
        if status is GatewayStatus.REMOVED:
            self.losses += 1
            self.removed[connection.id] = (connection, self._vertex.now_ms)
        else:
            self.connections[connection.id] = connection
        if all(side.status is GatewayStatus.REMOVED for side in connection.sides):
            self._alive[connection.level].pop(connection.id, None)
        else:
            self._alive[connection.level][connection.id] = None
        if status is GatewayStatus.UP:
            self.graph.put(edge, connection.id, connection.extra)
        else:
            self.graph.remove(edge, connection.id)

    def _count_change(self, connection: GatewayConnection) -> None:
        for level in range(connection.level, self._vertex.top + 1):
            self.revisions[level] += 1

    # ---- telling

    def _tell(self, connection: bytes, sender: UnitLink | None) -> None:
        level, is_due = self.known(connection).level, False
        for link in self._vertex.links.values():
            if link.peer and link is not sender and link.level <= level:
                link.news[connection] = None
                is_due = True
        if is_due:
            self.news_due()

    def known(self, connection: bytes) -> GatewayConnection:
        return self.connections.get(connection) or self.removed[connection][0]

    def tell_record(self, record: UnitRecord, sender: UnitLink | None) -> None:
        """A record is told inside the unit that it names as parent."""
        for link in self._vertex.ready_links():
            if link is not sender and link.level <= record.unit.level:
                link.news_of_units[record.unit] = None
                self.news_due()

    def news_due(self) -> None:
        self._vertex.timers.set_sooner(NEWS_DUE, self._vertex.now_ms + self._vertex.settings.news_delay_ms)

    def _send_whole(self, link: UnitLink) -> None:
        records = tuple(each for each in self._vertex.records.values() if each.unit.level >= link.level)
        known = [*self.connections.values(), *(connection for connection, _ in self.removed.values())]
        told = tuple(self._rewritten(each, link.level) for each in known if each.level >= link.level)
        self._vertex.send(link, GatewayNews(records, told, is_whole=self._vertex.is_synced))

    def send_news(self) -> None:
        for link in self._vertex.ready_links():
            if not link.news and not link.news_of_units:
                continue
            known = [each for each in link.news if each in self.connections or each in self.removed]
            records = [self._vertex.records.get(unit) for unit in link.news_of_units]
            news = GatewayNews(
                tuple(record for record in records if record is not None),
                tuple(self._rewritten(self.known(each), link.level) for each in known),
            )
            link.news, link.news_of_units = {}, {}
            self._vertex.send(link, news)

    def _rewritten(self, connection: GatewayConnection, level: int) -> GatewayConnection:
        """The form in which it is told over a link of this level: an inner end becomes the own unit of that level."""
        if level == 0 or connection.level == 0:
            return connection
        near = self._vertex.unit(level)
        one, other = (near if end.level < connection.level and level > end.level else end for end in connection.ends)
        return connection if (one, other) == connection.ends else replace(connection, ends=(one, other))

    # ---- gatekeepers

    def gates(self, level: int) -> tuple[GateId, ...]:
        """Return the holders of the wants of the own unit of this level (P^l): its gatekeepers of the level, seen from
        here; where it has none, those of the highest level below that it has (A11.7). Empty: this node alone."""
        return self._gates_of(level)[0]

    def own_gates(self, level: int) -> tuple[GateId, ...]:
        """Those of `gates` that are this node."""
        return self._gates_of(level)[1]

    def _gates_of(self, level: int) -> tuple[tuple[GateId, ...], tuple[GateId, ...]]:
        revision = self.revisions[min(level, self._vertex.top)]
        found = self._gates.get(level)
        if found is None or found[0] != revision:
            gates = self._find_gates(level)
            found = self._gates[level] = (revision, (gates, tuple(gate for gate in gates if self.is_own(gate))))
        return found[1]

    def _find_gates(self, level: int) -> tuple[GateId, ...]:
        me, removed = self._vertex.me, GatewayStatus.REMOVED
        for lower in range(min(level, self._vertex.top), -1, -1):
            gates: list[GateId] = []
            for each in self.of_level(lower):
                for side, (stated, end) in enumerate(zip(each.sides, each.ends, strict=True)):
                    if stated.status is not removed and (lower < level or end.level < level or end == me):
                        gates.append(GateId(each.id, side))
            if gates:
                return tuple(gates)
        return ()

    def of_level(self, level: int) -> Iterator[GatewayConnection]:
        """Connections of a level whose ends, one or both, have not been removed."""
        return (self.known(each) for each in self._alive[level])

    def half_removed(self) -> list[GatewayConnection]:
        """Connections that one end has given up, and the other not yet: it may still act as gatekeeper by them."""
        return [self.removed[each][0] for alive in self._alive.values() for each in alive if each in self.removed]

    def is_gate(self, gate: GateId) -> bool:
        """True unless the gatekeeper, or another node for it, has reported that it no longer is one."""
        connection = self._held(gate.connection)
        return connection is not None and connection.sides[gate.side].status is not GatewayStatus.REMOVED

    def is_own(self, gate: GateId) -> bool:
        own = self._own.get(gate.connection)
        return own is not None and own.side == gate.side

    def holds(self, level: int) -> bool:
        """True if this node holds the wants of its unit of this level."""
        gates, own = self._gates_of(level)
        return bool(own) or not gates

    def may_match(self, level: int) -> bool:
        """True if this node can match for its unit of this level. If it holds the unit's wants only because it knows of
        no gatekeeper, it may be cut off from the nodes that know one: units beside its own that it cannot reach say
        so."""
        gates = self.gates(level)
        highest = self.known(gates[0].connection).level if gates else -1
        return self.holds(level) and not any(self.is_parted(between) for between in range(highest + 1, level))

    def unit_of(self, gate: GateId) -> Unit | None:
        """Return the unit of the gatekeeper, as seen from here."""
        connection = self._held(gate.connection)
        return None if connection is None else connection.ends[gate.side]

    # ---- messages to gatekeepers and nodes

    def send_note(self, body: NoteBody) -> None:
        self.pass_on(RoutedNote(body, ()))

    def pass_on(self, note: RoutedNote) -> None:
        """Take what is for this node, and send the rest on: one copy per link. What has no way is dropped: whoever sent
        it tries again."""
        body = note.body
        if not isinstance(body, WantsNews):
            self._pass_to_node(note, body.to)
            return
        mine = tuple(gate for gate in body.to if self.is_own(gate))
        if mine:
            self.notes.append((body, mine))
        by_link: dict[int, list[GateId]] = {}
        for gate in body.to:
            unit = self.unit_of(gate)
            link = None if unit is None or gate in mine else self.link_towards(unit, note.trail)
            if link is not None:
                by_link.setdefault(link.conn, []).append(gate)
        for conn, gates in by_link.items():
            self._send_note(self._vertex.links[conn], RoutedNote(replace(body, to=tuple(gates)), note.trail))

    def _pass_to_node(self, note: RoutedNote, to: Chain) -> None:
        if to[0] == self._vertex.me.id:
            self.notes.append((note.body, ()))
            return
        link = self.link_towards(self.towards(to), note.trail)
        if link is not None:
            self._send_note(link, note)

    def towards(self, to: Chain) -> Unit:
        """The unit that a node is in, as it is seen from here."""
        level = level_between(self._vertex.chain, to)
        return Unit(level, to[level])

    def link_towards(self, unit: Unit, trail: tuple[Unit, ...]) -> UnitLink | None:
        path = self.graph.path(unit, trail)
        return None if path is None else self._vertex.link_to(path.next_hop())

    def _send_note(self, link: UnitLink, note: RoutedNote) -> None:
        self._vertex.send(link, RoutedNote(note.body, crossed(note.trail, self._vertex.unit(link.level))))

    # ---- what cannot be reached

    def check_reach(self) -> None:
        """Declare gatekeepers of the own cluster gone that stay out of reach; forget what is stale; see partitions."""
        settings, now_ms = self._vertex.settings, self._vertex.now_ms
        if self._checked == (self.revisions[-1], self._vertex.revision) and not self._lost and not self._coarse:
            return  # most checks find that nothing has changed
        self._checked = (self.revisions[-1], self._vertex.revision)
        lost: dict[bytes, int] = {}
        for each in [*self.connections.values(), *self.half_removed()]:
            if each.id in self._own:
                continue
            dead = [side for side in (0, 1) if self._is_dead(each, side)]
            if each.id in self.removed and not dead:
                continue
            if not dead and (each.level == 0 or any(self.is_reached(end) for end in each.ends)):
                continue
            lost[each.id] = since_ms = self._lost.get(each.id, now_ms)
            if dead and now_ms - since_ms >= settings.bury_ms and self._has_company():
                side = each.sides[dead[0]]
                gone = GatewaySide(side.generation + 1, GatewayStatus.REMOVED, side.extra)
                self._learn_side(each, dead[0], gone)
            elif now_ms - since_ms >= settings.stale_ms and each.id in self.connections:
                self._forget(each)
        self._lost = lost
        self._deny_coarse()
        for connection, (_, at_ms) in list(self.removed.items()):
            if now_ms - at_ms >= 2 * settings.stale_ms:
                self._drop(self.removed.pop(connection)[0])
                self._denied.pop(connection, None)
        self.partitions.check()

    def _deny_coarse(self) -> None:
        """Deny, once, gateways of own units that nobody inside knows: both ends may have restarted. If the unit is
        split and another part has it, that part refutes it."""
        for connection, (coarse, since_ms) in list(self._coarse.items()):
            if self._held(connection) is not None or connection in self._denied:
                del self._coarse[connection]
            elif self._vertex.now_ms - since_ms >= self._vertex.settings.bury_ms and self._vertex.is_synced:
                del self._coarse[connection]
                self._denied[connection] = None
                at = next(side for side, end in enumerate(coarse.ends) if self._vertex.is_mine(end))
                side = coarse.sides[at]
                self._learn_side(coarse, at, GatewaySide(side.generation + 1, GatewayStatus.REMOVED, side.extra))

    def _is_dead(self, connection: GatewayConnection, side: int) -> bool:
        """True if an end that has not been removed is a node of the own cluster that cannot be reached."""
        end, status = connection.ends[side], connection.sides[side].status
        return end.level == 0 and status is not GatewayStatus.REMOVED and not self.is_reached(end)

    def _has_company(self) -> bool:
        """True if another node of the cluster is in reach: a node that is alone declares none dead."""
        return bool(self._vertex.links_of(0))

    def is_reached(self, unit: Unit) -> bool:
        return self._vertex.is_mine(unit) or self.graph.path(unit) is not None

    def _forget(self, connection: GatewayConnection) -> None:
        del self.connections[connection.id]
        self.graph.remove(_edge(connection), connection.id)
        self._drop(connection)

    def is_troubled(self) -> bool:
        """True if a unit cannot be reached, or a gatekeeper is lost: the present state may then change with time
        alone."""
        return bool(self._lost or self._coarse or self.partitions)

    def _drop(self, connection: GatewayConnection) -> None:
        self._count_change(connection)
        self.losses += 1
        self._alive[connection.level].pop(connection.id, None)

    def is_parted(self, level: int) -> bool:
        """True if a unit beside the own one of this level cannot be reached, and may come back."""
        return self.partitions.is_parted(level)


def held_side(held: GatewayConnection | None, side: int) -> GatewaySide | None:
    return None if held is None else held.sides[side]


def _later_sides(held: GatewayConnection, news: GatewayConnection) -> tuple[GatewaySide, GatewaySide]:
    one, other = (max(pair, key=_rank) for pair in zip(held.sides, news.sides, strict=True))
    return one, other


def _rank(side: GatewaySide) -> tuple[int, int, int]:
    """Others may speak for an end at the same time as the end itself: of equal generations the graver state counts, so
    that all nodes decide alike."""
    return side.generation, side.status, side.extra


def _edge(connection: GatewayConnection) -> Edge:
    return edge_of(*connection.ends, connection.level)


def crossed(trail: tuple[Unit, ...], unit: Unit) -> tuple[Unit, ...]:
    """The trail after leaving the unit: what lies below its level means nothing outside."""
    return (*(each for each in trail if each.level >= unit.level), unit)
