"""Groups: clients whose connected members share the streams of their topics, one member a stream at a time.

Theory. A stream's member is chosen by rendezvous hashing among those that are connected, so one that comes or goes
moves its own share of the streams only. The *generation* rises with every change. A member keeps what it had in the
generation that it has last seen; when it has saved its position it says that it has seen the present one. Until then
nobody else is given its streams: what it had in hand is acknowledged before another one begins. Every change, and every
word of a member that it has seen one, is a new *version*: a read names the version whose positions it began from, and
is given rows only while that is the present one. A member that is silent is out, and what it had not acknowledged is
given to another.

Positions of a group only rise. What is acknowledged in a stream has no holes, whoever acknowledged it, so of two
positions of one stream the greater is right (`joined`): a late save changes nothing, and of the copies that members
bring to a new access point none takes anything back.

Reference: PROTOCOL.md, 21.7; G67, G77 of the design.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from xxhash import xxh3_64_intdigest

from m4cast.overlay.protocol.clients.state import ClientState, Frontier

MEMBER_MS = 30_000
"""A member that has not called for so long is out. Lower: the streams of one that was killed go on sooner; higher: an
application may take longer for what it was handed."""
MEMBERS_MAX = 256
GENERATIONS_MAX = 64
"""Generations that are remembered. Who has seen none of these may have had any stream."""


def owner_of(members: Iterable[str], topic: str, origin: str) -> str | None:
    """The member that a stream belongs to; None: there are no members."""
    return max(members, key=lambda name: (xxh3_64_intdigest(f"{name}\0{topic}\0{origin}".encode()), name), default=None)


def joined(one: ClientState, other: ClientState) -> ClientState:
    """Combine what is acknowledged by either: the later profiles, and of each stream the greater position."""
    last, first = (one, other) if one.last_number >= other.last_number else (other, one)
    frontier: Frontier = {}
    for topic, origins in last.frontier.items():
        known = first.frontier.get(topic, {})
        frontier[topic] = {
            origin: max(origins.get(origin, 1), known.get(origin, 1)) for origin in dict.fromkeys((*origins, *known))
        }
    return replace(last, frontier=frontier)


@dataclass
class Member:
    connection: int
    heard_ms: int
    seen: int
    """The generation by which it reads."""


class Group:
    """The members of a group, at its access point."""

    def __init__(self) -> None:
        self.generation = 0
        self.version = 0
        """The version of the positions that a read has to begin from."""
        self.members: dict[str, Member] = {}
        self._names: dict[int, tuple[str, ...]] = {0: ()}
        """The members of each generation."""

    def join(self, name: str, connection: int, now_ms: int) -> None:
        """One that connects again is a new one: it has no rows in hand."""
        self.members.pop(name, None)
        self.members[name] = Member(connection, now_ms, 0)
        self.change()
        self.members[name].seen = self.generation

    def leave(self, name: str) -> None:
        if self.members.pop(name, None) is not None:
            self.change()

    def expire(self, now_ms: int) -> None:
        silent = [name for name, member in self.members.items() if now_ms - member.heard_ms > MEMBER_MS]
        for name in silent:
            del self.members[name]
        if silent:
            self.change()

    def see(self, name: str) -> int:
        """The member has saved its position, and reads by the present generation from now on. Returns the version of
        the positions that it is told."""
        member = self.members[name]
        if member.seen != self.generation:
            member.seen = self.generation
            self.version += 1
        return self.version

    def is_current(self, version: int) -> bool:
        """True if a read that began from the positions of this version may go on."""
        return version == self.version

    def named(self, connection: int) -> str | None:
        return next((name for name, member in self.members.items() if member.connection == connection), None)

    def may_read(self, name: str, topic: str, origin: str, version: int) -> bool:
        """True if a stream is this member's, no other member may still be processing rows of it, and the read began
        from where the last one stopped."""
        if not self.is_current(version) or name not in self.members:
            return False
        if owner_of(self.members, topic, origin) != name:
            return False
        return not any(self._may_have(other, topic, origin) for other in self.members if other != name)

    def _may_have(self, name: str, topic: str, origin: str) -> bool:
        seen = self.members[name].seen
        if seen == self.generation:
            return False
        names = self._names.get(seen)
        return names is None or owner_of(names, topic, origin) == name

    def change(self) -> None:
        """Begin a new generation."""
        self.generation += 1
        self.version += 1
        self._names[self.generation] = tuple(self.members)
        while len(self._names) > GENERATIONS_MAX:
            del self._names[next(iter(self._names))]
