"""Files for operators in `conf/`: rules, dashboard and unit, compared with the metrics of a live node and with the
documentation."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.http.metrics import FAMILIES, NodeCollector
from m4cast.overlay.door.http.monitoring import HttpDoor
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.refusals import REFUSALS
from tests.overlay.door.http.watched import CHANNEL, get, samples
from tests.overlay.door.served import Served, serving

ROOT = Path(__file__).parents[4]
RULES = (ROOT / "conf" / "prometheus-rules.yml").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text("utf-8"))
OPERATIONS = (ROOT / "docs" / "OPERATIONS.md").read_text("utf-8")
TOPICS_MAX = 2


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("operators"), 2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def scraped(served: Served) -> Iterator[dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """The samples of a node with topics of its own, a reader, and metrics of at most two topics."""
    node, door = served.nodes[0], served.doors[0]
    with Channel(served.addresses[0]) as channel:
        for at, topic in enumerate(("small", "large", "larger")):
            channel.publish(topic, [{"text": "x" * 1000 * (at + 1)}] * (at + 1))
        channel.lease("reader", channel.earliest("large"))

    async def opened() -> HttpDoor:
        handle = NodeHandle(node.driver, asyncio.get_running_loop())
        collector = NodeCollector(node.driver, node.store, handle, door.services.calls, 5, topics_max=TOPICS_MAX)
        return HttpDoor(node.driver, node.store, CHANNEL, "127.0.0.1:0", CallCounts(), collector=collector)

    http = served.run(opened())
    try:
        yield samples(get(http.address, "/metrics")[1])
    finally:
        served.run(http.stop())


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:m4cast|process)_[a-z0-9_]+", expression))


def labels_in(expression: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each metric of an expression with each label that it is selected by, and the values."""
    for name, selected in re.findall(r"(m4cast_[a-z0-9_]+)\{([^}]*)\}", expression):
        for label, values in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"([^\"]*)\"", selected):
            yield name, label, values.split("|")


HAPPEN = {
    "m4cast_clock_ahead_seconds",
    "m4cast_filter_cpu_seconds_total",
    "m4cast_happenings_total",
    "m4cast_refused_total",
}
"""They have samples once something has happened."""
PROTOCOL = "\n".join(path.read_text("utf-8") for path in (ROOT / "overlay" / "protocol").rglob("*.py"))
LATER = {
    "m4cast_happenings_total": set(re.findall(r'race\("([a-z-]+)"', PROTOCOL)),
    "m4cast_refused_total": set(REFUSALS),
}
"""The values of their labels: the names of events in the protocol, and the codes of refusals."""
HAPPEN |= {name for name in FAMILIES if name.startswith("m4cast_gateway_")}  # of gatekeepers: test_gateways.py
RULE_EXPRESSIONS = re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)
PANEL_EXPRESSIONS = [each["expr"] for panel in DASHBOARD["panels"] for each in panel.get("targets", ())]


@pytest.mark.parametrize("expression", [*RULE_EXPRESSIONS, *PANEL_EXPRESSIONS])
def test_every_metric_of_a_rule_or_panel_is_served(
    expression: str, scraped: dict[tuple[str, tuple[tuple[str, str], ...]], float]
) -> None:
    served = {name for name, _ in scraped}
    unseen = HAPPEN & FAMILIES.keys()
    assert names_in(expression) <= served | unseen, expression
    for name, label, values in labels_in(expression):
        family = FAMILIES.get(name) or FAMILIES[name.removesuffix("_bucket")]
        assert label in (*family.labels, "instance", "le"), f"{name} has no label {label}"
        if label in family.labels:
            live = {found for each, labels in scraped if each == name for key, found in labels if key == label}
            assert {*values} <= live | LATER.get(name, set()), f"{name} has no {label} {values}"


def test_every_rule_is_whole_and_the_dashboard_is_one() -> None:
    rules = re.split(r"^ +- alert: ", RULES, flags=re.MULTILINE)[1:]
    assert len(rules) == len(RULE_EXPRESSIONS) >= 15
    for rule in rules:
        assert re.search(r"severity: (critical|warning)", rule), rule
        assert "summary:" in rule and "description:" in rule, rule
    assert len({rule.split()[0] for rule in rules}) == len(rules), "two alerts have one name"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_topics_have_metrics_up_to_a_bound(scraped: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> None:
    rows = {labels[0][1]: value for (name, labels), value in scraped.items() if name == "m4cast_topic_rows_total"}
    assert rows == {"larger": 3, "large": 2}, "the topics with the most stored bytes"
    stored = {labels[0][1]: value for (name, labels), value in scraped.items() if name == "m4cast_topic_stored_bytes"}
    assert stored.keys() == rows.keys() and stored["larger"] > stored["large"] > 0


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd verifies it where it is installed. The command's path in the unit is that of a real host."""
    unit = (ROOT / "conf" / "m4cast@.service").read_text("utf-8")
    assert re.findall(r"^\[(\w+)\]$", unit, re.MULTILINE) == ["Unit", "Service", "Install"]
    if (verify := shutil.which("systemd-analyze")) is None:
        return
    command = re.search(r"^ExecStart=(\S+) ", unit, re.MULTILINE)
    assert command is not None
    file = tmp_path / "m4cast@.service"
    file.write_text(unit.replace(command[1], sys.executable), encoding="utf-8")
    done = subprocess.run([verify, "verify", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_the_one_of_the_documentation() -> None:
    unit = (ROOT / "conf" / "m4cast@.service").read_text("utf-8")
    shown = re.search(r"```ini\n(.*?)```", OPERATIONS, re.DOTALL)
    assert shown is not None and unit.endswith(shown.group(1))
