"""Node m with neighbours made by hand: what `Links`, `Edges`, `Holes` and `Joining` are tested with.

Connections are accepted ones, numbered in the order of their making. Neighbours are called by words, as in
`stream_parts`; a string of letters names several.
"""

from collections.abc import Iterable
from typing import TypeVar

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Close, Dial
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.membership.links import LinkEvent, NeighbourDown, NeighbourUp
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.membership.timers import FullTimeout, HoleSearchDue, MembershipTimer
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.timers import Timer
from tests.overlay.protocol.stream_parts import contact, context_of_m, node_id, of, sends, take

T = TypeVar("T")
ME = contact("m")


class Member:
    def __init__(
        self,
        neighbours: str = "",
        degree: int = 4,
        seed: int = 1,
        state: State = State.FULL,
        incarnation: int = 0,
        **settings: int,
    ) -> None:
        config = NodeConfig(listen="m:7400", **settings)  # type: ignore[arg-type]  # settings are whole numbers
        cluster = ClusterConfig(degree=degree)
        self.config = config
        context = context_of_m(config, cluster, incarnation=incarnation, seed=seed)
        self.timers, self.out, self.random, self.calls = context.timers, context.out, context.random, context.calls
        self.events: list[LinkEvent] = []
        self.floods = Floods(context)
        self.membership = Membership(context, self.floods, self.events.append)
        self.links, self.table = self.membership.links, self.membership.table
        self._conn = 0
        self.now_ms = 0
        for name in neighbours:
            self.link(name)
        self.membership.flush()
        self.links.state = state
        self.timers.cancel(FullTimeout())
        self.timers.cancel(HoleSearchDue())
        self.forget()

    def forget(self) -> None:
        """Look only at what happens from now on."""
        self.out.clear()
        self.events.clear()

    # ---- the others

    def called(self, name: str, incarnation: int = 1) -> Call:
        """A node called and sent its hello."""
        self._conn += 2
        self.calls.connected(self._conn, self.now_ms)
        call = self.calls.get(self._conn)
        assert call is not None
        call.peer, call.incarnation = contact(name), incarnation
        self.out.clear()
        return call

    def answered(self, name: str) -> Call:
        """A node that this one dialled answered and sent its hello; the resulting outputs stay in `out`."""
        dial = of(self.out, Dial)[-1]
        assert dial.address == contact(name).address
        call = self.calls.get(dial.conn)
        assert call is not None
        call.peer, call.incarnation = contact(name), 1
        self.out.clear()
        self.membership.call_ready(call, self.now_ms)
        return call

    def link(self, name: str, its_neighbours: Iterable[str] | None = None, incarnation: int = 1) -> Neighbour:
        self.links.add(self.called(name, incarnation), self.now_ms)
        neighbour = self.neighbour(name)
        if its_neighbours is not None:
            neighbour.its_neighbours = tuple(map(node_id, its_neighbours))
        return neighbour

    def say_lists(self, **its_neighbours: str) -> None:
        """The neighbours' own word about whom they have, one letter each."""
        for name, letters in its_neighbours.items():
            self.neighbour(name).its_neighbours = tuple(map(node_id, letters))

    def neighbour(self, name: str) -> Neighbour:
        return self.table.neighbours[node_id(name)]

    # ---- what came of it

    @property
    def state(self) -> str:
        return self.links.state.value

    def names(self) -> str:
        """The neighbours now, in order."""
        return "".join(neighbour.contact.address[0] for neighbour in self.table.neighbours.values())

    def ups(self) -> list[str]:
        return [event.neighbour.contact.address[0] for event in self.events if isinstance(event, NeighbourUp)]

    def downs(self) -> list[tuple[str, str]]:
        return [(e.neighbour.contact.address[0], e.why) for e in self.events if isinstance(e, NeighbourDown)]

    def told(self, kind: type[T]) -> list[tuple[str, T]]:
        """Messages of one kind to neighbours since the last look: (to whom, message)."""
        names = {neighbour.conn: neighbour.contact.address[0] for neighbour in self.table.neighbours.values()}
        return [(names.get(conn, "?"), message) for conn, message in sends(self.out, kind)]

    def answer(self, call: Call, kind: type[T]) -> T:
        """The one answer of this kind on a call."""
        (answer,) = [message for conn, message in sends(self.out, kind) if conn == call.conn]
        return answer

    def closed(self, call: Call) -> bool:
        return Close(call.conn) in self.out and self.calls.get(call.conn) is None

    def dialled(self) -> list[str]:
        return [dial.address[0] for dial in of(take(self.out), Dial)]

    def due_in(self, timer: Timer) -> int:
        return self.timers._due[timer] - self.now_ms

    def fire(self, timer: MembershipTimer) -> None:
        """The timer comes due."""
        self.now_ms = self.timers._due[timer]
        self.timers.cancel(timer)
        self.membership.timer(timer, self.now_ms)


def contacts(names: str) -> tuple[Contact, ...]:
    return tuple(map(contact, names))
