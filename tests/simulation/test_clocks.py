"""Clocks that are wrong and are set, in the simulator: what it does to the times of rows, and who notices."""

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import Publish, Staged
from m4cast.overlay.sim.checkers import PublishTimes
from m4cast.overlay.sim.places import Place
from m4cast.overlay.sim.world import World, node_config

DAY_MS = 24 * 3_600_000


def channel(count: int) -> tuple[World, list[Place]]:
    world = World(7, ClusterConfig(degree=4))
    world.watch(PublishTimes())
    places = [world.add(node_config(index, (0,))) for index in range(count)]
    for place in places:
        world.start(place)
        world.run(world.now_ms + 2_000)
    return world, places


def publish(world: World, place: Place, request: int) -> None:
    world.feed(place, Publish(request, (Staged("t", 1, 1, b"row"),)))
    world.run(world.now_ms + 2_000)


def times(place: Place, origin: Place) -> list[int]:
    [log] = [log for stream, log in place.disk.content.logs.items() if stream.origin == origin.disk.content.node_id]
    return [batch.published_at_ms for batch in log.batches]


def test_rows_do_not_go_back_in_time_when_a_clock_is_set_right_over_a_restart() -> None:
    world, (portal, origin, other) = channel(3)
    world.set_clock(origin, DAY_MS)
    publish(world, origin, 1)
    world.crash(origin, silent=False)
    world.set_clock(origin, 0)
    world.start(origin)
    world.run(world.now_ms + 5_000)
    publish(world, origin, 2)
    first, second = times(other, origin)
    assert first == second > DAY_MS
    assert times(portal, origin) == times(origin, origin) == [first, second]


def test_a_clock_that_is_set_while_the_node_runs_is_followed_and_moves_no_timer() -> None:
    world, (_, origin, other) = channel(3)
    world.set_clock(origin, DAY_MS)
    neighbours = world.edges()
    world.run(world.now_ms + 30_000)
    publish(world, origin, 1)
    assert times(other, origin)[0] > DAY_MS
    assert world.edges() == neighbours


def test_a_clock_that_differs_from_all_neighbours_is_noticed_by_its_node_alone() -> None:
    world, places = channel(6)
    world.set_clock(places[3], 365 * DAY_MS)
    world.run(world.now_ms + 10_000)
    ahead = [place.node.clocks.ahead_ms() for place in places if place.node is not None]
    assert [abs(each or 0) < 1_000 for each in ahead] == [True, True, True, False, True, True]
    world.set_clock(places[3], 0)
    assert places[3].node is not None and abs(places[3].node.clocks.ahead_ms() or 0) < 1_000
