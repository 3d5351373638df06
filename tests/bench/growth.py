"""Growth of a channel: hops and join cost of up to 10,000 nodes that join every 50 ms, against the logarithm of their
number; what a degree costs and buys; and the effect of random walks. `M4CAST_NODES` is the number of nodes of the
largest one."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import log10
from resource import RUSAGE_SELF, getrusage
from statistics import linear_regression
from time import process_time
from unittest.mock import patch

from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.membership.edges import WALK_SLACK_STEPS, Edges
from m4cast.overlay.protocol.wire.messages import EdgeSearchCall
from m4cast.overlay.sim.run import PORTALS, ScenarioPlan, ScenarioRun
from m4cast.overlay.sim.scenarios import SimulationReport, grow, report
from m4cast.overlay.sim.world import node_config

NODES = int(os.environ.get("M4CAST_NODES", "10000"))
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
FIT_NODES_MIN = 100
"""Smaller channels are nearly complete graphs."""
DEGREES = (3, 4, 5, 6, 7, 8)
DEGREE_NODES = min(NODES, 1_000)


def measure() -> list[dict[str, object]]:
    grown = {nodes: _grow(nodes) for nodes in SIZES if nodes <= NODES}
    rows = [_size(each, seconds) for each, seconds in grown.values()]
    rows += _fits([each for each, _ in grown.values() if each.graph.nodes >= FIT_NODES_MIN])
    rows += [_way("random walks", *_grow(DEGREE_NODES, degree)) for degree in DEGREES]
    with _without_walks():
        for nodes in (DEGREE_NODES // 10, DEGREE_NODES):
            rows.append(_way("beside the portal", *_grow(nodes, portals=(0,))))
    return rows


def _grow(nodes: int, degree: int = 4, portals: tuple[int, ...] = PORTALS) -> tuple[SimulationReport, float]:
    gc.collect()  # of the channel before; this one drops nothing that the collector would have to find
    gc.disable()
    started = process_time()
    run = ScenarioRun(ScenarioPlan("grow", nodes, degree))
    run.configure = lambda index: node_config(index, portals)
    before, after = grow(run)
    seconds = process_time() - started
    gc.enable()
    return report(run, before, after, seconds), seconds


def _size(grown: SimulationReport, seconds: float) -> dict[str, object]:
    """Memory is the most that this process has had, so that of the largest channel so far."""
    return {
        "nodes": grown.graph.nodes,
        "connected": grown.graph.connected,
        "links missing": grown.graph.nodes * grown.degree // 2 - grown.graph.edges,
        "diameter": grown.graph.eccentricity_max,
        "hops mean": grown.hops_mean,
        "sends per delivery": grown.sends_per_delivery,
        "delivered": grown.delivered_fraction,
        "messages per join": grown.join_messages_mean,
        "join ms p50": grown.join_ms_p50,
        "join ms p99": grown.join_ms_p99,
        "CPU seconds": round(seconds, 1),
        "memory MB": getrusage(RUSAGE_SELF).ru_maxrss // 1024,
    }


def _fits(grown: list[SimulationReport]) -> list[dict[str, object]]:
    """Least squares: value = at 100 nodes + per tenfold * (log10(nodes) - 2)."""
    if len(grown) < 2:
        return []
    tenfolds = [log10(each.graph.nodes) - 2 for each in grown]
    values: dict[str, list[float]] = {
        "diameter": [each.graph.eccentricity_max for each in grown],
        "hops mean": [each.hops_mean or 0.0 for each in grown],
        "messages per join": [each.join_messages_mean or 0.0 for each in grown],
        "join ms p50": [each.join_ms_p50 or 0 for each in grown],
    }
    rows: list[dict[str, object]] = []
    for what, ys in values.items():
        per_tenfold, at_100 = linear_regression(tenfolds, ys)
        off = max(abs(at_100 + per_tenfold * x - y) for x, y in zip(tenfolds, ys, strict=True))
        fit = {"at 100 nodes": round(at_100, 2), "per tenfold": round(per_tenfold, 2), "farthest off": round(off, 2)}
        rows.append({"fit of": what, **fit})
    return rows


@contextmanager
def _without_walks() -> Iterator[None]:
    """Newcomers are put between their portal and a neighbour of it: the rejected way of the patents' figures 4A-4C."""

    def start_walk(self: Edges, requester: Contact, partner: Contact, now_ms: int) -> None:
        self._walks += 1
        self._forward(EdgeSearchCall(requester, partner, self._walks, 0, WALK_SLACK_STEPS), 0, now_ms)

    with patch.object(Edges, "start_walk", start_walk):
        yield


def _way(how: str, grown: SimulationReport, seconds: float) -> dict[str, object]:
    return {
        "joined by": how,
        "degree": grown.degree,
        "nodes": grown.graph.nodes,
        "connected": grown.graph.connected,
        "edge connectivity": grown.graph.edge_connectivity,
        "diameter": grown.graph.eccentricity_max,
        "hops mean": grown.hops_mean,
        "messages per join": grown.join_messages_mean,
        "join ms p50": grown.join_ms_p50,
        "join ms p99": grown.join_ms_p99,
        "CPU seconds": round(seconds, 1),
    }
