"""What only looks like a failure, and what is left of a channel after a big one."""

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import Publish, Staged
from m4cast.overlay.sim.checkers import unsettled, unsettled_graph
from m4cast.overlay.sim.world import Network, World, node_config


def settled_world(nodes: int, cluster: ClusterConfig, network: Network, seed: int = 1) -> World:
    world = World(seed, cluster, network)
    for index in range(nodes):
        world.start(world.add(node_config(index, (0, 1))))
        world.run(world.now_ms + 500)
    assert world.run_until(lambda: not unsettled_graph(world), 60_000)
    return world


def test_a_batch_that_takes_longer_than_any_time_out_arrives_once() -> None:
    """10 s on each link, against time-outs of 2 and 5 s: what is on its way is neither silence nor a failed pull."""
    world = settled_world(3, ClusterConfig(), Network(bytes_per_ms=100))
    edges = world.edges()
    world.feed(world.up()[0], Publish(1, (Staged("t", 1, 1, bytes(1_000_000)),)))
    assert world.run_until(lambda: not unsettled(world) and bool(world.up()[2].disk.content.logs), 60_000)
    assert world.edges() == edges
    assert all(place.node is not None and place.node.dissemination.ordering.duplicates == 0 for place in world.up())


@pytest.mark.parametrize("seed", range(5))
def test_a_fragment_that_knows_of_others_finds_them(seed: int) -> None:
    """Two neighbours are cut off from the rest, which goes on without them. Beacons are too rare to tell."""
    cluster = ClusterConfig(beacon_interval_ms=3_600_000)
    world = settled_world(12, cluster, Network(), seed)
    pair = world.random.choice(world.edges())
    for address in pair:
        for end in list(world.places[address].ends.values()):
            if end.other.place.address not in pair:
                world.break_connection(end)
    world.run(world.now_ms + 10)
    assert "the graph is not connected" in unsettled_graph(world)
    assert world.run_until(lambda: not unsettled_graph(world), 30_000)
