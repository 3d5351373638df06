"""A node's state as clients see it, taken on its loop: plain values, ready for JSON."""

from m4cast.overlay.protocol.node import Node


def status_of(node: Node) -> dict[str, object]:
    own = node.roster.own
    table = node.membership.table
    return {
        "node_id": node.me.node_id.hex(),
        "name": own.name,
        "site": own.site,
        "address": node.me.address,
        "incarnation": node.incarnation,
        "state": node.membership.state.value,
        "neighbours": [
            {"node_id": node_id.hex(), "address": neighbour.contact.address}
            for node_id, neighbour in table.neighbours.items()
        ],
        "holes": table.holes(),
        "diameter": node.membership.diameter.estimate,
        "roster": [
            {
                "node_id": entry.node_id.hex(),
                "name": entry.name,
                "site": entry.site,
                "address": entry.address,
                "incarnation": entry.incarnation,
            }
            for entry in node.roster.entries()
        ],
    }
