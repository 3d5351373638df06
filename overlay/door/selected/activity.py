"""Activity of a registration: which nodes have confirmed it, and where it begins in each stream."""

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import Active, WaitActive
from m4cast.overlay.protocol.node import Node


def activity(
    node: NodeHandle, registration: str, wait_ms: int, timeout_s: float, caller: Caller
) -> dict[str, object] | None:
    """Wait until all nodes that are present have confirmed the registration, at most `wait_ms`. None: it does not
    exist at this node."""
    span = node.look(lambda at: at.interest.history.lasting(registration), timeout_s)
    if span is None:
        return None
    request = node.request(lambda number: WaitActive(number, span.incarnation, span.ts, wait_ms))
    answer = waited(request, timeout_s + wait_ms / 1000, caller.is_cancelled)
    assert isinstance(answer, Active)
    ids = (*answer.confirmed, *answer.missing)

    def look(at: Node) -> tuple[dict[NodeId, str], dict[str, int]]:
        begins = at.selection.begins(registration)
        names = {node_id: name_of(at, node_id) for node_id in ids}
        return names, {stream.origin.hex(): begin for stream, begin in begins.items()}

    names, begins = node.look(look, timeout_s)

    def listed(nodes: tuple[NodeId, ...]) -> list[dict[str, str]]:
        return [{"node_id": node_id.hex(), "node": names[node_id]} for node_id in nodes]

    return {
        "epoch": span.epoch,
        "is_active": not answer.missing,
        "confirmed": listed(answer.confirmed),
        "missing": listed(answer.missing),
        "effective_from": begins,
    }


def name_of(node: Node, node_id: NodeId) -> str:
    known = node.roster.own if node_id == node.me.node_id else node.roster.get(node_id)
    return known.name if known is not None else ""
