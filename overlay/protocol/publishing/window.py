"""Windows: bytes that others have not acknowledged, which keep a publisher from running away from them (guarantee 7).

While one node in the window has `publish_window_bytes` to acknowledge, publishes wait. One that makes no progress for
`PATIENCE_MS` meanwhile leaves the window and catches up by pulling; it rejoins when it has caught up. `Acks` has the
window over the neighbours, `DestinationWindow` is that over the destinations of selective topics.
"""

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.batch import Batch

PATIENCE_MS = 2_000
"""The time for which a full window waits for a node that makes no progress; guess. Raising it lets one slow node slow
the publisher for longer."""


@dataclass(slots=True)
class Lag:
    """The batches that one node has not acknowledged: (topic, next sequence, bytes) in the order of publishing."""

    unacked: deque[tuple[str, int, int]] = field(default_factory=deque)
    bytes: int = 0
    moved_at_ms: int = 0
    owed: dict[str, int] = field(default_factory=dict)
    """Rows that it must have on disk to enter the window again (topic -> next sequence); empty: it is in the window."""


class Window:
    def __init__(self, window_bytes: int) -> None:
        self.lags: dict[NodeId, Lag] = {}
        self._window_bytes = window_bytes

    def has_room(self, now_ms: int) -> bool:
        """True if another publish may start now."""
        for lag in self.lags.values():
            if lag.bytes >= self._window_bytes:
                if now_ms - lag.moved_at_ms <= PATIENCE_MS:
                    return False
                lag.owed = {topic: next_sequence for topic, next_sequence, _ in lag.unacked}
                lag.unacked.clear()
                lag.bytes = 0
        return True

    def bytes(self) -> int:
        """Bytes that the slowest node has not acknowledged."""
        return max((lag.bytes for lag in self.lags.values()), default=0)


class DestinationWindow:
    """The window of selective topics.

    Neighbours that are no destination of a batch never acknowledge it, so its destinations stand in for them
    (PROTOCOL.md 18.5).
    """

    def __init__(self, window_bytes: int) -> None:
        self.window = Window(window_bytes)

    def sent(self, batch: Batch, destinations: Iterable[NodeId], now_ms: int) -> None:
        """An own batch leaves for these nodes."""
        for node_id in destinations:
            lag = self.window.lags.setdefault(node_id, Lag())
            if lag.owed:
                lag.owed[batch.stream.topic] = batch.next_sequence
                continue
            if not lag.unacked:
                lag.moved_at_ms = now_ms
            lag.unacked.append((batch.stream.topic, batch.next_sequence, len(batch.payload)))
            lag.bytes += len(batch.payload)

    def acked(self, node_id: NodeId, ends: dict[str, int], now_ms: int) -> None:
        """The node has these topics of this node, as far as it wants them, on its disk up to here."""
        lag = self.window.lags.get(node_id)
        if lag is None:
            return
        left = [each for each in lag.unacked if ends.get(each[0], 1) < each[1]]
        if len(left) < len(lag.unacked):
            lag.unacked.clear()
            lag.unacked.extend(left)
            lag.bytes, lag.moved_at_ms = sum(size for _, _, size in left), now_ms
        for topic, next_sequence in list(lag.owed.items()):
            if ends.get(topic, 1) >= next_sequence:
                del lag.owed[topic]
        if not lag.unacked and not lag.owed:
            del self.window.lags[node_id]

    def wants(self, node_id: NodeId, topics: Container[str]) -> None:
        """The node wants something of these topics alone: what it was sent of others it need not acknowledge."""
        lag = self.window.lags.get(node_id)
        if lag is None:
            return
        left = [each for each in lag.unacked if each[0] in topics]
        lag.unacked.clear()
        lag.unacked.extend(left)
        lag.bytes = sum(size for _, _, size in left)
        lag.owed = {topic: next_sequence for topic, next_sequence in lag.owed.items() if topic in topics}
        if not lag.unacked and not lag.owed:
            del self.window.lags[node_id]

    def gone(self, node_id: NodeId) -> None:
        self.window.lags.pop(node_id, None)
