"""What a degree costs and buys, and what random walks do: diameter and join cost of nodes that join every 50 ms.
`M4CAST_NODES` says how many (1,000)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from unittest.mock import patch

from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.edges import WALK_SLACK_STEPS, Edges
from m4cast.overlay.protocol.messages import EdgeSearchCall
from m4cast.overlay.sim.graph import graph_facts
from m4cast.overlay.sim.metrics import percentile
from m4cast.overlay.sim.run import Plan, Run
from m4cast.overlay.sim.world import node_config

NODES = int(os.environ.get("M4CAST_NODES", "1000"))
DEGREES = (3, 4, 5, 6, 7, 8)


def measure() -> list[dict[str, object]]:
    rows = [_grow("random walks", NODES, degree) for degree in DEGREES]
    with _without_walks():
        return rows + [_grow("beside the portal", nodes, 4, portals=(0,)) for nodes in (NODES // 10, NODES)]


@contextmanager
def _without_walks() -> Iterator[None]:
    """Newcomers are put between their portal and a neighbour of it: the rejected way of the seeds' figures 4A-4C."""

    def start_walk(self: Edges, requester: Contact, partner: Contact, now_ms: int) -> None:
        self._walks += 1
        self._forward(EdgeSearchCall(requester, partner, self._walks, 0, WALK_SLACK_STEPS), 0, now_ms)

    with patch.object(Edges, "start_walk", start_walk):
        yield


def _grow(how: str, nodes: int, degree: int, portals: tuple[int, ...] = (0, 1, 2)) -> dict[str, object]:
    started = perf_counter()
    run = Run(Plan("grow", nodes, degree))
    run.configure = lambda index: node_config(index, portals)
    whole = run.join(nodes)
    facts = graph_facts([place.address for place in run.world.up()], run.world.edges())
    join_ms = [join.ms for join in run.joins]
    return {
        "joined by": how,
        "degree": degree,
        "nodes": facts.nodes,
        "edges": facts.edges,
        "whole": whole and facts.connected,
        "edge connectivity": facts.edge_connectivity,
        "diameter": facts.eccentricity_max,
        "messages per join": round(run.join_messages / len(join_ms), 1),
        "join ms p50": percentile(join_ms, 50),
        "join ms p99": percentile(join_ms, 99),
        "wall seconds": round(perf_counter() - started, 1),
    }
