"""Federations in virtual time: what they cost as they grow, and how clients roam. Bytes are those of a plain encoding
(`overlay/sim/federation/sizes.py`); everything but CPU time and memory is the same on every machine.

python -m tests.bench.units [TABLE ...]     prints the tables of docs/FEDERATION.md: growth gateways levels state
rates filters roaming
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import log
from random import Random
from resource import RUSAGE_SELF, getrusage
from statistics import mean
from time import process_time

from m4cast.overlay.federation.contract import FederationSettings, PublishEvent, UnwantRows, WantRows
from m4cast.overlay.federation.messages import EventCopy, EventId, LinkMessage, UnitEvent, UnitWant
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.sim.federation.campaign import a_summary
from m4cast.overlay.sim.federation.checks import FederationChecks
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, place, random_plan
from m4cast.overlay.sim.federation.roamers import Roamers
from m4cast.overlay.sim.federation.sizes import size_bytes
from m4cast.overlay.sim.federation.world import FederationSite, FederationWatcher, FederationWorld, uncollected
from m4cast.overlay.sim.metrics import percentile

LINKS_MAX = (64,) * 8
SETTLE_MS = 120_000
Row = dict[str, object]


class BytesSent(FederationWatcher):
    """Bytes by kind of message, and of copies over gateways."""

    def __init__(self, checks: FederationChecks) -> None:
        self.control = 0
        self.routing: list[int] = []
        """Of each copy that crossed a gateway: the bytes beside the batch."""
        self.copies: Counter[EventId] = Counter()
        self.gateway_copies: Counter[EventId] = Counter()
        self._checks = checks
        checks.world.watchers.append(self)

    def sent(self, site: FederationSite, other: FederationSite, message: LinkMessage) -> None:
        if not isinstance(message, EventCopy):
            self.control += size_bytes(message)
            return
        size = size_bytes(message)
        self.copies[message.event.id] += size
        if self._checks.level(self._checks.chain(site.name), other.name):
            self.gateway_copies[message.event.id] += size
            self.routing.append(size - size_bytes(message.event))


class Federation:
    """A federation that is up, with clients and counters."""

    def __init__(self, plan: HierarchyPlan, seed: int = 1, *, top_filter: bool = True) -> None:
        began = process_time()
        self.plan = plan
        self.random = Random(seed)
        settings = FederationSettings(top=plan.top, links_max=LINKS_MAX, top_filter=top_filter)
        self.world: FederationWorld = place(plan, settings, seed)
        self.setup_s = process_time() - began
        self.checks = FederationChecks(self.world)
        self.world.watchers.append(self.checks)
        self.bytes = BytesSent(self.checks)
        self.sites = sorted(self.world.sites)
        self._sequence = 0

    def want(self, site: str, name: str, want: UnitWant) -> int:
        """The time until the want is active everywhere."""
        began_ms = self.world.now_ms
        self.checks.want(self.world.sites[site], name, want)
        self.world.feed(self.world.sites[site], WantRows(name, want))
        assert self.world.run_until(lambda: self.checks._is_active(site, name), SETTLE_MS, 5), f"{site} {name}"
        return self.world.now_ms - began_ms

    def unwant(self, site: str, name: str) -> None:
        self.checks.unwant(self.world.sites[site], name)
        self.world.feed(self.world.sites[site], UnwantRows(name))

    def publish(self, site: str, event: UnitEvent) -> EventId:
        self._sequence += 1
        issued = replace(event, id=EventId(self.world.sites[site].unit.id, 1, 1, self._sequence))
        self.checks.publish(self.world.sites[site], issued)
        self.world.feed(self.world.sites[site], PublishEvent(issued))
        return issued.id

    def settle(self) -> None:
        assert self.world.run_until(lambda: not self.checks.missing(), SETTLE_MS), self.checks.missing()[:3]

    def quiet_bytes(self, for_ms: int) -> int:
        before = self.bytes.control
        self.world.run(for_ms)
        return self.bytes.control - before


NO_ID = EventId(b"", 1, 1, 0)


def hops(each: Federation, pairs: int) -> list[int]:
    """Links on the way of batches between random nodes, each wanted by one node."""
    found = []
    for number in range(pairs):
        taker, origin = each.random.sample(each.sites, 2)
        each.want(taker, f"h{number}", UnitWant(f"h{number}"))
        event = each.publish(origin, UnitEvent(NO_ID, f"h{number}", None))
        each.settle()
        found.append(each.checks.touched[event][taker])
        each.unwant(taker, f"h{number}")
    return found


def growth() -> list[Row]:
    """Clusters of 64 nodes in up to four super-clusters: hops against the logarithm of the number of nodes (G15), the
    bytes of a change of a want, and when it is active everywhere."""
    rows: list[Row] = []
    for shape in ((1, 1), (1, 4), (2, 4), (4, 4), (4, 16)):
        plan = random_plan(Random(1), shape, 64, extra=2 + shape[1] // 4, inner_extra=64)
        with uncollected():
            each = Federation(plan)
            takes, changes = changes_of_wants(each, 10)
            way = hops(each, 20)
        nodes = len(each.sites)
        rows.append(
            {
                "nodes": nodes,
                "clusters": shape[0] * shape[1],
                "gateways": sum(plan.level(*link) > 0 for link in plan.links),
                "hops mean": round(mean(way), 1),
                "hops / ln n": round(mean(way) / log(nodes), 2),
                "hops max": max(way),
                "bytes per change and node": round(mean(changes) / nodes, 1),
                "active everywhere ms p50": percentile(takes, 50),
                "p99": percentile(takes, 99),
                "connections known, most": max(map(connections_known, each.world.sites.values())),
                "set-up CPU s": round(each.setup_s, 1),
                "memory MB": getrusage(RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    return rows


def gateways() -> list[Row]:
    """Hops in the same federations with more gateways: at least two for each unit (G15)."""
    rows: list[Row] = []
    for shape, extra in (((1, 4), 8), ((2, 4), 8), ((4, 4), 8), ((4, 16), 32)):
        plan = random_plan(Random(1), shape, 64, extra=extra, inner_extra=64)
        with uncollected():
            each = Federation(plan)
            way = hops(each, 20)
        nodes = len(each.sites)
        rows.append(
            {
                "nodes": nodes,
                "gateways": sum(plan.level(*link) > 0 for link in plan.links),
                "hops mean": round(mean(way), 1),
                "hops / ln n": round(mean(way) / log(nodes), 2),
                "hops max": max(way),
            }
        )
    return rows


def changes_of_wants(each: Federation, count: int) -> tuple[list[int], list[float]]:
    """So many changes of a want at random nodes: when each is active everywhere, and its bytes, less those of a quiet
    time."""
    idle = each.quiet_bytes(10_000) / 10
    takes, changes = [], []
    for number in range(count):
        site = each.random.choice(each.sites)
        before, began_ms = each.bytes.control, each.world.now_ms
        takes.append(each.want(site, "w", UnitWant(f"t{number}", parse(f"country = 'PL' AND amount > {number}"))))
        each.world.run(500)
        changes.append(each.bytes.control - before - idle * (each.world.now_ms - began_ms) / 1_000)
        each.unwant(site, "w")
        each.world.run(500)
    return takes, changes


def connections_known(site: FederationSite) -> int:
    return len(site.running().gateways.connections)


def levels() -> list[Row]:
    """Three levels with 200 gateways: hops, what a change of a want costs, and when it is active everywhere."""
    plan = random_plan(Random(2), (5, 10), 8, extra=26, inner_extra=8)
    each = Federation(plan)
    idle = each.quiet_bytes(10_000) / 10
    takes, changes = changes_of_wants(each, 20)
    way = hops(each, 20)
    return [
        {
            "nodes": len(each.sites),
            "clusters": 50,
            "super-clusters": 5,
            "gateways": sum(plan.level(*link) > 0 for link in plan.links),
            "hops mean": round(mean(way), 1),
            "hops / ln n": round(mean(way) / log(len(each.sites)), 2),
            "bytes per change": round(mean(changes)),
            "bytes per change and node": round(mean(changes) / len(each.sites), 1),
            "active everywhere ms p50": percentile(takes, 50),
            "p99": percentile(takes, 99),
            "idle bytes/s and node": round(idle / len(each.sites), 1),
        }
    ]


def state() -> list[Row]:
    """A super-cluster of 16 nodes beside one that grows: what its nodes know of it."""
    rows: list[Row] = []
    for clusters in (2, 8, 32, 64):
        near = random_plan(Random(1), (1, 4), 4, extra=2, inner_extra=4)
        far = random_plan(Random(1), (1, clusters), 2, extra=2)
        units = {f"n{node}": (*(f"n{name}" for name in chain),) for node, chain in near.units.items()}
        units |= {f"f{node}": (*(f"f{name}" for name in chain),) for node, chain in far.units.items()}
        links = [(f"n{one}", f"n{other}") for one, other in near.links]
        links += [(f"f{one}", f"f{other}") for one, other in far.links]
        links += [("n0.0.0", "f0.0.0"), ("n0.2.1", "f0.1.1")]
        each = Federation(HierarchyPlan(units, tuple(links)))
        for site in each.random.sample(each.sites, 10):
            each.want(site, "w", UnitWant("t"))
        found = {site: state_bytes(each.world.sites[site]) for site in each.sites if site.startswith("n")}
        keepers = ("n0.0.0", "n0.2.1")
        rows.append(
            {
                "clusters outside": clusters,
                "nodes outside": 2 * clusters,
                "bytes of a node": round(mean(size for site, size in found.items() if site not in keepers)),
                "of a gatekeeper to it": round(mean(found[site] for site in keepers)),
            }
        )
    return rows


def state_bytes(site: FederationSite) -> int:
    """The contents of a node: units, connections, what units want."""
    machine = site.running()
    held = [
        (entry.announcer, entry.gates, tuple(entry.wants.values()))
        for table in machine.interest.held.values()
        for entry in table.values()
    ]
    known = (tuple(machine.vertex.records.values()), tuple(machine.gateways.connections.values()), tuple(held))
    return size_bytes(known)


def rates() -> list[Row]:
    """Bytes by match rate on 64 nodes in 16 clusters; a flood sends each batch over every link (G53)."""
    rows: list[Row] = []
    for share in (100, 50, 25, 10, 5, 0):
        each, events = _matched(share, top_filter=True)
        sent = mean(each.bytes.copies[event] for event in events)
        flood = 2 * len(each.plan.links) * 480
        rows.append(
            {
                "match %": share,
                "bytes per batch": round(sent),
                "over gateways": round(mean(each.bytes.gateway_copies[event] for event in events)),
                "nodes touched": round(mean(len(each.checks.touched[event]) for event in events), 1),
                "flood": flood,
                "routing bytes per copy, most": max(each.bytes.routing, default=0),
            }
        )
    return rows


def filters() -> list[Row]:
    """The same with and without the top filter, where the paper sends every batch to every unit of the top level."""
    rows: list[Row] = []
    for share in (100, 10, 0):
        row: Row = {"match %": share}
        for name, top_filter in (("with", True), ("without", False)):
            each, events = _matched(share, top_filter=top_filter)
            row[f"over gateways, {name}"] = round(mean(each.bytes.gateway_copies[event] for event in events))
            row[f"nodes touched, {name}"] = round(mean(len(each.checks.touched[event]) for event in events), 1)
        rows.append(row)
    return rows


def _matched(share: int, *, top_filter: bool) -> tuple[Federation, list[EventId]]:
    """100 batches, of which a taker in each cluster wants this share."""
    plan = random_plan(Random(3), (4, 4), 4, extra=2, inner_extra=4)
    each = Federation(plan, top_filter=top_filter)
    clusters: dict[str, list[str]] = {}
    for node in each.sites:
        clusters.setdefault(plan.unit(node, 1), []).append(node)
    for name in sorted(clusters):
        each.want(clusters[name][0], "w", UnitWant("t", parse(f"amount < {share}") if share else parse("amount < 0")))
    events = []
    for number in range(100):
        summary = a_summary(each.random, amount=number)
        origin = each.random.choice(each.sites)
        events.append(each.publish(origin, UnitEvent(NO_ID, "t", summary, bytes(400))))
        each.world.run(20)
    each.settle()
    return each, events


def roaming(clients: int = 1_000, batches: int = 400) -> list[Row]:
    """Clients that roam between 16 clusters while batches are published: nothing missed, nothing twice."""
    plan = random_plan(Random(4), (4, 4), 4, extra=2, inner_extra=4)
    each = Federation(plan)
    began = process_time()
    roamers = Roamers(each.world, each.checks)
    for number in range(clients):
        client = roamers.add(f"c{number}", UnitWant(f"t{number % 20}"))
        roamers.arrive(client, each.world.sites[each.random.choice(each.sites)])
    assert each.world.run_until(lambda: not each.checks.unconfirmed(), SETTLE_MS, 500)
    for number in range(batches):
        for client in each.random.sample(list(roamers.clients.values()), clients // 100):
            if client.at and each.random.random() < 0.2:
                roamers.leave(client)
            else:
                roamers.arrive(client, each.world.sites[each.random.choice(each.sites)])
        event = each.publish(each.random.choice(each.sites), UnitEvent(NO_ID, f"t{number % 20}", None, bytes(400)))
        roamers.published(each.checks.published[event])
        each.world.run(10)
    for client in roamers.clients.values():
        if not client.at:
            roamers.arrive(client, each.world.sites[each.random.choice(each.sites)])
    done = each.world.run_until(lambda: not roamers.missing() and not roamers.unreleased(), SETTLE_MS, 500)
    all_clients = list(roamers.clients.values())
    return [
        {
            "clients": clients,
            "moves": sum(client.moves for client in all_clients) - clients,
            "batches": batches,
            "expected": sum(len(client.expected) for client in all_clients),
            "missed": len(roamers.missing()),
            "unreleased": len(roamers.unreleased()),
            "came again, dropped by id": sum(client.dropped for client in all_clients),
            "all well": done,
            "CPU s": round(process_time() - began, 1),
        }
    ]


TABLES: dict[str, Callable[[], list[Row]]] = {
    "growth": growth,
    "gateways": gateways,
    "levels": levels,
    "state": state,
    "rates": rates,
    "filters": filters,
    "roaming": roaming,
}


def print_table(rows: list[Row]) -> None:
    print("| " + " | ".join(rows[0]) + " |")
    print("| " + " | ".join("---" for _ in rows[0]) + " |")
    for row in rows:
        print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()) + " |")


if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        print(f"\n{name}: {TABLES[name].__doc__}\n", flush=True)
        print_table(TABLES[name]())
