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


def topology_of(node: Node) -> dict[str, object]:
    """The graph as this node knows it: its own links, and of others what their last beacons told."""
    me = node.me.node_id
    return {
        "node_id": me.hex(),
        "nodes": [
            {
                "node_id": entry.node_id.hex(),
                "name": entry.name,
                "site": entry.site,
                "address": entry.address,
                "incarnation": entry.incarnation,
                "leaving": entry.leaving,
                "neighbours": [
                    neighbour.hex()
                    for neighbour in (node.membership.table.neighbours if entry.node_id == me else entry.neighbours)
                ],
            }
            for entry in node.roster.members()
        ],
    }
