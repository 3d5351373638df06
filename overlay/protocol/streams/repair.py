"""Repair: a batch that is found damaged on disk is fetched again and written in its place.

The store reports a batch that it cannot read, whoever wanted to read it. `Pulling` does not ask for rows below `next`,
so they are pulled here: from each neighbour in turn, whatever it claims, then from holders that a flooded search finds,
then all over again, less and less often. A batch that arrives is taken only if the checksums that the store can still
read prove that it is the one that was there: a stream may have two histories, and a neighbour may have the other one.
The store writes it in place of the damaged one. Nothing else changes: neither holdings nor frontiers, and nothing is
delivered a second time.

Guarantees
4. Whatever was here and is still kept by a reachable node becomes readable here again.
7. At most `REPAIRS_MAX` batches are repaired at a time; others are reported again by their next reader.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, Damaged, RepairBatch, Trace
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.timers import RepairDue
from m4cast.overlay.protocol.wire.batch import Batch

REPAIRS_MAX = 64
"""Damaged batches that are fetched at a time; guess. Raising it costs memory for their payloads."""
RETRY_MS_MAX = 60_000

Place = tuple[StreamId, int]
"""A stream, and the first sequence of a batch."""


@dataclass(slots=True)
class _Damage:
    next_sequence: int
    checksums: tuple[int, ...]
    asked: NodeId | None = None
    tried: list[NodeId] = field(default_factory=list)
    rounds: int = 0
    token: int = 0
    """Token of the append that repairs it; 0 while there is none."""


class Repair:
    def __init__(
        self,
        context: Context,
        holdings: Holdings,
        sources: Callable[[], Iterable[NodeId]],
        ask: Callable[[NodeId, StreamId, int, int], bool],
        search: Callable[[StreamId, int], None],
    ) -> None:
        """`sources`: who can be asked; `ask`: pull the range from a source, False if it has too much to answer;
        `search`: flood a search for a holder of the sequence."""
        self._holdings = holdings
        self._config = context.config
        self._timers = context.timers
        self._next_token = context.next_token
        self._sources = sources
        self._ask = ask
        self._search = search
        self._out = context.out
        self.damaged: dict[Place, _Damage] = {}
        self.repaired = 0

    def found(self, damaged: Damaged, now_ms: int) -> None:
        """A batch cannot be read."""
        stream_id, first, following = damaged.stream, damaged.first_sequence, damaged.next_sequence
        stream = self._holdings.get(stream_id)
        place = (stream_id, first)
        if stream is None or not stream.low <= first < following <= stream.durable_next:
            return
        if place not in self.damaged and len(self.damaged) < REPAIRS_MAX:
            self.damaged[place] = _Damage(following, damaged.checksums)
            self._out.append(Trace("damaged", _named(place)))
            self._fetch(place, now_ms)

    def is_damaged(self, stream_id: StreamId, sequence: int) -> bool:
        return any(
            stream_id == of and first <= sequence < damage.next_sequence for (of, first), damage in self.damaged.items()
        )

    def wants(self, stream_id: StreamId) -> bool:
        return any(stream_id == of for of, _ in self.damaged)

    def _fetch(self, place: Place, now_ms: int) -> None:
        """Ask the next source; when all were asked, search for others."""
        damage = self.damaged[place]
        stream_id, first = place
        if self._holdings.streams[stream_id].low > first:  # retention was faster
            self._forget(place)
            return
        damage.asked = None
        for source in self._sources():
            if source not in damage.tried and self._ask(source, stream_id, first, damage.next_sequence):
                damage.asked = source
                self._timers.set(RepairDue(stream_id, first), now_ms + self._config.pull_timeout_ms)
                return
        self._search(stream_id, first)
        wait_ms = min(self._config.holder_search_ms << min(damage.rounds, 8), RETRY_MS_MAX)
        damage.rounds += 1
        damage.tried.clear()
        self._timers.set(RepairDue(stream_id, first), now_ms + wait_ms)

    def timer(self, stream_id: StreamId, first: int, now_ms: int) -> None:
        damage = self.damaged.get((stream_id, first))
        if damage is not None and not damage.token:
            if damage.asked is not None:
                damage.tried.append(damage.asked)
            self._fetch((stream_id, first), now_ms)

    def holder_found(self, stream_id: StreamId, now_ms: int) -> None:
        """A search has found a new source."""
        for place, damage in list(self.damaged.items()):
            if place[0] == stream_id and damage.asked is None and not damage.token:
                self._fetch(place, now_ms)

    def answered(self, stream_id: StreamId, first: int, sender: NodeId, served_next: int, now_ms: int) -> None:
        damage = self.damaged.get((stream_id, first))
        if damage is not None and damage.asked == sender and not damage.token and served_next <= first:
            damage.tried.append(sender)
            self._fetch((stream_id, first), now_ms)

    def received(self, batch: Batch, sender: NodeId, now_ms: int) -> None:
        """A batch arrived; it may be one of those that are damaged here."""
        place = (batch.stream, batch.first_sequence)
        damage = self.damaged.get(place)
        if damage is None or damage.token:
            return
        if damage.next_sequence != batch.next_sequence or batch.checksum not in damage.checksums:
            if damage.asked == sender:  # the sender has another history of this stream
                damage.tried.append(sender)
                self._fetch(place, now_ms)
        else:
            damage.token = self._next_token()
            self._timers.cancel(RepairDue(batch.stream, batch.first_sequence))
            self._out.append(Append(damage.token, (RepairBatch(batch),)))

    def durable(self, token: int) -> Place | None:
        """The place that this append has repaired, if it is one of these."""
        for place, damage in self.damaged.items():
            if damage.token == token:
                self._forget(place)
                self.repaired += 1
                self._out.append(Trace("repaired", _named(place)))
                return place
        return None

    def failed(self, token: int, now_ms: int) -> None:
        """This append and all later ones were not kept."""
        for (stream_id, first), damage in self.damaged.items():
            if damage.token >= token:
                damage.token = 0
                self._timers.set(RepairDue(stream_id, first), now_ms + self._config.pull_timeout_ms)

    def _forget(self, place: Place) -> None:
        del self.damaged[place]
        self._timers.cancel(RepairDue(*place))


def _named(place: Place) -> tuple[tuple[str, object], ...]:
    stream_id, first = place
    return (("origin", stream_id.origin.hex()), ("topic", stream_id.topic), ("first", first))
