"""The rows that a client needs, as far as this node has them."""

from collections.abc import Container

from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.protocol.clients.state import ClientState, Frontier
from m4cast.overlay.store.store import Store


class ArrivedRows:
    """Any thread may use it; calls about one client take turns."""

    def __init__(self, store: Store, frontiers: Frontiers) -> None:
        self._store = store
        self._frontiers = frontiers
        self.strangers: dict[str, None] = {}
        """Clients that nobody in this channel knew: they may come from another one (PROTOCOL.md 22.7)."""

    def lacking(self, state: ClientState) -> Frontier:
        """The first rows that are here, of streams that the client needs from earlier on."""
        lows: Frontier = {}
        streams = self._frontiers.positions(state.topics)
        for stream, low in self._store.lows(streams).items():
            lows.setdefault(stream.topic, {})[stream.origin.hex()] = low
        return state.lacking(lows)

    def is_awaited(self, key: str, state: ClientState, selective: Container[str]) -> bool:
        """True if a client of another channel has a position that broadcast streams here have not reached yet."""
        if key not in self.strangers:
            return False
        topics = [topic for topic in state.topics if topic not in selective]
        ends = {(each.topic, each.origin.hex()): end for each, end in self._frontiers.positions(topics).items()}
        return any(
            position > ends.get((topic, origin), 1)
            for topic in topics
            for origin, position in state.frontier.get(topic, {}).items()
        )

    def waiting_max(self, state: ClientState) -> int:
        """Return the number of rows from the position on, whether they match or not."""
        waiting = 0
        for stream, until in self._frontiers.positions(state.topics).items():
            waiting += max(until - state.needs(stream.topic, stream.origin.hex()), 0)
        return waiting
