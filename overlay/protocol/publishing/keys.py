"""Publisher keys in memory: the position of each, the memory they use, and which of them have expired.

Their memory is limited (guarantee 7): that of all keys, and that of the keys which one client created. Keys that are
not used for long expire; the rules are in `docs/PROTOCOL.md`, 10.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from m4cast.overlay.protocol.effects import KeyMove, PublisherState
from m4cast.overlay.value import value

UP_STEP_MS_MAX = 2 * 3_600_000
"""The most that one look at the clock adds to the up time. Higher: a jump of the clock ages keys by more."""
KEY_BYTES_MIN = 1_024
"""The least that a publisher key counts for, so that an ordinary key counts the same at every position: it can always
move on, however much of the limits is used."""
KEY_BYTES = 400
"""Memory of a publisher key besides its texts and ranges, at most. Measured: 450 to 650 in all for an ordinary key."""
RANGE_BYTES = 250
"""Memory of a range that a key remembers, besides the topic's name, at most. Measured."""


def key_bytes(key: str, position: str, topics: Iterable[str]) -> int:
    """The memory for which a publisher key counts; `topics`: those of the ranges of its last commit."""
    texts = KEY_BYTES + _text_bytes(key) + _text_bytes(position)
    return max(KEY_BYTES_MIN, texts + sum(RANGE_BYTES + _text_bytes(topic) for topic in topics))


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


@dataclass(slots=True)
class Keys:
    """Publisher keys with their states, and the memory that they take: of all, and of each client that created some.

    Keys that are `ahead` of others hold only what differs from these (None: removed), so that a million durable keys
    are in memory once. When an append has been applied below as well, `settle` forgets the difference.
    """

    states: dict[str, PublisherState | None]
    size_bytes: int = 0
    shares: dict[str, int] = field(default_factory=dict)
    """Bytes used by each owner's keys. Keys without an owner count towards nobody."""
    below: "Keys | None" = None

    def get(self, key: str) -> PublisherState | None:
        if self.below is None or key in self.states:
            return self.states.get(key)
        return self.below.get(key)

    def __getitem__(self, key: str) -> PublisherState:
        state = self.get(key)
        assert state is not None, key
        return state

    def put(self, key: str, state: PublisherState | None) -> None:
        """Set the key's state, or remove it."""
        before = self.get(key)
        if before is not None:
            self.count(key, before, -1)
        if state is not None:
            self.count(key, state, 1)
        if state is None and self.below is None:
            self.states.pop(key, None)
        else:
            self.states[key] = state

    def settle(self, key: str, state: PublisherState | None) -> None:
        if key in self.states and self.states[key] is state:  # else a later append has changed it again
            del self.states[key]

    def count(self, key: str, state: PublisherState, sign: int) -> None:
        size = sign * state_bytes(key, state)
        self.size_bytes += size
        if state.owner:
            share = self.shares.get(state.owner, 0) + size
            if share:
                self.shares[state.owner] = share
            else:
                del self.shares[state.owner]

    def owner_of(self, key: str, client: str) -> str:
        """Return the owner of the key when this client has moved it: a key stays with the client that created it."""
        state = self.get(key)
        return client if state is None else state.owner

    def excess(
        self, moves: tuple[KeyMove, ...], topics: list[str], client: str, *, bytes_max: int, client_bytes_max: int
    ) -> str | None:
        """The reason why a commit of this client with these moves and topics would make keys take too much; None if it
        does not.

        Keys that exist may take a quarter more than new ones, so that they are not stopped by these.
        """
        grown: dict[str, int] = {}
        creates = False
        for move in moves:
            state = self.get(move.key)
            owner = client if state is None else state.owner
            before = 0 if state is None else state_bytes(move.key, state)
            grown[owner] = grown.get(owner, 0) + key_bytes(move.key, move.next, topics) - before
            creates = creates or state is None

        def are_too_large(taken: int, growth: int, limit: int) -> bool:
            return growth > 0 and taken + growth > (limit if creates else limit * 5 // 4)

        for owner, growth in grown.items():
            taken = self.shares.get(owner, 0)
            if owner and are_too_large(taken, growth, client_bytes_max):
                return (
                    f"the publisher keys of client {owner!r} take {taken} bytes at this node, of at most "
                    f"{client_bytes_max} (client_publisher_bytes_max): use a key that exists, or remove keys that are "
                    "not needed any more (m4cast publishers remove)"
                )
        if are_too_large(self.size_bytes, sum(grown.values()), bytes_max):
            return (
                f"the publisher keys of this node take {self.size_bytes} bytes, of at most {bytes_max} "
                "(publisher_bytes_max): use a key that exists, or have keys removed that are not needed any more "
                "(m4cast publishers remove)"
            )
        return None

    def ahead(self) -> "Keys":
        return Keys({}, self.size_bytes, dict(self.shares), self)


def state_bytes(key: str, state: PublisherState) -> int:
    return key_bytes(key, state.position, (rows.stream.topic for rows in state.ranges))


@value
class Sweep:
    """One step of looking for keys that have expired."""

    used: tuple[tuple[str, PublisherState], ...]
    """Keys that were asked for, with their new last use."""
    unused: tuple[str, ...]
    """Keys that go."""
    up_ms: int
    is_last: bool
    """All keys have been looked at."""


class Expiry:
    """The durable keys that were not used for too long, by the up time of the nodes that ran on this store."""

    def __init__(self, keys: Keys, up_ms: int, expire_ms: int, step: int) -> None:
        last_use_ms = max((state.used_ms for state in keys.states.values() if state is not None), default=0)
        self._keys = keys.states
        self._expire_ms = expire_ms
        self._step = step
        self._up_ms = max(up_ms, last_use_ms, 1)
        self._looked_at_ms: int | None = None
        self._asked_for: dict[str, None] = {}
        """Keys that were used without being moved; the next sweep writes that down."""
        self._rest: Iterator[str] | None = None
        """The keys that the current sweep has not visited yet."""
        self._asked_before: dict[str, None] = {}
        """Those that were asked for before it began."""

    def up_ms(self, now_ms: int) -> int:
        """The time for which nodes have run on this store, as far as it was saved.

        By it keys expire, not by a clock: that may be set forward, and a node that was away has seen nobody use them.
        It is looked at every hour, so a clock that is further than `UP_STEP_MS_MAX` from where it was has jumped, or
        the node stood still.
        """
        if self._looked_at_ms is None:
            self._looked_at_ms = now_ms
        elif now_ms > self._looked_at_ms:
            self._up_ms += min(now_ms - self._looked_at_ms, UP_STEP_MS_MAX)
            self._looked_at_ms = now_ms
        return self._up_ms

    def use(self, keys: Iterable[str]) -> None:
        """Note a use of these keys, which exist: a client asked for them."""
        self._asked_for.update(dict.fromkeys(keys))

    def forget(self, key: str) -> None:
        self._asked_for.pop(key, None)

    def sweep(self, now_ms: int, is_moving: Callable[[str], bool]) -> Sweep:
        """The next step of a sweep, or the first of a new one. Keys that are moving are left alone."""
        if self._rest is None:
            self._rest = iter(list(self._keys))
            self._asked_before, self._asked_for = self._asked_for, {}
        looked_at = list(islice(self._rest, self._step))
        up_ms = self.up_ms(now_ms)
        used: list[tuple[str, PublisherState]] = []
        unused: list[str] = []
        for key in looked_at:
            state = self._keys.get(key)
            if state is None or is_moving(key):
                continue
            if not state.used_ms or key in self._asked_before:
                used.append((key, replace(state, used_ms=up_ms)))
            elif state.used_ms <= up_ms - self._expire_ms and key not in self._asked_for:
                unused.append(key)
        is_last = len(looked_at) < self._step
        if is_last:
            self._rest = None
            self._asked_before = {}
        return Sweep(tuple(used), tuple(unused), up_ms, is_last)
