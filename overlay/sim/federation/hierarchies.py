"""Federations to simulate: built by the machine's own additions, from a description of units and links."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

from m4cast.overlay.federation.contract import FederationSettings, JoinUnit, KeptPlace, MergeUnit
from m4cast.overlay.federation.units import UNIT_ID_BYTES, Unit, UnitId, UnitRecord, new_unit_id, records_of_chain
from m4cast.overlay.sim.federation.world import FederationWorld

SETTLE_MS = 60_000
NEWS_MS = 200
"""The time in which news of an addition reaches the units that are to hear of it."""


@dataclass(frozen=True, slots=True)
class HierarchyPlan:
    """Nodes with the names of their units, from the cluster up, and the links between nodes."""

    units: Mapping[str, tuple[str, ...]]
    links: tuple[tuple[str, str], ...]

    @property
    def top(self) -> int:
        return len(next(iter(self.units.values())))

    def unit(self, node: str, level: int) -> str:
        return node if level == 0 else self.units[node][level - 1] if level <= self.top else ""

    def level(self, one: str, other: str) -> int:
        return max(level for level in range(self.top + 1) if self.unit(one, level) != self.unit(other, level))


def build(
    plan: HierarchyPlan, settings: FederationSettings, seed: int = 1, *, by_name: bool = False
) -> FederationWorld:
    """The federation of the plan: nodes join, units merge, and further links are asked for, one at a time, from below.
    `by_name`: units have ids that sort as their names do."""
    world = FederationWorld(seed, settings)
    named: dict[tuple[int, str], None] = {}
    for node in plan.units:
        chain = [(level, plan.unit(node, level)) for level in range(plan.top + 1)]
        ids = [_id_of(name) if by_name and (level, name) not in named else None for level, name in chain]
        named.update(dict.fromkeys(chain))
        world.add(node, tuple(ids))
    for level in range(plan.top + 1):
        _link_level(world, plan, level)
    settle(world)
    return world


def place(plan: HierarchyPlan, settings: FederationSettings, seed: int = 1) -> FederationWorld:
    """The federation of the plan when all of it starts again at once: places are on disks, links come up."""
    world = FederationWorld(seed, settings)
    ids: dict[tuple[int, str], UnitId] = {}
    records: dict[Unit, UnitRecord] = {}
    parts: dict[UnitId, list[Unit]] = {}
    chains: dict[str, list[UnitId]] = {}
    for node in plan.units:
        chain = chains[node] = []
        for level in range(plan.top + 2):
            name = (level, plan.unit(node, level))
            chain.append(ids[name] if name in ids else ids.setdefault(name, new_unit_id(world.random)))
        for record in records_of_chain(chain, node):
            if record.unit not in records:
                beside = parts.setdefault(record.parent, [])
                records[record.unit] = replace(record, number=len(beside))
                beside.append(record.unit)
    places: dict[UnitId, KeptPlace] = {}
    for node, chain in chains.items():
        cluster = chain[1]
        if cluster not in places:
            known = tuple(records[unit] for parent in chain[1:] for unit in parts[parent])
            places[cluster] = KeptPlace(known, has_joined=len(plan.units) > 1)
        world.put(node, Unit(0, chain[0]), places[cluster])
    for one, other in plan.links:
        world.sites[other].links_to[one] = None
    for site in world.sites.values():
        world.start(site)
    world.run(5_000)
    return world


def _link_level(world: FederationWorld, plan: HierarchyPlan, level: int) -> None:
    """Bring each unit of this level to those of its parent, beginning with the parent's first node."""
    homes: dict[str, str] = {}
    for node in plan.units:
        homes.setdefault(plan.unit(node, level + 1), plan.unit(node, level))
    inside = dict.fromkeys(homes.values())
    waiting = [link for link in plan.links if plan.level(*link) == level]
    while waiting:
        later = []
        for one, other in waiting:
            is_in, is_other_in = plan.unit(one, level) in inside, plan.unit(other, level) in inside
            near, far = (one, other) if is_in else (other, one)
            if is_in and is_other_in:
                ask(world, other, JoinUnit(1 << level, one))
            elif is_in or is_other_in:
                ask(world, far, JoinUnit(1, near) if level == 0 else MergeUnit(level, near))
                inside[plan.unit(far, level)] = None
            else:
                later.append((one, other))
        assert len(later) < len(waiting), f"units that no link of level {level} leads to: {later}"
        waiting = later


def _id_of(name: str) -> UnitId:
    return UnitId(name.encode().ljust(UNIT_ID_BYTES, b"\0"))


def ask(world: FederationWorld, name: str, request: JoinUnit | MergeUnit) -> None:
    """Have an addition made; fails unless it is granted."""
    before, failed = len(world.granted), len(world.failures)
    world.feed(world.sites[name], request)
    is_answered = world.run_until(lambda: len(world.granted) > before or len(world.failures) > failed, SETTLE_MS, 5)
    assert is_answered and len(world.failures) == failed, f"{name}: {request}: {world.failures[failed:]}"
    world.run(NEWS_MS)


def settle(world: FederationWorld) -> None:
    """Let the news of the last changes reach everybody."""
    world.run(10 * NEWS_MS)


# ---- the networks of GES


def f3() -> HierarchyPlan:
    """The hierarchy of figure 3: 78 nodes in 26 clusters, 11 super-clusters and 4 units of the top level."""
    tops = {"SSC-A": (1, 2, 3), "SSC-B": (4, 5, 6), "SSC-C": (7, 8, 9), "SSC-D": (10, 11)}
    clusters = ("abc", "def", "gh", "ij", "kl", "mn", "op", "qr", "stu", "vw", "xyz")
    supers = dict(enumerate(clusters, start=1))
    units = {
        f"{cluster}.{number}": (cluster, f"SC-{sc}", top)
        for top, numbers in tops.items()
        for sc in numbers
        for cluster in supers[sc]
        for number in ((4, 5, 6) if cluster == "c" else (1, 2, 3))
    }
    inner = [
        pair
        for cluster in "abcdefghijklmnopqrstuvwxyz"
        for pair in combinations([node for node in units if units[node][0] == cluster], 2)
    ]
    gateways = pairs(
        "c.4-a.2 a.3-b.1 d.1-e.1 e.2-f.1 g.1-h.1 i.1-j.1 k.1-l.1 m.1-n.1 o.1-p.1 q.1-r.1 s.1-t.1 t.2-u.1 v.1-w.1 "
        "x.1-y.1 y.2-z.1 c.5-d.2 b.2-h.2 f.2-g.2 i.2-k.2 l.2-m.2 o.2-q.2 r.2-s.2 u.2-p.2 v.2-x.2 a.1-i.3 g.3-n.3 "
        "e.3-o.3 j.3-w.3 m.3-z.3 t.3-y.3"
    )
    return HierarchyPlan(units, (*inner, *gateways))


def f15(*, shorter: bool = False) -> HierarchyPlan:
    """The test network of GES: 22 nodes; `shorter`: with the two links that were added to it."""
    clusters = {"k": (1, 3, "SC-4"), "l": (4, 6, "SC-4"), "m": (7, 10, "SC-6"), "n": (11, 13, "SC-6")}
    clusters |= {"p": (14, 17, "SC-5"), "q": (18, 22, "SC-5")}
    units = {
        str(node): (cluster, sc) for cluster, (first, last, sc) in clusters.items() for node in range(first, last + 1)
    }
    links = pairs(
        "1-2 2-3 3-4 4-5 5-6 5-7 7-8 7-9 9-10 7-11 11-12 12-13 22-1 22-21 21-20 20-19 19-18 18-14 14-15 15-16 16-17"
    )
    return HierarchyPlan(units, (*links, *(pairs("21-8 8-10") if shorter else ())))


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((one, other) for one, _, other in (each.partition("-") for each in text.split()))


def random_plan(
    random: Random, shape: Sequence[int], nodes: int, extra: int = 1, inner_extra: int = 0
) -> HierarchyPlan:
    """`shape`: how many units each unit has, from the top down to clusters; `nodes` in each cluster. Links are a tree
    of the units of each unit, and `extra` gateways beyond; inside a cluster `inner_extra` links beyond."""
    units: dict[str, tuple[str, ...]] = {}
    links: list[tuple[str, str]] = []

    def grow(path: tuple[str, ...], shape: Sequence[int]) -> list[str]:
        """The nodes of the unit at the end of the path."""
        if not shape:
            names = [f"{'.'.join(path)}.{number}" for number in range(nodes)]
            for number, name in enumerate(names):
                units[name] = tuple(".".join(path[: depth + 1]) for depth in range(len(path) - 1, -1, -1))
                if number:
                    links.append((names[random.randrange(number)], name))
            for _ in range(inner_extra if nodes > 1 else 0):
                near, far = random.sample(names, 2)
                links.append((near, far))
            return names
        parts = [grow((*path, str(number)), shape[1:]) for number in range(shape[0])]
        for number in range(1, len(parts)):
            links.append((random.choice(parts[random.randrange(number)]), random.choice(parts[number])))
        for _ in range(extra if len(parts) > 1 else 0):
            one, other = random.sample(range(len(parts)), 2)
            links.append((random.choice(parts[one]), random.choice(parts[other])))
        return [name for part in parts for name in part]

    grow((), shape)
    return HierarchyPlan(units, tuple(_once(links)))


def _once(links: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((min(link), max(link)) for link in links))
