"""Mending: a batch of a selective stream that cannot be read is fetched again and written in its place (guarantee 4).

Sources are asked in turn, whether or not they want such rows: the origin, its keepers, whoever has a registration on
the topic, then everybody. A batch that arrives is taken only if a checksum that the store can still read proves that it
is the one that was there. Neither marks nor coverage change. If nobody has it after `MEND_MS`, the rows become a skip
`lost`, so that others stop asking for them; the next reader of the batch begins all over again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, Damaged, RepairBatch, Trace
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveSettings
from m4cast.overlay.protocol.selective.speaking import route
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.selective import Destination, SelectPullCall
from m4cast.overlay.value import value

MENDED_MAX = 64
"""Damaged batches that are fetched at a time; others are reported again by their next reader. Guess."""
WAIT_MAX_MS = 60_000
MEND_MS = 60_000
"""The time to wait for a node that has the batch: as long as for a node that may keep rows of a broadcast topic
(`ABSENT_PATIENCE_MS`)."""


@value
class MendDue(Timer):
    """Ask the next source for a damaged batch."""

    stream: StreamId
    first: int


@dataclass(slots=True)
class _Damage:
    next: int
    checksums: tuple[int, ...]
    found_ms: int
    attempts: int = 0
    wait_ms: int = 0
    token: int = 0
    """The token of the append that repairs it; 0 while there is none."""


class Mending:
    def __init__(
        self,
        me: NodeId,
        settings: SelectiveSettings,
        timers: Timers,
        next_token: Callable[[], int],
        out: list[SelectiveOutput],
    ) -> None:
        self._me = me
        self._settings = settings
        self._timers = timers
        self._next_token = next_token
        self._out = out
        self.damaged: dict[tuple[StreamId, int], _Damage] = {}
        self.lost: dict[tuple[StreamId, int], None] = {}
        """Batches that nobody had in time. Others pass over them, so that their acknowledgements do not speak of
        these."""
        self.sources: Callable[[StreamId], list[NodeId]] = lambda stream_id: []
        """Whom to ask, the best first."""
        self.lose: Callable[[StreamId, int, int], None] = lambda stream_id, first, following: None
        """Nobody has these rows."""

    def found(self, damaged: Damaged, now_ms: int) -> None:
        """A batch cannot be read."""
        place = (damaged.stream, damaged.first_sequence)
        if place not in self.damaged and len(self.damaged) < MENDED_MAX:
            self.damaged[place] = _Damage(damaged.next_sequence, damaged.checksums, now_ms)
            self._trace("damaged", place)
            self.due(*place, now_ms)

    def due(self, stream_id: StreamId, first: int, now_ms: int) -> None:
        damage = self.damaged.get((stream_id, first))
        if damage is None or damage.token:
            return
        sources = self.sources(stream_id)
        if damage.attempts < len(sources):
            call = SelectPullCall(0, *stream_id, first, damage.next, 0, 0, (), self._settings.pull_bytes)
            route(self._out, self._me, [Destination(sources[damage.attempts], 0, 0)], call)
            damage.attempts += 1
            wait_ms = self._settings.pull_timeout_ms
        elif now_ms - damage.found_ms >= MEND_MS:
            del self.damaged[stream_id, first]
            self.lost[stream_id, first] = None
            self.lose(stream_id, first, damage.next)
            return
        else:
            damage.attempts = 0
            wait_ms = damage.wait_ms = min(max(2 * damage.wait_ms, self._settings.pull_timeout_ms), WAIT_MAX_MS)
        self._timers.set(MendDue(stream_id, first), now_ms + wait_ms)

    def received(self, batch: Batch) -> bool:
        """A batch arrived; True if it is one of those that are damaged here."""
        damage = self.damaged.get((batch.stream, batch.first_sequence))
        if damage is None or damage.token or batch.checksum not in damage.checksums:
            return False
        damage.token = self._next_token()
        self._timers.cancel(MendDue(batch.stream, batch.first_sequence))
        self._out.append(Append(damage.token, (RepairBatch(batch),)))
        return True

    def durable(self, token: int) -> None:
        for place, damage in list(self.damaged.items()):
            if damage.token and damage.token <= token:
                del self.damaged[place]
                self._trace("repaired", place)

    def failed(self, token: int, now_ms: int) -> None:
        for place, damage in self.damaged.items():
            if damage.token >= token:
                damage.token = 0
                self._timers.set(MendDue(*place), now_ms + self._settings.pull_timeout_ms)

    def _trace(self, name: str, place: tuple[StreamId, int]) -> None:
        (origin, topic), first = place
        self._out.append(Trace(name, (("origin", origin.hex()), ("topic", topic), ("first", first))))
