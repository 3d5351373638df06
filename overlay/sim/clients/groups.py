"""A group in the simulator: members that come, go, die and fall silent, and an access point that is lost.

Every row is handed to members with what they do about it: take, acknowledge, save, see a change. The checker knows the
rows that each member has in hand, and what was acknowledged. It wants that nothing is passed over; that a row is given
twice only after a loss (a member that died or was silent, an access point that died); and that each stream is given in
order.
"""

from dataclasses import dataclass, field
from random import Random

from m4cast.overlay.protocol.clients import group as group_room
from m4cast.overlay.protocol.clients.group import MEMBER_MS, Group
from m4cast.overlay.protocol.clients.state import ClientProfile, ClientState
from m4cast.overlay.sim.checkers import Violation

TOPIC = "t"
ORIGINS = tuple(f"{number:032x}" for number in range(1, 5))
MEMBERS = ("a", "b", "c")
PORTION = 3
ROUNDS_MAX = 300


@dataclass
class SimMember:
    name: str
    state: ClientState
    """The state that it acknowledged, as it knows it."""
    version: int
    """The version of the positions that it has learned."""
    ahead: dict[str, int] = field(default_factory=dict)
    """The position up to which it was handed rows, by origin."""


class GroupWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.rows = dict.fromkeys(ORIGINS, 0)
        """The number of published rows, by origin."""
        profile = ClientProfile("p", TOPIC, None, None, {}, number=1)
        self.stored = ClientState((profile,), {TOPIC: {}}, (), 1)
        self.group = Group()
        self.members: dict[str, SimMember] = {}
        """Those that run, whether the access point knows them or not."""
        self.acknowledged: dict[str, set[int]] = {origin: set() for origin in ORIGINS}
        self.given: dict[tuple[str, int], int] = {}
        self.doubtful: dict[tuple[str, int], None] = {}
        """Rows that were given, and that a loss may bring again."""
        self.connection = 0
        self.twice = 0

    # ---- members

    def join(self, name: str) -> None:
        self.connection += 1
        known = self.members.get(name)
        self.group.join(name, self.connection, self.now_ms)
        brought = known.state if known is not None else self.stored
        self.stored = group_room.joined(self.stored, brought)
        self.members[name] = SimMember(name, self.stored, self.group.version)

    def take(self, member: SimMember, origin: str) -> None:
        """Read the next rows of a stream, as the door allows it."""
        if not self._is_live(member):
            return
        self.group.members[member.name].heard_ms = self.now_ms
        if not self.group.may_read(member.name, TOPIC, origin, member.version):
            return
        first = member.ahead.get(origin, member.state.position(TOPIC, origin))
        until = min(first + self.random.randint(1, PORTION), self.rows[origin] + 1)
        for sequence in range(first, until):
            row = origin, sequence
            if self.given.get(row) and row not in self.doubtful:
                raise Violation("groups", f"row {sequence} of {origin[-1]} is given again, to {member.name}")
            self.twice += bool(self.given.get(row))
            self.given[row] = self.given.get(row, 0) + 1
        member.ahead[origin] = until

    def acknowledge(self, member: SimMember) -> None:
        for origin, until in member.ahead.items():
            self.acknowledged[origin].update(range(member.state.position(TOPIC, origin), until))
            member.state = member.state.passed(TOPIC, origin, until)
        member.ahead = {}

    def share(self, member: SimMember) -> None:
        """Save what was acknowledged, and learn the positions."""
        if not self._is_live(member):
            return
        self.group.members[member.name].heard_ms = self.now_ms
        self.acknowledge(member)
        self.stored = group_room.joined(self.stored, member.state)
        self._check_stored()
        member.version = self.group.see(member.name)
        member.state = group_room.joined(self.stored, member.state)

    def leave(self, member: SimMember) -> None:
        if self._is_live(member):
            self.share(member)
            self.group.leave(member.name)
        del self.members[member.name]

    def _is_live(self, member: SimMember) -> bool:
        return member.name in self.group.members

    # ---- losses

    def die(self, member: SimMember) -> None:
        """Its process ends; the access point notices when it has been silent for long."""
        self._doubt(member)
        del self.members[member.name]

    def fall_silent(self, member: SimMember) -> None:
        """It does not call for so long that it is out, and goes on later."""
        self._doubt(member)
        self.now_ms += MEMBER_MS + 1
        for other in self.group.members:
            if other in self.members and other != member.name:
                self.group.members[other].heard_ms = self.now_ms
        self.group.expire(self.now_ms)
        member.ahead = {}

    def lose_access_point(self) -> None:
        """The group meets at another one, with what a member knows."""
        self.doubtful.update(dict.fromkeys(self.given))
        self.group = Group()
        known = list(self.members.values())
        self.stored = known[0].state if known else self.stored
        for member in known:
            member.ahead = {}
            self.join(member.name)

    def _doubt(self, member: SimMember) -> None:
        for origin in ORIGINS:
            least = self.stored.position(TOPIC, origin)
            for sequence in range(least, self.rows[origin] + 1):
                self.doubtful[origin, sequence] = None

    # ---- checking

    def _check_stored(self) -> None:
        for origin in ORIGINS:
            position = self.stored.position(TOPIC, origin)
            lacking = [each for each in range(1, position) if each not in self.acknowledged[origin]]
            if lacking:
                raise Violation("groups", f"{origin[-1]} is at {position}, and {lacking[:3]} were not acknowledged")

    def unsettled(self) -> list[str]:
        return [origin for origin in ORIGINS if self.stored.position(TOPIC, origin) <= self.rows[origin]]


def run_group_seed(seed: int, steps: int = 200) -> int:
    """One run; raises `Violation`. Returns how many rows were given twice, which only losses may cause."""
    world = GroupWorld(seed)
    random = world.random
    for _ in range(steps):
        chance, name = random.random(), random.choice(MEMBERS)
        member = world.members.get(name)
        world.now_ms += 10
        if chance < 0.2:
            world.rows[random.choice(ORIGINS)] += random.randint(1, 4)
        elif member is None or not world._is_live(member):
            if chance < 0.4:
                world.join(name)
        elif chance < 0.6:
            world.take(member, random.choice(ORIGINS))
        elif chance < 0.75:
            world.share(member)
        elif chance < 0.85:
            world.acknowledge(member)
        elif chance < 0.9:
            world.leave(member)
        elif chance < 0.92 and seed % 2:
            world.die(member)
        elif chance < 0.94 and seed % 2:
            world.fall_silent(member)
        elif chance < 0.95 and seed % 4 == 1:
            world.lose_access_point()
    _calm(world)
    return world.twice


def _calm(world: GroupWorld) -> None:
    """No more losses: the members that run get everything."""
    world.now_ms += MEMBER_MS + 1
    for name in world.members:
        if name in world.group.members:
            world.group.members[name].heard_ms = world.now_ms
    world.group.expire(world.now_ms)
    for name in list(world.members) or [MEMBERS[0]]:  # others are gone for good
        if name not in world.members or name not in world.group.members:
            world.join(name)
    for _ in range(ROUNDS_MAX):
        for member in list(world.members.values()):
            world.share(member)
            for origin in ORIGINS:
                world.take(member, origin)
        if not world.unsettled():
            return
    raise Violation("liveness", f"{world.unsettled()}")
