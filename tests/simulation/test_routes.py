"""Graphs that nodes compute routes from: all of them right again soon after a failure, and after a second one."""

from m4cast.overlay.protocol.effects import Subscribe, Wish
from m4cast.overlay.protocol.routes.trees import RouteGraph
from m4cast.overlay.sim.places import Place
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun, settled
from m4cast.overlay.sim.world import World

ROUTES_MS = 1_000
"""After the graph is whole, all nodes have it within this."""


def graph_of(place: Place, now_ms: int) -> RouteGraph:
    """The graph as this node knows it: its own neighbours, and those of others by their beacons."""
    assert place.node is not None
    return RouteGraph(
        {**place.node.roster.graph(now_ms), place.node.me.node_id: place.node.membership.table.neighbours}
    )


def true_graph(world: World) -> RouteGraph:
    return RouteGraph(
        {
            place.node.me.node_id: place.node.membership.table.neighbours
            for place in world.up()
            if place.node is not None
        }
    )


def wrong(world: World) -> list[str]:
    truth = true_graph(world).neighbours
    return [place.name for place in world.up() if graph_of(place, world.now_ms).neighbours != truth]


def grown(*, wants: bool) -> ScenarioRun:
    run = ScenarioRun(ScenarioPlan("grow", nodes=12, seed=3))
    run.join(12)
    if wants:
        run.world.feed(run.world.up()[0], Subscribe(1, (Wish("a", "t"),)))
    run.run_for(20_000)
    assert wrong(run.world) == []
    return run


def after_two_crashes(run: ScenarioRun) -> list[str]:
    """The nodes that have another graph, a moment after the graph became whole again."""
    first, second = run.world.up()[5:7]
    run.world.crash(first, silent=False)
    run.run_for(300)  # the repair is under way
    run.world.crash(second, silent=False)
    assert run.world.run_until(lambda: settled(run.world), 60_000)
    run.run_for(ROUTES_MS)
    return wrong(run.world)


def test_graphs_are_right_within_a_second_of_the_repair_where_somebody_wants_something() -> None:
    """P65, P66."""
    run = grown(wants=True)
    assert after_two_crashes(run) == []
    truth = true_graph(run.world)
    for place in run.world.up():
        assert place.node is not None
        mine = graph_of(place, run.world.now_ms)
        for root in truth.neighbours:
            assert mine.tree(root) == truth.tree(root)


def test_nobody_else_pays_for_prompt_beacons() -> None:
    run = grown(wants=False)
    assert after_two_crashes(run) != []  # as before: with the next beacon
    assert run.world.run_until(lambda: not wrong(run.world), 20_000)
