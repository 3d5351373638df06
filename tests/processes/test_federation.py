"""A federation of real processes: four channels, two gateways between each pair, gatekeepers killed and stopped."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.cluster.federation import LocalFederation, read_spec
from tests.processes.clusters import TIMEOUT_S, paused, until
from tests.processes.load import KeyedPublisher, publishing
from tests.processes.warm_nodes import WarmCluster

CHANNELS = ("north", "east", "south", "west")


def write_mesh(path: Path, nodes: int) -> Path:
    """Every channel exports its own topic and imports the others'; two gateways between each pair."""
    lines = []
    for name in CHANNELS:
        others = [f"of-{other}" for other in CHANNELS if other != name]
        lines += [
            "[[channel]]",
            f"name = {json.dumps(name)}",
            f"nodes = {nodes}",
            f"exports = {json.dumps([f'of-{name}'])}",
            f"imports = {json.dumps(others)}",
        ]
    for one, other in combinations(CHANNELS, 2):
        for number in (1, 2):
            lines += ["[[gateway]]", f'from = "{other}.{number}"', f'to = "{one}.{number}"']
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@contextmanager
def running_federation(folder: Path, spec: Path) -> Iterator[LocalFederation]:
    federation = LocalFederation.make(folder, read_spec(spec))
    for name, cluster in federation.clusters.items():
        federation.clusters[name] = WarmCluster(cluster.folder, cluster.plan)
    federation.up()
    try:
        yield federation
    finally:
        federation.down()


def frontier(federation: LocalFederation, channel: str, node: str, topic: str) -> dict[str, int]:
    found = federation.clusters[channel].channel(node).frontier(topic)
    return dict(found.get(topic, {}))


@pytest.mark.parametrize(
    ("nodes", "rounds", "away_s"), [(2, 4, 1.0), pytest.param(4, 30, 20.0, marks=pytest.mark.soak)]
)
def test_gatekeepers_die_and_stop_and_every_row_is_everywhere_once_and_in_order(
    tmp_path: Path, nodes: int, rounds: int, away_s: float
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    spec = write_mesh(tmp_path / "mesh.toml", nodes)
    with running_federation(tmp_path / "federation", spec) as federation:
        publishers = [
            KeyedPublisher(f"of-{name}", federation.clusters[name].channel("n2"), seed + at, pace_s=0.25)
            for at, name in enumerate(CHANNELS)
        ]
        with publishing(*publishers):
            for at in range(rounds):
                name = CHANNELS[at % len(CHANNELS)]
                cluster, victim = federation.clusters[name], rng.choice(["n1", "n2"])
                if at % 2:
                    with paused(cluster, victim):
                        time.sleep(away_s)  # the fault lasts: nothing to wait for
                else:
                    cluster.kill(victim)
                    cluster.start(victim)
            for publisher in publishers:
                publisher.wait_for_more(1)
        for at, name in enumerate(CHANNELS):
            topic = f"of-{name}"
            there = frontier(federation, name, "n2", topic)
            assert sum(there.values()) - len(there) == publishers[at].rows
            for other, cluster in federation.clusters.items():
                for node in cluster.names():
                    until(
                        lambda other=other, node=node, topic=topic, there=there: (  # type: ignore[misc]
                            frontier(federation, other, node, topic) == there
                        ),
                        f"{topic} at {node} of {other}",
                        2 * TIMEOUT_S,
                    )
                    rows = cluster.channel(node).read(topic)
                    for origin, end in there.items():
                        sequences = [
                            sequence
                            for sequence, of in zip(
                                rows["_sequence"].to_pylist(), rows["_origin"].to_pylist(), strict=True
                            )
                            if of == origin
                        ]
                        assert sequences == list(range(1, end))
        print({each.topic: (each.rows, each.repeats) for each in publishers}, "rows, repeats")


def test_the_command_makes_a_federation_and_shows_its_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # by which a user chooses another width
    runner, folder = CliRunner(), str(tmp_path / "federation")
    spec = Path(__file__).parents[2] / "conf" / "federation-two.toml"
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
        shown = runner.invoke(main, ["units", "--node", door])
        assert shown.exit_code == 0, shown.output
        assert "m4cast/warsaw" in shown.output and "everywhere" in shown.output
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
        ("[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a.1'\nto = 'b.1'", "no \\[\\[channel\\]\\] is called"),
        ("[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a.2'\nto = 'a.1'", "names a.2, but a has nodes = 1"),
        ("[[channel]]\nname = 'a'\n[[gateway]]\nfrom = 'a'\nto = 'a.1'", "NAME.NUMBER"),
        ("", "1 to 64"),
    ],
)
def test_a_specification_that_makes_no_federation_is_refused(tmp_path: Path, text: str, message: str) -> None:
    from m4cast.overlay.errors import M4castError

    path = tmp_path / "spec.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(M4castError, match=message):
        read_spec(path)
