"""How strong a channel is and how it heals: weak places after joins, mass crashes with and without passive lists, and a
split network. Virtual time, so the figures are those of the seeds and not of the machine."""

from time import perf_counter

from m4cast.overlay.sim.graph import as_networkx, graph_facts
from m4cast.overlay.sim.run import Plan, Run, settled
from m4cast.overlay.sim.scenarios import simulate

SMALL_SEEDS = 20
SMALL_NODES = (7, 8, 9, 10, 12)
CRASH_NODES = 100
CRASH_SHARES = (0.4, 0.6, 0.8)
CRASH_MS_MAX = 300_000
SPLIT_NODES = (4, 20)


def measure() -> list[dict[str, object]]:
    rows = [_weak_places(nodes) for nodes in SMALL_NODES]
    for share in CRASH_SHARES:
        rows += [_crash(share, passive_max) for passive_max in (1_024, 0)]
    return rows + [_split(nodes) for nodes in SPLIT_NODES]


def _weak_places(nodes: int) -> dict[str, object]:
    """How many of the grown graphs fall apart without three nodes, and how long until none does."""
    started, weak, waits = perf_counter(), 0, []
    for seed in range(SMALL_SEEDS):
        run = Run(Plan("grow", nodes, 4, seed))
        assert run.join(nodes)
        began_ms = run.world.now_ms
        weak += _vertex_connectivity(run) < 4
        assert run.world.run_until(lambda run=run: _vertex_connectivity(run) == 4, 60_000, step_ms=500)  # type: ignore[misc]
        waits.append(run.world.now_ms - began_ms)
    return _row("weak places", nodes, f"{weak} of {SMALL_SEEDS} graphs weak", "none weak", max(waits), started)


def _vertex_connectivity(run: Run) -> int:
    return graph_facts([place.address for place in run.world.up()], run.world.edges()).vertex_connectivity or 0


def _crash(share: float, passive_max: int) -> dict[str, object]:
    """A part of the nodes crashes at once: the pieces at first, the pieces in the end, and the time it took."""
    started = perf_counter()
    run = Run(Plan("rejoin", CRASH_NODES), passive_max=passive_max)
    assert run.join(CRASH_NODES)
    for place in run.random.sample(run.world.up(), int(CRASH_NODES * share)):
        run.world.crash(place, silent=True)
    began_ms = run.world.now_ms
    pieces = _pieces(run)
    whole = run.world.run_until(lambda: settled(run.world) and len(_pieces(run)) == 1, CRASH_MS_MAX, step_ms=1_000)
    left = _pieces(run)
    what = f"{share:.0%} crash, {'with' if passive_max else 'without'} passive lists"
    end = f"{len(left)} pieces, {left[0] / sum(left):.0%} in the largest"
    waited_ms = run.world.now_ms - began_ms if whole else None
    return _row(what, CRASH_NODES, f"{len(pieces)} pieces", end, waited_ms, started)


def _pieces(run: Run) -> list[int]:
    """Their sizes, the largest first."""
    import networkx

    graph = as_networkx([place.address for place in run.world.up()], run.world.edges())
    return sorted((len(piece) for piece in networkx.connected_components(graph)), reverse=True)


def _split(nodes: int) -> dict[str, object]:
    """Two halves for ten minutes."""
    started = perf_counter()
    report = simulate(Plan("partition", nodes))
    before, after = report.delivered_fraction_before_repair, report.delivered_fraction
    waited_ms = report.whole_again_ms
    return _row("split for 10 min", nodes, f"{before:.0%} delivered", f"{after:.0%} delivered", waited_ms, started)


def _row(
    what: str, nodes: int, at_first: str, in_the_end: str, waited_ms: int | None, started: float
) -> dict[str, object]:
    return {
        "what": what,
        "nodes": nodes,
        "at first": at_first,
        "in the end": in_the_end,
        "whole after ms": waited_ms,
        "wall seconds": round(perf_counter() - started, 1),
    }
