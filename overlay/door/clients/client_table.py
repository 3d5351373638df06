"""The client table, as this node's interest view has it. On the loop."""

from m4cast.overlay.door.clients.client_requests import ClientQuestion
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.access_point import SeenRow, is_superseded, seen_row
from m4cast.overlay.protocol.node import Node


def rows_of(node: Node, key: str) -> tuple[NodeId, list[SeenRow]]:
    """On the loop: this node, and the rows of a key."""
    interest = node.interest
    at = interest.clients.key(key)
    rows = []
    for entry in interest.view.used():
        item = entry.items.get(at)
        found = None if item is None else seen_row(entry.node_id, item)
        if found is not None and found[0] == key:
            rows.append(found[1])
    return node.me.node_id, rows


def table_of(node: Node, question: ClientQuestion) -> list[dict[str, object]]:
    """On the loop: the greatest row of each key after the one that was asked for."""
    found: dict[str, SeenRow] = {}
    if question.key is not None:
        _, rows = rows_of(node, question.key)
        seen = [(question.key, row) for row in rows]
    else:
        seen = [
            known
            for entry in node.interest.view.used()
            for item in entry.items.values()
            if (known := seen_row(entry.node_id, item)) is not None and known[0] > question.after
        ]
    for key, row in seen:
        if key not in found or is_superseded(found[key], row):
            found[key] = row
    answered = []
    for key, row in found.items():
        entry = node.roster.own if row.node_id == node.me.node_id else node.roster.get(row.node_id)
        answered.append(
            {
                "key": key,
                "node_id": row.node_id.hex(),
                "node": entry.name if entry is not None else "",
                "door": entry.door if entry is not None else "",
                "session": row.row.session,
                "covered": row.row.covered,
                "since_ms": row.row.since_ms,
            }
        )
    return answered
