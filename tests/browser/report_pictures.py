"""Takes the pictures of the report that docs/AUDIT.md shows, from a run of real nodes:
`python -m tests.browser.report_pictures FOLDER`.

Three of five nodes publish for over two minutes; one node is killed on the way and stays down, so its delivery records
are not read when the jobs ingest and audit. The pictures are for people, so nothing depends on their bytes.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from m4cast.cluster.local import LocalCluster
from tests.browser.tab import DESK, PHONE, Tab, new_tab

NODES = 5
PUBLISHERS = {"n1": ("orders", 40), "n2": ("orders", 25), "n4": ("visits", 60)}
"""With the topic of each, and how many rows it publishes at a time."""
WANTED = {"n3": ("visits", "ms > 100"), "n5": ("orders", "price > 50")}
KILLED = "n3"
STEPS = 130
KILLED_AT = 70
STEP_S = 1.0


def publish(cluster: LocalCluster) -> None:
    for name, (topic, where) in WANTED.items():
        with cluster.channel(name) as channel:
            channel.register(topic, where)
    channels = {name: cluster.channel(name) for name in PUBLISHERS}
    for step in range(STEPS):
        if step == KILLED_AT:
            cluster.kill(KILLED)
        for name, (topic, count) in PUBLISHERS.items():
            rows = [{"id": step * count + at, "price": at * 2.5, "ms": at * 7} for at in range(count)]
            channels[name].publish(topic, rows, acks=0)
        time.sleep(STEP_S)
    for channel in channels.values():
        channel.close()


def job(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "m4cast", *words], check=True, stdout=sys.stderr)


def take(tab: Tab, report: Path, folder: Path) -> None:
    for theme in ("light", "dark"):
        for name, size in (("desk", DESK), ("phone", PHONE)):
            tab.size(*size)
            tab.prefers(theme)
            tab.open(report.as_uri())
            tab.until("document.readyState === 'complete'", "it is loaded")
            if name == "phone" and theme == "dark":
                tab.run("document.querySelectorAll('section')[1].scrollIntoView()")
            tab.picture(folder / f"report-{name}-{theme}.png", whole=name == "desk")


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="m4cast-pictures-") as made:
        cluster = LocalCluster.make(Path(made) / "cluster", NODES)
        tables, report = str(Path(made) / "tables"), Path(made) / "report.html"
        try:
            cluster.up()
            publish(cluster)
            job("ingest", "--node", cluster.node("n1").door, "--tables", tables)
        finally:
            cluster.down()
        job("gaps", "--tables", tables, "--grace", "0")
        job("audit", "--tables", tables, "--grace", "0", "--report", str(report))
        with new_tab() as tab:
            take(tab, report, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
