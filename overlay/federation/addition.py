"""Additions (A2, A3): how a node comes in, gets a further link, or brings its whole unit.

A request has one bit per level, read from the right. Bit 0 set: become a member of the addressee's cluster. Not set: be
a gatekeeper, at the highest level set, to the addressee's unit, and live elsewhere. Other bits: be a gatekeeper of that
level in the unit where the node ends up.

An addressee without room asks the other members of its cluster in turn; a full cluster sends the requester to the
gatekeepers of its neighbours. Whoever accepts reserves the place until the link is up, so that thresholds hold under
concurrent requests too; a reservation lapses. A request that cannot be granted whole leaves nothing behind.

A unit is added by one node of it, as a gateway of the unit's own level: the unit keeps its inner numbers, gets a number
in the unit that it joins, and takes over what lies above. It has to be alone up there: a unit is not torn out of
another federation.
"""

from dataclasses import dataclass, field, replace

from m4cast.overlay.federation.contract import AdditionDone, AdditionFailed, CloseLink, ConnectTo, SendAddress
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.messages import (
    AdditionAccept,
    AdditionCall,
    AdditionForward,
    AdditionMessage,
    AdditionOffer,
    AdditionRedirect,
    AdditionRefused,
)
from m4cast.overlay.federation.units import (
    GONE,
    NO_UNIT,
    UNITS_MAX,
    Unit,
    UnitId,
    UnitRecord,
    free_number,
    level_between,
    members,
)
from m4cast.overlay.federation.vertex import AdditionDue, UnitLink, Vertex

RESERVED_CALLS = 5
"""A reserved place lapses after so many times `call_ms`."""
ASKED_MAX = 256
"""Addresses that one request is taken to."""


@dataclass(slots=True)
class Request:
    """A request of this node, under way."""

    bits: int
    level: int
    """The level of the link that is being requested."""
    unit_level: int = 0
    asked: dict[str, None] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    """Addresses to be asked, in turn."""
    at: str = ""
    """The address whose answer, or link, is awaited."""
    offered: str = ""
    """A gateway that is reserved for this node once it is a member elsewhere."""
    offered_level: int = 0
    has_joined_for_it: bool = False
    is_linking: bool = False
    failed: str = "no answer"


@dataclass(slots=True)
class Reservation:
    level: int
    until_ms: int
    number: int = GONE
    parent: UnitId = NO_UNIT
    unit: UnitId = NO_UNIT
    """The id of a unit that is being added."""


class Addition:
    def __init__(self, vertex: Vertex, gateways: Gateways) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self.requests: dict[int, Request] = {}
        self._calls = 0
        self._reserved: dict[str, Reservation] = {}
        """Reservations, by the requester's address."""
        self._former: tuple[dict[Unit, UnitRecord], bool] | None = None
        """The records from before a request that was granted, while its link is not up."""
        self._new_records: tuple[UnitRecord, ...] = ()
        self._rest: list[int] = []
        """Levels of gateways that a granted request still asks for."""

    # ---- asking

    def join(self, bits: int, address: str) -> None:
        top = self._vertex.top
        if not 0 < bits < 1 << (top + 1):
            self._vertex.out.append(AdditionFailed(bits, f"bits {bits:#b}: set some, of levels 0 to {top}"))
            return
        if bits & 1 and self._vertex.has_joined and bits > 1:
            self._vertex.out.append(AdditionFailed(bits, "this node is a member of a cluster: a node has only one"))
            return
        level = 0 if bits & 1 else bits.bit_length() - 1
        self._begin(Request(bits, level), address)

    def merge(self, level: int, address: str) -> None:
        bits = 1 << level
        if not 1 <= level <= self._vertex.top:
            reason = f"level {level}: a unit of level 1 to {self._vertex.top} can be added"
        elif not self._is_alone_above(level):
            reason = f"the unit of level {level} is part of a federation already: add the units above it"
        else:
            self._begin(Request(bits, level, unit_level=level), address)
            return
        self._vertex.out.append(AdditionFailed(bits, reason))

    def _is_alone_above(self, level: int) -> bool:
        vertex = self._vertex
        records = vertex.records.values()
        return all(len(members(records, each, vertex.unit(each + 1).id)) == 1 for each in range(level, vertex.top + 1))

    def _begin(self, request: Request, address: str) -> None:
        if request.level and self._room(request.level) <= 0:
            limit = self._vertex.settings.links_max[request.level]
            reason = f"this node has links_max = {limit} links of level {request.level}"
            self._vertex.out.append(AdditionFailed(request.bits, reason))
            return
        request.waiting.append(address)
        self._calls += 1
        self.requests[self._calls] = request
        self._ask_next(self._calls)

    def _ask_next(self, call: int) -> None:
        request = self.requests[call]
        while request.waiting:
            address = request.waiting.pop(0)
            if address in request.asked or address == self._vertex.address or len(request.asked) >= ASKED_MAX:
                continue
            request.asked[address] = None
            request.at, request.is_linking = address, False
            self._vertex.out.append(SendAddress(address, self._call(call, request)))
            self._vertex.timers.set(AdditionDue(call), self._vertex.now_ms + self._vertex.settings.call_ms)
            return
        self._fail(call, request.failed)

    def _call(self, call: int, request: Request) -> AdditionCall:
        vertex = self._vertex
        is_known = vertex.has_joined or request.unit_level
        unit = vertex.records[vertex.unit(request.unit_level)] if request.unit_level else None
        bits = 1 if request.offered and not request.has_joined_for_it else request.bits
        return AdditionCall(
            call=call,
            node=vertex.me.id,
            bits=bits,
            host=vertex.address,
            chain=vertex.chain if is_known else None,
            unit_level=request.unit_level,
            unit_epoch=0 if unit is None else unit.epoch,
        )

    def overdue(self, call: int) -> None:
        request = self.requests.get(call)
        if request is not None:
            self._ask_next(call)

    def unreachable(self, address: str) -> None:
        for call, request in list(self.requests.items()):
            if request.at == address:
                request.failed = f"{address} cannot be reached"
                self._ask_next(call)

    def _fail(self, call: int, reason: str) -> None:
        request = self.requests.pop(call)
        self._go_back()
        self._vertex.timers.cancel(AdditionDue(call))
        if request.has_joined_for_it:
            self._leave_again()
        self._vertex.out.append(AdditionFailed(request.bits, reason))

    def _leave_again(self) -> None:
        """The request failed as a whole: nothing stays linked."""
        for link in list(self._vertex.links.values()):
            self._vertex.out.append(CloseLink(link.conn, is_final=True))
        self._vertex.found_anew()

    # ---- answers

    def hear(self, sender: str, message: AdditionMessage) -> None:
        match message:
            case AdditionCall():
                self._asked(sender, message)
            case AdditionForward(requester, call):
                self._asked(requester, call)
            case AdditionAccept(call):
                self._accepted(call, message)
            case AdditionRedirect(call, addresses):
                if call in self.requests:
                    self.requests[call].failed = "no cluster has room"
                    self.requests[call].waiting.extend(addresses)
                    self._ask_next(call)
            case AdditionOffer(call):
                self._offered(call, message)
            case AdditionRefused(call, reason):
                if call in self.requests:
                    self.requests[call].failed = reason
                    self._ask_next(call)

    def _accepted(self, call: int, accept: AdditionAccept) -> None:
        request = self.requests.get(call)
        if request is None or request.is_linking or (accept.records and self._former is not None):
            return
        for record in accept.records:
            if record.unit.level == 0 and record.unit != self._vertex.me:
                return  # not for this node
        self._take_place(accept.records)
        request.at, request.is_linking = accept.address, True
        request.level = accept.level
        self._vertex.timers.set(AdditionDue(call), self._vertex.now_ms + self._vertex.settings.call_ms)
        self._vertex.out.append(ConnectTo(accept.address))

    def _take_place(self, records: tuple[UnitRecord, ...]) -> None:
        """Take over the units that the request leads into; the node's inner units stay."""
        vertex = self._vertex
        if not records:
            return
        self._former = (vertex.records, vertex.has_joined)
        vertex.records = {} if records[0].unit.level == 0 else dict(vertex.records)
        for record in records:
            vertex.records[record.unit] = record
        vertex.has_joined, vertex.is_synced = True, False
        vertex.renew_chain()
        self._new_records = records

    @property
    def is_moving(self) -> bool:
        """True if this node has a new place, and no link into it yet."""
        return self._former is not None

    def place_is_sure(self) -> None:
        """The link into the new units is up, and what there is to know of them is known: tell the own unit."""
        for record in self._new_records:
            self._gateways.tell_record(record, None)
        self._former, self._new_records = None, ()

    def _go_back(self) -> None:
        """The link that the new place depends on did not come: nobody has been told of it."""
        if self._former is not None:
            self._vertex.records, self._vertex.has_joined = self._former
            self._vertex.is_synced = True
            self._vertex.renew_chain()
            self._former, self._new_records = None, ()

    def _offered(self, call: int, offer: AdditionOffer) -> None:
        request = self.requests.get(call)
        if request is None or request.offered:
            return
        request.offered, request.offered_level = offer.address, offer.level
        request.waiting = list(offer.elsewhere)
        request.asked = {}
        request.failed = "no other unit has room for this node"
        self._ask_next(call)

    def linked(self, link: UnitLink) -> None:
        """A link is ready: a request may be done by it, or go on; a reservation is used up."""
        self._reserved.pop(link.address, None)
        for call, request in list(self.requests.items()):
            if not request.is_linking or request.at != link.address:
                continue
            self._vertex.timers.cancel(AdditionDue(call))
            if request.offered and not request.has_joined_for_it:
                request.has_joined_for_it, request.waiting = True, []
                request.at = request.offered
                self._vertex.timers.set(AdditionDue(call), self._vertex.now_ms + self._vertex.settings.call_ms)
                self._vertex.out.append(ConnectTo(request.offered))
                continue
            del self.requests[call]
            self._vertex.out.append(AdditionDone(request.bits))
            self._ask_rest(request)

    def _ask_rest(self, request: Request) -> None:
        """Gateways of lower levels, or for a member of higher ones, in the unit where the node is now."""
        done = request.offered_level or request.level
        levels = range(1, self._vertex.top + 1)
        self._rest += [level for level in levels if request.bits >> level & 1 and level != done]

    def ask_rest(self) -> None:
        """Ask for the gateways that are still missing, once the connections beside this node are known."""
        levels, self._rest = self._rest, []
        for level in levels:
            addresses = self._beside(level)
            if not addresses:
                self._vertex.out.append(AdditionFailed(1 << level, f"no other unit of level {level} is known"))
                continue
            request = Request(1 << level, level, waiting=addresses[1:])
            self._begin(request, addresses[0])

    def _beside(self, level: int) -> list[str]:
        """Addresses of gatekeepers in the units of this level beside the own one."""
        found: dict[str, None] = {}
        for connection in self._gateways.connections.values():
            if connection.level == level:
                for end, address in zip(connection.ends, connection.addresses, strict=True):
                    if end.level == level:
                        found[address] = None
        return list(found)

    # ---- being asked

    def _asked(self, requester: str, call: AdditionCall) -> None:
        answer = self._answer(requester, call)
        if isinstance(answer, AdditionForward):
            return
        self._vertex.out.append(SendAddress(requester, answer))

    def _answer(self, requester: str, call: AdditionCall) -> AdditionMessage:
        vertex, settings = self._vertex, self._vertex.settings
        if any(call.host.startswith(prefix) for prefix in settings.hosts_refused):
            return AdditionRefused(call.call, f"{vertex.address} refuses hosts like {call.host}")
        if not 0 < call.bits < 1 << (vertex.top + 1):
            return AdditionRefused(call.call, f"bits {call.bits:#b}: this federation has levels 0 to {vertex.top}")
        if call.chain is not None and len(call.chain) != vertex.top + 1:
            return AdditionRefused(call.call, f"{len(call.chain)} levels: this federation has {vertex.top + 1}")
        self._lapse()
        if call.unit_level:
            return self._answer_unit(requester, call)
        if call.bits & 1:
            return self._answer_newcomer(requester, call)
        return self._answer_gateway(requester, call)

    def _answer_newcomer(self, requester: str, call: AdditionCall) -> AdditionMessage:
        vertex = self._vertex
        if call.chain is not None:
            level = level_between(vertex.chain, call.chain)
            if level == 0 and self._room(0) > 0:
                return self._accept(requester, call, 0, ())
            return AdditionRefused(call.call, "the node is in a cluster already, or there is no room for its link")
        cluster = vertex.unit(1).id
        reserved = sum(each.level == 0 for each in self._reserved.values())
        if len(members(vertex.records.values(), 0, cluster)) + reserved >= UNITS_MAX:
            return AdditionRedirect(call.call, tuple(self._beside(1)))
        if self._room(0) > 0:
            number = self._number(0, cluster)
            record = UnitRecord(Unit(0, call.node), cluster, number, 1, requester)
            accept = self._accept(requester, call, 0, (record, *vertex.own_records()[1:]))
            self._reserved[requester].number, self._reserved[requester].parent = number, cluster
            return accept
        return self._forward(requester, call) or AdditionRedirect(call.call, tuple(self._beside(1)))

    def _forward(self, requester: str, call: AdditionCall) -> AdditionForward | None:
        """Ask the next member of the cluster in the requester's name."""
        vertex = self._vertex
        tried = (*call.tried, vertex.me.id)
        for record in sorted(members(vertex.records.values(), 0, vertex.unit(1).id), key=lambda each: each.number):
            if record.unit.id not in tried and record.address:
                forward = AdditionForward(requester, replace(call, tried=tried))
                vertex.out.append(SendAddress(record.address, forward))
                return forward
        return None

    def _answer_gateway(self, requester: str, call: AdditionCall) -> AdditionMessage:
        vertex = self._vertex
        level = call.bits.bit_length() - 1
        if call.chain is not None and level_between(vertex.chain, call.chain) != level:
            actual = level_between(vertex.chain, call.chain)
            return AdditionRefused(call.call, f"a link to {vertex.address} would be of level {actual}, not {level}")
        if self._room(level) <= 0:
            forward = self._forward(requester, call)
            return forward or AdditionRefused(call.call, f"no node here has room for a gateway of level {level}")
        if call.chain is not None:
            return self._accept(requester, call, level, ())
        elsewhere = self._beside(level)
        if not elsewhere:
            return AdditionRefused(call.call, f"there is no other unit of level {level} to be a member of")
        self._reserve(requester, level)
        return AdditionOffer(call.call, level, vertex.address, tuple(elsewhere))

    def _answer_unit(self, requester: str, call: AdditionCall) -> AdditionMessage:
        vertex, level = self._vertex, call.unit_level
        if call.bits != 1 << level or not 1 <= level <= vertex.top or call.chain is None:
            return AdditionRefused(call.call, f"a unit of level {level} is added by a gateway of level {level} alone")
        unit, parent = Unit(level, call.chain[level]), vertex.unit(level + 1).id
        known = members(vertex.records.values(), level, parent)
        is_asked = any(each.unit == unit.id and other != requester for other, each in self._reserved.items())
        if is_asked or any(each.unit == unit for each in known):
            return AdditionRefused(call.call, "the unit is being added, or has been, by another node of it")
        reserved = sum(each.level == level and each.unit != NO_UNIT for each in self._reserved.values())
        if len(known) + reserved >= UNITS_MAX:
            return AdditionRefused(call.call, f"the unit of level {level + 1} has {UNITS_MAX} units")
        if self._room(level) <= 0:
            forward = self._forward(requester, call)
            return forward or AdditionRefused(call.call, f"no node here has room for a gateway of level {level}")
        number = self._number(level, parent)
        record = UnitRecord(unit, parent, number, call.unit_epoch + 1)
        accept = self._accept(requester, call, level, (record, *vertex.own_records()[level + 1 :]))
        reservation = self._reserved[requester]
        reservation.number, reservation.parent, reservation.unit = number, parent, unit.id
        return accept

    def _accept(
        self, requester: str, call: AdditionCall, level: int, records: tuple[UnitRecord, ...]
    ) -> AdditionAccept:
        self._reserve(requester, level)
        return AdditionAccept(call.call, records, level, self._vertex.address)

    def _reserve(self, requester: str, level: int) -> None:
        until_ms = self._vertex.now_ms + RESERVED_CALLS * self._vertex.settings.call_ms
        self._reserved[requester] = Reservation(level, until_ms)

    def _lapse(self) -> None:
        now_ms = self._vertex.now_ms
        self._reserved = {address: each for address, each in self._reserved.items() if each.until_ms > now_ms}

    def _number(self, level: int, parent: UnitId) -> int:
        known = [each for each in self._vertex.records.values() if each.unit.level == level]
        promised = [UnitRecord(Unit(level, each.unit), each.parent, each.number, 0) for each in self._reserved.values()]
        return free_number([*known, *promised], parent)

    def _room(self, level: int) -> int:
        """Links of this level that this node may still have; what is reserved counts as used."""
        reserved = sum(each.level == level for each in self._reserved.values())
        return self._vertex.settings.links_max[level] - len(self._vertex.links_of(level)) - reserved
