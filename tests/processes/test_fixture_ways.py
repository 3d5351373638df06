"""Fixtures of the Grid Event Service with real processes: the ways that a row takes in F15 and F3, beside the
fixture's own. Channels are complete graphs, or nearly so, where the fixtures have lines, so nodes inside a channel are
not compared: channels, gateways and matchings are.

python -m pytest -s -m soak tests/processes/test_fixture_ways.py      prints the rows of docs/FEDERATION.md
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from tests.processes.clusters import until
from tests.processes.warm_nodes import WarmCluster

CONF = Path(__file__).parents[2] / "conf"
TOPIC = "quotes"
PATIENCE_S = 180.0
TWO_CHANNELS = """
[[channel]]
name = "a"
nodes = 2
exports = ["*"]

[[channel]]
name = "b"
nodes = 2
on_demand = ["quotes"]

[[gateway]]
from = "b.1"
to = "a.1"
"""
Place = tuple[str, str]
"""A channel, and a node in it."""


class Fixture(NamedTuple):
    spec: Path | str
    publisher: Place
    takers: tuple[Place, ...]
    gatekeeper: Place
    """That of the publisher's channel whose trace is asked for."""
    gateways: tuple[tuple[str, str], ...]
    """Those that the fixture's own way crosses, from channel to channel."""


TWO = Fixture(TWO_CHANNELS, ("a", "n2"), (("b", "n2"),), ("a", "n1"), (("a", "b"),))
"""No fixture of the paper: what every run has time for."""
F15 = Fixture(
    CONF / "federation-f15.toml", ("q", "n1"), (("m", "n4"),), ("q", "n1"), (("q", "k"), ("k", "l"), ("l", "m"))
)
F10 = Fixture(
    CONF / "federation-f3.toml",
    ("c", "n3"),
    (("c", "n1"), ("b", "n3"), ("g", "n1"), ("l", "n1")),
    ("c", "n1"),
    (("c", "a"), ("a", "b"), ("b", "h"), ("h", "g"), ("a", "i"), ("i", "k"), ("k", "l")),
)


def door(federation: LocalFederation, place: Place) -> Channel:
    channel, node = place
    return federation.clusters[channel].channel(node, timeout_s=PATIENCE_S)


def way_of_a_row(federation: LocalFederation, fixture: Fixture) -> list[dict[str, Any]]:
    """Publish one row, have all takers take it, and trace it."""
    publisher = door(federation, fixture.publisher)
    publisher.create_topic(TOPIC, keepers=0)
    for taker in fixture.takers:
        door(federation, taker).register(TOPIC)
    for taker in fixture.takers:
        assert door(federation, taker).active(TOPIC, level="system", timeout_s=PATIENCE_S).is_active
    publisher.publish(TOPIC, [{"price": 1}])
    for taker in fixture.takers:
        until(lambda taker=taker: taken(federation, taker) == 1, f"{taker} has the row", PATIENCE_S)  # type: ignore[misc]
    ((origin, after),) = door(federation, fixture.takers[0]).frontier(TOPIC)[TOPIC].items()
    way = door(federation, fixture.gatekeeper).trace(TOPIC, origin, after - 1)
    assert not way["is_cut"]
    return list(way["steps"])


def taken(federation: LocalFederation, taker: Place) -> int:
    try:
        return int(door(federation, taker).read(TOPIC, "earliest").num_rows)
    except RefusedError as error:
        if error.code != "unknown-topic":
            raise
        return 0


def channel_of(named: str) -> str:
    return named.split(maxsplit=1)[0].rpartition("/")[2]


@pytest.mark.parametrize(
    "fixture",
    [
        TWO,
        pytest.param(F15, marks=pytest.mark.soak),
        pytest.param(F10, marks=pytest.mark.soak),
    ],
    ids=["two", "f15", "f10"],
)
def test_a_row_takes_the_fixtures_way(tmp_path: Path, fixture: Fixture) -> None:
    spec = tmp_path / "two.toml" if isinstance(fixture.spec, str) else fixture.spec
    if isinstance(fixture.spec, str):
        spec.write_text(fixture.spec, encoding="utf-8")
    federation = LocalFederation.make(tmp_path / "federation", read_spec(spec))
    for name, cluster in federation.clusters.items():
        federation.clusters[name] = WarmCluster(cluster.folder, cluster.plan)
    federation.up()
    try:
        steps = way_of_a_row(federation, fixture)
    finally:
        federation.down()
    came = [(channel_of(step["peer"]), channel_of(step["channel"])) for step in steps if step["kind"] == "came"]
    crossed = [link for link in came if link[0] != link[1]]
    matched = [
        (step["unit"]["level"], channel_of(step["channel"]), len(step["hits"]))
        for step in steps
        if step["kind"] == "matched"
    ]
    print(f"\n{spec.stem}: gateways {sorted(set(crossed))}, {len(came)} copies between gatekeepers")
    print(f"matched (level, channel, hits): {matched}")
    assert set(crossed) == set(fixture.gateways)
    delivered = {channel_of(step["channel"]) for step in steps if step["kind"] == "delivered"}
    assert {channel for channel, _ in fixture.takers} <= delivered | {fixture.publisher[0]}
