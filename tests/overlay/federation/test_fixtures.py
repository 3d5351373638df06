"""Fixtures F3 to F15 of GES, from the machine, on the fixtures' own links. The numbers are those that a reference model
of the paper's algorithms prints.

F9 is in tests/overlay/profiles/test_graph.py.
"""

from dataclasses import replace
from random import Random

import pytest

from m4cast.overlay.federation import gateways
from m4cast.overlay.federation.contract import FederationSettings, LinkDelay, MergeUnit
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.graph import edge_of
from m4cast.overlay.federation.messages import GatewaySide, GatewayStatus
from m4cast.overlay.federation.vertex import UnitLink
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, ask, build, f3, f15
from tests.overlay.federation.federations import (
    PLENTY,
    Clients,
    f3_world,
    machine,
    name_of,
    names,
    new_f3_world,
    unit,
)

F4_EDGES = {
    ("c.4", "c.5"): (0, 0, 1),
    ("c.4", "c.6"): (0, 0, 1),
    ("c.5", "c.6"): (0, 0, 1),
    ("c.4", "a"): (1, 1, 1),
    ("a", "b"): (1, 2, 1),
    ("c.5", "SC-2"): (2, 2, 1),
    ("b", "SC-3"): (2, 3, 1),
    ("SC-2", "SC-3"): (2, 4, 1),
    ("a", "SSC-B"): (3, 4, 1),
    ("SC-2", "SSC-C"): (3, 5, 1),
    ("SC-3", "SSC-B"): (3, 5, 1),
    ("SSC-B", "SSC-D"): (3, 6, 2),
    ("SSC-C", "SSC-D"): (3, 6, 1),
}
"""Ends -> level, cost, link count."""
F4_PATHS = {
    "c.4": (0, "c.6>c.4"),
    "c.5": (0, "c.6>c.5"),
    "a": (1, "c.6>c.4>a"),
    "b": (3, "c.6>c.4>a>b"),
    "SC-2": (2, "c.6>c.5>SC-2"),
    "SC-3": (6, "c.6>c.5>SC-2>SC-3"),
    "SSC-B": (5, "c.6>c.4>a>SSC-B"),
    "SSC-C": (7, "c.6>c.5>SC-2>SSC-C"),
    "SSC-D": (11, "c.6>c.4>a>SSC-B>SSC-D"),
}


def edges_at(world: object, site: str) -> dict[tuple[str, str], tuple[int, int, int]]:
    found = machine(world, site).gateways.graph.edges()  # type: ignore[arg-type]
    return {(name_of(edge.low.id), name_of(edge.high.id)): (edge.level, cost, count) for edge, cost, count in found}


def paths_at(world: object, site: str, targets: list[str]) -> dict[str, tuple[int, str]]:
    graph = machine(world, site).gateways.graph  # type: ignore[arg-type]
    found = {target: graph.path(unit(target)) for target in targets}
    return {
        target: (path.cost, ">".join(map(name_of, path.units))) for target, path in found.items() if path is not None
    }


# ---- F3: the hierarchy, by additions and merges alone (G11, G2)


def test_f3_is_built_by_additions_alone() -> None:
    world = f3_world()
    chains = [machine(world, name).vertex.chain for name in world.sites]
    assert [len({chain[level] for chain in chains}) for level in range(4)] == [78, 26, 11, 4]
    assert len({tuple(machine(world, name).vertex.numbers()) for name in world.sites}) == 78
    keepers: dict[int, list[str]] = {level: [] for level in range(4)}
    for name in world.sites:
        for level in {link.level for link in machine(world, name).vertex.ready_links()}:
            keepers[level].append(name)
    plan = f3()
    assert len(keepers[0]) == 78 and len(keepers[3]) == 12
    by_top = {
        top: sum(plan.unit(name, 3) == top for name in keepers[2]) for top in ("SSC-A", "SSC-B", "SSC-C", "SSC-D")
    }
    assert by_top == {"SSC-A": 6, "SSC-B": 4, "SSC-C": 6, "SSC-D": 2}
    assert sum(plan.unit(name, 2) == "SC-1" for name in keepers[1]) == 4


def test_f3_every_node_knows_eleven_to_fourteen_of_108_connections() -> None:
    world = f3_world()
    tables = [machine(world, name).gateways.connections for name in world.sites]
    assert sorted({len(table) for table in tables}) == [11, 12, 13, 14]
    assert len({each for table in tables for each in table}) == 108


def test_g17_every_table_is_what_rewriting_gives() -> None:
    """Each connection, seen from each node, by A4 alone: an end is as fine as it is near."""
    world, plan = f3_world(), f3()
    for name in world.sites:
        own = [plan.unit(name, level) for level in range(4)]
        expected = []
        for ends in plan.links:
            level = plan.level(*ends)
            if level < 3 and plan.unit(ends[0], level + 1) != own[level + 1]:
                continue  # of another unit
            seen = [
                next(
                    plan.unit(end, at)
                    for at in range(level + 1)
                    if at == level or plan.unit(end, at + 1) == own[at + 1]
                )
                for end in ends
            ]
            expected.append((level, sorted(seen)))
        table = machine(world, name).gateways.connections.values()
        assert sorted((each.level, sorted(name_of(end.id) for end in each.ends)) for each in table) == sorted(expected)


# ---- F4, F5, F8


def test_f4_graph_at_c6() -> None:
    world = f3_world()
    assert edges_at(world, "c.6") == F4_EDGES
    assert paths_at(world, "c.6", list(F4_PATHS)) == F4_PATHS
    graph = machine(world, "c.6").gateways.graph
    assert names(graph.up_links(unit("SC-3"))) == ["SC-2", "b"] and names(graph.down_links(unit("SC-3"))) == ["SSC-B"]
    assert names(graph.up_links(unit("SSC-B"))) == ["SC-3", "SSC-D", "a"] and not graph.down_links(unit("SSC-B"))
    assert names(graph.up_links(unit("SSC-D"))) == ["SSC-B", "SSC-C"]
    assert names(graph.down_links(unit("c.4"))) == ["a"] and names(graph.down_links(unit("c.5"))) == ["SC-2"]


def test_f5_whom_a_change_is_announced_to() -> None:
    """The gatekeepers that hold what the own unit of a level wants, as the units that they are in."""
    gateways = machine(f3_world(), "c.6").gateways
    found = [
        sorted({name_of(end.id) for gate in gateways.gates(level) if (end := gateways.unit_of(gate)) is not None})
        for level in (1, 2, 3)
    ]
    assert found == [["c.4"], ["b", "c.5"], ["SC-2", "SC-3", "a"]]


@pytest.mark.parametrize(
    ("one", "other", "cost"),
    [
        ("c.4", "c.5", 0),
        ("c.4", "SSC-A", 3),
        ("a", "b", 2),
        ("a", "SC-1", 3),
        ("SC-1", "SSC-A", 5),
        ("SSC-A", "SSC-B", 6),
    ],
)
def test_f8_costs(one: str, other: str, cost: int) -> None:
    assert edge_of(unit(one), unit(other), 3).base_cost() == cost


# ---- F6: losses (G20, G21, G22), F7: a new super-cluster (G12, G23, G28)


def test_f6_losses() -> None:
    world = new_f3_world()
    before = list(machine(world, "c.6").gateways.graph.computed)
    world.cut_between("j.3", "w.3")
    world.run(3_000)
    assert paths_at(world, "c.6", list(F4_PATHS)) == F4_PATHS, "a parallel link changes no route"
    assert edges_at(world, "c.6")["SSC-B", "SSC-D"] == (3, 6, 1)
    assert machine(world, "c.6").gateways.graph.computed[:3] == before[:3], "levels below 3 are not even recomputed"
    world.cut_between("m.3", "z.3")
    world.run(3_000)
    assert paths_at(world, "c.6", ["SSC-D"]) == {"SSC-D": (13, "c.6>c.5>SC-2>SSC-C>SSC-D")}
    world.mend_between("j.3", "w.3")
    world.mend_between("m.3", "z.3")
    world.cut_between("a.2", "c.4")
    world.run(5_000)
    expected = {"SSC-B": (11, "c.6>c.5>SC-2>SC-3>SSC-B"), "SSC-D": (13, "c.6>c.5>SC-2>SSC-C>SSC-D")}
    assert paths_at(world, "c.6", ["a", "b", "SSC-B", "SSC-D"]) == expected
    for name, lost in (("c.6", ["a", "b"]), ("c.4", ["a", "b"]), ("b.3", ["c"]), ("a.1", ["c"])):
        assert names(list(world.partitions[name, 1])) == lost
    assert ("g.1", 1) not in world.partitions, "nobody outside SC-1 is concerned"
    world.mend_between("a.2", "c.4")
    world.run(5_000)
    assert paths_at(world, "c.6", list(F4_PATHS)) == F4_PATHS
    assert all(not units for units in world.partitions.values()), "the end is reported, too"


def test_f7_a_new_super_cluster() -> None:
    world = new_f3_world()
    elsewhere = {name: edges_at(world, name) for name in ("b.3", "g.1", "i.1")}
    numbers = {name: machine(world, name).vertex.numbers() for name in world.sites}
    inner = [unit(each).id for each in ("n.99", "aa", "SC-4n", "SSC-n")]
    world.add("n.99", inner)
    computed = list(machine(world, "c.6").gateways.graph.computed)
    ask(world, "n.99", MergeUnit(2, "c.6"))
    world.run(1_000)
    assert edges_at(world, "c.6") == {**F4_EDGES, ("c.6", "SC-4n"): (2, 2, 1)}
    assert paths_at(world, "c.6", list(F4_PATHS)) == F4_PATHS
    assert machine(world, "c.6").gateways.graph.computed[:2] == computed[:2], "levels 0 and 1 are not recomputed"
    new = {name: edges_at(world, name).keys() - elsewhere[name].keys() for name in elsewhere}
    assert new == {"b.3": {("c", "SC-4n")}, "g.1": {("SC-1", "SC-4n")}, "i.1": set()}
    assert paths_at(world, "n.99", ["SC-1", "SC-2", "SC-3", "SSC-B", "SSC-C", "SSC-D"]) == {
        "SC-1": (2, "n.99>SC-1"),
        "SC-2": (6, "n.99>SC-1>SC-2"),
        "SC-3": (6, "n.99>SC-1>SC-3"),
        "SSC-B": (7, "n.99>SC-1>SSC-B"),
        "SSC-C": (11, "n.99>SC-1>SC-2>SSC-C"),
        "SSC-D": (13, "n.99>SC-1>SSC-B>SSC-D"),
    }
    assert {name: machine(world, name).vertex.numbers() for name in numbers} == numbers, "others keep their addresses"
    chain = machine(world, "n.99").vertex.chain
    assert chain[:3] == tuple(inner[:3]) and chain[3] == unit("SSC-A").id, "inner units stay, upper ones are taken over"


def test_g25_an_overloaded_link_is_avoided_and_used_again() -> None:
    """F6's last part: an extra of 8 on c.4-a makes SSC-B dearer than by c.5; it rises and falls without flapping."""
    world = new_f3_world()
    (link,) = [link for link in machine(world, "c.4").vertex.ready_links() if link.level == 1]
    told = []
    for _ in range(20):
        for _ in range(10):
            world.feed(world.sites["c.4"], LinkDelay(link.conn, 500))
        world.run(500)
        told.append(edges_at(world, "c.6")["c.4", "a"][1])
    assert told[-1] == 9 and told == sorted(told), "it rises to 1 + 8, and does not flap"
    assert paths_at(world, "c.6", ["a", "SSC-B"]) == {"a": (9, "c.6>c.4>a"), "SSC-B": (11, "c.6>c.5>SC-2>SC-3>SSC-B")}
    told = []
    for _ in range(60):
        for _ in range(10):
            world.feed(world.sites["c.4"], LinkDelay(link.conn, 0))
        world.run(500)
        told.append(edges_at(world, "c.6")["c.4", "a"][1])
    assert told[-1] == 1 and told == sorted(told, reverse=True)
    assert paths_at(world, "c.6", list(F4_PATHS)) == F4_PATHS


def test_f6_an_extra_cost_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture's own figures: an extra of 10 on c.4-a, which is more than links get here."""
    monkeypatch.setattr(gateways, "EXTRA_MAX", 10)
    world = new_f3_world()
    (link,) = [link for link in machine(world, "c.4").vertex.ready_links() if link.level == 1]
    for _ in range(20):
        for _ in range(10):
            world.feed(world.sites["c.4"], LinkDelay(link.conn, 500))
        world.run(500)
    assert paths_at(world, "c.6", ["a", "b", "SSC-B", "SSC-D"]) == {
        "a": (11, "c.6>c.4>a"),
        "b": (13, "c.6>c.4>a>b"),
        "SSC-B": (11, "c.6>c.5>SC-2>SC-3>SSC-B"),
        "SSC-D": (13, "c.6>c.5>SC-2>SSC-C>SSC-D"),
    }


def test_g19_the_order_in_which_news_comes_does_not_matter() -> None:
    """c.6 is told of others' connections in 50 orders, with states that replace others, and some twice."""
    random, vertex = Random(1), machine(new_f3_world(), "c.6").vertex
    known = [each for each in machine(f3_world(), "c.6").gateways.connections.values() if vertex.me not in each.ends]
    later = [replace(each, sides=(GatewaySide(9, extra=3), each.sides[1])) for each in known[::3]]
    gone = [replace(each, sides=(each.sides[0], GatewaySide(7, GatewayStatus.REMOVED))) for each in known[1::3]]
    news, sender, tables = [*known, *later, *gone, *known[::2]], UnitLink(1, b""), []
    for _ in range(50):
        random.shuffle(news)
        found = Gateways(vertex)
        for each in news:
            found.learn(each, sender)
        removed = {key: connection for key, (connection, _) in found.removed.items()}
        tables.append((found.connections, removed, set(found.graph.edges())))
    assert tables == tables[:1] * 50
    assert [len(table) for table in tables[0]][:2] == [len(known) - len(gone), len(gone)] and gone


# ---- F10, F11: routing


def test_f10_trace() -> None:
    world = new_f3_world(top_filter=False)
    clients = Clients(world)
    for site in ("c.4", "b.3", "g.1", "l.1"):
        clients.want(site, "t")
    clients.confirm()
    world.delay_ms = (1, 1)
    event = clients.publish("c.6", "t")
    world.run(500)
    assert clients.takers(event) == ["b.3", "c.4", "g.1", "l.1"]
    matched = {
        (site, each.level): names(list(hits)) for site, each, hits in clients.checks.matchings[event] if each.level < 4
    }
    assert matched == {
        ("c.4", 1): ["c.4"],
        ("c.5", 2): ["b"],
        ("a.1", 3): ["SC-3"],
        ("i.3", 3): ["SC-5"],
        ("b.1", 1): ["b.3"],
        ("k.2", 2): ["l"],
        ("h.2", 2): ["g"],
        ("w.3", 3): [],
        ("l.1", 1): ["l.1"],
        ("g.1", 1): ["g.1"],
        ("o.3", 3): [],
    }
    checks = clients.checks
    assert (checks.copies[event], checks.gateway_copies[event], len(checks.touched[event])) == (32, 15, 26)
    unwanted = clients.publish("c.6", "u")
    world.run(500)
    assert (checks.copies[unwanted], checks.gateway_copies[unwanted], len(checks.touched[unwanted])) == (17, 8, 15)
    assert not checks.missing() and not checks.leaks()


def test_top_filter_spares_units_that_nobody_is_in() -> None:
    """X18: what nobody wants goes no further than the nearest gatekeeper of each level (17 copies without it)."""
    world = new_f3_world()
    clients = Clients(world)
    for site in ("c.4", "b.3", "g.1", "l.1"):
        clients.want(site, "t")
    clients.confirm()
    world.delay_ms = (1, 1)
    unwanted, wanted = clients.publish("c.6", "u"), clients.publish("c.6", "t")
    world.run(500)
    checks = clients.checks
    assert (checks.copies[unwanted], checks.gateway_copies[unwanted]) == (4, 1)
    assert (checks.copies[wanted], checks.gateway_copies[wanted]) == (20, 9)
    matched = [(site, each.level, names(list(hits))) for site, each, hits in checks.matchings[wanted]]
    assert sorted(matched) == [
        ("a.1", 3, ["SC-3"]),
        ("a.1", 4, ["SSC-B"]),
        ("b.1", 1, ["b.3"]),
        ("c.4", 1, ["c.4"]),
        ("c.5", 2, ["b"]),
        ("g.1", 1, ["g.1"]),
        ("h.2", 2, ["g"]),
        ("i.3", 3, ["SC-5"]),
        ("k.2", 2, ["l"]),
        ("l.1", 1, ["l.1"]),
    ]
    way_of_l1 = [(site, level) for site, level, hits in matched if hits in (["SSC-B"], ["SC-5"], ["l"], ["l.1"])]
    assert way_of_l1 == [("a.1", 4), ("i.3", 3), ("k.2", 2), ("l.1", 1)], "G46: top + 1 of them, in this order"
    assert clients.takers(wanted) == ["b.3", "c.4", "g.1", "l.1"]


def test_f11_random_publishes_on_f3_reach_each_taker_once() -> None:
    """G47, G52, G54: any origin, none to twelve takers; the checkers raise if one is served twice or for nothing."""
    world, random = new_f3_world(), Random(1)
    clients = Clients(world)
    sites = sorted(world.sites)
    takers = {number: random.sample(sites, random.randint(0, 12)) for number in range(40)}
    takers[40], takers[41] = sites, []
    for number, chosen in takers.items():
        for site in chosen:
            clients.want(site, f"t{number}", name=f"w{number}")
    clients.confirm()
    world.run(5_000)
    events = {number: clients.publish(random.choice(sites), f"t{number}") for number in takers}
    world.run(5_000)
    assert {number: clients.takers(event) for number, event in events.items()} == {
        number: sorted(chosen) for number, chosen in takers.items()
    }


# ---- F13, F15


def test_f13_a_stream_goes_on_by_the_other_gateway_in_order() -> None:
    """G61, G62: the link stalls with copies unacknowledged; they go by the other gateway, before newer ones; what still
    waits for the stalled link is taken back."""
    plan = HierarchyPlan(
        {"a.1": ("a",), "a.2": ("a",), "b.1": ("b",), "b.2": ("b",)},
        (("a.1", "a.2"), ("b.1", "b.2"), ("a.1", "b.1"), ("a.2", "b.2")),
    )
    world = build(plan, FederationSettings(top=1, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    clients.want("b.1", "t")
    clients.confirm()
    first = [clients.publish("a.1", "t", is_quiet=False) for _ in range(2)]
    world.run(100)
    world.stall("a.1", "b.1")
    stalled = [clients.publish("a.1", "t", is_quiet=False) for _ in range(3)]
    world.run(10_000)
    newer = [clients.publish("a.1", "t", is_quiet=False) for _ in range(2)]
    world.run(5_000)
    (end,) = [end for end in world.sites["a.1"].ends.values() if end.is_stalled]
    copies = [each for each in end.queue if type(each).__name__ == "EventCopy"]
    assert clients.checks.order["b.1"] == [*first, *stalled, *newer] and not copies
    world.resume("a.1", "b.1")
    world.run(10_000)
    assert clients.checks.order["b.1"] == [*first, *stalled, *newer], "nothing comes twice when the link works again"
    assert not [link for link in machine(world, "a.1").vertex.ready_links() if link.is_suspected]


def test_a_copy_that_was_not_sent_yet_is_not_overdue() -> None:
    """A paced link is not suspected for what waits for its turn (G29), but for what was sent and not acknowledged."""
    plan = HierarchyPlan({"a.1": ("a",), "b.1": ("b",)}, (("a.1", "b.1"),))
    world = build(plan, FederationSettings(top=1, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    clients.want("b.1", "t")
    clients.confirm()
    (link,) = machine(world, "a.1").vertex.ready_links()
    world.stall("a.1", "b.1")
    for _ in range(3):
        clients.publish("a.1", "t", is_quiet=False)
    first, _, last = link.unacked
    for waits_from in range(first, last + 1):
        for _ in range(20):
            world.feed(world.sites["a.1"], LinkDelay(link.conn, 500, waits_from))
            world.run(250)
        assert link.is_suspected == (waits_from > first), "the first one is overdue 3 s after it was sent"


@pytest.mark.parametrize(("shorter", "hops"), [(False, [9]), (True, [4, 2, 1])])
def test_f15_hops(shorter: bool, hops: list[int]) -> None:
    """G75. Servers on the way, the issuing node among them."""
    world = build(f15(shorter=shorter), FederationSettings(top=2, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    meters = ["10", "1", "22"] if shorter else ["10"]
    found = []
    for meter in meters:
        clients.want(meter, f"t{meter}")
        clients.confirm()
        before = dict(clients.checks.touched)
        event = clients.publish("22", f"t{meter}")
        world.run(1_000)
        assert clients.takers(event) == [meter] and event not in before
        found.append(clients.checks.touched[event][meter] + 1)  # the way that the batch took
    assert found == hops
