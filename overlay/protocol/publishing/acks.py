"""Acknowledgements: how far this node's own streams are on other nodes' disks (guarantee 3), and the window that
keeps a publisher from running away from its neighbours (guarantee 7).

A neighbour reports to an origin the cumulative durable frontier of the origin's streams, so a batch that is held back
never counts. A request with `acks = k` is answered when k nodes have all its ranges. What a node acknowledged still
counts for that after its link is gone, unless the node itself is gone: the rows are on its disk. A node that is about
to leave counts neighbours alone: it is not known whether others are still alive, or still keep the rows. Rows that this
node published under a former identity are acknowledged by the neighbours that are asked for them.

The window (`window.py`) is over the neighbours: while one of them has too much to acknowledge, publishes wait.
"""

from collections.abc import Iterable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Output, Published, Range
from m4cast.overlay.protocol.publishing.window import Lag, Window
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import AckEntry, HeldEntry
from m4cast.overlay.value import value

REMEMBERED_MAX = 64
"""Former neighbours whose acknowledgements are remembered; guess. Raising it costs memory per neighbour and topic."""
NOTHING = (1, 1)


@value
class _Waiting:
    request: int
    acks: int
    ranges: tuple[Range, ...]


class Acks:
    def __init__(self, me: NodeId, topics: Iterable[str], window_bytes: int, out: list[Output]) -> None:
        """`topics`: those of the node's own streams in its store."""
        self._me = me
        self._topics = dict.fromkeys(topics)
        self.window = Window(window_bytes)
        """Over the neighbours of this node."""
        self._out = out
        self._stored: dict[NodeId, dict[str, tuple[int, int]]] = {}  # topic -> held from, durable next
        self._former: dict[NodeId, dict[StreamId, tuple[int, int]]] = {}  # the same of former streams, by neighbours
        self._waiting: list[_Waiting] = []

    def neighbour_up(self, node_id: NodeId, now_ms: int) -> None:
        self.window.lags[node_id] = Lag(moved_at_ms=now_ms)
        self._stored.pop(node_id, None)  # it acknowledges what it has when it is linked

    def neighbour_down(self, node_id: NodeId, *, is_gone: bool) -> None:
        """`is_gone`: from the channel, not from this node alone."""
        self.window.lags.pop(node_id, None)
        self._former.pop(node_id, None)
        stored = self._stored.pop(node_id, None)
        if stored is None or is_gone:
            return
        self._stored[node_id] = stored  # after those that went earlier
        former = [each for each in self._stored if each not in self.window.lags]
        if len(former) > REMEMBERED_MAX:
            del self._stored[former[0]]

    def gone(self, node_id: NodeId) -> None:
        """The node left or failed, by others' report. If it is a neighbour, its link is the better witness."""
        if node_id not in self.window.lags:
            self._stored.pop(node_id, None)

    def published(self, batch: Batch, now_ms: int) -> None:
        """An own batch is durable here and leaves now."""
        self._topics[batch.stream.topic] = None
        for lag in self.window.lags.values():
            if lag.owed:
                lag.owed[batch.stream.topic] = batch.next_sequence
                continue
            if not lag.unacked:
                lag.moved_at_ms = now_ms
            lag.unacked.append((batch.stream.topic, batch.next_sequence, len(batch.payload)))
            lag.bytes += len(batch.payload)

    def acked(self, node_id: NodeId, entries: tuple[AckEntry, ...], now_ms: int) -> None:
        stored = self._stored.setdefault(node_id, {})
        for topic, held_from, durable_next in entries:
            if topic in self._topics:
                stored[topic] = (held_from, durable_next)
        lag = self.window.lags.get(node_id)
        if lag is not None:
            while lag.unacked and stored.get(lag.unacked[0][0], NOTHING)[1] >= lag.unacked[0][1]:
                lag.bytes -= lag.unacked.popleft()[2]
                lag.moved_at_ms = now_ms
            for topic, next_sequence in list(lag.owed.items()):
                if stored.get(topic, NOTHING)[1] >= next_sequence:
                    del lag.owed[topic]
        self._answer()

    def answer_when_acked(self, request: int, acks: int, ranges: tuple[Range, ...]) -> None:
        self._waiting.append(_Waiting(request, acks, ranges))
        self._answer()

    def forget(self, request: int) -> bool:
        """Stop waiting for the request; False when it did not wait here."""
        waiting = len(self._waiting)
        self._waiting = [each for each in self._waiting if each.request != request]
        return len(self._waiting) < waiting

    def _answer(self) -> None:
        if not self._waiting:
            return
        still = []
        for waiting in self._waiting:
            # Rows of a former identity: the repeat of a commit from before a rollback.
            former = any(rows.stream.origin != self._me for rows in waiting.ranges)
            copies = self._count_former(waiting.ranges) if former else self.count(waiting.ranges)
            if not waiting.ranges or copies >= waiting.acks:
                self._out.append(Published(waiting.request, waiting.ranges))
            else:
                still.append(waiting)
        self._waiting = still

    def count(self, ranges: tuple[Range, ...]) -> int:
        """Other nodes that have all of these ranges on disk, or had them when they were last linked."""
        return sum(_covers_all(stored, ranges) for stored in self._stored.values())

    def former_origins(self) -> tuple[NodeId, ...]:
        """Former identities of this node whose rows some request waits for: neighbours do not acknowledge these by
        themselves and have to be asked."""
        ranges = (rows for waiting in self._waiting for rows in waiting.ranges)
        return tuple(dict.fromkeys(rows.stream.origin for rows in ranges if rows.stream.origin != self._me))

    def held(self, node_id: NodeId, entries: tuple[HeldEntry, ...]) -> None:
        """A neighbour answered what it has of former streams."""
        if node_id in self.window.lags and self.former_origins():
            former = self._former.setdefault(node_id, {})
            for entry in entries:
                if entry.origin != self._me:
                    former[StreamId(entry.origin, entry.topic)] = (entry.held_from, entry.durable_next)
            self._answer()

    def _count_former(self, ranges: tuple[Range, ...]) -> int:
        return sum(
            all(_covers(former.get(rows.stream, NOTHING), rows) for rows in ranges) for former in self._former.values()
        )

    def count_neighbours(self, ranges: tuple[Range, ...]) -> int:
        """Neighbours that have all of these ranges on disk."""
        return sum(_covers_all(self._stored.get(node_id, {}), ranges) for node_id in self.window.lags)

    def waiting(self) -> list[tuple[int, Range]]:
        """Each range of each request that waits for its acks."""
        return [(each.request, rows) for each in self._waiting for rows in each.ranges]


def _covers_all(stored: dict[str, tuple[int, int]], ranges: tuple[Range, ...]) -> bool:
    return all(_covers(stored.get(rows.stream.topic, NOTHING), rows) for rows in ranges)


def _covers(stored: tuple[int, int], rows: Range) -> bool:
    held_from, durable_next = stored
    return held_from <= rows.first_sequence and rows.next_sequence <= durable_next
