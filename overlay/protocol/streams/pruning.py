"""Pruning: links on which a stream comes only as duplicates do without its pushes.

In a flood most links carry most batches for nothing. A node that receives a stream's pushes on a link only as
duplicates has a faster link, and asks for no more of them here (`PruneStmt`). What remains of a long-lived stream is a
tree that nobody computed. The link that brought the latest batch first is never pruned, so a node always has one; nor
is the link to the stream's origin.
"""

from collections.abc import Mapping

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.spreading import Link
from m4cast.overlay.protocol.wire.messages import PruneStmt

PRUNE_AFTER = 8
"""Duplicates in a row after which a link is pruned for a stream. Raising it floods for longer; lowering it prunes links
that were late by chance; guess."""


class Pruning:
    def __init__(self, context: Context, holdings: Holdings, links: Mapping[int, Link]) -> None:
        self._holdings = holdings
        self._links = links
        self._out = context.out

    def pushed_here(self, conn: int, stream_id: StreamId, *, is_duplicate: bool) -> None:
        """A push came. One that brought nothing costs a look-up and a count."""
        link = self._links.get(conn)
        if link is None or stream_id.origin == link.node_id:
            return
        if not is_duplicate:
            link.duplicates[stream_id] = 0
            return
        count = link.duplicates[stream_id] = link.duplicates.get(stream_id, 0) + 1
        if count >= PRUNE_AFTER:
            link.duplicates[stream_id] = 0
            self._out.append(Send(conn, PruneStmt(stream_id.origin, stream_id.topic)))

    def on_prune(self, conn: int, stream_id: StreamId) -> None:
        if self._holdings.get(stream_id) is not None:  # else it was never pushed
            self._links[conn].pruned[stream_id] = None
