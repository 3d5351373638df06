"""Groups at the door: which members are connected here, and which streams each of them may read now.

Kept in memory alone: after a restart members connect again. The decisions are those of `protocol/clients/group`.
"""

import threading
from collections.abc import Callable, Iterable, Mapping

from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import ClientReader
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.clients.group import MEMBERS_MAX, Group

Owns = Callable[[StreamId], bool]


class GroupShares:
    """Any thread may use it. `clock_ms` only has to go forward."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}

    def __contains__(self, key: object) -> bool:
        """True if it is a group that has members here."""
        with self._lock:
            group = self._groups.get(str(key))
            return group is not None and bool(group.members)

    def join(self, key: str, member: str, connection: int) -> int:
        """Return the version of the positions that the member is told."""
        with self._lock:
            group = self._groups.setdefault(key, Group())
            if member not in group.members and len(group.members) >= MEMBERS_MAX:
                detail = f"group {key!r} has {MEMBERS_MAX} members, which is the limit: let one leave first"
                raise Refusal("too-many", detail)
            group.join(member, connection, self._clock_ms())
            return group.version

    def leave(self, key: str, connection: int) -> None:
        with self._lock:
            group = self._groups.get(key)
            name = group.named(connection) if group is not None else None
            if group is not None and name is not None:
                group.leave(name)

    def change(self, key: str, connection: int) -> None:
        """The member has changed what the group wants: the others have to learn of it."""
        with self._lock:
            group = self._groups.get(key)
            name = group.named(connection) if group is not None else None
            if group is not None and name is not None:
                group.change()
                group.see(name)

    def drop(self, key: str) -> None:
        """The client is not a group of this node any longer."""
        with self._lock:
            self._groups.pop(key, None)

    def see(self, key: str, connection: int) -> tuple[int, list[str]]:
        """The member reads by the present generation from now on. Returns the version of the positions that it is told,
        and who is in the group."""
        with self._lock:
            group = self._groups.get(key)
            name = group.named(connection) if group is not None else None
            if group is None or name is None:
                raise Refusal("not-connected", f"this connection is no longer a member of group {key!r}: connect again")
            return group.see(name), sorted(group.members)

    def is_member(self, key: str, connection: int) -> bool:
        with self._lock:
            group = self._groups.get(key)
            return group is not None and group.named(connection) is not None

    def is_heard(self, key: str, connection: int) -> bool:
        """Return whether it is the connection of a member, and if so note that the member has called now."""
        with self._lock:
            group = self._groups.get(key)
            name = group.named(connection) if group is not None else None
            if group is None or name is None:
                return False
            group.members[name].heard_ms = self._clock_ms()
            return True

    def expire(self) -> None:
        """Leave out who has been silent."""
        with self._lock:
            for key, group in list(self._groups.items()):
                group.expire(self._clock_ms())
                if not group.members:
                    del self._groups[key]

    def is_stale(self, attached: ClientReader) -> bool:
        """True if it is a member whose read began from positions that are not the present ones."""
        with self._lock:
            group = self._groups.get(attached.key)
            name = group.named(attached.connection) if group is not None else None
            return group is not None and name is not None and not group.is_current(attached.version)

    def owns(self, attached: ClientReader) -> Owns:
        """Return the test that tells which streams are this member's, at any time, in a read that began from the
        positions of its version."""

        def may_read(stream: StreamId) -> bool:
            with self._lock:
                group = self._groups.get(attached.key)
                name = group.named(attached.connection) if group is not None else None
                if group is None or name is None:
                    return False
                return group.may_read(name, stream.topic, stream.origin.hex(), attached.version)

        return may_read


class SharedFrontiers(Frontiers):
    """The frontiers that a member of a group sees: those of its own streams."""

    hides_streams = True

    def __init__(self, base: Frontiers, owns: Owns) -> None:
        super().__init__()
        self._base = base
        self._owns = owns
        self._changed, self._topics = base._changed, base._topics

    @property
    def closed(self) -> bool:
        return self._base.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        """Only the base is closed."""

    def shared(self, topic: str) -> tuple[str, Frontiers]:
        return self._base.shared(topic)

    def _positions(self, topics: Iterable[str]) -> dict[StreamId, int]:
        return {stream: until for stream, until in self._base._positions(topics).items() if self._owns(stream)}

    def _reached(self, positions: Mapping[StreamId, int]) -> bool:
        return self._base._reached(positions)
