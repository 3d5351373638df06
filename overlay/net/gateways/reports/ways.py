"""Ways of batches: what this gatekeeper did with the latest ones, and those of all gatekeepers put together (`m4cast
trace`).

A step has the number of gateways that the batch had crossed when it was made: so steps are put in order without
comparing clocks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from m4cast.overlay.federation.contract import DeliverEvent, MatchedUnits
from m4cast.overlay.federation.messages import EventId
from m4cast.overlay.federation.units import Unit, UnitId
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.reports.echo import Echo
from m4cast.overlay.net.gateways.wire.frames import event_id
from m4cast.overlay.net.gateways.wire.messages import TraceCall, TraceMessage, TraceResp, TraceStep
from m4cast.overlay.protocol.wire.batch import Batch

BATCHES_MAX = 4_096
"""The latest batches whose ways are remembered. Raising it costs memory, about 1 KB each."""
STEPS_MAX = 64
"""Steps of one batch that are remembered here."""
FOUND_MAX = 1_024
"""Steps in one answer."""
NAMES_MAX = 16


@dataclass(slots=True)
class _Way:
    next_sequence: int
    hops: int
    steps: list[TraceStep] = field(default_factory=list)


class BatchWays:
    """`links` are those that are up, `place` are this gatekeeper's address and channel."""

    def __init__(self, me: UnitId, links: dict[int, GatewayLink], place: tuple[str, str]) -> None:
        self._me = me
        self._address, self._channel = place
        self._ways: dict[EventId, _Way] = {}
        self._last = int(time.time() * 1000)
        self.echo: Echo[TraceCall, tuple[TraceStep, ...]] = Echo(
            links,
            here=self._here,
            merged=lambda some, more: (*some, *more)[:FOUND_MAX],
            onward=lambda call: replace(call, hops=call.hops + 1),
            response=lambda call, found, is_cut: TraceResp(call.asker, call.ask, found, is_cut),
            nothing=(),
        )

    # ---- what happens

    def began(self, event: EventId, batch: Batch, hops: int, kind: str, peer: str = "") -> None:
        """A batch was taken from the log, or came by a gateway."""
        if event not in self._ways:
            self._ways[event] = _Way(batch.next_sequence, hops)
            while len(self._ways) > BATCHES_MAX:
                self._ways.pop(next(iter(self._ways)))
        self._add(event, kind, peer=peer)

    def sent(self, event: EventId, kind: str, peer: str) -> None:
        self._add(event, kind, peer=peer)

    def matched(self, output: MatchedUnits) -> None:
        self._add(output.event, "matched", unit=output.unit, hits=output.hits)

    def delivered(self, output: DeliverEvent) -> None:
        self._add(output.event.id, "delivered", wants=output.names)

    def _add(
        self,
        event: EventId,
        kind: str,
        peer: str = "",
        unit: Unit | None = None,
        hits: tuple[Unit, ...] = (),
        wants: tuple[str, ...] = (),
    ) -> None:
        way = self._ways.get(event)
        if way is not None and len(way.steps) < STEPS_MAX:
            step = TraceStep(
                gatekeeper=self._me,
                address=self._address,
                channel=self._channel,
                hops=way.hops,
                at_ms=int(time.time() * 1000),
                kind=kind,
                peer=peer,
                unit=unit,
                hits=hits[:STEPS_MAX],
                wants=tuple(each[:200] for each in wants[:NAMES_MAX]),
            )
            way.steps.append(step)

    # ---- questions

    def trace(self, stream: StreamId, sequence: int, answer: Callable[[list[TraceStep], bool], None]) -> None:
        """Find the way of the batch with this row; the answer has its steps in order, and whether somebody could not
        be asked."""
        self._last += 1
        call = TraceCall(self._me, self._last, stream.origin, stream.topic, sequence, 1)
        self.echo.ask(call, self._here(call), lambda found, is_cut: answer(_ordered(found), is_cut))

    def heard(self, link: GatewayLink, message: TraceMessage) -> None:
        if isinstance(message, TraceCall):
            self.echo.called(link, message)
        else:
            self.echo.answered(link, message.asker, message.ask, message.steps, is_cut=message.is_cut)

    def _here(self, call: TraceCall) -> tuple[TraceStep, ...]:
        publisher = event_id(StreamId(NodeId(call.origin), call.topic), 1).publisher
        for event, way in self._ways.items():
            if event.publisher == publisher and event.sequence <= call.sequence < way.next_sequence:
                return tuple(way.steps)
        return ()


def _ordered(steps: tuple[TraceStep, ...]) -> list[TraceStep]:
    """The steps, ordered by gateways crossed; those of one gatekeeper in the order in which they happened."""
    return sorted(steps, key=lambda step: (step.hops, step.gatekeeper))
