"""Links: the only place where neighbours are added and dropped.

A link exists exactly as long as its connection, and is agreed on by one question and one answer. Every answer is given
at once, so no cycle of waiting can form: what clashes is refused, and the node that is refused tries again later. When
two nodes ask each other, the question of the smaller id stands. Joining, edge pinning and hole filling all add and drop
links here. This machine keeps the state (SEEKING, PARTIAL, FULL), emits events, and sends the neighbours the new list
once per input.
"""

from collections.abc import Callable

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send, Trace
from m4cast.overlay.protocol.membership.timers import FullTimeout, HoleSearchDue
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.wire.messages import Message, NeighboursStmt
from m4cast.overlay.value import value

LOSS_PAUSE_MS = 50
"""A node that lost a neighbour looks for another after a random part of this, so that the others notice the loss
too."""


@value
class Court:
    """Purpose of a call: be my neighbour, I have a hole."""

    contact: Contact


@value
class NeighbourUp:
    neighbour: Neighbour


@value
class NeighbourDown:
    neighbour: Neighbour
    why: str


@value
class BecameFull:
    pass


@value
class Isolated:
    """The last neighbour is gone: seek the channel again."""


LinkEvent = NeighbourUp | NeighbourDown | BecameFull | Isolated


class Links:
    def __init__(self, context: Context, emit: Callable[[LinkEvent], None]) -> None:
        self.me = context.me
        self.state = State.SEEKING
        self.table = context.table
        self.leaving = False
        self.expected_holes = 0
        """Holes that this node is expected to keep, by the node through which it joined: above 0 in the small
        regime."""
        self.losses = 0
        """The number of times that a neighbour was lost: a search for holes that sees it change starts over."""
        self.list_changed = False
        """The neighbours have not received the new list yet."""
        self._config = context.config
        self._random = context.random
        self._calls = context.calls
        self._timers = context.timers
        self._out = context.out
        self._emit = emit

    # ---- coming and going

    def add(self, call: Call, now_ms: int) -> None:
        """The call becomes a link (routine 17)."""
        assert call.peer is not None and not call.is_link
        peer = call.peer
        assert peer.node_id not in self.table.neighbours and self.table.holes() > 0
        self.table.courting.pop(peer.node_id, None)
        self.table.pending.pop(peer.node_id, None)
        neighbour = Neighbour(peer, call.conn, call.incarnation, now_ms)
        self.table.neighbours[peer.node_id] = neighbour
        self._calls.promote(call)
        self.list_changed = True
        self._emit(NeighbourUp(neighbour))
        if self.state is State.SEEKING:
            self.state = State.PARTIAL
            self._timers.set(FullTimeout(), now_ms + 2 * self._config.walk_timeout_ms)
        self.check_full()
        if self.table.free_holes() > 0:
            self.search_soon(now_ms)

    def drop(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        self._remove(neighbour, why, now_ms)
        self._calls.close(neighbour.conn)

    def replace(self, old: Neighbour, call: Call, why: str, now_ms: int) -> None:
        """One link for another in one step, so that the node is never without both."""
        del self.table.neighbours[old.contact.node_id]
        self.table.reserved.pop(old.contact.node_id, None)
        self._emit(NeighbourDown(old, why))
        self._calls.close(old.conn)
        self.add(call, now_ms)

    def lost(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        """The connection is gone."""
        self._out.append(Trace("link-lost", (("peer", neighbour.contact.address), ("why", why))))
        self._remove(neighbour, why, now_ms)

    def silent(self, neighbour: Neighbour, now_ms: int) -> None:
        """The connection may be open, but the neighbour is silent."""
        self.lost(neighbour, "silent", now_ms)
        self._calls.close(neighbour.conn)

    def drop_all(self) -> None:
        """This node leaves."""
        for neighbour in self.table.neighbours.values():
            self._emit(NeighbourDown(neighbour, "left"))
            self._calls.close(neighbour.conn)
        self.table.neighbours.clear()
        self.list_changed = False

    def _remove(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        node_id = neighbour.contact.node_id
        del self.table.neighbours[node_id]
        self.table.reserved.pop(node_id, None)
        for far, near in list(self.table.pending.items()):
            if near == node_id:  # the near end is gone, so the far end will not call
                del self.table.pending[far]
        self.list_changed = True
        self.losses += 1
        self._emit(NeighbourDown(neighbour, why))
        if self.table.neighbours:
            self._timers.set_sooner(HoleSearchDue(), now_ms + self.jitter(LOSS_PAUSE_MS))
        elif not self.leaving:
            self.state = State.SEEKING
            self._emit(Isolated())

    def flush(self) -> bool:
        """Called at the end of each input: send a changed list of neighbours once, however many changes made it. True
        when it had changed."""
        if not self.list_changed:
            return False
        self.list_changed = False
        self.send_all(NeighboursStmt(tuple(self.table.neighbours)))
        return True

    def send_all(self, message: Message, but: Neighbour | None = None) -> None:
        for neighbour in self.table.neighbours.values():
            if neighbour is not but:
                self._out.append(Send(neighbour.conn, message))

    # ---- state

    def check_full(self) -> None:
        if self.state is State.PARTIAL and (self.table.holes() <= self.expected_holes or self.table.complete()):
            self.become_full()

    def become_full(self) -> None:
        if self.state is not State.FULL:
            self.state = State.FULL
            self._timers.cancel(FullTimeout())
            self._emit(BecameFull())

    # ---- asking, and being asked at the same time

    def court(self, contact: Contact, now_ms: int) -> None:
        """Routine 27."""
        self.table.courting[contact.node_id] = self._calls.dial(contact.address, Court(contact), now_ms, contact)

    def court_over(self, call: Call, now_ms: int) -> None:
        """A proposal for which a hole was promised has failed."""
        for node_id, conn in self.table.courting.items():
            if conn == call.conn:
                del self.table.courting[node_id]
                self.search_soon(now_ms)
                return

    def is_won(self, call: Call, kind: type[object], accepted: bool, now_ms: int) -> bool:
        """True if this answer makes the peer a neighbour: it accepts a proposal of this kind, which this node still
        makes. Otherwise the call is over. The hole that was promised for the peer is free in either case."""
        assert call.peer is not None
        peer = call.peer.node_id
        if isinstance(call.purpose, kind) and self.table.courting.get(peer) == call.conn:
            if accepted and not self.leaving:
                del self.table.courting[peer]
                return True
            self.court_over(call, now_ms)
        self._calls.close(call.conn)
        return False

    def is_eligible(self, call: Call, now_ms: int, *states: State) -> bool:
        """True if a caller that asks to be a neighbour may be one, if there is room, while this node is in one of these
        states."""
        assert call.peer is not None
        return (
            self.forget_stale(call, now_ms)
            and self.state in states
            and not self.leaving
            and call.peer.node_id not in self.table.proposing
            and self.gives_way(call.peer.node_id)
        )

    def gives_way(self, peer: NodeId) -> bool:
        """Two nodes ask each other at the same time: the question of the smaller id stands. True when this node's is
        withdrawn."""
        mine = self.table.courting.get(peer)
        if mine is None:
            return True
        if self.me.node_id < peer:
            return False
        del self.table.courting[peer]
        self._calls.close(mine)
        return True

    def forget_stale(self, call: Call, now_ms: int) -> bool:
        """A neighbour that calls as a stranger in a later incarnation has restarted: its old link is dead. False
        when the caller is a neighbour still."""
        assert call.peer is not None
        old = self.table.neighbours.get(call.peer.node_id)
        if old is not None and call.incarnation > old.incarnation:
            self.drop(old, "restarted", now_ms)
            return True
        return old is None

    # ---- time

    def search_soon(self, now_ms: int) -> None:
        self._timers.set_sooner(HoleSearchDue(), now_ms + self.jitter(self._config.search_wait_ms))

    def jitter(self, span_ms: int) -> int:
        """Between half of it and all of it."""
        return span_ms // 2 + self._random.randrange(span_ms // 2 + 1)
