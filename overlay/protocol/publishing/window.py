"""The window of selective topics: bytes that a destination of this node's batches has not acknowledged (guarantee 7).

Neighbours that are no destination never acknowledge such a batch, so its destinations stand in for them (PROTOCOL.md
18.5). While one of them has `publish_window_bytes` to acknowledge, publishes on selective topics wait. One that makes
no progress for `PATIENCE_MS` meanwhile leaves the window and catches up by pulling; it rejoins when it has.
"""

from collections.abc import Iterable

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.publishing.acks import PATIENCE_MS, Lag
from m4cast.overlay.protocol.wire.batch import Batch


class DestinationWindow:
    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._lags: dict[NodeId, Lag] = {}

    def sent(self, batch: Batch, destinations: Iterable[NodeId], now_ms: int) -> None:
        """An own batch leaves for these nodes."""
        for node_id in destinations:
            lag = self._lags.setdefault(node_id, Lag())
            if lag.owed:
                lag.owed[batch.stream.topic] = batch.next_sequence
                continue
            if not lag.unacked:
                lag.moved_at_ms = now_ms
            lag.unacked.append((batch.stream.topic, batch.next_sequence, len(batch.payload)))
            lag.bytes += len(batch.payload)

    def acked(self, node_id: NodeId, ends: dict[str, int], now_ms: int) -> None:
        """The node has these topics of this node, as far as it wants them, on its disk up to here."""
        lag = self._lags.get(node_id)
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
            del self._lags[node_id]

    def gone(self, node_id: NodeId) -> None:
        self._lags.pop(node_id, None)

    def has_room(self, now_ms: int) -> bool:
        """True if another publish may start now."""
        for lag in self._lags.values():
            if lag.bytes >= self._window_bytes:
                if now_ms - lag.moved_at_ms <= PATIENCE_MS:
                    return False
                lag.owed = {topic: next_sequence for topic, next_sequence, _ in lag.unacked}
                lag.unacked.clear()
                lag.bytes = 0
        return True

    def bytes(self) -> int:
        """Bytes that the slowest destination has not acknowledged."""
        return max((lag.bytes for lag in self._lags.values()), default=0)
