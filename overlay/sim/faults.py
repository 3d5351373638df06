"""Faults: what can go wrong with nodes, connections and disks, one at a time, chosen by the world's seed.

Each fault undoes itself after a while (a crashed node restarts, a paused one resumes), so that the world always
comes back to a state in which everything must work. `Faults.stop` undoes all that is still broken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from m4cast.overlay.ids import new_node_id
from m4cast.overlay.protocol.effects import Leave
from m4cast.overlay.sim.disk import Content, Disk
from m4cast.overlay.sim.places import End, Place
from m4cast.overlay.sim.world import World

CLOCK_SHARE = 0.3
"""Share of the faults at which a clock is set as well."""
DAMAGE_SHARE = 0.15
"""Share of the faults at which a batch is damaged on some disk as well."""


@dataclass
class Faults:
    """`stores` says what may happen to a store while its node is down: "same", "empty", "older"."""

    world: World
    stores: tuple[str, ...] = ("same", "same", "same", "empty", "older")
    down_share_max: float = 0.4
    spare: list[Place] = field(default_factory=list)
    """Places that have not joined yet."""
    trims: bool = False
    more: Random = field(default_factory=lambda: Random(0))
    """Chooses the faults of `one_more`, so that these change nothing of what the others draw."""
    clock_ms_max: int = 31_536_000_000
    """The maximum by which a clock is set forwards or back: a year."""
    active: bool = True
    gone: list[Place] = field(default_factory=list)
    """Left in order, for good."""
    lost_stores: list[tuple[Place, int]] = field(default_factory=list)
    """(place, how often it had been started) when a store was wiped or replaced."""
    backups: dict[str, Content] = field(default_factory=dict)
    _down: dict[str, str] = field(default_factory=dict)

    def one(self) -> None:
        """Let one fault happen."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._crash),
            (5, self._break),
            (3, self._pause),
            (3, self._half_open),
            (3, self._stall),
            (4, self._block),
            (2, self._slow),
            (2, self._slow_disk),
            (1, self._full_disk),
            (2, self._leave),
            (3, self._join),
            (2, self._backup),
        ]
        if self.trims:
            kinds.append((3, self._trim))
        weights = [weight for weight, _ in kinds]
        self.world.random.choices([fault for _, fault in kinds], weights)[0]()

    def one_more(self) -> None:
        """Let one fault happen that no node sees in what it hears from others; often none does."""
        if self.more.random() < CLOCK_SHARE:
            self._set_clock()
        if self.more.random() < DAMAGE_SHARE:
            self._damage()

    def stop(self) -> None:
        """No more faults: everybody who did not leave is up, awake and fast."""
        self.active = False
        for place in self.world.places.values():
            place.trouble.slow_ms = place.trouble.fsync_slow_ms = 0
            place.trouble.disk_full = False
            self.world.resume(place)
            self._restart(place)

    # ---- nodes

    def _some_up(self) -> Place | None:
        up = [place for place in self.world.up() if not place.paused]
        return self.world.random.choice(up) if up else None

    def _crash(self) -> None:
        place = self._some_up()
        if place is None or len(self._down) + 1 > self.down_share_max * len(self.world.places):
            return
        self._take_down(place, silent=self.world.random.random() < 0.4, away_ms=(50, 12_000))

    def _take_down(self, place: Place, *, silent: bool, away_ms: tuple[int, int]) -> None:
        random = self.world.random
        fate = self._down[place.address] = random.choice(self.stores)
        self.world.crash(place, silent=silent)
        place.will_return = fate == "same" or (fate == "older" and place.address not in self.backups)
        self.world.after(random.randint(*away_ms), self._restart, place)

    def blackout(self, away_ms: int) -> None:
        """All nodes go down at once, and come back one by one with whatever store they get."""
        for place in self.world.up():
            self._take_down(place, silent=False, away_ms=(50, away_ms))

    def _restart(self, place: Place) -> None:
        fate = self._down.pop(place.address, None)
        if fate is None or place.up:
            return
        if fate == "empty":
            self._lose_store(place)
            place.disk = Disk(new_node_id(self.world.random))
            place.wipes += 1
        elif fate == "older" and place.address in self.backups:
            self._lose_store(place)
            place.disk = Disk(place.disk.content.node_id)
            place.disk.content = self.backups[place.address].copy()
            if self.world.random.random() < 0.5:  # killed again while it takes a new identity and catches up
                self.world.after(self.world.random.randint(1, 3_000), self._crash_again, place)
        self.world.start(place)

    def _crash_again(self, place: Place) -> None:
        if place.up and self.active:
            self._down[place.address] = "same"
            self.world.crash(place, silent=False)
            self.world.after(self.world.random.randint(50, 2_000), self._restart, place)

    def _lose_store(self, place: Place) -> None:
        self.world.log(f"{place.name} gets another store")
        self.lost_stores.append((place, place.started))

    def _backup(self) -> None:
        place = self._some_up()
        if place is not None:
            self.backups[place.address] = place.disk.content.copy()

    def backup_all(self) -> None:
        for place in self.world.up():
            self.backups[place.address] = place.disk.content.copy()

    def _pause(self) -> None:
        place = self._some_up()
        if place is not None:
            self.world.pause(place)
            self.world.after(self.world.random.randint(100, 9_000), self.world.resume, place)

    def _slow(self) -> None:
        place = self._some_up()
        if place is not None:
            place.trouble.slow_ms = self.world.random.randint(1, 4)
            self.world.after(self.world.random.randint(500, 3_000), setattr, place.trouble, "slow_ms", 0)

    def _leave(self) -> None:
        place = self._some_up()
        up = self.world.up()
        if place is not None and len(up) > 4 and not self._is_portal(place):
            self.gone.append(place)
            self.world.feed(place, Leave())

    def _join(self) -> None:
        if self.spare:
            self.world.start(self.spare.pop())

    def _is_portal(self, place: Place) -> bool:
        return place.address in place.config.portals

    def _set_clock(self) -> None:
        """Forwards or back, by a second or more; also of a host whose node is down."""
        place = self.more.choice(self._places())
        offset_ms = self.more.choice((-1, 1)) * int(1_000 * (self.clock_ms_max // 1_000) ** self.more.random())
        self.world.set_clock(place, offset_ms if self.more.random() < 0.7 else 0)

    # ---- disks

    def _slow_disk(self) -> None:
        place = self._some_up()
        if place is not None:
            place.trouble.fsync_slow_ms = self.world.random.randint(20, 400)
            self.world.after(self.world.random.randint(500, 4_000), setattr, place.trouble, "fsync_slow_ms", 0)

    def _full_disk(self) -> None:
        place = self._some_up()
        if place is not None:
            place.trouble.disk_full = True
            self.world.after(self.world.random.randint(100, 2_000), setattr, place.trouble, "disk_full", False)

    def _damage(self) -> None:
        place = self.more.choice(self._places())
        streams = [(stream, log) for stream, log in place.disk.content.logs.items() if log.batches]
        if streams:
            stream, log = self.more.choice(streams)
            first = self.more.choice(log.batches).first_sequence
            if all(other is place or not other.disk.read(stream, first, first + 1, 1) for other in self._places()):
                return  # the only copy: its loss is another matter, and takes longer to settle
            self.world.damage(place, stream, first)
            if self.more.random() < 0.5:
                self.world.read_damaged(place)

    def _places(self) -> list[Place]:
        return list(self.world.places.values())

    def _trim(self) -> None:
        place = self._some_up()
        if place is not None and place.disk.content.logs:
            self.world.trim(place, self.world.random.randrange(1_000), self.world.random.randint(1, 30))

    # ---- connections

    def _some_link(self) -> End | None:
        place = self._some_up()
        if place is None:
            return None
        assert place.node is not None
        links = [
            place.ends[neighbour.conn]
            for neighbour in place.node.membership.table.neighbours.values()
            if neighbour.conn in place.ends
        ]
        return self.world.random.choice(links) if links else None

    def _break(self) -> None:
        if (end := self._some_link()) is not None:
            self.world.log(f"connection {end.place.name}-{end.other.place.name} breaks")
            self.world.cables.break_connection(end)

    def _half_open(self) -> None:
        if (end := self._some_link()) is not None:
            self.world.log(f"connection {end.place.name}-{end.other.place.name} goes half-open")
            self.world.cables.half_open(end)

    def _stall(self) -> None:
        if (end := self._some_link()) is not None:
            self.world.cables.stall(end, self.world.random.randint(200, 7_000))

    def _block(self) -> None:
        if (end := self._some_link()) is not None:
            self.world.cables.block(end, self.world.random.randint(50, 3_000))
