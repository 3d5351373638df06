"""What a degree costs and buys: diameter and join cost of a thousand nodes that join every 50 ms."""

from time import perf_counter

from m4cast.overlay.sim.graph import graph_facts
from m4cast.overlay.sim.metrics import percentile
from m4cast.overlay.sim.run import Plan, Run

NODES = 1_000
DEGREES = (3, 4, 5, 6, 8)


def measure() -> list[dict[str, object]]:
    return [_grow(degree) for degree in DEGREES]


def _grow(degree: int) -> dict[str, object]:
    started = perf_counter()
    run = Run(Plan("grow", NODES, degree))
    whole = run.join(NODES)
    facts = graph_facts([place.address for place in run.world.up()], run.world.edges())
    join_ms = [join.ms for join in run.joins]
    return {
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
