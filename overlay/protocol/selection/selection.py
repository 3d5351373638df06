"""The composer of what goes to some nodes and not to all: who wants what, and the frames that travel to them."""

from collections.abc import Callable, Iterable
from typing import Any

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Recovered
from m4cast.overlay.protocol.interest.confirmations import Confirmations
from m4cast.overlay.protocol.interest.interest import Interest
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.routes.routing import Routing
from m4cast.overlay.protocol.wire.selective import ActiveCall, ActiveStmt, Destination, RoutedFrame


class Selection:
    def __init__(
        self, context: Context, recovered: Recovered, roster: Roster, rolled_back: Callable[[str], None]
    ) -> None:
        """`rolled_back` is called when the channel has a newer interest entry of this node than its store."""
        self._roster = roster
        self.interest = Interest(context, recovered, rolled_back, self._is_gone)
        self.routing = Routing(context, roster, self._arrived)
        self.confirmations = Confirmations(
            context, self.interest.view, self._present, self._next_hop, self._send_control
        )
        self.contents: dict[type, Callable[[RoutedFrame, Any, int], None]] = {
            ActiveCall: lambda frame, call, now_ms: self.confirmations.on_call(frame.speaker, call, now_ms),
            ActiveStmt: lambda frame, stmt, now_ms: self.confirmations.on_stmt(stmt, now_ms),
        }
        """What is done about a routed frame that has arrived, by the kind of its content: frame, content, time."""

    def _is_gone(self, node_id: NodeId) -> bool:
        return self._roster.get(node_id) is not None and self._roster.has_gone(node_id)

    def _present(self, now_ms: int) -> dict[NodeId, int]:
        """The other nodes that are on the channel, with their incarnations."""
        others = (entry for entry in self._roster.members() if entry is not self._roster.own)
        return {each.node_id: each.incarnation for each in others if self._roster.is_present(each.node_id, now_ms)}

    def _next_hop(self, to: NodeId, now_ms: int) -> NodeId | None:
        """The neighbour that is one step nearer to the root of this tree."""
        return self.routing.graph(now_ms).tree(to).parent.get(self._roster.own.node_id)

    def _send_control(self, content: ActiveCall | ActiveStmt, to: Iterable[NodeId], now_ms: int) -> None:
        self.routing.send(content, [Destination(node_id, 0, 0) for node_id in to], now_ms)

    def _arrived(self, frame: RoutedFrame, now_ms: int) -> None:
        handle = self.contents.get(type(frame.content))
        if handle is not None and frame.speaker != self._roster.own.node_id:
            handle(frame, frame.content, now_ms)

    # ---- links, once somebody wants something

    def link_down(self, neighbour: Neighbour) -> None:
        self.interest.link_down(neighbour)
        self.routing.link_down(neighbour)

    def blocked(self, conn: int) -> None:
        self.interest.blocked(conn, True)
        self.routing.blocked(conn)

    def ready(self, conn: int) -> None:
        self.interest.blocked(conn, False)
        self.routing.ready(conn)
