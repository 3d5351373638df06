"""The second unit of the demo: a channel of two nodes that imports one topic through a gateway."""

import json
import shutil
from pathlib import Path

from m4cast.cluster.federation import LocalFederation
from m4cast.cluster.local import LocalCluster
from m4cast.cluster.plan import PLAN_FILE

SHOPS, PARTNER = "shops", "partner"
TOPIC = "orders"
"""The topic that the partner imports."""
PARTNER_NODES = 2


def write_spec(path: Path, nodes: int, sites: list[str]) -> None:
    """The channel of the demo, whose nodes are at these sites in turn, and that of its partner."""
    path.write_text(
        f'[[channel]]\nname = "{SHOPS}"\nnodes = {nodes}\nsites = {json.dumps(sites)}\nexports = ["{TOPIC}"]\n\n'
        f'[[channel]]\nname = "{PARTNER}"\nnodes = {PARTNER_NODES}\nimports = ["{TOPIC}"]\n\n'
        f'[[gateway]]\nfrom = "{PARTNER}.1"\nto = "{SHOPS}.1"\n',
        encoding="utf-8",
    )


def open_units(folder: Path) -> tuple[LocalCluster, LocalCluster]:
    """The clusters of the demo and of its partner."""
    clusters = LocalFederation.open(folder).clusters
    return clusters[SHOPS], clusters[PARTNER]


def rows_of_topic(cluster: LocalCluster, name: str) -> int:
    """The number of rows of the topic that a node has."""
    origins = cluster.channel(name).frontier(TOPIC).get(TOPIC, {})
    return sum(until - 1 for until in origins.values())


def remove_units(folder: Path) -> None:
    """Kill all nodes and remove the folder."""
    for plan in folder.glob(f"*/{PLAN_FILE}"):
        cluster = LocalCluster.open(plan.parent)
        cluster.kill(*cluster.running())
    shutil.rmtree(folder, ignore_errors=True)
