"""Strength and healing of a channel: weak places after joins, crashes of one less than the degree, mass crashes with
and without passive lists, split networks, and crowds at the portals. Virtual time, so the figures are those of the
seeds and not of the machine. `M4CAST_NODES` is the number of nodes of the channels that crash (100)."""

import os
from collections import Counter
from multiprocessing import get_context
from time import perf_counter

import networkx

from m4cast.overlay.config import PortalShuffle
from m4cast.overlay.protocol.wire.messages import SeekingConnectionCall
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.graph import as_networkx, graph_facts
from m4cast.overlay.sim.metrics import percentile
from m4cast.overlay.sim.places import End, Observer
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun, settled
from m4cast.overlay.sim.scenarios import by_ports, simulate

SMALL_SEEDS = 20
SMALL_NODES = (7, 8, 9, 10, 12)
CRASH_NODES = int(os.environ.get("M4CAST_NODES", "100"))
CRASH_SETS = 1_000
CRASH_SHARES = (0.4, 0.6, 0.8)
CRASH_MS_MAX = 600_000
SPLIT_NODES = (4, 20)
PORTAL_NODES = 8
CROWD = 100
SHUFFLES: tuple[PortalShuffle, ...] = ("off", "first-8", "weighted")


def measure() -> list[dict[str, object]]:
    rows = [_weak_places(nodes) for nodes in SMALL_NODES]
    rows += [_few_crash(CRASH_NODES)]
    for passive_max in (1_024, 0):
        rows += _crashes(passive_max)
    return rows + [_split(nodes) for nodes in SPLIT_NODES] + [_crowd(shuffle) for shuffle in SHUFFLES]


def _weak_places(nodes: int) -> dict[str, object]:
    """The number of grown graphs that fall apart without three nodes, and the time until none does."""
    started, weak, waits = perf_counter(), 0, []
    for seed in range(SMALL_SEEDS):
        run = ScenarioRun(ScenarioPlan("grow", nodes, 4, seed))
        assert run.join(nodes)
        began_ms = run.world.now_ms
        weak += _vertex_connectivity(run) < 4
        assert run.world.run_until(lambda run=run: _vertex_connectivity(run) == 4, 60_000, step_ms=500)  # type: ignore[misc]
        waits.append(run.world.now_ms - began_ms)
    return _row("weak places", nodes, f"{weak} of {SMALL_SEEDS} graphs weak", "none weak", max(waits), started)


def _vertex_connectivity(run: ScenarioRun) -> int:
    return graph_facts([place.address for place in run.world.up()], run.world.edges()).vertex_connectivity or 0


def _few_crash(nodes: int) -> dict[str, object]:
    """Random sets of degree - 1 nodes are taken out of the graph as the joins made it."""
    started = perf_counter()
    run = ScenarioRun(ScenarioPlan("grow", nodes))
    assert run.join(nodes)
    graph = as_networkx([place.address for place in run.world.up()], run.world.edges())
    addresses = sorted(graph)
    split = 0
    for _ in range(CRASH_SETS):
        left = graph.copy()
        left.remove_nodes_from(run.random.sample(addresses, run.plan.degree - 1))
        split += not networkx.is_connected(left)
    what = f"any {run.plan.degree - 1} crash, {CRASH_SETS:,} sets"
    return _row(what, nodes, "1 piece", f"{split} of the sets split it", None, started)


def _crashes(passive_max: int) -> list[dict[str, object]]:
    """A channel is grown once; then each part of it crashes in a process of its own, which is a copy of this one."""
    run = ScenarioRun(ScenarioPlan("rejoin", CRASH_NODES), passive_max=passive_max)
    assert run.join(CRASH_NODES)
    rows = []
    fork = get_context("fork")
    for share in CRASH_SHARES:
        here, there = fork.Pipe(duplex=False)
        copy = fork.Process(target=lambda share, pipe: pipe.send(_crash(run, share)), args=(share, there))
        copy.start()
        rows.append(here.recv())
        copy.join()
    return rows


def _crash(run: ScenarioRun, share: float) -> dict[str, object]:
    """A part of the nodes crashes at once, and batches are published at the others: the pieces at first, the pieces in
    the end with what was delivered in them, and the time it took."""
    started = perf_counter()
    for place in run.random.sample(run.world.up(), int(CRASH_NODES * share)):
        run.world.crash(place, silent=True)
    began_ms = run.world.now_ms
    survivors, pieces = run.world.up(), _pieces(run)
    for _ in range(run.plan.messages):
        run.publish()
    whole = run.world.run_until(lambda: settled(run.world) and len(_pieces(run)) == 1, CRASH_MS_MAX, step_ms=1_000)
    left = _pieces(run)
    passive_max = run.world.up()[0].config.passive_max
    what = f"{share:.0%} crash, {'with' if passive_max else 'without'} passive lists"
    waited_ms = run.world.now_ms - began_ms if whole else None
    delivered = run.deliver(survivors) if whole else run.delivered_fraction(survivors)
    end = f"{len(left)} pieces, {left[0] / sum(left):.0%} in the largest, {delivered:.1%} delivered"
    return _row(what, CRASH_NODES, f"{len(pieces)} pieces", end, waited_ms, started)


def _pieces(run: ScenarioRun) -> list[int]:
    """Their sizes, the largest first."""
    graph = as_networkx([place.address for place in run.world.up()], run.world.edges())
    return sorted((len(piece) for piece in networkx.connected_components(graph)), reverse=True)


def _split(nodes: int) -> dict[str, object]:
    """Two halves for ten minutes."""
    started = perf_counter()
    report = simulate(ScenarioPlan("partition", nodes))
    before, after = report.delivered_fraction_before_repair, report.delivered_fraction
    waited_ms = report.whole_again_ms
    return _row("split for 10 min", nodes, f"{before:.0%} delivered", f"{after:.0%} delivered", waited_ms, started)


class FirstCalls(Observer):
    """The node that each seeker that was answered asked first."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, SeekingConnectionCall):
            self.asked.setdefault(end.place.name, end.other.place.name)


def _crowd(shuffle: PortalShuffle) -> dict[str, object]:
    """Many nodes look for the channel at the same instant, on one portal host with a node at each of 8 ports."""
    started = perf_counter()
    run = ScenarioRun(ScenarioPlan("portals", PORTAL_NODES + CROWD))
    on_host = {"listen": "p0:0"}
    run.configure = lambda index: by_ports(
        index, ("p0",), portal_shuffle=shuffle, **(on_host if index < PORTAL_NODES else {})
    )
    assert run.join(PORTAL_NODES)
    first = FirstCalls()
    run.world.watch(first)
    assert run.join(CROWD, gap_ms=0)
    most = max(Counter(first.asked.values()).values())
    join_ms = percentile((join.ms for join in run.joins), 99)
    what = f"crowd at the ports, shuffle {shuffle}"
    return _row(what, CROWD, f"{most} ask the same node first", f"{len(_pieces(run))} channel", join_ms, started)


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
