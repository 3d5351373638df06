"""Places that are access points, and clients that use them.

A place has, durably, its rows of the client table, the states of its clients and the lease that it holds for them; its
view of other places' rows is gone after a crash. A portion of rows travels by itself: its client may die in between.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients import access_point
from m4cast.overlay.protocol.clients.access_point import Attachment, AttachRefusal, AttachRequest, SeenRow
from m4cast.overlay.protocol.clients.memory import ClientMemory, ClientRead
from m4cast.overlay.protocol.clients.state import ClientProfile, ClientState, Frontier, floor_of
from m4cast.overlay.protocol.effects import ClientRow
from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.clients.application import Application, SimTable, Value, matches

Rows = dict[str, dict[str, list[Value]]]
"""Everything that was published: topic -> origin -> values, the first under sequence 1."""
PORTION = 5


@dataclass
class ClientEntry:
    """The client rows of one place, as it or another one has them."""

    version: int = 0
    rows: dict[str, ClientRow] = field(default_factory=dict)


@dataclass
class Saved:
    """A stored state, and what the application was owed when it was saved."""

    state: ClientState
    owed: Application
    number: int


@dataclass
class ClientPortion:
    """Rows of one stream on their way to a client."""

    read: ClientRead
    topic: str
    origin: str
    sequences: list[int]
    until: int


class ClientPlace:
    def __init__(self, number: int, topics: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self.node_id = NodeId(number.to_bytes(16, "big"))
        self.up = True
        self.frozen = False
        """It runs, and does nothing: SIGSTOP, or a disk that hangs. What it had in memory is there afterwards."""
        self.lows: Frontier = {topic: dict.fromkeys(origins, 1) for topic in topics}
        self.nexts: Frontier = {topic: dict.fromkeys(origins, 1) for topic in topics}
        self.entry = ClientEntry()
        self.states: dict[str, Saved] = {}
        self.floor: Frontier | None = None
        """The lease; None: it holds nothing."""
        self.view: dict[NodeId, ClientEntry] = {}
        self.connections: dict[str, int] = {}
        self.compacted: set[tuple[str, int]] = set()
        """Rows of the table that are gone here."""

    @property
    def answers(self) -> bool:
        return self.up and not self.frozen

    def seen(self, key: str) -> list[SeenRow]:
        entries = {**self.view, self.node_id: self.entry}
        return [SeenRow(node_id, entry.rows[key]) for node_id, entry in entries.items() if key in entry.rows]

    def announce(self, key: str, row: ClientRow | None) -> None:
        if self.entry.rows.get(key) != row:
            self.entry.version += 1
            self.entry.rows = (
                {**self.entry.rows, key: row}
                if row
                else {each: kept for each, kept in self.entry.rows.items() if each != key}
            )

    def hold(self) -> None:
        """Renew the lease."""
        self.floor = floor_of(saved.state for saved in self.states.values())

    def held(self, topic: str, origin: str) -> int:
        """The first sequence that may not be trimmed."""
        if self.floor is None or topic not in self.floor:
            return self.nexts[topic][origin]
        return self.floor[topic].get(origin, 1)

    def save(self, key: str, saved: Saved) -> None:
        self.states[key] = saved
        self.hold()
        row = self.entry.rows.get(key)
        if row is not None and not row.covered and not saved.state.lacking(self.lows):
            self.announce(key, replace(row, covered=True))

    def heard(self, node_id: NodeId, entry: ClientEntry) -> None:
        """Another place's rows: clients that went there are told, and let go when they are covered."""
        self.view[node_id] = entry
        for key, row in entry.rows.items():
            other = SeenRow(node_id, row)
            own = self.entry.rows.get(key)
            if own is None:
                continue
            mine = SeenRow(self.node_id, own)
            if access_point.is_superseded(mine, other):
                self.connections.pop(key, None)
            if access_point.lets_go(mine, other):
                self.announce(key, None)
                del self.states[key]
                self.hold()


class SimClient:
    """A key, its process while one runs, and the application behind it."""

    def __init__(self, key: str, rows: Rows, table: SimTable | None) -> None:
        self.key = key
        self.digest = key.encode()
        self.application = Application(rows, table)
        self.acknowledged = Application(rows, table)
        """The same, when it last acknowledged."""
        self.memory: ClientMemory | None = ClientMemory()
        """None: no process runs."""
        self.place: ClientPlace | None = None
        self.connection = 0
        self.coming: ClientPortion | None = None
        self.may_drop = False
        """The disk of a place that held rows for it was lost."""
        self.saved: dict[tuple[int, NodeId], int] = {}
        """The number of the last save under each session and place."""
        self.exists = False

    def receive(self, portion: ClientPortion) -> None:
        """It arrives; the application has not got it yet."""
        self.coming = portion

    def hand_over(self) -> None:
        """The application takes what arrived."""
        assert self.memory is not None and self.coming is not None
        portion, self.coming = self.coming, None
        self.application.take(
            portion.read.fill is not None, portion.topic, portion.origin, portion.sequences, portion.until
        )
        self.memory.hand(portion.read, portion.topic, portion.origin, portion.until)

    def acknowledge(self) -> None:
        assert self.memory is not None
        self.memory.acknowledge()
        self.acknowledged = deepcopy(self.application)

    def die(self, *, keep: bool) -> None:
        """The process ends. With its memory kept, the application kept what it had; else it falls back later."""
        self.coming = None
        self.place = None
        if not keep:
            self.memory = None


class ClientWorld:
    def __init__(self, seed: int, places: int, clients: int, *, has_table: bool = False) -> None:
        """`has_table`: its second topic is a table."""
        self.random = Random(seed)
        self.topics, self.origins = ("t", "u"), (f"{1:032x}", f"{2:032x}")
        self.rows: Rows = {topic: {origin: [] for origin in self.origins} for topic in self.topics}
        self.places = [ClientPlace(number, self.topics, self.origins) for number in range(1, places + 1)]
        self.table = SimTable(self.topics[1], self.rows[self.topics[1]]) if has_table else None
        self.clients = [SimClient(f"k{number}", self.rows, self.table) for number in range(clients)]
        self.cut: frozenset[int] = frozenset()
        """Places, by number from 0, that the others cannot reach."""
        self.serial = 0
        self.migrations = 0
        self.dropped = 0

    # ---- rows

    def reaches(self, one: ClientPlace, other: ClientPlace) -> bool:
        """True if no partition is between them."""
        return (self.places.index(one) in self.cut) == (self.places.index(other) in self.cut)

    def publish(self, topic: str, origin: str, values: str) -> None:
        self.rows[topic][origin].extend(values)
        if self.table is not None and self.is_table(topic):
            self.table.published(origin)

    def replicate(self, place: ClientPlace, topic: str, origin: str) -> None:
        here, there = place.nexts[topic][origin], len(self.rows[topic][origin]) + 1
        place.nexts[topic][origin] = self.random.randint(here, there)

    def trim(self, place: ClientPlace, topic: str, origin: str) -> None:
        if self.table is not None and self.is_table(topic):
            ends = place.nexts[topic]
            rows = [(each, sequence) for each, until in ends.items() for sequence in range(1, until)]
            place.compacted |= {row for row in rows if self.table.is_replaced(*row, ends)}
            return
        low = place.lows[topic][origin]
        upto = max(min(place.held(topic, origin), place.nexts[topic][origin]), low)
        place.lows[topic][origin] = self.random.choice((upto, self.random.randint(low, upto)))

    # ---- the client table

    def spread(self, to: ClientPlace, source: ClientPlace) -> None:
        """One place hears another's view, an entry at a time."""
        for node_id, entry in {**source.view, source.node_id: source.entry}.items():
            known = to.view.get(node_id, ClientEntry())
            if node_id != to.node_id and entry.version > known.version:
                to.heard(node_id, deepcopy(entry))

    def crash(self, place: ClientPlace) -> None:
        place.up = False
        place.view = {}
        place.connections = {}

    def lose_disk(self, place: ClientPlace) -> None:
        """It returns empty, as another place would: catching up from others, without leases."""
        for client in self.clients:
            if client.key in place.states:
                client.may_drop = True
        version = place.entry.version
        place.states, place.entry, place.floor = {}, ClientEntry(version + 1), None

    # ---- clients

    def connect(self, client: SimClient, place: ClientPlace) -> None:
        """Reconnect as the library does: with the client's own state, else with that of the former access point."""
        if not place.answers:
            return
        memory = client.memory
        brought, session = (None, 0) if memory is None else (memory.state, memory.session)
        is_known = client.exists
        found = self._attach(client, place, AttachRequest(client.digest, session, brought, create=not is_known))
        saved: Saved | None = None
        if isinstance(found, AttachRefusal) and found.elsewhere is not None and brought is None:
            former = next(each for each in self.places if each.node_id == found.elsewhere)
            saved = former.states.get(client.key) if former.answers else None
            if saved is not None:
                request = AttachRequest(client.digest, session, saved.state, create=False)
                found = self._attach(client, place, request)
        elif memory is None and isinstance(found, Attachment):
            saved = place.states.get(client.key)
        if isinstance(found, AttachRefusal):
            return
        if memory is None:
            client.application = deepcopy(saved.owed) if saved else Application(self.rows, self.table)
            client.memory = ClientMemory(saved.state if saved else None)
            client.acknowledge()
        assert client.memory is not None
        client.memory.session = found.session
        client.exists = True
        client.place = place
        self._store(client, place, found)

    def _attach(self, client: SimClient, place: ClientPlace, request: AttachRequest) -> Attachment | AttachRefusal:
        here = place.states.get(client.key)
        found = access_point.attach(request, place.node_id, place.seen(client.key), here.state if here else None)
        if isinstance(found, Attachment) and request.state is not None and found.state.lacking(place.lows):
            return access_point.renewed(found, place.entry.rows.get(client.key))
        return found

    def _store(self, client: SimClient, place: ClientPlace, found: Attachment) -> None:
        self.serial += 1
        client.connection = place.connections[client.key] = self.serial
        assert client.memory is not None
        saved = Saved(client.memory.state, deepcopy(client.acknowledged), self.serial)
        place.save(client.key, saved)
        client.saved[found.session, place.node_id] = self.serial
        if found.is_new:
            self.migrations += 1
            covered = not found.state.lacking(place.lows)
            place.announce(client.key, ClientRow(found.session, covered, 0, client.digest))

    def is_connected(self, client: SimClient) -> bool:
        place = client.place
        return place is not None and place.answers and place.connections.get(client.key) == client.connection

    def save(self, client: SimClient) -> None:
        if not self.is_connected(client) or client.memory is None:
            client.place = None
            return
        assert client.place is not None
        self.serial += 1
        client.saved[client.memory.session, client.place.node_id] = self.serial
        client.place.save(client.key, Saved(client.memory.state, deepcopy(client.acknowledged), self.serial))

    def change_profiles(self, client: SimClient, change: Callable[[ClientMemory], None]) -> None:
        """Subscribe or unsubscribe: the application's wish and the library's state change together, and are saved."""
        if self.is_connected(client) and client.memory is not None:
            client.coming = None
            try:
                change(client.memory)
            except LocalProtocolError:
                return  # what a profile that began with what stood has given is not known
            self.save(client)

    def subscribe(self, client: SimClient, name: str, topic: str, where: str | None, start: str) -> None:
        place = client.place

        def change(memory: ClientMemory) -> None:
            assert place is not None
            here = dict(place.nexts[topic])
            begin = memory.latest(topic, here) if start == "latest" else dict(place.lows[topic])
            standing = start == "standing"
            memory.subscribe(ClientProfile(name, topic, where, None, begin, standing=standing), here)
            for each in (client.application, client.acknowledged):
                each.subscribe(name, topic, where, begin, here, standing=standing)

        self.change_profiles(client, change)

    def unsubscribe(self, client: SimClient, name: str) -> None:
        def change(memory: ClientMemory) -> None:
            for each in (client.application, client.acknowledged):
                each.unsubscribe(name)
            memory.unsubscribe(name)

        self.change_profiles(client, change)

    def read(self, client: SimClient) -> None:
        """Ask for the next portion, of one stream: at the access point, and where that lacks rows, anywhere."""
        if not self.is_connected(client) or client.memory is None or client.coming is not None:
            return
        read = client.memory.next_read()
        assert client.place is not None
        if read is None:
            return
        topic = self.random.choice(read.topics)
        origins = list(self.origins) if read.end is None else list(read.end[topic])
        origin = self.random.choice(origins)
        first = read.start.get(topic, {}).get(origin, 1)
        others = [place for place in self.places if place is not client.place]
        standing: Mapping[str, int] = {} if read.fill is None else read.fill.standing or {}
        for place in (client.place, *others):
            if any(place.nexts[topic][each] < until for each, until in standing.items()):
                continue  # it does not know yet what stands there
            if place.answers and place.lows[topic][origin] <= first:
                self._send(client, place, read, topic, origin, first)
                return
        if all(place.answers for place in self.places) and first < client.place.lows[topic][origin]:
            self._drop(client)

    def _send(
        self, client: SimClient, place: ClientPlace, read: ClientRead, topic: str, origin: str, first: int
    ) -> None:
        end = (
            place.nexts[topic][origin] if read.end is None else min(read.end[topic][origin], place.nexts[topic][origin])
        )
        until = min(first + self.random.randint(1, PORTION), end)
        if until > first:
            assert client.memory is not None
            values = self.rows[topic][origin]
            sequences = [
                each
                for each in range(first, until)
                if _is_given(client.memory.ahead, read, topic, origin, each, values[each - 1])
                and not (self.is_table(topic) and self._is_gone(place, read, origin, each))
            ]
            client.receive(ClientPortion(read, topic, origin, sequences, until))

    def is_table(self, topic: str) -> bool:
        return self.table is not None and topic == self.table.topic

    def _is_gone(self, place: ClientPlace, read: ClientRead, origin: str, sequence: int) -> bool:
        """True if a row of the table was removed at this place, or did not stand where the fill begins."""
        assert self.table is not None
        standing = None if read.fill is None else read.fill.standing
        if standing is not None and self.table.is_replaced(origin, sequence, standing):
            return True
        return (origin, sequence) in place.compacted

    def _drop(self, client: SimClient) -> None:
        assert client.memory is not None
        lows: Frontier = {
            topic: {origin: min(place.lows[topic][origin] for place in self.places) for origin in self.origins}
            for topic in self.topics
        }
        dropped = client.memory.drop(lows)
        if dropped and not client.may_drop:
            raise Violation("clients", f"{client.key} was told {dropped}, though no disk was lost")
        self.dropped += sum(each.rows_max for each in dropped)
        for each in dropped:
            client.application.drop(each.topic, each.origin, each.next)


def _is_given(state: ClientState, read: ClientRead, topic: str, origin: str, sequence: int, found: Value) -> bool:
    """Test whether a row is given, as a node does."""
    if read.fill is None:
        return any(matches(each.where, found) for each in state.profiles if each.topic == topic)
    if not matches(read.fill.profile.where, found):
        return False
    return not any(
        other.gave(origin, sequence) and all(matches(where, found) for where, _ in other.conditions)
        for other in read.fill.others
    )
