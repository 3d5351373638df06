"""The report of a gatekeeper on its federation, for the door, as plain values."""

from typing import Any

from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.units import GONE, Unit, address_text
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.wire.messages import TraceStep


def view_of_units(machine: Federation) -> dict[str, Any]:
    """The units that the node is in and those beside them, the connections that it knows, and what is wanted."""
    vertex, gateways = machine.vertex, machine.gateways
    own = dict.fromkeys(vertex.units())
    units = [
        {
            "level": record.unit.level,
            "id": record.unit.id.hex(),
            "parent": record.parent.hex(),
            "number": record.number,
            "address": record.address,
            "is_own": record.unit in own,
            "is_reached": gateways.is_reached(record.unit),
        }
        for record in sorted(vertex.records.values(), key=lambda each: (-each.unit.level, each.parent, each.number))
        if record.number != GONE
    ]
    connections = [
        {
            "id": each.id.hex(),
            "level": each.level,
            "ends": [{"level": end.level, "id": end.id.hex()} for end in each.ends],
            "addresses": list(each.addresses),
            "status": each.status.name.lower(),
            "cost": sum(end.level for end in each.ends) + each.extra,
        }
        for each in gateways.connections.values()
    ]
    return {
        "context": address_text(vertex.numbers()),
        "chain": [unit.hex() for unit in vertex.chain],
        "top": vertex.top,
        "is_synced": vertex.is_synced,
        "units": units,
        "gateways": connections,
        "open_batches": sum(bool(state.open) for state in machine.routing.events.values()),
    }


def view_of_links(links: list[GatewayLink], machine: Federation) -> list[dict[str, Any]]:
    found = []
    for link in links:
        known = machine.vertex.links.get(link.conn)
        found.append(
            {
                "channel": link.hello.channel,
                "address": link.hello.address,
                "level": known.level if known is not None and known.peer else None,
                "is_suspected": known is not None and known.is_suspected,
                "unacknowledged": 0 if known is None else len(known.unacked),
                "sent_batches": link.sent_batches,
                "sent_rows": link.sent_rows,
                "sent_bytes": link.sent_bytes,
                "received_batches": link.received_batches,
                "received_bytes": link.received_bytes,
                "withheld": link.withheld,
                "queued_bytes": link.queued_bytes,
            }
        )
    return found


def view_of_way(steps: list[TraceStep], machine: Federation, *, is_cut: bool) -> dict[str, Any]:
    """The way of a batch. Units that this gatekeeper knows have their address; others their id."""
    addresses = {record.unit: record.address for record in machine.vertex.records.values()}

    def named(unit: Unit) -> dict[str, Any]:
        return {"level": unit.level, "id": unit.id.hex(), "address": addresses.get(unit, "")}

    shown = [
        {
            **step._asdict(),
            "gatekeeper": step.gatekeeper.hex(),
            "unit": None if step.unit is None else named(step.unit),
            "hits": [named(unit) for unit in step.hits],
            "wants": list(step.wants),
        }
        for step in steps
    ]
    return {"steps": shown, "is_cut": is_cut}
