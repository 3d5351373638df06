"""Keeping: which nodes keep this node's selective streams, and what they say before it numbers anything.

The origin alone chooses its keepers, by rendezvous hashing among the nodes that are present, and does not change its
mind: a keeper is replaced when it is absent, and one is asked at a time. Who keeps whom is in the interest view, since
keeping is a registration. A node whose store was rolled back hears of it from its keepers: no neighbour of it need have
a row of its selective streams.
"""

from collections.abc import Callable

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.protocol.effects import RolledBack
from m4cast.overlay.protocol.selective.contract import KeepWish, SelectiveOutput
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.selective.speaking import Speaking, route
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.selective import Destination, KeepCall, KeptCall, KeptResp
from m4cast.overlay.value import value

KEEP_MS = 2_000
"""The interval at which the keepers are checked while there are too few or too many, or while one has not answered;
guess."""


@value
class KeepDue(Timer):
    """Look at this node's keepers."""


class Keeping:
    def __init__(
        self,
        ids: tuple[NodeId, ...],
        demand: Demand,
        speaking: Speaking,
        timers: Timers,
        out: list[SelectiveOutput],
    ) -> None:
        """`ids`: of this node, the present one first."""
        self._me, *self._former = ids
        self._ids = ids
        self._demand = demand
        self._speaking = speaking
        self._timers = timers
        self._out = out
        self.present: Callable[[], list[NodeId]] = list
        """The nodes that are on the channel and can keep, but for this one."""
        self.expected: Callable[[int], list[NodeId]] = lambda now_ms: self.present()
        """The same, and those that have been silent for less long than it takes to miss them."""
        self.coverage: Callable[[StreamId], int] = lambda stream_id: 1
        """Returns how far this node has a stream that it keeps."""
        self.wanted = 0
        """The number of keepers that this node's streams want."""
        self.has_view = False
        self._is_ready = False
        """Once it was: keepers that come later were chosen in this life, or are asked and may still object."""
        self._heard: dict[NodeId, None] = {}
        """Keepers that have answered."""
        self.former_ends: dict[StreamId, int] = {}
        """The positions up to which others have the streams that this node had under former ids."""

    # ---- choosing

    def want(self, keepers: int, now_ms: int) -> None:
        if keepers > self.wanted:
            self.wanted = keepers
            self._timers.set_sooner(KeepDue(), now_ms)

    def due(self, now_ms: int) -> None:
        """Ask one more node to keep, or release one."""
        self._timers.set(KeepDue(), now_ms + KEEP_MS)
        present = self.present()
        keepers = [node_id for node_id in self._demand.keepers(self._me) if node_id in present]
        others = [node_id for node_id in present if node_id not in keepers]
        if len(keepers) < self.wanted and others:
            self._send(max(others, key=self._rank), KeepCall(keep=True))
        elif len(keepers) > self.wanted and all(map(self._speaking.is_level, keepers)):
            self._send(min(keepers, key=self._rank), KeepCall(keep=False))
        if self._unheard(now_ms) or self.why_not_ready(now_ms) is not None:
            self._ask(now_ms)
        elif len(keepers) == self.wanted or not self.wanted:
            self._timers.cancel(KeepDue())  # until somebody comes or goes

    def changed(self, now_ms: int) -> None:
        """Called when a node came or went, or keeps something new."""
        if self.wanted or (self.has_view and self.why_not_ready(now_ms) is not None):
            self._timers.set_sooner(KeepDue(), now_ms + KEEP_MS)

    def _rank(self, node_id: NodeId) -> int:
        return xxh3_64_intdigest(self._me + node_id)

    # ---- may it number?

    def end_mark(self, now_ms: int) -> None:
        """The interest exchange with a neighbour is complete: who keeps this node's streams is known."""
        if not self.has_view:
            self.has_view = True
            self._ask(now_ms)
            if self.why_not_ready(now_ms) is not None:
                self._timers.set_sooner(KeepDue(), now_ms + KEEP_MS)

    def why_not_ready(self, now_ms: int) -> str | None:
        """The reason why nothing may be numbered on selective topics; None when it may."""
        if self._is_ready:
            return None
        if not self.has_view:
            return "this node has not heard yet who wants what: try again"
        if unheard := self._unheard(now_ms):
            return f"{len(unheard)} nodes have not answered what they have of this node's rows yet: try again"
        for stream_id, end in self.former_ends.items():
            if self.coverage(stream_id) < end:
                return (
                    f"this node's store was older than the channel, and its former rows of topic {stream_id.topic!r} "
                    f"have not come back up to {end - 1} yet: try again"
                )
        self._is_ready = True
        return None

    def _unheard(self, now_ms: int) -> list[NodeId]:
        """Those that are to be asked and have not answered: the present keepers. After a rollback, everybody: rows that
        show which keyed commits were made may be at receivers alone."""
        if self._former:
            others = (each for each in self.expected(now_ms) if not is_of_lineage(each, self._me))
            return [each for each in others if each not in self._heard]
        present, keepers = self.present(), self._demand.keepers(self._me)
        return [each for each in keepers if each in present and each not in self._heard]

    def _ask(self, now_ms: int) -> None:
        present = self.present()
        asked = [Destination(each, 0, 0) for each in self._unheard(now_ms) if each in present]
        if asked:
            route(self._out, self._me, asked, KeptCall(self._ids))

    def on_kept(self, sender: NodeId, kept: KeptResp) -> None:
        for origin, topic, end, checksum in kept.entries:
            stream_id = StreamId(origin, topic)
            own = self._speaking.streams.get(stream_id)
            mine, mine_checksum = (own.next, own.checksum) if own else (1, 0)
            if origin == self._me:
                differs = end == mine and 0 not in (checksum, mine_checksum) and checksum != mine_checksum
                if end > mine or differs:
                    detail = f"a keeper has {topic!r} of this node up to {end - 1}, its store up to {mine - 1}"
                    self._out.append(RolledBack(detail))
            else:
                if origin not in self._former:
                    self._former.append(origin)
                self.former_ends[stream_id] = max(end, self.former_ends.get(stream_id, 1))
                self._out.append(KeepWish(origin, keep=True))
        self._heard[sender] = None

    def _send(self, to: NodeId, message: KeepCall) -> None:
        route(self._out, self._me, [Destination(to, 0, 0)], message)
