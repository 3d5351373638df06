"""Inquiries: before a range is given up, every node that may keep it is asked (PROTOCOL.md 5.4).

A flooded search finds whoever keeps the range, but its silence proves nothing: the only holder may be restarting,
stopped or slow. So each node of the roster that has not left and is not a neighbour is called, and asked for the range
by a pull on that call. It serves the range, or answers that it does not keep it. A node that cannot be reached is
waited for as long as it may come back: `ABSENT_PATIENCE_MS` since it was last heard of, or since this node started.

In a channel with more than `ASKED_MAX` such nodes, calling all of them would be a flood of its own. There the search
decides, and a node counts as asked if its own beacons have arrived since this node started.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS, Call, Candidate
from m4cast.overlay.protocol.context import Context

ASKED_MAX = 64
"""Nodes that are asked one by one; guess. Raising it costs a call each before a range is given up."""
ASKED_AT_ONCE = 8
ANSWER_MS = 30_000
"""The time for which an answer is valid: a node that did not keep the range may have received it since; guess."""
UNREACHABLE_MS = 10_000
"""The time for which a node counts as unreachable after a failed call; guess. If it is raised, a range may be given up
although a node that has just come back keeps it."""


@dataclass(slots=True)
class Inquiry:
    """Purpose of a call: do you keep the next row that I lack of these streams?"""

    contact: Contact
    streams: dict[StreamId, None]


@dataclass(slots=True)
class _Asked:
    """The state of the inquiries about one missing row."""

    sequence: int
    answered_at_ms: dict[NodeId, int] = field(default_factory=dict)
    """Nodes that do not keep it."""


class Inquiries:
    def __init__(self, context: Context) -> None:
        self._my_address = context.me.address
        self._calls = context.calls
        self._open: dict[NodeId, tuple[Inquiry, int]] = {}  # with the connection of its call
        self._waiting: dict[NodeId, Inquiry] = {}
        self._asked: dict[StreamId, _Asked] = {}
        self._unreachable_at_ms: dict[NodeId, int] = {}

    # ---- may the range be given up?

    def look_again_at(
        self, stream_id: StreamId, sequence: int, candidates: Iterable[Candidate], now_ms: int
    ) -> int | None:
        """The time at which to look again; None when no node that may come back keeps the row. Nodes that have not
        answered are asked."""
        asked = self._asked.get(stream_id)
        if asked is None or asked.sequence != sequence:
            asked = self._asked[stream_id] = _Asked(sequence)
        open_cases = [each for each in candidates if not self._has_answered(asked, each.contact.node_id, now_ms)]
        if len(open_cases) > ASKED_MAX:
            return _all_heard_at(open_cases, now_ms)
        look_at_ms = 0
        for candidate in open_cases:
            node_id = candidate.contact.node_id
            if candidate.contact.address == self._my_address:  # a former node at this address, whose store is gone
                self._unreachable_at_ms[node_id] = now_ms
            if now_ms - self._unreachable_at_ms.get(node_id, now_ms - UNREACHABLE_MS) >= UNREACHABLE_MS:
                self._ask(candidate.contact, stream_id, now_ms)
                look_at_ms = max(look_at_ms, now_ms + UNREACHABLE_MS)
            elif candidate.is_heard:  # it is alive, and could not be reached just now
                look_at_ms = max(look_at_ms, self._unreachable_at_ms[node_id] + UNREACHABLE_MS)
            elif now_ms - candidate.heard_at_ms < ABSENT_PATIENCE_MS:
                look_at_ms = max(look_at_ms, candidate.heard_at_ms + ABSENT_PATIENCE_MS)
        return look_at_ms or None

    def _has_answered(self, asked: _Asked, node_id: NodeId, now_ms: int) -> bool:
        at_ms = asked.answered_at_ms.get(node_id)
        return at_ms is not None and now_ms - at_ms < ANSWER_MS

    def _ask(self, contact: Contact, stream_id: StreamId, now_ms: int) -> None:
        if contact.node_id in self._open:
            inquiry, _ = self._open[contact.node_id]
        else:
            inquiry = self._waiting.setdefault(contact.node_id, Inquiry(contact, {}))
        inquiry.streams[stream_id] = None
        self._call_more(now_ms)

    def _call_more(self, now_ms: int) -> None:
        while self._waiting and len(self._open) < ASKED_AT_ONCE:
            inquiry = self._waiting.pop(next(iter(self._waiting)))
            conn = self._calls.dial(inquiry.contact.address, inquiry, now_ms, inquiry.contact)
            self._open[inquiry.contact.node_id] = (inquiry, conn)

    # ---- what becomes of a call

    def answered(self, node_id: NodeId, stream_id: StreamId, sequence: int, now_ms: int) -> None:
        """The node reported that it does not keep the row, or does not have it yet."""
        asked = self._asked.get(stream_id)
        if asked is not None and asked.sequence == sequence:
            asked.answered_at_ms[node_id] = now_ms
        if node_id in self._open:
            inquiry, _ = self._open[node_id]
            inquiry.streams.pop(stream_id, None)

    def done_on(self, node_id: NodeId) -> int | None:
        """The connection of the call to this node, if all that it was called for has been answered."""
        inquiry, conn = self._open.get(node_id, (None, 0))
        return conn if inquiry is not None and not inquiry.streams else None

    def cannot_say(self, inquiry: Inquiry, now_ms: int) -> None:
        """The node is alive, and its version cannot be asked: the flooded search has to suffice."""
        for stream_id in list(inquiry.streams):
            asked = self._asked.get(stream_id)
            if asked is not None:
                self.answered(inquiry.contact.node_id, stream_id, asked.sequence, now_ms)

    def call_over(self, call: Call, now_ms: int) -> list[StreamId]:
        """The streams that wait for nobody's answer any more: whether they may be given up can be looked at again."""
        inquiry = call.purpose
        assert isinstance(inquiry, Inquiry)
        node_id = inquiry.contact.node_id
        if self._open.get(node_id, (None, 0))[1] != call.conn:
            return []
        del self._open[node_id]
        if inquiry.streams:
            self._note_unreachable(node_id, now_ms)
        self._call_more(now_ms)
        awaited = [each for each, _ in self._open.values()] + list(self._waiting.values())
        return [stream_id for stream_id in self._asked if not any(stream_id in inquiry.streams for inquiry in awaited)]

    def _note_unreachable(self, node_id: NodeId, now_ms: int) -> None:
        if len(self._unreachable_at_ms) > ASKED_MAX:
            old_ms = now_ms - UNREACHABLE_MS
            self._unreachable_at_ms = {each: at for each, at in self._unreachable_at_ms.items() if at > old_ms}
        self._unreachable_at_ms[node_id] = now_ms

    def forget(self, stream_id: StreamId) -> None:
        """The row arrived, or was given up."""
        if self._asked.pop(stream_id, None) is not None:
            for inquiry in (*(each for each, _ in self._open.values()), *self._waiting.values()):
                inquiry.streams.pop(stream_id, None)


def _all_heard_at(candidates: list[Candidate], now_ms: int) -> int | None:
    """Return the time at which each of them has sent a beacon, or has been silent for long enough: the rule of a large
    channel."""
    silent = [each.heard_at_ms + ABSENT_PATIENCE_MS for each in candidates if not each.is_heard]
    latest_ms = max(silent, default=0)
    return latest_ms if latest_ms > now_ms else None
