"""Takes the pictures of the console that the documentation shows, from a run of real nodes:
`python -m tests.browser.console_pictures FOLDER`.

Seven nodes are a channel: three of them publish, one is killed, and one joins. Two more are units that import what is
published, through gateways; one of them is killed. Clients are attached, and some have left. The pictures are for
people, so nothing depends on their bytes.
"""

import random
import sys
import tempfile
import threading
from pathlib import Path

from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client.roaming.client import Client
from tests.browser.tab import DESK, PHONE, Tab, new_tab

NODES = 7
PUBLISHERS = ("n1", "n3", "n5")
PAUSE_S = 0.2
SECRET = "correct horse battery staple"
SPEC = f"""
[[channel]]
name = "shops"
nodes = {NODES}
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
        if not stays:
            client.disconnect()


def take(tab: Tab, folder: Path, cluster: LocalCluster, lost: LocalCluster) -> None:
    attach_clients(cluster)

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
    tab.run("location.hash = '#clients'")
    tab.until("document.querySelectorAll('td .pill').length === 4", "the clients are shown")
    tab.picture(folder / "console-clients-phone-light.png", whole=False)
    tab.size(*DESK)
    tab.prefers("dark")
    points(26)
    tab.picture(folder / "console-clients-desk-dark.png", whole=False)
    tab.prefers("light")
    tab.run("location.hash = '#units'")
    tab.until("document.querySelectorAll('.unit.heard').length === 2", "the units are reached")
    tab.picture(folder / "console-units-desk-light.png", whole=False)
    lost.kill("n1")
    tab.size(*PHONE)
    tab.prefers("dark")
    tab.until("document.querySelector('.unit.silent')", "a unit is out of reach")
    tab.picture(folder / "console-units-phone-dark.png", whole=False)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="m4cast-pictures-") as made:
        spec = Path(made) / "units.toml"
        spec.write_text(SPEC, encoding="utf-8")
        federation = LocalFederation.make(Path(made) / "units", read_spec(spec))
        cluster = federation.clusters["shops"]
        ended = threading.Event()
        publishers = [threading.Thread(target=publish, args=(cluster, name, ended)) for name in PUBLISHERS]
        try:
            federation.up()
            for each in publishers:
                each.start()
            with new_tab() as tab:
                take(tab, folder, cluster, federation.clusters["couriers"])
        finally:
            ended.set()
            for each in publishers:
                if each.ident is not None:
                    each.join()
            federation.down()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
