"""Real nodes, each on a host of its own in a network namespace, under the faults of real networks.

python -m tests.processes.netns_campaign mixed --seed 7 --minutes 30       rounds of mixed faults and healing
python -m tests.processes.netns_campaign partition --seed 7 --seconds 60   the network in two halves, both publishing

Publishers remember what was acknowledged, and go on all the time; a reader follows them through all doors. When the
faults are taken back, all nodes must be one channel again and have everything that was published by then, within
`HEAL_MAX_S`. In the end every node must have every acknowledged row at its place, every row must have come to the
reader once and in order, and the simulator's checkers look at what the stores recorded. Beside the mixed faults a
selective topic is published as well: two nodes want one country of it, and must have all its rows, once and in order.
Fails with the broken promise, else prints what was done.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random

from m4cast.overlay.client import Frontier
from m4cast.overlay.errors import M4castError
from tests.processes.follower import Follower
from tests.processes.histories import check_histories
from tests.processes.hosted_cluster import HostedCluster
from tests.processes.hosts import Hosts, why_not
from tests.processes.load import (
    SELECTED_TOPIC,
    KeyedPublisher,
    Publisher,
    SelectedPublisher,
    UnkeyedPublisher,
    publishing,
)
from tests.processes.network_faults import NetworkFaults
from tests.processes.reading import assert_delivered, common_frontier
from tests.processes.wire import FINE, Weather

NODES = 6
ROUND_S = 45.0
"""Faults between two healings, at most."""
HEAL_MAX_S = 60.0
PACE_S = 0.5
PATIENCE_S = 1_800.0
"""Of publishers: faults may follow each other at their node; whoever waits for them is less patient."""
PUBLISH_TIMEOUT_S = 1.0
"""Of who publishes under a key: so that many a commit that was made is asked for again."""
FOLLOW_TIMEOUT_S = 5.0
"""Of who follows: after so long a node that says nothing is left for another."""
POLL_S = 0.2
TAKERS = ("n2", "n6")
"""Nodes that want rows of the selective topic, which n5 publishes."""
WANTED_COUNTRY = "PL"
WANTED = f"country = '{WANTED_COUNTRY}'"
BETWEEN_LOOKS_S_MAX = 10.0
"""Longer than anything takes that is done between two looks at the clock."""


class Clock:
    """Seconds that passed before the eyes of whoever looks at it often: if the whole machine is paused, as virtual ones
    are at times, that is no time in which nodes could have healed."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._looked_at_s = time.monotonic()

    def __call__(self) -> float:
        now_s = time.monotonic()
        self._seen_s += min(now_s - self._looked_at_s, BETWEEN_LOOKS_S_MAX)
        self._looked_at_s = now_s
        return self._seen_s


clock = Clock()


@dataclass
class Outcome:
    """The results of a run."""

    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    healed_s: list[tuple[float, float]] = field(default_factory=list)
    """After the faults: seconds until all were one channel, and until all had everything."""
    rows: dict[str, int] = field(default_factory=dict)
    followed: int = 0
    """Rows that came to the reader."""
    repeats: int = 0
    restarts: int = 0
    deliveries: int = 0
    packets: dict[str, int] = field(default_factory=dict)


def mixed(cluster: HostedCluster, minutes: float, seed: int) -> Outcome:
    """Rounds of faults."""
    outcome, random = Outcome(seed), Random(seed)
    publishers = [
        KeyedPublisher("keyed", cluster.channel("n1", timeout_s=PUBLISH_TIMEOUT_S), seed, pace_s=PACE_S),
        KeyedPublisher(
            "keyed-acks-1", cluster.channel("n3", timeout_s=PUBLISH_TIMEOUT_S), seed + 1, acks=1, pace_s=PACE_S
        ),
        KeyedPublisher(
            "keyed-acks-2", cluster.channel("n5", timeout_s=PUBLISH_TIMEOUT_S), seed + 2, acks=2, pace_s=PACE_S
        ),
        UnkeyedPublisher("unkeyed", cluster.channel("n4"), seed + 3, pace_s=PACE_S),
    ]
    want_selected(cluster)
    selected = SelectedPublisher(cluster.channel("n5", timeout_s=PUBLISH_TIMEOUT_S), seed + 4, pace_s=PACE_S)
    faults = NetworkFaults(cluster, random, say)
    end_s = clock() + 60 * minutes
    with published(cluster, outcome, publishers, selected):
        while (left_s := end_s - clock()) > 0:
            round_end_s = clock() + min(ROUND_S, left_s)
            while clock() < round_end_s:
                faults.go_on(clock())
                time.sleep(POLL_S)
            cluster.check_graph()
            faults.clear()
            outcome.healed_s.append(healed(cluster, publishers))
    outcome.faults = dict(faults.counts.most_common())
    return outcome


def partition(cluster: HostedCluster, seconds: float, seed: int) -> Outcome:
    """Two halves, one portal in each, do not hear each other for so long. No process is restarted."""
    outcome = Outcome(seed)
    publishers = [
        KeyedPublisher("here", cluster.channel("n1", timeout_s=PUBLISH_TIMEOUT_S), seed, acks=1, pace_s=PACE_S),
        KeyedPublisher("there", cluster.channel("n2", timeout_s=PUBLISH_TIMEOUT_S), seed + 1, acks=1, pace_s=PACE_S),
        UnkeyedPublisher("there-too", cluster.channel("n4"), seed + 2, pace_s=PACE_S),
    ]
    before = {name: cluster.process(name) for name in cluster.names()}
    here, there = [[cluster.host(name) for name in cluster.names()[half::2]] for half in (0, 1)]
    between = [*product(here, there), *product(there, here)]
    with published(cluster, outcome, publishers):
        for publisher in publishers:
            publisher.wait_for_more(1)
        cluster.hosts.set_weather(between, Weather(cut=True))
        time.sleep(seconds)
        for publisher in publishers:
            publisher.wait_for_more(1)
        assert cluster.unsettled(), "the halves still hear each other"
        cluster.hosts.set_weather(between, FINE)
        outcome.healed_s.append(healed(cluster, publishers))
        assert {name: cluster.process(name) for name in cluster.names()} == before, "a process was restarted"
    outcome.faults = {"partition": 1}
    return outcome


@contextmanager
def published(
    cluster: HostedCluster, outcome: Outcome, publishers: list[Publisher], selected: SelectedPublisher | None = None
) -> Iterator[None]:
    """While they publish; then all of it is looked at."""
    everybody = publishers if selected is None else [*publishers, selected]
    for publisher in everybody:
        publisher.give_up_s = PATIENCE_S
    follower = Follower(cluster.channel(timeout_s=FOLLOW_TIMEOUT_S), [publisher.topic for publisher in publishers])
    follower.start()
    with publishing(*everybody):
        yield
        for publisher in everybody:
            publisher.wait_for_more(1)
    healed(cluster, publishers)
    say("every row at who followed")
    end = common_frontier(cluster, [publisher.topic for publisher in publishers])
    wait("every row at who followed", lambda: follower.lacking(end), clock())
    follower.close()
    say("every row at every node")
    assert_delivered(cluster, *publishers)
    if selected is not None:
        say("every wanted row at who wants it")
        for name in TAKERS:
            wait(f"every wanted row at {name}", lambda name=name: selected_lacking(cluster, selected, name), clock())  # type: ignore[misc]
    cluster.stop_all()
    say("every delivery in every store")
    outcome.deliveries = check_histories(cluster, *publishers)
    outcome.followed = follower.rows
    outcome.rows = {publisher.topic: publisher.rows for publisher in everybody}
    outcome.repeats = sum(publisher.repeats for publisher in everybody)
    outcome.restarts = cluster.restarts


def healed(cluster: HostedCluster, publishers: list[Publisher]) -> tuple[float, float]:
    """Seconds until the nodes are one channel, and until all have what was published by then."""
    start_s = clock()
    one_s = wait("one channel", cluster.unsettled, start_s)
    topics = [publisher.topic for publisher in publishers]
    end = common_frontier(cluster, topics)
    all_s = wait("everything everywhere", lambda: rows_lacking(cluster, end), start_s)
    say(f"one channel after {one_s} s, everything everywhere after {all_s} s")
    return one_s, all_s


def wait(what: str, lacking: Callable[[], str], start_s: float) -> float:
    """Wait until nothing is missing; returns how long after the start that is."""
    while still := lacking():
        if clock() > start_s + HEAL_MAX_S:
            raise AssertionError(f"{what} not within {HEAL_MAX_S:g} s: {still}")
        time.sleep(POLL_S)
    return round(clock() - start_s, 1)


def rows_lacking(cluster: HostedCluster, end: Frontier) -> str:
    """The nodes that lack rows before `end`; empty when none does."""
    for name in cluster.names():
        try:
            has = cluster.channel(name).frontier(list(end))
        except M4castError as error:
            return f"{name}: {error}"
        for topic, origins in end.items():
            for origin, upto in origins.items():
                if has.get(topic, {}).get(origin, 1) < upto:
                    return f"{name} lacks rows of {topic}"
    return ""


# ---- the selective topic


def want_selected(cluster: HostedCluster) -> None:
    cluster.channel("n1").create_topic(SELECTED_TOPIC, keepers=2, route_by=["country"])
    for name in TAKERS:
        channel = cluster.channel(name)
        channel.register(SELECTED_TOPIC, WANTED, start="earliest")
        assert channel.active(SELECTED_TOPIC, WANTED, timeout_s=HEAL_MAX_S).is_active


def selected_lacking(cluster: HostedCluster, publisher: SelectedPublisher, name: str) -> str:
    """The acknowledged rows that the node wants and still lacks. The rows that it has must be right already."""
    try:
        rows = cluster.channel(name).read(SELECTED_TOPIC, where=WANTED)
    except M4castError as error:
        return f"{name}: {error}"
    found = rows["number"].to_pylist() if rows.num_rows else []
    wanted = publisher.wanted(WANTED_COUNTRY)
    assert found == wanted[: len(found)], f"{name}: {found} of {wanted}: not once, or not in order"
    return "" if found == wanted else f"{name} has {len(found)} of {len(wanted)} wanted rows"


def say(text: str) -> None:
    print(f"{clock():7.1f} s  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["mixed", "partition"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=30, help="of mixed faults and healing")
    parser.add_argument("--seconds", type=float, default=60, help="of partition")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--folder", type=Path, help="for the nodes; must not be there; default: a temporary one")
    given = parser.parse_args()
    lack = why_not()
    if lack:
        sys.exit(f"left out: {lack}")
    with (
        tempfile.TemporaryDirectory(prefix="m4cast-netns-") as temporary,
        Hosts.running(given.nodes, given.seed) as hosts,
    ):
        cluster = HostedCluster(given.folder or Path(temporary) / "cluster", hosts, given.nodes, {})
        try:
            cluster.up()
            say(f"{given.nodes} nodes are up, seed {given.seed}")
            if given.scenario == "mixed":
                outcome = mixed(cluster, given.minutes, given.seed)
            else:
                outcome = partition(cluster, given.seconds, given.seed)
        finally:
            cluster.kill(*cluster.running())
    outcome.packets = hosts.packets
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
