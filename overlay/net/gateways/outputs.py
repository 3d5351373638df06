"""The outputs of the machine, and what a gatekeeper does with each.

They are performed in order, when what they keep is durable (`gatekeeper`). The machine sees batches by id, topic and
summary only: a copy leaves with the bytes that are kept for it, or, where the gateway's rules do not let it leave, as
its number alone.
"""

import logging
from collections import Counter
from typing import TYPE_CHECKING

from m4cast.overlay.federation.contract import (
    AdditionDone,
    AdditionFailed,
    CloseLink,
    ConnectTo,
    DeliverEvent,
    FederationOutput,
    KeepValue,
    PartitionChanged,
    PlaceChanged,
    SendAddress,
    SendLink,
    UnsendCopies,
)
from m4cast.overlay.federation.messages import EventCopy
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.rules import is_banned, may_leave
from m4cast.overlay.net.gateways.wire.frames import hop_part, origin_of, outward
from m4cast.overlay.net.gateways.wire.messages import StreamHead, WithheldCopy
from m4cast.overlay.protocol.wire.batch import Batch

if TYPE_CHECKING:
    from m4cast.overlay.net.gateways.gatekeeper import Gatekeeper

log = logging.getLogger("m4cast.gateway")


class MachineOutputs:
    def __init__(self, gatekeeper: "Gatekeeper") -> None:
        self._gatekeeper = gatekeeper
        self.counts: Counter[str] = Counter()
        self.awaited_bytes = 0
        """Exported payload that is in no link's queue yet, since what is said of it is not on disk."""

    def arrived(self, output: DeliverEvent) -> list[tuple[Batch | StreamHead, int]]:
        """Deliver a batch here, with the gateways that it crossed; nothing, if its bytes are lost."""
        found = self._gatekeeper.kept.body(output.event.id)
        if found is None:
            self.counts["lost-body"] += 1
            return []
        body, hops = found
        self._gatekeeper.reports.ways.delivered(output)
        if isinstance(body, Batch) and body.stream.topic not in self._gatekeeper.demanded:
            self._gatekeeper.imports.delivered(body, hops, NodeId(self._gatekeeper.me))
        return [found]

    def hand_over(self, body: Batch | StreamHead, hops: int) -> None:
        """Hand what has arrived over to the channel."""
        is_head = isinstance(body, StreamHead)
        topic, origin = (body.topic, body.origin) if is_head else (body.stream.topic, body.stream.origin)  # type: ignore[union-attr]
        if topic in self._gatekeeper.demanded:
            if self._gatekeeper.side.is_own(origin):
                self.counts["own-origin"] += 1
            elif isinstance(body, StreamHead):
                self._gatekeeper.demanded.head(body)
            else:
                self._gatekeeper.demanded.delivered(body, hops)
        elif isinstance(body, StreamHead):
            self._gatekeeper.imports.head(body)
        else:
            self._gatekeeper.imports.push(body.stream)

    def perform(self, outputs: list[FederationOutput]) -> None:
        for output in outputs:
            match output:
                case SendLink(conn, EventCopy() as copy):
                    self._send_copy(conn, copy)
                case SendLink(conn, message):
                    link = self._gatekeeper.links.links.get(conn)
                    if link is not None:
                        link.send(outward(message))
                case SendAddress(address, message):
                    self._gatekeeper.links.call(address, message)
                case ConnectTo(address):
                    self._gatekeeper.places.connect(address)
                case CloseLink(conn, is_final):
                    link = self._gatekeeper.links.links.get(conn)
                    if link is not None:
                        if is_final:
                            self._gatekeeper.places.forget(link.hello.address)
                        self._gatekeeper.links.close(conn)
                        self._gatekeeper.gone(link)
                case UnsendCopies(conn, numbers):
                    link = self._gatekeeper.links.links.get(conn)
                    if link is not None:
                        link.unsend(numbers)
                case AdditionDone():
                    self._gatekeeper.places.done(output)
                case AdditionFailed():
                    self._gatekeeper.places.failed(output)
                case PartitionChanged(level, units):
                    log.info("level %d: %d units cannot be reached", level, len(units))
                case KeepValue() | DeliverEvent() | PlaceChanged():
                    pass
                case _:
                    self._gatekeeper.reports.perform(output)

    def _send_copy(self, conn: int, copy: EventCopy) -> None:
        link = self._gatekeeper.links.links.get(conn)
        if link is None:
            return
        found = self._gatekeeper.kept.body(copy.event.id)
        topic, origin = copy.event.topic, origin_of(copy.event.id)
        is_own = self._gatekeeper.side.is_own(origin)
        is_final = is_banned(link.gateway, topic) if is_own else self._gatekeeper.kept.is_final(StreamId(origin, topic))
        is_barred = is_final and not is_own and link.gateway is not None
        if found is None or is_barred or not may_leave(link.gateway, topic, is_own=is_own):
            link.withheld += 1
            self.counts["withheld" if found else "lost-body"] += 1
            self._gatekeeper.reports.ways.sent(copy.event.id, "withheld", link.peer)
            link.send(WithheldCopy(copy.number))
            return
        body, hops = found
        if isinstance(body, StreamHead):
            link.send(hop_part(copy, hops + 1, body, is_final=is_final))
        else:
            link.sent_batches += 1
            link.sent_rows += body.row_count
            self._gatekeeper.reports.ways.sent(copy.event.id, "sent", link.peer)
            link.send(hop_part(copy, hops + 1, None, is_final=is_final), body)
