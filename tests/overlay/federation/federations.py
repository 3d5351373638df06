"""Simulated federations for tests: built once per process where tests only look."""

from functools import cache

from m4cast.overlay.federation.contract import FederationSettings, PublishEvent, UnwantRows, WantRows
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import EventId, UnitEvent, UnitWant
from m4cast.overlay.federation.units import Unit, UnitId
from m4cast.overlay.profiles.summary import Summary
from m4cast.overlay.sim.federation.checks import FederationChecks
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, build, f3
from m4cast.overlay.sim.federation.world import FederationWorld

PLENTY = (8,) * 8
"""Links of each level that a node may have."""


def unit(name: str) -> Unit:
    """The unit of F3 with this name."""
    level = 3 if name.startswith("SSC") else 2 if name.startswith("SC") else 0 if "." in name else 1
    return Unit(level, UnitId(name.encode().ljust(16, b"\0")))


def name_of(unit_id: bytes) -> str:
    return unit_id.rstrip(b"\0").decode()


def names(units: list[Unit]) -> list[str]:
    return sorted(name_of(each.id) for each in units)


@cache
def f3_world() -> FederationWorld:
    """F3 by additions alone, for tests that only look at it."""
    return new_f3_world()


def new_f3_world(*, top_filter: bool = True, plan: HierarchyPlan | None = None) -> FederationWorld:
    settings = FederationSettings(top=3, links_max=PLENTY, top_filter=top_filter)
    return build(plan or f3(), settings, by_name=True)


def machine(world: FederationWorld, name: str) -> Federation:
    return world.sites[name].running()


class Clients:
    """Clients of a federation, watched by the checkers."""

    def __init__(self, world: FederationWorld) -> None:
        self.world = world
        self.checks = FederationChecks(world)
        world.watchers.append(self.checks)
        self._sequence = 0

    def want(self, site: str, want: UnitWant | str, name: str = "w") -> None:
        chosen = UnitWant(want) if isinstance(want, str) else want
        self.checks.want(self.world.sites[site], name, chosen)
        self.world.feed(self.world.sites[site], WantRows(name, chosen))

    def unwant(self, site: str, name: str = "w") -> None:
        self.checks.unwant(self.world.sites[site], name)
        self.world.feed(self.world.sites[site], UnwantRows(name))

    def confirm(self, most_ms: int = 30_000) -> None:
        assert self.world.run_until(lambda: not self.checks.unconfirmed(), most_ms, 10), self.checks.unconfirmed()
        self.world.run(200)

    def publish(self, site: str, topic: str, summary: Summary | None = None, *, is_quiet: bool = True) -> EventId:
        self._sequence += 1
        event = UnitEvent(EventId(self.world.sites[site].unit.id, 1, 1, self._sequence), topic, summary, b"row")
        self.checks.publish(self.world.sites[site], event, is_quiet=is_quiet)
        self.world.feed(self.world.sites[site], PublishEvent(event))
        return event.id

    def takers(self, event: EventId) -> list[str]:
        return sorted(site for site, each in self.checks.delivered if each == event)
