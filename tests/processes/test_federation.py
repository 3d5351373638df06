"""A federation of real processes: four channels, two gateways between each pair, gatekeepers killed, stopped and cut
off."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.overlay.client import Channel
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, f3, f15
from tests.processes.clusters import TIMEOUT_S, paused, until
from tests.processes.cuttable import CuttableGates, make_cuttable
from tests.processes.load import COUNTRIES, SELECTED_TOPIC, KeyedPublisher, SelectedPublisher, publishing
from tests.processes.warm_nodes import WarmCluster

CONF = Path(__file__).parents[2] / "conf"
CHANNELS = ("north", "east", "south", "west")


def write_mesh(path: Path, nodes: int) -> Path:
    """Every channel exports its own topic and imports the others'; two gateways between each pair. The first also
    exports a selective topic, which the others have on demand. All have certificates."""
    lines = ["[federation]", "tls = true"]
    for name in CHANNELS:
        others = [f"of-{other}" for other in CHANNELS if other != name]
        is_origin = name == CHANNELS[0]
        lines += [
            "[[channel]]",
            f"name = {json.dumps(name)}",
            f"nodes = {nodes}",
            f"exports = {json.dumps([f'of-{name}', *([SELECTED_TOPIC] if is_origin else [])])}",
            f"imports = {json.dumps(others)}",
            f"on_demand = {json.dumps([] if is_origin else [SELECTED_TOPIC])}",
        ]
    for one, other in combinations(CHANNELS, 2):
        for number in (1, 2):
            lines += ["[[gateway]]", f'from = "{other}.{number}"', f'to = "{one}.{number}"']
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@contextmanager
def running_federation(folder: Path, spec: Path) -> Iterator[tuple[LocalFederation, CuttableGates]]:
    federation, gates = LocalFederation.make(folder, read_spec(spec)), CuttableGates()
    make_cuttable(federation, gates)
    for name, cluster in federation.clusters.items():
        federation.clusters[name] = WarmCluster(cluster.folder, cluster.plan)
    try:
        federation.up()
        yield federation, gates
    finally:
        federation.down()
        gates.close()


def frontier(federation: LocalFederation, channel: str, node: str, topic: str) -> dict[str, int]:
    found = federation.clusters[channel].channel(node).frontier(topic)
    return dict(found.get(topic, {}))


def want_countries(federation: LocalFederation) -> dict[str, str]:
    """A taker of the selective topic at the last node of each channel but its own; channel -> the country it wants."""
    federation.clusters[CHANNELS[0]].channel("n2").create_topic(SELECTED_TOPIC, keepers=1, route_by=["country"])
    wanted = dict(zip(CHANNELS[1:], COUNTRIES, strict=True))
    for name, country in wanted.items():
        taker = federation.clusters[name].channel(federation.clusters[name].names()[-1])
        taker.register(SELECTED_TOPIC, f"country = '{country}'", start="earliest")
    return wanted


@pytest.mark.parametrize(
    ("nodes", "rounds", "away_s"), [(2, 6, 1.0), pytest.param(4, 45, 20.0, marks=pytest.mark.soak)]
)
def test_gatekeepers_die_stop_and_are_cut_off_and_every_row_comes_once_and_in_order(
    tmp_path: Path, nodes: int, rounds: int, away_s: float
) -> None:
    """The rows of imported topics at every node, and of the selective one at its takers."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    spec = write_mesh(tmp_path / "mesh.toml", nodes)
    with running_federation(tmp_path / "federation", spec) as (federation, gates):
        wanted = want_countries(federation)
        selected = SelectedPublisher(federation.clusters[CHANNELS[0]].channel("n2"), seed, pace_s=0.25)
        publishers = [
            KeyedPublisher(f"of-{name}", federation.clusters[name].channel("n2"), seed + at, pace_s=0.25)
            for at, name in enumerate(CHANNELS)
        ]
        with publishing(selected, *publishers):
            for at in range(rounds):
                name, number = CHANNELS[at % len(CHANNELS)], rng.choice([1, 2])
                cluster, victim = federation.clusters[name], f"n{number}"
                if at % 3 == 0:
                    cluster.kill(victim)
                    cluster.start(victim)
                    continue
                away = paused(cluster, victim) if at % 3 == 1 else gates.cut(federation.gates[name][number - 1])
                with away:
                    time.sleep(away_s)  # the fault lasts: nothing to wait for
            for publisher in (selected, *publishers):
                publisher.wait_for_more(1)
        for publisher, name in zip(publishers, CHANNELS, strict=True):
            comes_everywhere(federation, name, publisher)
        for name, country in wanted.items():
            taker = federation.clusters[name].channel(federation.clusters[name].names()[-1])
            comes_to(taker, country, selected)
        print({each.topic: (each.rows, each.repeats) for each in (selected, *publishers)}, "rows, repeats")


def comes_everywhere(federation: LocalFederation, name: str, publisher: KeyedPublisher) -> None:
    """Every row published in a channel is at every node of all channels, once and in order."""
    topic = publisher.topic
    there = frontier(federation, name, "n2", topic)
    assert sum(there.values()) - len(there) == publisher.rows
    for other, cluster in federation.clusters.items():
        for node in cluster.names():
            until(
                lambda other=other, node=node: frontier(federation, other, node, topic) == there,  # type: ignore[misc]
                f"{topic} at {node} of {other}",
                2 * TIMEOUT_S,
            )
            rows = cluster.channel(node).read(topic)
            for origin, end in there.items():
                found = zip(rows["_sequence"].to_pylist(), rows["_origin"].to_pylist(), strict=True)
                assert [sequence for sequence, of in found if of == origin] == list(range(1, end))


def comes_to(taker: Channel, country: str, publisher: SelectedPublisher) -> None:
    """A taker has the rows that it wants, once and in order, and its node covers all of them."""
    where, end = f"country = '{country}'", publisher.acknowledged[-1].next
    until(
        lambda: end in taker.frontier(SELECTED_TOPIC, where=where).get(SELECTED_TOPIC, {}).values(),
        f"rows of {country} are covered up to {end}",
        2 * TIMEOUT_S,
    )
    rows = taker.read(SELECTED_TOPIC, where=where)
    assert rows["number"].to_pylist() == publisher.wanted(country)


def test_the_command_makes_a_federation_and_shows_its_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # by which a user chooses another width
    runner, folder = CliRunner(), str(tmp_path / "federation")
    spec = CONF / "federation-two.toml"
    try:
        made = runner.invoke(main, ["federation", "up", "--spec", str(spec), "--dir", folder, "--json"])
        assert made.exit_code == 0, made.output
        assert json.loads(made.stdout)["missing"] == []
        local = LocalFederation.open(Path(folder))
        berlin, warsaw = (local.clusters[name].channel("n2") for name in ("berlin", "warsaw"))
        warsaw.publish("orders", [{"id": 1}, {"id": 2}])
        until(lambda: "orders" in berlin.frontier(), "orders of warsaw")
        until(lambda: berlin.read("orders").num_rows == 2, "two orders")
        door = local.clusters["berlin"].node("n1").door

        def shown() -> str:
            units = runner.invoke(main, ["units", "--node", door])
            assert units.exit_code == 0, units.output
            return units.output

        assert "m4cast/warsaw" in shown()
        until(lambda: "everywhere" in shown(), "orders wanted everywhere")
        other = runner.invoke(main, ["units", "--node", local.clusters["berlin"].node("n2").door])
        assert other.exit_code == 2 and "no gatekeeper" in other.output
    finally:
        ended = runner.invoke(main, ["federation", "down", "--dir", folder])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "unknown"),
        ("[[channel]]\nname = 'a'\nexport = []", "has \\['export'\\]; known are"),
        (
            "[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a.1'\nto = 'b.1'",
            "names \\['b'\\], but no such \\[\\[channel\\]\\]",
        ),
        ("[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a.2'\nto = 'a.1'", "names a.2, but a has nodes = 1"),
        ("[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a'\nto = 'a.1'", "NAME.NUMBER"),
        (
            "[[channel]]\nname = 'a'\n[[channel]]\nname = 'b'\n[[gateway]]\nfrom = 'a.1'\nto = 'b.1'\nwave = 2",
            "the first node starts at once",
        ),
        ("", "1 to 64"),
    ],
)
def test_a_specification_that_makes_no_federation_is_refused(tmp_path: Path, text: str, message: str) -> None:
    from m4cast.overlay.errors import M4castError

    path = tmp_path / "spec.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(M4castError, match=message):
        read_spec(path)


@pytest.mark.parametrize(("file", "plan"), [("federation-f3.toml", f3()), ("federation-f15.toml", f15())])
def test_the_networks_of_the_grid_event_service_are_specifications(file: str, plan: HierarchyPlan) -> None:
    """The same channels with the same numbers of nodes, and gateways of the same levels between them."""
    spec = read_spec(CONF / file)
    nodes = Counter(plan.unit(node, 1) for node in plan.units)
    assert spec.top == plan.top and {each.name: each.nodes for each in spec.channels} == nodes
    planned = Counter(
        (frozenset(plan.unit(end, 1) for end in link), plan.level(*link))
        for link in plan.links
        if plan.level(*link) > 0
    )
    made = Counter((frozenset((each.caller[0], each.callee[0])), each.level) for each in spec.gateways)
    assert made == planned
