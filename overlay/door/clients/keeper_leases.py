"""Leases at keepers: rows of selective topics that clients need are retained wherever they are, not only where the
clients are attached.

An access point announces the least positions of its clients in each selective stream, as items of the interest
(`protocol/clients/holds`). Every node that has such a stream retains it for that access point, as one reader named
after it, for as long as a lease lasts after the access point was last heard of. So the rows of absent clients survive
an access point that is killed, whatever retention says at the keepers.
"""

import threading
import time
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.clients.client_lease import READER, held
from m4cast.overlay.door.node_handle import NodeHandle, until_written, waited
from m4cast.overlay.door.selected.reads import SelectiveReads
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import read
from m4cast.overlay.protocol.clients.holds import HOLDS_MAX, HOLDS_TOPIC, hold_id, hold_of, hold_text
from m4cast.overlay.protocol.clients.state import Frontier
from m4cast.overlay.protocol.effects import InterestChanged, Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import Store

HOLDS_HASH = xxh3_64_intdigest(HOLDS_TOPIC.encode())
RAISE_S = 30.0
"""The interval at which other nodes are told that clients have passed rows. Lower: they are removed sooner; more
messages."""
RENEW_S = 3_600.0


class KeeperLeases:
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, selective: SelectiveReads) -> None:
        self._store = store
        self._node = node
        self._selective = selective
        self._timeout_s = selective.timeout_s
        self._lock = threading.Lock()
        """Over the fields below."""
        self._announced: dict[StreamId, int] = {}
        for text in node.now(_own_holds):
            if (found := hold_of(text)) is not None:
                self._announced[found[0]] = found[1]
        self._announced_at = 0.0
        self._telling = threading.Lock()
        """Held while the node is asked: the last to tell tells the latest."""
        self._heard: dict[NodeId, None] = {}
        """Nodes whose holds have changed."""
        self._known: dict[NodeId, None] = {}
        self._renewed_at = time.monotonic()

    # ---- what this node's clients need

    def tell(self, floor: Frontier) -> None:
        """Announce what is needed of selective streams; what is needed no longer, at leisure."""
        with self._telling:
            wanted = self._wanted(floor)
            with self._lock:
                announced = self._announced
                is_late = time.monotonic() - self._announced_at >= RAISE_S
                lowered = {each: first for each, first in wanted.items() if first < announced.get(each, first + 1)}
                raised = {each: first for each, first in wanted.items() if first > announced.get(each, first)}
                gone = [each for each in announced if each not in wanted]
            if not lowered and not (is_late and (raised or gone)):
                return
            self._announce({**lowered, **raised}, gone)
            with self._lock:
                self._announced = wanted
                self._announced_at = time.monotonic()

    def _wanted(self, floor: Frontier) -> dict[StreamId, int]:
        origins = {topic: set(floor[topic]) for topic in self._selective.chosen(tuple(floor))}
        for stream in self._store.streams() if origins else ():
            if stream.topic in origins:
                origins[stream.topic].add(stream.origin.hex())
        wanted = {
            StreamId(NodeId(bytes.fromhex(origin)), topic): floor[topic].get(origin, 1)
            for topic, found in origins.items()
            for origin in found
        }
        return dict(sorted(wanted.items(), key=lambda item: (item[0].topic, item[0].origin))[:HOLDS_MAX])

    def _announce(self, changed: Mapping[StreamId, int], gone: list[StreamId]) -> None:
        wishes = tuple(
            Wish(hold_id(each), HOLDS_TOPIC, read(hold_text(each, first))) for each, first in changed.items()
        )
        if wishes:
            waited(self._node.request(lambda number: Subscribe(number, wishes)), self._timeout_s, lambda: False)
        if gone:
            ids = tuple(map(hold_id, gone))
            waited(self._node.request(lambda number: Unsubscribe(number, ids)), self._timeout_s, lambda: False)

    # ---- what others' clients need

    def watch(self, change: InterestChanged) -> bool:
        """Runs on the loop, when an entry has changed. Whether the change concerns holds."""
        if not change.present:
            return False  # it may be dead: what its clients need is retained until the lease ends
        hashes = [item.topic_hash for item in (*change.joined, *change.rejoined)]
        hashes += [key.topic_hash for key in change.left]
        if HOLDS_HASH not in hashes:
            return False
        self._heard[change.node_id] = None
        return True

    def follow(self) -> None:
        """Retain what other access points need, as far as it is here."""
        if time.monotonic() - self._renewed_at >= RENEW_S:
            self._renewed_at = time.monotonic()
            self._heard |= self._known
        while self._heard:
            node_id = next(iter(self._heard))
            del self._heard[node_id]
            me, texts = self._node.look(lambda node, each=node_id: _holds(node, each), self._timeout_s)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            if node_id == me:
                continue
            frontier = dict(found for text in texts if (found := hold_of(text)) is not None)
            name = f"{READER}/{node_id.hex()}"
            if frontier:
                self._known[node_id] = None
                held(self._store, name, frontier, (), self._node.clock_ms(), self._timeout_s)
            else:
                self._known.pop(node_id, None)
                until_written(self._store.drop_reader(name), self._timeout_s)


def _own_holds(node: Node) -> list[str]:
    return [row.text for row in node.interest.registrations.rows.values() if row.topic == HOLDS_TOPIC]


def _holds(node: Node, node_id: NodeId) -> tuple[NodeId, list[str]]:
    """Runs on the loop: this node, and the holds of another."""
    entry = node.interest.view.entries.get(node_id)
    items = () if entry is None else entry.items.values()
    return node.me.node_id, [item.text for item in items if item.topic_hash == HOLDS_HASH]
