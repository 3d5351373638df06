"""Timers of streams: when to ask again, when to look again, when to announce."""

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.value import value


@value
class PullTimeout(Timer):
    """The pull that begins at `first` has brought nothing for a while."""

    stream_id: StreamId
    first: int


@value
class WantDue(Timer):
    """Look again at what the stream lacks."""

    stream_id: StreamId


@value
class HolderSearchDue(Timer):
    """The search for a holder of the stream's next row has had its time."""

    stream_id: StreamId


@value
class RepairDue(Timer):
    """Ask somebody else for the damaged batch that begins at `first`."""

    stream_id: StreamId
    first: int


@value
class FrontierDue(Timer):
    """Send the frontiers that the peer on this connection has not been told."""

    conn: int


StreamTimer = PullTimeout | WantDue | HolderSearchDue | RepairDue | FrontierDue
