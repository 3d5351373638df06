"""The lease of an access point: rows are retained for all its clients, as one reader with the least of their positions.

It follows the clients at leisure, since retaining more is safe. What a client needs that is not leased yet is leased
at once, before the client is answered.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator

from m4cast.overlay.door.node_handle import until_written
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.clients.state import ClientState, Frontier, floor_of, state_of
from m4cast.overlay.store.store import Store

READER = "_clients"
"""Its name."""
LEASE_MS = 7 * 24 * 3_600_000
"""The time for which rows are retained for a client that is not connected; and for all clients while the node is
down."""
HOLD_S = 10.0
"""The shortest interval at which the lease follows the clients. Lower: rows are removed sooner, more work with many
clients."""
TELL_S = 2.0
"""The delay before other nodes hear of a new stream that clients need; guess."""
HOLD_SHARE = 50
"""The work takes at most one part in this many of a thread's time: with many clients it is done less often."""


class ClientLease:
    """Any thread may use it. `clock_ms` is the wall clock."""

    def __init__(
        self, store: Store, clock_ms: Callable[[], int], timeout_s: float, tell: Callable[[Frontier], None]
    ) -> None:
        """`tell` is told what is leased, each time."""
        self._tell = tell
        self._announced_at = 0.0
        self._store = store
        self._clock_ms = clock_ms
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        """Over the fields below."""
        self._leasing = threading.Lock()
        """Held while the store is asked: the last to ask asks for the latest."""
        self._floor: Frontier = {}
        self._new: list[ClientState] = []
        """Clients that came while the others were looked through."""
        self.due_at = float("inf")
        """The time at which the clients are checked next, on the monotonic clock."""
        self._rests_until = 0.0
        reader = store.readers().get(READER)
        if reader is not None:
            self._floor = {topic: {} for topic in reader.topics}
            for stream, first in reader.frontier.items():
                self._floor[stream.topic][stream.origin.hex()] = first
            self.due_at = 0

    def soon(self) -> None:
        """A client has moved on."""
        with self._lock:
            self.due_at = min(self.due_at, max(time.monotonic() + HOLD_S, self._rests_until))

    def include(self, state: ClientState) -> None:
        """Retain what this client needs from now on."""
        with self._lock:
            self._new.append(state)
            if not _lower(self._floor, state):
                return
        self._lease()

    def follow(self, is_connected: Callable[[str], bool]) -> None:
        """Look through all clients: what they have passed is not retained for them any longer."""
        began = time.monotonic()
        with self._lock:
            self.due_at = float("inf")
            self._new = []
        oldest_ms = self._clock_ms() - LEASE_MS

        def states() -> Iterator[ClientState]:
            for key, kept in self._store.clients.all():
                fields = json.loads(kept)
                if fields["seen_ms"] >= oldest_ms or is_connected(key):
                    yield state_of(fields["state"])

        floor = floor_of(states())
        with self._lock:
            for state in self._new:
                _lower(floor, state)
            self._floor, self._new = floor, []
            self._rests_until = time.monotonic() + (time.monotonic() - began) * HOLD_SHARE
            renew_at = time.monotonic() + LEASE_MS / 2_000 if floor else float("inf")
            self.due_at = min(max(self.due_at, self._rests_until), renew_at)
        self._lease()

    def _lease(self) -> None:
        with self._leasing:
            with self._lock:
                floor = {topic: dict(origins) for topic, origins in self._floor.items()}
            now_ms = self._clock_ms()
            frontier = {
                StreamId(NodeId(bytes.fromhex(origin)), topic): first
                for topic, origins in floor.items()
                for origin, first in origins.items()
            }
            if not floor:
                until_written(self._store.drop_reader(READER), self._timeout_s)
            else:
                held(self._store, READER, frontier, tuple(floor), now_ms, self._timeout_s)
        self._tell(floor)
        self._announced_at = time.monotonic()

    def tell_again(self) -> None:
        """Called from time to time: there may be new streams that clients need."""
        with self._lock:
            floor = {topic: dict(origins) for topic, origins in self._floor.items()}
        if floor and time.monotonic() - self._announced_at >= TELL_S:
            self._announced_at = time.monotonic()
            self._tell(floor)


def held(
    store: Store, name: str, frontier: dict[StreamId, int], topics: tuple[str, ...], now_ms: int, timeout_s: float
) -> None:
    """Retain rows for a reader of the node's own, from this frontier on, as far as they are there."""
    while True:
        asked = store.set_reader(name, frontier, now_ms + LEASE_MS, topics, now_ms=now_ms)
        reader = until_written(asked, timeout_s)
        if reader is None:
            raise Refusal("too-many", "this node has as many readers as it allows: release some")
        if not reader.cuts:
            return
        for cut in reader.cuts:  # removed all the same: the clients will be told
            frontier[cut.stream] = max(frontier.get(cut.stream, 1), cut.next_sequence)


def _lower(floor: Frontier, state: ClientState) -> bool:
    """Lower the floor to what this client needs; whether it was too high. Streams that it does not name are retained
    whole."""
    is_lowered = False
    for topic in state.topics:
        known = floor.get(topic)
        if known is None:
            floor[topic] = {origin: state.needs(topic, origin) for origin in state.frontier.get(topic, {})}
            is_lowered = True
            continue
        for origin, first in known.items():
            needs = state.needs(topic, origin)
            if needs < first:
                known[origin] = needs
                is_lowered = True
    return is_lowered
