"""Checkers of guarantees 10 and 11, looking at a channel of selective topics from outside."""

from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Want
from m4cast.overlay.protocol.selective.contract import keep_id
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.selective.places import SelectivePlace, does_match, is_due, reaches, values_of


@dataclass
class SelectiveChecks:
    published: dict[StreamId, dict[int, tuple[Batch, int]]] = field(default_factory=dict)
    """Every batch that was ever durable at its origin, and when."""
    wanted_ever: dict[NodeId, list[Want]] = field(default_factory=dict)
    """Everything that was ever wanted at a node."""
    trimmed: dict[StreamId, int] = field(default_factory=dict)
    """Some place does not keep the rows before these any longer."""

    def numbered(self, place: SelectivePlace, batch: Batch, now_ms: int) -> None:
        """A number is used once."""
        known = self.published.setdefault(batch.stream, {}).setdefault(batch.first_sequence, (batch, now_ms))
        if known[0].checksum != batch.checksum:
            raise Violation("numbers", f"{place.name} numbers {batch.first_sequence} a second time")

    def sent(self, batch: Batch, node_id: NodeId) -> None:
        """Guarantee 10: what nobody at a node wants is not sent there."""
        if not any(does_match(want, batch) for want in self.wanted_ever.get(node_id, ())):
            raise Violation("selection", f"{values_of(batch)!r} is sent to a node that never wanted it")

    def covered(self, place: SelectivePlace, now_ms: int) -> None:
        """Guarantees 10 and 11, always."""
        machine = place.machine
        if machine is None:
            return
        for name, stored in machine.wants.durable.items():
            for stream_id, batches in self.published.items():
                if stream_id.origin == place.content.node_id:
                    continue
                end = machine.receiving.coverage(name, stream_id)
                if end is None:
                    continue
                begin = machine.wants.begin(stored, stream_id)
                assert begin is not None
                log = place.content.logs.get(stream_id, {})
                for first, (batch, at_ms) in batches.items():
                    if first >= end or first in log or not does_match(stored.want, batch):
                        continue
                    if first >= begin and not self._is_removed(place, batch):
                        raise Violation("selection", f"{place.name} {name} is covered to {end}, {first} is missing")
                    if first < begin and (at_ms > place.wished.get(name, now_ms) and stored.want.positions is None):
                        raise Violation("active", f"{place.name} {name} begins at {begin}, after {first}")
                    asked = place.asked.get(name, stored.want)
                    is_kept = asked.since_ms == stored.want.since_ms and first >= self.trimmed.get(stream_id, 1)
                    if first < begin and is_kept and reaches(asked, batch):
                        raise Violation("begin", f"{place.name} {name} begins at {begin}, after {first}")

    def _is_removed(self, place: SelectivePlace, batch: Batch) -> bool:
        """Retention removed it here, or a whole holder said that it is kept no longer."""
        content = place.content
        return batch.first_sequence < content.lows.get(batch.stream, 1) or any(
            skip.stream == batch.stream and skip.first_sequence <= batch.first_sequence <= skip.last_sequence
            for skip in content.skips
        )

    def unsettled(self, places: list[SelectivePlace], now_ms: int) -> list[str]:
        """Return what is not yet as it should be once no more faults occur."""
        complaints = []
        for stream_id, batches in self.published.items():
            end = self._whole_end(places, stream_id)
            for place in places:
                if place.machine is None or stream_id.origin == place.content.node_id or end <= 1:
                    continue
                for stored in place.machine.wants.of(stream_id):
                    covered = place.machine.receiving.coverage(stored.want.id, stream_id)
                    since_ms = place.wished.get(stored.want.id, now_ms)
                    late = [
                        first
                        for first, (batch, at_ms) in batches.items()
                        if first < end
                        and does_match(stored.want, batch)
                        and is_due(stored.want, batch, at_ms, since_ms)
                    ]
                    if late and (covered is None or covered < end):
                        complaints.append(f"{place.name} {stored.want.id} is covered to {covered} of {end}")
        return complaints

    def _whole_end(self, places: list[SelectivePlace], stream_id: StreamId) -> int:
        """Return how far a node that is up has the stream whole."""
        ends = [1]
        for place in places:
            if place.machine is None:
                continue
            if place.content.node_id == stream_id.origin:
                return max(batch.next_sequence for batch, _ in self.published[stream_id].values())
            ends.append(place.machine.receiving.coverage(keep_id(stream_id.origin), stream_id) or 1)
        return max(ends)
