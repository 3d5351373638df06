"""The messages of links and calls, and what a gatekeeper does with each.

What is not in these tables ends the link, as does a message that makes no sense: both are its sender's mistake.
"""

import logging
from typing import TYPE_CHECKING, Any, get_args

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.federation.contract import AddressHeard, LinkHeard
from m4cast.overlay.federation.messages import (
    AdditionCall,
    AdditionMessage,
    AdditionRefused,
    EventAck,
    RoutedNote,
    UnitHello,
)
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.reports.reports import CLIENT_FINDS, TRACES
from m4cast.overlay.net.gateways.rules import may_enter
from m4cast.overlay.net.gateways.wire.frames import batch_in, copy_of, inward, origin_of
from m4cast.overlay.net.gateways.wire.messages import (
    AcrossFrame,
    CarriedCopy,
    ExportedStmt,
    FindMessage,
    GatewayHello,
    GatewayRefused,
    PulledBatch,
    WantsNewsNote,
    WithheldCopy,
)

if TYPE_CHECKING:
    from m4cast.overlay.net.gateways.gatekeeper import Gatekeeper

log = logging.getLogger("m4cast.gateway")

_FIND = get_args(FindMessage)


class LinkMessages:
    def __init__(self, gatekeeper: "Gatekeeper") -> None:
        self._gatekeeper = gatekeeper

    def called(self, sender: GatewayHello, message: AdditionMessage) -> None:
        if isinstance(message, AdditionCall) and (reason := self._refusal(sender, message)):
            self._gatekeeper.links.call(sender.address, AdditionRefused(message.call, reason))
        else:
            self._feed_heard(sender.address, AddressHeard(sender.address, message))

    def _refusal(self, sender: GatewayHello, call: AdditionCall) -> str:
        """The reason to refuse a request; empty if it may be granted."""
        channel, here, places = self._gatekeeper.rules.channel, self._gatekeeper.links.address, self._gatekeeper.places
        is_fellow = sender.channel == channel
        if call.bits & 1 and not is_fellow:
            return f"a node of {sender.channel} cannot be a member of {channel}: a unit is a channel"
        if not is_fellow and not places.is_in:
            return f"{here} is not in the unit of its own channel yet"
        refusal = places.refusal(call.bits, is_fellow=is_fellow)
        return f"{here} {refusal}" if refusal else ""

    def heard(self, link: GatewayLink, message: Any, body: memoryview) -> None:
        """A message came on a link; `RemoteProtocolError` ends the link."""
        match message:
            case CarriedCopy():
                self._copy_came(link, message, body)
            case WithheldCopy(number):
                self._gatekeeper.acknowledge(link, number)
            case ExportedStmt():
                if link.gateway is not None:
                    raise RemoteProtocolError("ExportedStmt is for gatekeepers of one channel")
                self._gatekeeper.exports.heard(link.hello.node, message)
            case GatewayRefused(reason, detail):
                raise RemoteProtocolError(f"refused ({reason}): {detail}")
            case AcrossFrame():
                self._gatekeeper.finding.across(link, message, bytes(body))
            case _ if isinstance(message, _FIND):
                batch = batch_in(body) if isinstance(message, PulledBatch) else None
                self._gatekeeper.finding.heard(link, message, batch)
            case _ if isinstance(message, CLIENT_FINDS + TRACES):
                self._gatekeeper.reports.heard(link, message)
            case _:
                self._machine_message(link, message)

    def _machine_message(self, link: GatewayLink, message: Any) -> None:
        inner = inward(message)
        if inner is None:
            raise RemoteProtocolError(f"{type(message).__name__} on a link")
        if isinstance(message, WantsNewsNote) and message.joined:
            self._gatekeeper.exports.wanted({each.topic for each in message.joined})
        if isinstance(inner, UnitHello):
            self._check_place(link, inner)
        self._feed_heard(link.hello.address, LinkHeard(link.conn, inner))
        if isinstance(inner, EventAck):
            self._gatekeeper.exports.again()
        elif isinstance(inner, RoutedNote):
            self._gatekeeper.reports.note_came(inner)

    def _check_place(self, link: GatewayLink, hello: UnitHello) -> None:
        """Refuse a node of another channel that says it is of this one's unit: what is inside is nobody else's
        business."""
        units = [record.unit for record in hello.records[:2]]
        if not units or units[0].id != link.hello.node:
            raise RemoteProtocolError("UnitHello of another node than GatewayHello")
        if link.gateway is not None and units[-1] == self._gatekeeper.machine.vertex.unit(1):
            raise RemoteProtocolError(f"a node of {link.hello.channel} cannot be a member of this channel's unit")

    def _copy_came(self, link: GatewayLink, part: CarriedCopy, body: memoryview) -> None:
        batch = batch_in(body) if part.head is None else None
        copy = copy_of(part, batch)
        link.received_batches += batch is not None
        is_own = link.gateway is not None and self._gatekeeper.side.is_own(origin_of(part.id))
        if is_own or not may_enter(link.gateway, part.topic):
            self._gatekeeper.counts["own-origin" if is_own else "not-allowed"] += 1
            self._gatekeeper.acknowledge(link, part.number)
            return
        content = part.head if batch is None else batch
        assert content is not None
        stream = StreamId(origin_of(part.id), part.topic)
        self._gatekeeper.kept.note_final(stream, link.hello.channel, is_final=part.is_final)
        self._gatekeeper.kept.add_body(part.id, content, part.hops)
        if batch is not None:
            self._gatekeeper.reports.ways.began(part.id, batch, part.hops, "came", link.peer)
        self._feed_heard(link.hello.address, LinkHeard(link.conn, copy))

    def _feed_heard(self, sender: str, heard: LinkHeard | AddressHeard) -> None:
        try:
            self._gatekeeper.feed(heard)
        except (KeyError, IndexError, ValueError, AssertionError) as error:  # what its sender made up
            log.exception("a message of %s cannot be handled", sender)
            raise RemoteProtocolError(f"{type(heard.message).__name__} makes no sense here") from error
