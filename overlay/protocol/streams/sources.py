"""Sources: the nodes that can be asked for rows, and how much each of them has to answer.

Neighbours are sources, and so are helpers: nodes beyond them that keep what is missing, on calls. One source has a
limited number of pulls to answer at a time. Streams beyond it wait for their turn, at each source that could serve
them.
"""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.wire.messages import Message, PullCall

PULLS_PER_SOURCE_MAX = 32
"""Pulls that one source has not answered yet, of all streams. Half of what it keeps waiting (`PULLS_WAITING_MAX` in
spreading), so that a node which is asked on a link and on a call at the same time refuses neither. It serves one at a
time: raising it saves no round trips, and the last of them waits longer for its first batch; guess."""


class Sources:
    def __init__(self, context: Context) -> None:
        self._window_bytes = context.config.pull_window_bytes
        self._out = context.out
        self._conns: dict[NodeId, int] = {}
        self._helpers: dict[NodeId, None] = {}
        self._unanswered: dict[NodeId, int] = {}
        """Pulls at each source, also those that have expired: it still has them."""
        self._turns: dict[NodeId, dict[StreamId, None]] = {}
        """Streams that wait until a source has answered enough."""

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._conns

    def __len__(self) -> int:
        return len(self._conns)

    def ids(self) -> list[NodeId]:
        return list(self._conns)

    def conn(self, node_id: NodeId) -> int | None:
        return self._conns.get(node_id)

    def up(self, node_id: NodeId, conn: int, *, is_neighbour: bool = True) -> None:
        self._conns[node_id] = conn
        self._unanswered[node_id] = 0  # on this connection
        if is_neighbour:
            self._helpers.pop(node_id, None)
        else:
            self._helpers[node_id] = None

    def down(self, node_id: NodeId) -> bool:
        """The source is gone; False when it was none."""
        if self._conns.pop(node_id, None) is None:
            return False
        del self._unanswered[node_id]
        self._helpers.pop(node_id, None)
        self._turns.pop(node_id, None)
        return True

    # ---- asking

    def is_idle(self, node_id: NodeId) -> bool:
        """True if the source can be asked for more."""
        return self._unanswered[node_id] < PULLS_PER_SOURCE_MAX

    def ask(self, node_id: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> None:
        self._unanswered[node_id] += 1
        pull = PullCall(stream_id.origin, stream_id.topic, first, next_sequence, self._window_bytes)
        self._out.append(Send(self._conns[node_id], pull))

    def ask_if_idle(self, node_id: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> bool:
        """Ask for what was accepted, or skipped, once; False if this is no source, or has enough to answer."""
        if node_id not in self._conns or not self.is_idle(node_id):
            return False
        self.ask(node_id, stream_id, first, next_sequence)
        return True

    def answered(self, node_id: NodeId) -> bool:
        """The source has answered a pull; False when it had none to answer."""
        if not self._unanswered.get(node_id):
            return False
        self._unanswered[node_id] -= 1
        return True

    # ---- turns

    def wait_for(self, node_id: NodeId, stream_id: StreamId) -> None:
        """The stream is asked for there as soon as the source has answered enough."""
        self._turns.setdefault(node_id, {})[stream_id] = None

    def next_turn(self, node_id: NodeId) -> StreamId | None:
        """The stream that has waited the longest for this source, if it can be asked for now."""
        turns = self._turns.get(node_id)
        if turns and self.is_idle(node_id):
            stream_id = next(iter(turns))
            del turns[stream_id]
            return stream_id
        if turns is not None and not turns:
            del self._turns[node_id]
        return None

    # ---- all of them

    def busy_helpers(self) -> list[int]:
        """Connections of helpers that have pulls to answer."""
        return [self._conns[node_id] for node_id in self._helpers if self._unanswered[node_id]]

    def flood(self, message: Message) -> None:
        """Send to every neighbour; helpers are on calls."""
        for node_id, conn in self._conns.items():
            if node_id not in self._helpers:
                self._out.append(Send(conn, message))
