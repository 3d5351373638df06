"""Takes the pictures of the console, and of units by `m4cast topology --svg`, that the documentation shows, from runs
of real nodes:
`python -m tests.browser.console_pictures FOLDER [channel] [units]`.

For `channel`, three of seven nodes publish, one is killed, and one joins. For `units`, two channels of one node import
what another one publishes, through gateways, and one of them is killed; clients are attached, and some have left. The
pictures are for people, so nothing depends on their bytes.
"""

import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client.roaming.client import Client
from m4cast.overlay.errors import M4castError
from tests.browser.tab import DESK, PHONE, Tab, new_tab

NODES = 7
PUBLISHERS = ("n1", "n3", "n5")
PAUSE_S = 0.2
SECRET = "correct horse battery staple"
SPEC = """
[[channel]]
name = "shops"
nodes = 3
sites = ["Warsaw", "Lisbon", "Berlin"]
exports = ["orders"]
[[channel]]
name = "suppliers"
imports = ["orders"]
[[channel]]
name = "couriers"
imports = ["orders"]
[[gateway]]
from = "suppliers.1"
to = "shops.1"
[[gateway]]
from = "couriers.1"
to = "shops.1"
"""
CLIENTS = {
    "shop-1": ("amount > 200", True),
    "shop-2": ("country = 'NL'", False),
    "shop-3": ("item = 'tea' AND amount > 50", False),
    "warehouse": (None, True),
}
"""With a filter each, and whether they stay."""


def publish(cluster: LocalCluster, name: str, ended: threading.Event) -> None:
    chance = random.Random(name)
    number = 0
    with cluster.channel(name) as channel:
        while not ended.wait(PAUSE_S):
            rows = [
                {
                    "id": (number := number + 1),
                    "country": chance.choice(("NL", "DE", "PL", "FR")),
                    "item": chance.choice(("tea", "lamp", "desk", "chair")),
                    "amount": round(chance.random() * 300, 2),
                }
                for _ in range(chance.randrange(5, 60))
            ]
            channel.publish("orders", rows)


def attach_clients(cluster: LocalCluster) -> None:
    for key, (where, stays) in CLIENTS.items():
        client = Client([cluster.node("n2" if key == "warehouse" else "n1").door], key=key, credential=SECRET)
        client.connect(create=True)
        client.subscribe("orders", where)
        if stays:
            threading.Thread(target=follow, args=(client,), daemon=True).start()
        else:
            client.disconnect()


def follow(client: Client) -> None:
    with suppress(M4castError):  # its node goes with the run
        client.run(lambda rows: None)


def take_channel(tab: Tab, folder: Path, cluster: LocalCluster) -> None:
    def points(least: int) -> None:
        tab.until(f"window.m4castPoints() >= {least}", "the charts have a history")

    tab.size(*DESK)
    tab.prefers("light")
    tab.open(f"http://{cluster.node('n1').web}/")
    tab.until(f"document.querySelectorAll('.node').length === {NODES}", "all nodes are shown")
    tab.run("import('/console/watch.js').then((it) => { window.m4castPoints = () => it.watch.history.at.length; })")
    points(8)
    cluster.kill("n6")
    tab.until("document.querySelector('.node.silent')", "the killed node is silent")
    cluster.add()
    tab.until(f"document.querySelectorAll('.node').length === {NODES + 1}", "the new node is shown")
    points(16)
    tab.picture(folder / "console-desk-light.png")
    cluster.start("n6")
    tab.until("!document.querySelector('.node.silent')", "the killed node is back")
    tab.run("document.querySelector('.node:nth-child(3)').dispatchEvent(new Event('click'))")
    tab.until("document.querySelector('line.tree')", "a tree is shown")
    tab.prefers("dark")
    points(20)
    tab.picture(folder / "console-desk-dark.png")
    tab.size(*PHONE)
    points(22)
    tab.picture(folder / "console-phone-dark.png")
    tab.prefers("light")
    tab.run("location.hash = '#tail'")
    tab.until("document.getElementById('tail-where')", "the tail is shown")
    tab.run("document.getElementById('tail-topic').value = 'orders'")
    tab.run("document.getElementById('tail-where').value = \"amount > 200 AND country = 'NL'\"")
    tab.run("document.getElementById('tail-explain').click()")
    tab.run("document.getElementById('tail-start').click()")
    tab.until("document.querySelectorAll('tr[data-sequence]').length >= 12", "rows arrive")
    tab.picture(folder / "console-phone-light.png", whole=False)


def take_units(tab: Tab, folder: Path, cluster: LocalCluster, lost: LocalCluster) -> None:
    attach_clients(cluster)
    tab.size(*PHONE)
    tab.prefers("light")
    tab.open(f"http://{cluster.node('n1').web}/#clients")
    tab.until("document.querySelectorAll('td .pill').length === 4", "the clients are shown")
    tab.until("document.getElementById('link').textContent === 'live'", "the node is named")
    tab.picture(folder / "console-clients-phone-light.png", whole=False)
    tab.size(*DESK)
    tab.prefers("dark")
    tab.until(
        "[...document.querySelectorAll('td.number')].some((each) => parseFloat(each.textContent) > 1)", "rows wait"
    )
    tab.picture(folder / "console-clients-desk-dark.png", whole=False)
    tab.prefers("light")
    tab.run("location.hash = '#units'")
    tab.until("document.querySelectorAll('.unit.heard').length === 2", "the units are reached")
    tab.picture(folder / "console-units-desk-light.png", whole=False)
    drawn = [sys.executable, "-m", "m4cast", "topology", "--node", cluster.node("n1").door]
    subprocess.run([*drawn, "--svg", str(folder / "federation-units.svg")], check=True, stdout=sys.stderr)
    lost.kill("n1")
    tab.size(*PHONE)
    tab.prefers("dark")
    tab.until("document.querySelector('.unit.silent')", "a unit is out of reach")
    tab.picture(folder / "console-units-phone-dark.png", whole=False)


@contextmanager
def published(cluster: LocalCluster, names: tuple[str, ...]) -> Iterator[None]:
    """Orders are published at these nodes."""
    ended = threading.Event()
    publishers = [threading.Thread(target=publish, args=(cluster, name, ended)) for name in names]
    for each in publishers:
        each.start()
    try:
        yield
    finally:
        ended.set()
        for each in publishers:
            each.join()


def channel(folder: Path, made: Path) -> None:
    cluster = LocalCluster.make(made / "cluster", NODES)
    try:
        cluster.up()
        with published(cluster, PUBLISHERS), new_tab() as tab:
            take_channel(tab, folder, cluster)
    finally:
        cluster.down()


def units(folder: Path, made: Path) -> None:
    spec = made / "units.toml"
    spec.write_text(SPEC, encoding="utf-8")
    federation = LocalFederation.make(made / "units", read_spec(spec))
    try:
        federation.up()
        with published(federation.clusters["shops"], ("n1", "n3")), new_tab() as tab:
            take_units(tab, folder, federation.clusters["shops"], federation.clusters["couriers"])
    finally:
        federation.down()


SCENES = {"channel": channel, "units": units}


def main(folder: Path, names: list[str]) -> None:
    for name in names or list(SCENES):
        with tempfile.TemporaryDirectory(prefix="m4cast-pictures-") as made:
            SCENES[name](folder, Path(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
