"""The node's own past: is this store the latest record of the rows that this node published? (PROTOCOL.md 8)

A store that was restored from a backup does not show it. If the node numbered rows on such a store, one number would
stand for two rows. So a node whose store was opened before asks all others what they have of its streams before it
numbers anything: every node that it knows from its store, and every node that it meets meanwhile. It waits until each
of them has answered or cannot be reached, and until one that knew this node before is among those that answered. If
they have more than this store, the store was rolled back. What they have of this node's former identities has to come
back first, since it shows which keyed commits were made.

Nodes that cannot be reached are not waited for: whatever they have, they cannot serve it. If no node that knew this one
can be reached, there is no proof either way, and the node numbers nothing until one comes back or its operator vouches
for the store (`trust_store`).

A new store needs no proof: its node id is as new. Of more than `ASKED_MAX` known nodes a random part is asked.
"""

from collections.abc import Callable, Iterable

from m4cast.overlay.ids import Contact, NodeId, StreamId, is_of_lineage
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Recovered, Send
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.wire.messages import HELD_VERSION, HeldCall, HeldEntry, HeldResp
from m4cast.overlay.value import value

ASKED_MAX = 64
"""Nodes of the store's roster that are asked at a start; guess. Raising it costs a call each, and a start waits for the
slowest."""
ASKED_AT_ONCE = 8
ORIGINS_MAX = 64
"""Identities in one question, as its record in `schemas/avro` has it."""
NAMED_MAX = 5
"""Nodes that a refusal names."""


@value
class Ask:
    """Purpose of a call: what do you have of my streams?"""

    contact: Contact


class Past:
    def __init__(self, context: Context, recovered: Recovered, holdings: Holdings) -> None:
        my_address = context.me.address
        self._origins = (recovered.node_id, *recovered.former_ids[-(ORIGINS_MAX - 1) :])
        self._incarnation = recovered.incarnation
        self._former_ids = recovered.former_ids
        self._holdings = holdings
        self._my_address = my_address
        self._calls = context.calls
        self._out = context.out
        self.rolled_back = ""
        """How it is known that this store is older than what another node has of it; empty: it is not."""
        knew = {
            entry.node_id: (entry.name, Contact(entry.node_id, entry.address))
            for entry in recovered.roster
            if not (entry.leaving or entry.node_id in recovered.former_ids or entry.address == my_address)
        }
        self._knew = knew
        """Nodes that this store has met: (name, contact)."""
        is_new = recovered.incarnation <= 1 and not recovered.former_ids
        self.proven_at_ms: int | None = 0 if context.config.trust_store or is_new else None
        """The time at which this store was known to be the latest; None while it is not."""
        self._to_ask: dict[NodeId, Contact] = {}
        self._asked: dict[int, NodeId] = {}  # connection on which a question waits for its answer
        self._answered: dict[NodeId, None] = {}
        self.considered: dict[NodeId, None] = {}
        """All that were to be asked, whether they could be reached or not."""
        self._is_vouched_for = not knew
        self._former: dict[NodeId, dict[StreamId, int]] = {}  # who answered -> former stream -> what it has is below
        self._so_far: dict[int, dict[StreamId, int]] = {}  # the same of answers that are not complete
        if self.is_asking:
            contacts = [contact for _, contact in knew.values()]
            for contact in context.random.sample(contacts, min(len(contacts), ASKED_MAX)):
                self._consider(contact)

    def _consider(self, contact: Contact) -> None:
        self._to_ask[contact.node_id] = contact
        self.considered[contact.node_id] = None

    # ---- asking

    @property
    def is_asking(self) -> bool:
        """True if whoever is met should be asked."""
        return self.proven_at_ms is None

    def start(self, now_ms: int) -> None:
        self._go_on(now_ms)

    def _ask_more(self, now_ms: int) -> None:
        while self._to_ask and len(self._asked) < ASKED_AT_ONCE:
            contact = self._to_ask.pop(next(iter(self._to_ask)))
            conn = self._calls.dial(contact.address, Ask(contact), now_ms, contact)
            self._asked[conn] = contact.node_id

    def met(self, contact: Contact, now_ms: int) -> None:
        """A node said hello, or its beacon arrived. One that could not be reached before may be asked now."""
        if contact.node_id not in self._answered and contact.node_id not in self._asked.values():
            self._consider(contact)
            self._ask_more(now_ms)

    def heard_of(self, contact: Contact, now_ms: int) -> None:
        """Another node knows of this one; it need not be reachable."""
        if (
            contact.address != self._my_address
            and contact.node_id not in self.considered
            and len(self.considered) < 2 * ASKED_MAX
        ):
            self.met(contact, now_ms)

    def linked(self, call: Call) -> None:
        """A neighbour is asked on its link."""
        assert call.peer is not None
        if call.peer.node_id not in self._answered and call.version >= HELD_VERSION:
            self._to_ask.pop(call.peer.node_id, None)
            self._asked[call.conn] = call.peer.node_id
            self._out.append(Send(call.conn, HeldCall(self._origins)))

    def call_ready(self, call: Call, now_ms: int) -> None:
        """A node that was called said hello. One of an older version cannot be asked; as a neighbour it will say what
        it has."""
        if call.version >= HELD_VERSION:
            self._out.append(Send(call.conn, HeldCall(self._origins)))
        else:
            self._calls.close(call.conn)
            self.connection_over(call.conn, now_ms)

    def connection_over(self, conn: int, now_ms: int) -> None:
        """A node that has not answered on it cannot be reached: it cannot serve what it reported before."""
        self._so_far.pop(conn, None)
        node_id = self._asked.pop(conn, None)
        if node_id is not None:
            self._former.pop(node_id, None)
            self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        self._ask_more(now_ms)
        if not self._asked and self._is_vouched_for and self.is_asking:
            self.proven_at_ms = now_ms

    def has_asked_on(self, conn: int) -> bool:
        return conn in self._asked

    # ---- answers

    def answered(self, call: Call, resp: HeldResp, now_ms: int) -> None:
        """Take an answer that shows no rollback."""
        node_id = self._asked.get(call.conn)
        if node_id is None:
            return
        if resp.knew or resp.entries:
            self._is_vouched_for = True
        so_far = self._so_far.setdefault(call.conn, {})
        for entry in resp.entries:
            if entry.origin != self._origins[0]:
                so_far[StreamId(entry.origin, entry.topic)] = entry.next
        if resp.last:
            del self._asked[call.conn]
            self._former[node_id] = self._so_far.pop(call.conn)  # what it said before may be gone
            self.exchanged(node_id, now_ms)

    def exchanged(self, node_id: NodeId, now_ms: int) -> None:
        """The node has reported all that it has, by its answer or by the exchange of holdings on its link."""
        self._answered[node_id] = None
        self._to_ask.pop(node_id, None)
        if node_id in self._knew:
            self._is_vouched_for = True
        self._go_on(now_ms)

    # ---- the question that all this answers

    @property
    def lacks_proof(self) -> bool:
        """All nodes that can be reached have answered, and none of them knew this one."""
        return self.is_asking and not self._to_ask and not self._asked

    def knew(self, node_id: NodeId) -> bool:
        """True if that node was on the channel in an earlier life of this one, by its store."""
        return node_id in self._knew

    def why_unproven(self) -> str | None:
        """The reason why nothing may be numbered yet, with what to do; None when the store is proven to be the
        latest."""
        if not self.is_asking:
            return None
        waiting = len(self._to_ask) + len(self._asked)
        if waiting:
            nodes = "1 other node" if waiting == 1 else f"{waiting} other nodes"
            return f"waiting for {nodes} to report what they hold of this node's rows: try again"
        named = [f"{name} at {contact.address}" for name, contact in self._knew.values()]
        more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
        return (
            "no node that knew this one before can be reached, so nobody can tell whether its store is the latest: "
            f"start one of {', '.join(named[:NAMED_MAX])}{more}; if they are gone for good and this store is no old "
            "copy, start this node with --trust-store"
        )

    def ask_all_again(self, contacts: Iterable[Contact], now_ms: int) -> None:
        """While there is no proof: nodes that could not help before may know more by now."""
        for contact in contacts:
            if contact.address != self._my_address and len(self._to_ask) + len(self._asked) < ASKED_MAX:
                self.ask_again(contact, now_ms)

    def ask_again(self, contact: Contact, now_ms: int) -> None:
        """Ask the node again: it has more of the former streams than has come back."""
        self._answered.pop(contact.node_id, None)
        self.met(contact, now_ms)

    @property
    def former_holders(self) -> list[NodeId]:
        """The nodes that reported rows of former streams."""
        return list(self._former)

    def former_at(self, node_id: NodeId) -> dict[StreamId, int]:
        """Return how far that node has the former streams."""
        return self._former.get(node_id, {})

    def former_streams(self, is_gone: Callable[[NodeId], bool]) -> dict[StreamId, int]:
        """Return how far the nodes that answered have the streams of this node's former identities; those that have
        gone since cannot serve them."""
        farthest: dict[StreamId, int] = {}
        for node_id, streams in self._former.items():
            if not is_gone(node_id):
                for stream_id, next_sequence in streams.items():
                    farthest[stream_id] = max(farthest.get(stream_id, 1), next_sequence)
        return farthest

    # ---- rollbacks

    def is_former(self, origin: NodeId) -> bool:
        """True if this node had that id before it was rolled back, known to its store or not."""
        me = self._origins[0]
        return origin in self._former_ids or (origin != me and is_of_lineage(origin, me))

    def shows_rollback(self, who: str, incarnation: int, origin_batch: int, own_batches: int) -> bool:
        """True if somebody has seen more of this node than its store knows: then the store was rolled back."""
        if incarnation <= self._incarnation and origin_batch <= own_batches:
            return False
        self.rolled_back = (
            f"{who} has seen incarnation {incarnation} and {origin_batch} batches of this node; this store knows "
            f"{self._incarnation} and {own_batches}"
        )
        return True

    def check_own(self, entries: Iterable[HeldEntry]) -> None:
        """Check whether another node has more of this node's own streams than its store."""
        for entry in entries:
            if entry.origin == self._origins[0]:
                self.is_behind(StreamId(entry.origin, entry.topic), entry.next)

    def is_behind(self, own_stream: StreamId, next_sequence: int) -> bool:
        """True if somebody has more of this own stream than was ever numbered on this store."""
        stream = self._holdings.get(own_stream)
        if next_sequence <= (stream.next if stream else 1):
            return False
        self.rolled_back = f"another node has {own_stream.topic!r} up to {next_sequence - 1}, this store has not"
        return True

    def heard_own_beacon(self, incarnation: int) -> None:
        if incarnation > self._incarnation:
            self.rolled_back = f"a beacon of this node tells of incarnation {incarnation}"

    def heard_later_beacon(self, incarnation: int, counter: int) -> None:
        """Another node has heard a later beacon of this one than it has sent in this life."""
        self.rolled_back = f"another node has heard beacon {counter} of incarnation {incarnation} of this node"

    def heard_own_interest(self, detail: str) -> None:
        """Another node has an interest entry of this one that its store has not."""
        self.rolled_back = detail
