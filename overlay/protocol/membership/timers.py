"""Timers of membership: what it does when nothing else happens."""

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.value import value


@value
class HoleSearchDue(Timer):
    """The next step of the search for missing neighbours."""


@value
class FullTimeout(Timer):
    """This node has waited long enough for the neighbours that it was promised."""


@value
class PendingTimeout(Timer):
    """The far end of an edge that was accepted has not called."""

    node_id: NodeId


@value
class ReservationTimeout(Timer):
    """The walk or swap that has the edge to this neighbour on hold has not come back."""

    node_id: NodeId


MembershipTimer = HoleSearchDue | FullTimeout | PendingTimeout | ReservationTimeout
