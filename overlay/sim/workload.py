"""Clients of a simulated channel: they publish, wait, and repeat a request that is not answered.

Each client is attached to one place and numbers its commits 1, 2, 3, ... under a key of its own. A commit is repeated,
unchanged, until it is answered, whatever happens to the node in between, and sometimes once more afterwards, as a
publisher does that was restarted and does not know how far it got. Some publish without a key, some stage first and
then commit, some ask for acks. What was answered is recorded for the checkers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from m4cast.overlay.protocol.effects import (
    Commit,
    KeyMove,
    Output,
    Publish,
    Published,
    Range,
    Refused,
    Stage,
    Staged,
)
from m4cast.overlay.sim.checkers import Durability
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.world import World

RETRY_MS = 1_500
GIVE_UP = ("wrong-position", "partly-moved")
"""The store behind the key is another one now (wiped): the client begins again under a new key."""


@dataclass(slots=True)
class Pending:
    """One commit of a client: its request number changes with each attempt, its content does not."""

    place: Place
    key: str
    position: int
    payloads: tuple[Staged, ...]
    acks: int
    staged: bool
    wipes: int
    """The number of times that the place had lost its store: a key does not survive that, so neither does the
    commit."""
    attempts: int = 0
    stopped: bool = False


@dataclass
class Workload(Observer):
    outputs = (Published, Refused)
    world: World
    durability: Durability
    topics: int = 3
    small_bytes: int = 60
    large_bytes: int = 3_000
    large_share: float = 0.2
    keyed_share: float = 0.5
    repeat_share: float = 0.3
    """Share of keyed publishes that repeat one that was answered."""
    acks_max: int = 2
    special: Callable[[Place], Staged | None] = lambda place: None
    """Gives a payload of another kind, or leaves it to the workload."""
    requests: dict[int, Pending] = field(default_factory=dict)
    answered: list[tuple[Pending, tuple[Range, ...], int]] = field(default_factory=list)
    """(commit, where it went, how often the place had been started: its store's life)"""
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Address -> (key, last position)."""
    last: dict[str, Pending] = field(default_factory=dict)
    """Address -> the keyed commit that was answered last there."""
    busy: dict[str, Pending] = field(default_factory=dict)
    """Address -> the keyed commit under way there."""
    refused: dict[str, int] = field(default_factory=dict)
    _request: int = 0
    _key: int = 0

    def publish_somewhere(self) -> None:
        """One more publish at a random place that is up."""
        up = [place for place in self.world.up() if not place.paused]
        if not up:
            return
        random = self.world.random
        place = random.choice(up)
        payloads = tuple(self.special(place) or self._payload() for _ in range(random.choice((1, 1, 1, 2, 3))))
        acks = random.randrange(self.acks_max + 1) if random.random() < 0.3 else 0
        if random.random() < self.keyed_share:
            if place.address in self.busy:
                return
            if random.random() < self.repeat_share and self._repeat(place):
                return
            if place.address not in self.keys:
                self._key += 1
                self.keys[place.address] = (f"{place.name}-{self._key}", 0)
            key, position = self.keys[place.address]
            pending = Pending(place, key, position + 1, payloads, acks, random.random() < 0.3, place.wipes)
            self.busy[place.address] = pending
        else:
            pending = Pending(place, "", 0, payloads, acks, False, place.wipes)
        self._attempt(pending)

    def _repeat(self, place: Place) -> bool:
        """Repeat the last move. The client ignores the answer; the checkers do not."""
        done = self.last.get(place.address)
        if done is None or done.wipes != place.wipes or self.keys.get(place.address) != (done.key, done.position):
            return False
        expect = str(done.position - 1) if done.position > 1 else None
        moves = (KeyMove(done.key, expect, str(done.position)),)
        self.world.feed(place, Publish(self._number(done), done.payloads, moves, done.acks))
        return True

    def owed(self) -> list[Pending]:
        """Commits under way that must be answered: those at places that are up, with enough nodes that may acknowledge
        them. Commits at a node whose past no other node can prove are excepted: its operator has to vouch for its
        store.

        A neighbour that began at `latest` after these rows, one that skipped some and one that has another history of
        the stream never has them: if the others are fewer than `acks`, the commit waits until its client gives up
        (PROTOCOL.md 6). One whose rows go to fewer nodes than `acks` is refused each time, until more want them.
        """
        return [
            pending
            for pending in self.busy.values()
            if pending.place.up
            and self._has_a_past(pending.place)
            and not self._has_too_few_takers(pending)
            and self._can_be_acked(pending)
        ]

    def _has_a_past(self, place: Place) -> bool:
        """Some other node that is up knew this one, or nobody has to be asked."""
        assert place.node is not None
        if not place.node.dissemination.past.lacks_proof:
            return True
        me = place.node.me.node_id
        others = [other for other in self.world.up() if other is not place]
        return any(
            place.node.dissemination.past.knew(other.disk.content.node_id)
            or any(stream.origin == me for stream in other.disk.content.logs)
            for other in others
        )

    def _has_too_few_takers(self, pending: Pending) -> bool:
        """Some of its rows go to fewer nodes than `acks`, and not because keepers are missing."""
        node = pending.place.node
        assert node is not None
        selective, spreads = node.selection.selective, node.publishing.commits.spreads
        for staged in pending.payloads:
            if staged.topic in spreads:
                keepers = spreads[staged.topic].value[1]
                kept = min(max(keepers, selective.keeping.wanted), len(self.world.up()) - 1)
                if pending.acks > kept and selective.why_too_few_takers(pending.acks, staged, keepers) is not None:
                    return True
        return False

    def _can_be_acked(self, pending: Pending) -> bool:
        node = pending.place.node
        assert node is not None
        ranges = [rows for request, rows in node.publishing.acks.waiting() if self.requests[request] is pending]
        for selected in node.selection.answers.waiting:
            if self.requests[selected.request] is pending:
                ranges += selected.flooded
                streams = {*selected.unread, *(batch.stream for batch in selected.batches)}
                if any(pending.place.disk.content.logs[stream].damaged for stream in streams):
                    return False  # the only copy, perhaps
                if pending.acks > min(node.selection.selective.keeping.wanted, len(self.world.up()) - 1):
                    return False  # only who happens to want these rows acknowledges them
                demand = node.selection.selective.demand
                former = {batch.stream.origin for batch in selected.batches} - {node.me.node_id}
                if any(pending.acks > sum(1 for _ in demand.keepers(origin)) for origin in former):
                    return False  # the same: nobody chooses keepers for rows of a former identity
        able = 0
        for neighbour in node.membership.table.neighbours.values():
            other = self.world.places[neighbour.contact.address].node
            if other is None:
                continue
            held = [(other.holdings.get(rows.stream), rows.first_sequence) for rows in ranges]
            able += all(stream is None or (stream.held_from() <= first and not stream.forked) for stream, first in held)
        return pending.acks <= able

    def _payload(self) -> Staged:
        random = self.world.random
        size = self.large_bytes if random.random() < self.large_share else self.small_bytes
        return Staged(f"t{random.randrange(self.topics)}", random.randint(1, 9), 1, random.randbytes(8) + bytes(size))

    def _attempt(self, pending: Pending) -> None:
        if pending.stopped:
            return
        if pending.key and pending.wipes != pending.place.wipes:
            self._give_up(pending)
            return
        pending.attempts += 1
        if pending.key:
            self.world.after(RETRY_MS, self._again, pending, pending.attempts)
        if not pending.place.up:
            return
        moves: tuple[KeyMove, ...] = ()
        if pending.key:
            expect = str(pending.position - 1) if pending.position > 1 else None
            moves = (KeyMove(pending.key, expect, str(pending.position)),)
        if pending.staged:
            ids = tuple(
                f"{pending.key}/{pending.position}/{pending.attempts}/{i}" for i in range(len(pending.payloads))
            )
            for stage_id, staged in zip(ids, pending.payloads, strict=True):
                self.world.feed(pending.place, Stage(self._number(pending), stage_id, staged))
            self.world.feed(pending.place, Commit(self._number(pending), ids, moves, pending.acks))
        else:
            self.world.feed(pending.place, Publish(self._number(pending), pending.payloads, moves, pending.acks))

    def _number(self, pending: Pending) -> int:
        self._request += 1
        self.requests[self._request] = pending
        self.durability.acks[self._request] = pending.acks
        return self._request

    def _again(self, pending: Pending, attempt: int) -> None:
        if pending.attempts == attempt:
            self._attempt(pending)

    def output(self, place: Place, output: Output) -> None:
        match output:
            case Published(request, ranges):
                self._answered(self.requests[request], ranges)
            case Refused(request, code, _) if request in self.requests:
                self.refused[code] = self.refused.get(code, 0) + 1
                pending = self.requests[request]
                if code in GIVE_UP and not pending.stopped:
                    self._give_up(pending)
            case _:
                pass

    def _answered(self, pending: Pending, ranges: tuple[Range, ...]) -> None:
        if pending.stopped:
            return
        self.answered.append((pending, ranges, pending.place.started))
        if pending.key:
            self.keys[pending.place.address] = (pending.key, pending.position)
            self.last[pending.place.address] = pending
            self._stop(pending)

    def _give_up(self, pending: Pending) -> None:
        self._stop(pending)
        self.keys.pop(pending.place.address, None)

    def _stop(self, pending: Pending) -> None:
        pending.stopped = True
        del self.busy[pending.place.address]
