"""The rights of callers: publish, read and subscribe to topics by pattern, be clients by key, and administrate.

Where rights come from is `tokens`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.profiles import Profile, narrowed

Right = Literal["any", "publish", "read", "subscribe", "client", "admin"]
"""`any`: whoever has a valid token."""
TopicRight = Literal["publish", "read", "subscribe"]


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of one client. `publish`, `read` and `subscribe` are topic patterns."""

    name: str
    publish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: bool = False
    where: tuple[tuple[str, Profile], ...] = ()
    """Topic patterns with a filter: of the topics that match, it may read only such rows."""
    filter_cpu: float | None = None
    """The share of a core that its filters may use; None: no limit."""
    subscribe: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    """Patterns of keys of clients: it may connect these, and see where they are."""

    def may(self, right: TopicRight, topic: str) -> bool:
        patterns: tuple[str, ...] = getattr(self, right)
        return "*" in patterns or any(fnmatchcase(topic, pattern) for pattern in patterns)

    def may_all(self, right: TopicRight) -> bool:
        return "*" in getattr(self, right)

    def may_see(self, topic: str) -> bool:
        """True if it may know who wants what of a topic."""
        return self.may("read", topic) or self.may("subscribe", topic)

    def filter_of(self, topic: str) -> Profile | None:
        """The filter on its reads of a topic; None: everything, if it may read the topic at all."""
        found: Profile | None = None
        for pattern, profile in self.where:
            if fnmatchcase(topic, pattern):
                found = profile if found is None else narrowed(found, profile)
        return found

    def filters(self, topics: Iterable[str], wanted: Profile | None) -> dict[str, Profile]:
        """Return the filter that applies to each of these topics if the caller asks for `wanted` (None: everything).
        Topics that are absent are not filtered."""
        found: dict[str, Profile] = {}
        for topic in topics:
            allowed = self.filter_of(topic) if self.where else None
            if allowed is not None:
                found[topic] = allowed if wanted is None else narrowed(allowed, wanted)
            elif wanted is not None:
                found[topic] = wanted
        return found

    def require_whole(self, topics: Iterable[str], what: str) -> None:
        """Refuse if the token has a filter on one of these topics, of which `what` would show other rows."""
        for topic in topics:
            if self.filter_of(topic) is not None:
                detail = (
                    f"token {self.name!r} may read only some rows of topic {topic!r}, and {what}: read rows, or ask "
                    "for a token without a filter"
                )
                raise Refusal("forbidden", detail)

    def require_no_filter(self, what: str) -> None:
        """Refuse if the token has a filter on any topic."""
        if self.where:
            detail = f"token {self.name!r} has a filter, and {what}: ask for a token without a filter"
            raise Refusal("forbidden", detail)

    def require(self, right: Right) -> None:
        """Refuse unless the right is granted for at least one topic."""
        if right != "any" and not getattr(self, right):
            raise Refusal("forbidden", f"token {self.name!r} has no right {right!r}: ask for a token that has it")

    def may_client(self, key: str) -> bool:
        return any(fnmatchcase(key, pattern) for pattern in self.client)

    def require_client(self, key: str) -> None:
        if not self.may_client(key):
            detail = f"token {self.name!r} has no right 'client' on key {key!r}: ask for a token that has it"
            raise Refusal("forbidden", detail)

    def require_all(self, right: TopicRight) -> None:
        """Refuse unless the right is granted on every topic; for answers that cover all topics together."""
        if not self.may_all(right):
            detail = f"token {self.name!r} has no right {right!r} on all topics (*): ask for a token that has it"
            raise Refusal("forbidden", detail)

    def require_topics(self, right: TopicRight, topics: tuple[str, ...]) -> None:
        for topic in topics:
            if not self.may(right, topic):
                detail = f"token {self.name!r} has no right {right!r} on topic {topic!r}: ask for a token that has it"
                raise Refusal("forbidden", detail)


EVERYTHING = Rights("everything", ("*",), ("*",), admin=True, subscribe=("*",), client=("*",))
"""The rights of clients with a certificate of the cluster, and of all clients of an unprotected node."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that makes a call: its name, its rights, and whether it still waits for the answer."""

    name: str
    """The name that quotas count as one client: a token's name, else an address."""
    rights: Rights
    is_cancelled: Callable[[], bool]

    @property
    def owner(self) -> str | None:
        """The client whose publisher keys it may see and remove; None: those of all clients."""
        return None if self.rights.admin else self.name
