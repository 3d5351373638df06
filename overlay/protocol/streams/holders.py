"""Holders: how this node serves those beyond its neighbours that search for rows which it keeps (PROTOCOL.md 5.4).

Whoever keeps what a flooded search is for calls the requester and offers it; the requester pulls on that call. One call
serves all searches of a requester, and a limited number of requesters is served at a time.
"""

from dataclasses import dataclass, replace

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.streams.repair import Repair
from m4cast.overlay.protocol.streams.spreading import Spreading
from m4cast.overlay.protocol.wire.messages import HolderFoundStmt, HolderSearchStmt

HELPED_MAX = 64
"""Nodes other than neighbours that this one serves at a time; guess. Past it, it does not answer searches."""


@dataclass(slots=True)
class HoldFor:
    """Purpose of a call: I keep what you search for; pull it from me."""

    requester: NodeId
    found: list[tuple[int, StreamId]]
    """(search, stream) to offer when the call is ready."""


class Holders:
    def __init__(
        self, context: Context, holdings: Holdings, floods: Floods, spreading: Spreading, repair: Repair
    ) -> None:
        self._calls = context.calls
        self._table = context.table
        self._out = context.out
        self._holdings = holdings
        self._floods = floods
        self._spreading = spreading
        self._repair = repair
        self._helped: dict[NodeId, tuple[HoldFor, int]] = {}
        """Requester -> purpose and connection of the call."""

    def on_search(self, sender: Neighbour, search: HolderSearchStmt, now_ms: int) -> None:
        """Pass the first copy of somebody's search on, and offer what is here."""
        if not self._floods.is_new(search):
            return
        if search.hops < search.hops_max:
            onward = replace(search, hops=search.hops + 1)
            for neighbour in self._table.neighbours.values():
                if neighbour is not sender:
                    self._out.append(Send(neighbour.conn, onward))
        self.offer(search, now_ms)

    def offer(self, search: HolderSearchStmt, now_ms: int) -> None:
        """Offer rows to a searching node, even to a neighbour: if its searches did not hear of them on the link, that
        may be dead in one direction."""
        requester = search.requester.node_id
        stream_id = StreamId(search.origin, search.topic)
        if not self._keeps(stream_id, search.sequence):
            return
        if requester in self._helped:
            purpose, conn = self._helped[requester]
            if self._spreading.serves(conn):
                self._send_found(conn, search.search, stream_id)
            else:
                purpose.found.append((search.search, stream_id))
        elif len(self._helped) < HELPED_MAX:
            purpose = HoldFor(requester, [(search.search, stream_id)])
            conn = self._calls.dial(search.requester.address, purpose, now_ms, search.requester)
            self._helped[requester] = (purpose, conn)

    def _keeps(self, stream_id: StreamId, sequence: int) -> bool:
        """True if the row is here as data, and can be read."""
        stream = self._holdings.get(stream_id)
        return (
            stream is not None
            and stream.first_held_from(sequence) == sequence
            and sequence < stream.next
            and not self._spreading.cannot_read(stream_id, sequence)
            and not self._repair.is_damaged(stream_id, sequence)
        )

    def call_ready(self, call: Call, purpose: HoldFor) -> None:
        assert call.peer is not None
        self._spreading.serve_on(call.peer.node_id, call.conn)
        for search, stream_id in purpose.found:
            self._send_found(call.conn, search, stream_id)
        purpose.found.clear()

    def _send_found(self, conn: int, search: int, stream_id: StreamId) -> None:
        stream = self._holdings.open(stream_id)
        found = HolderFoundStmt(
            search=search, origin=stream_id.origin, topic=stream_id.topic, low=stream.low, next=stream.next
        )
        self._out.append(Send(conn, found))

    def call_over(self, call: Call, purpose: HoldFor) -> None:
        _, conn = self._helped.get(purpose.requester, (None, 0))
        if conn == call.conn:
            del self._helped[purpose.requester]
