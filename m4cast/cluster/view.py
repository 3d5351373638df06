"""The view of a local node from outside: its process, its state and what it reports."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from m4cast.overlay.errors import M4castError

LOOK_TIMEOUT_S = 2.0
HTTP_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it was at one moment."""

    name: str
    door: str
    """The address at which clients reach it."""
    http: str
    listen: str
    """The address at which other nodes reach it."""
    pid: int | None
    state: str
    """As the node reports it (full, partial, seeking), or `silent` (it runs, but does not answer), or `down`."""
    web: str = ""
    """The address at which clients reach it by HTTP and WebSocket."""
    status: dict[str, Any] = field(default_factory=dict)
    """The status that the node reports; empty if it did not answer."""

    def neighbours(self) -> list[str]:
        """The names of its neighbours, or their ids where it has not heard the name; none if it did not answer."""
        names = {node["node_id"]: str(node["name"]) for node in self.status.get("roster", ())}
        ids = [str(node["node_id"]) for node in self.status.get("neighbours", ())]
        return sorted(names.get(node_id, node_id) for node_id in ids)


def are_connected(views: Sequence[NodeView]) -> bool:
    """True if every node that answers reaches every other one over links."""
    links = {view.status["node_id"]: view.status["neighbours"] for view in views if view.status}
    if not links:
        return False
    reached: set[str] = set()
    ahead = [next(iter(links))]
    while ahead:
        node_id = ahead.pop()
        if node_id not in reached:
            reached.add(node_id)
            ahead += [neighbour["node_id"] for neighbour in links.get(node_id, ())]
    return set(links) <= reached


def status_by_http(http: str) -> dict[str, Any]:
    """The part of the action `status` that is needed here, assembled from the HTTP door, which asks for no token."""
    from prometheus_client.parser import text_string_to_metric_families

    topology = json.loads(_http_get(http, "/topology"))
    families = {family.name: family.samples for family in text_string_to_metric_families(_http_get(http, "/metrics"))}
    own = next(node for node in topology["nodes"] if node["node_id"] == topology["node_id"])
    return {
        "node_id": topology["node_id"],
        "address": own["address"],
        "state": next(sample.labels["state"] for sample in families["m4cast_node_state"] if sample.value),
        "holes": int(families["m4cast_holes"][0].value),
        "neighbours": [{"node_id": node_id} for node_id in own["neighbours"]],
        "roster": topology["nodes"],
    }


def _http_get(http: str, path: str) -> str:
    host, _, port = http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=LOOK_TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(HTTP_BYTES_MAX)
    except (OSError, HTTPException) as error:
        raise M4castError(f"http://{http}{path}: no answer: {error}") from error
    finally:
        connection.close()
    if reply.status != HTTPStatus.OK:
        raise M4castError(f"http://{http}{path}: HTTP status {reply.status}")
    return body.decode()
