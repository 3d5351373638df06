"""Connections: what begins with a connection, and what ends with it.

Every connection is dialled for a purpose. When its two ends have said hello, the machine that wants something asks for
it; when the connection is gone, or was refused or closed before that was done, the same machine hears that it failed.
"""

from m4cast.overlay.protocol.arrival import Arrival
from m4cast.overlay.protocol.calls import Call, CallTimeout
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import DialFailed, Disconnected, FrameProgress, Trace
from m4cast.overlay.protocol.finding.seeking import NotifyFellow, Seek
from m4cast.overlay.protocol.liveness import CheckAlive, Liveness
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.streams.dissemination import Dissemination
from m4cast.overlay.protocol.streams.holders import HoldFor
from m4cast.overlay.protocol.streams.inquiries import Inquiry
from m4cast.overlay.protocol.streams.past import Ask
from m4cast.overlay.protocol.wire.messages import Hello, RefusedStmt


class Connections:
    def __init__(
        self,
        context: Context,
        membership: Membership,
        roster: Roster,
        dissemination: Dissemination,
        arrival: Arrival,
        liveness: Liveness,
    ) -> None:
        self._calls = context.calls
        self._table = context.table
        self._out = context.out
        self._membership = membership
        self._roster = roster
        self._dissemination = dissemination
        self._past = dissemination.past
        self._arrival = arrival
        self._liveness = liveness

    def on_hello(self, call: Call, hello: Hello, now_ms: int) -> None:
        known = self._roster.get(hello.node_id)
        if not self._calls.hello(call, hello, known.name if known else ""):
            self.over(call, "refused", now_ms)
            return
        if self._past.is_asking and call.peer is not None and not isinstance(call.purpose, Ask):
            self._past.met(call.peer, now_ms)
        match call.purpose:
            case None:
                pass
            case Seek():
                self._arrival.seeking.call_ready(call)
            case NotifyFellow():
                self._arrival.seeking.notify(call)
            case CheckAlive():
                self._calls.close(call.conn)  # it lives
            case HoldFor():
                self._dissemination.holders.call_ready(call, call.purpose)
            case Inquiry():
                self._dissemination.inquiry_ready(call, call.purpose, now_ms)
            case Ask():
                self._past.call_ready(call, now_ms)
            case _:
                self._membership.call_ready(call, now_ms)

    def frame_progress(self, progress: FrameProgress, now_ms: int) -> None:
        call = self._calls.get(progress.conn)
        if call is None or call.peer is None:
            return
        self._dissemination.pulling.progress(call.peer.node_id, now_ms)
        if call.is_link:
            self._table.neighbours[call.peer.node_id].heard_at_ms = now_ms
        else:
            self._calls.extend(call, now_ms)

    def disconnected(self, end: Disconnected | DialFailed, now_ms: int) -> None:
        call = self._calls.lost(end.conn)
        if call is not None:
            self.over(call, "broken", now_ms)

    def timed_out(self, timeout: CallTimeout, now_ms: int) -> None:
        call = self._calls.get(timeout.conn)
        if call is not None:
            self._calls.close(timeout.conn)
            self.over(call, "timed out", now_ms)

    def on_refused(self, call: Call, refused: RefusedStmt, now_ms: int) -> None:
        self._trace_refusal(refused)
        call.is_at_odds = refused.reason != "self"
        self._calls.close(call.conn)
        self.over(call, "refused", now_ms)

    def on_link_refused(self, sender: Neighbour, refused: RefusedStmt, now_ms: int) -> None:
        self._trace_refusal(refused)
        self._membership.links.silent(sender, now_ms)

    def _trace_refusal(self, refused: RefusedStmt) -> None:
        self._out.append(Trace("was-refused", (("reason", refused.reason), ("detail", refused.detail))))

    def over(self, call: Call, why: str, now_ms: int) -> None:
        """The connection is gone: forget what it was for."""
        if call.is_link:
            assert call.peer is not None
            neighbour = self._table.neighbours.get(call.peer.node_id)
            if neighbour is not None and neighbour.conn == call.conn:
                self._membership.links.lost(neighbour, why, now_ms)
            return
        if isinstance(call.purpose, CheckAlive):
            self._liveness.accuse(call.purpose.contact, now_ms)
        self.forget(call, now_ms)

    def forget(self, call: Call, now_ms: int) -> None:
        """A call is over: what hung on it and is not done is not done for good. The second time changes nothing."""
        self._dissemination.call_over(call, now_ms)
        self._past.connection_over(call.conn, now_ms)
        if isinstance(call.purpose, Seek):
            self._arrival.call_failed(call, now_ms)
        self._membership.call_failed(call, now_ms)
