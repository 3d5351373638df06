"""[federation] and [[gateway]]: what a file may say, and what is wrong with one."""

import dataclasses
from pathlib import Path

import pytest

from m4cast.overlay.config.federation import FederationConfig, GatewayConfig, begin_ms
from m4cast.overlay.config.files import load_cluster, load_federation, load_node
from m4cast.overlay.config.settings import facts_of
from m4cast.overlay.errors import ConfigError
from tests.overlay.test_config import CONF, LEGEND, comment, toml, write

INTRO = (
    "Settings of a gatekeeper: a node through which its channel is joined with others (docs/FEDERATION.md). They go "
    "into the file that has the node's [node]."
)


def shown_settings(config_class: type[FederationConfig] | type[GatewayConfig], header: str) -> str:
    pieces = [header]
    for each in dataclasses.fields(config_class):
        facts = facts_of(each)
        if each.name == "gateways":
            continue
        lines = [comment(facts.about), comment(f"Allowed: {facts.allowed.sentence}."), comment(f"Cost: {facts.cost}.")]
        pieces.append("\n".join([*lines, f"# Default from: {facts.source}.", f"{each.name} = {toml(each.default)}"]))
    return "\n\n".join(pieces)


def test_the_file_shows_every_setting_of_gatekeepers_with_its_default_and_cost() -> None:
    head = f"{comment(INTRO, '')}\n#\n{comment(LEGEND, '')}\n\n"
    expected = head + shown_settings(FederationConfig, "[federation]") + "\n\n"
    expected += shown_settings(GatewayConfig, "[[gateway]]") + "\n"
    assert (CONF / "federation.toml").read_text(encoding="utf-8") == expected
    assert load_federation(CONF / "federation.toml") == FederationConfig(gateways=(GatewayConfig(),))


def test_a_node_without_the_tables_is_no_gatekeeper(tmp_path: Path) -> None:
    assert load_federation(write(tmp_path, "[node]\n")) is None


def test_a_gatekeeper_has_its_tables_beside_those_of_its_node(tmp_path: Path) -> None:
    text = """
        [cluster]
        [node]
        name = "warsaw-1"
        [federation]
        listen = "10.0.0.7:7700"
        [[gateway]]
        channel = "m4cast/berlin"
        address = "10.1.0.7:7700"
        ca = "berlin.crt"
        imports = ["orders"]
        begin = "2026-11-18T00:00:00Z"
    """
    path = write(tmp_path, text)
    found = load_federation(path)
    assert found is not None and found.listen == "10.0.0.7:7700"
    (gateway,) = found.gateways
    assert (gateway.channel, gateway.imports, gateway.ca) == (
        "m4cast/berlin",
        ("orders",),
        str(tmp_path / "berlin.crt"),
    )
    assert begin_ms(gateway.begin) == 1_794_960_000_000
    assert load_node(path).name == "warsaw-1" and load_cluster(path).degree == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[gateway]]", r"\[\[gateway\]\] without a table \[federation\]: add it"),
        ("[federation]\ntop = 8", r"\[federation\] top = 8: must be a whole number from 1 to 7"),
        ("[federation]\nlisten = '0.0.0.0:1'", "stands for all addresses of the host.*set advertise"),
        ("[federation]\ngateways = []", r"gateways: are \[\[gateway\]\] tables"),
        ("[federation]\n[[gateway]]\nexport = ['a']", r"\[\[gateway\]\] export = .*did you mean exports\?"),
        ("[federation]\nhosts_refused = ['']", "hosts_refused = .*beginnings of addresses"),
        ("[federation]\n[[gateway]]\nimports = ['*']", "imports = .*each by its name"),
        ("[federation]\n[[gateway]]\nlevel = 2", "level = 2: the federation has top = 1"),
        ("[federation]\n[[gateway]]\nbegin = 'soon'", '"earliest" or a time such as'),
        ("[federation]\n[[gateway]]\nchannel = 'berlin'", 'the other channel\'s name "type/instance"'),
        ("[federation]\n[[gateway]]\n[[gateway]]", "is there twice: merge them"),
        ("[federation]\n[[gateway]]\nimports = ['a']\non_demand = ['a']", "on_demand has .'a'., which imports has too"),
        (
            "[federation]\n[[gateway]]\nexports = ['a']\nno_transit = ['b']",
            "no_transit has .'b'., which exports does not",
        ),
        ("[federation]\n[gateway]\nlevel = 1", r"\[\[gateway\]\] a list of tables: write them so"),
    ],
)
def test_invalid_federation_settings_are_reported(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_federation(write(tmp_path, text))
