"""Selective topics on whole nodes in the main campaign: the load, and checkers of guarantees 10 and 11.

Registrations of clients come and go at all nodes, and batches of selective topics are published beside those of
broadcast ones, in the same commits. What a node reports as covered (`Covered`) is what its readers rely on: it is
compared with every batch that was ever durable at its origin. Payloads begin with the values of their rows, a letter
for each.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId, short_id
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.effects import (
    Active,
    Append,
    AppendBatch,
    Covered,
    CreateTopic,
    Input,
    InsertBatch,
    InterestStateRecord,
    NoteSkip,
    Output,
    Published,
    Range,
    Refused,
    Staged,
    StoredWant,
    Subscribe,
    Subscribed,
    Trimmed,
    Unsubscribe,
    WaitActive,
    Want,
    WantRecord,
    Wish,
)
from m4cast.overlay.protocol.selective.contract import keep_id
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Skip, SkipReason
from m4cast.overlay.protocol.wire.selective import is_selective
from m4cast.overlay.sim.checkers import Numbers, Violation
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.selective.places import PROFILES, VALUES, WANTED, batch_extensions, is_due, reaches
from m4cast.overlay.sim.world import World

TOPICS = ("select-0", "select-1")
FIRST_REQUEST = 1 << 41
"""Requests of publishers, and of the load of broadcast topics' registrations, have smaller numbers."""
NAMES_PER_PLACE = 4
SELECTED_SHARE = 0.5
"""Share of the payloads that go to a selective topic, unless a load says otherwise."""
KNOWN_MS = 20_000
"""A node that is up and awake for this long is known to all others, unless the network is split."""
CLOCK_MS_MAX = 20_000
"""The maximum by which clocks are set forwards or back: two of them differ by less than `clock_skew_ms`."""
WAITED_SHARE = 0.3
"""Share of the registrations whose clients wait until they are active."""
WAIT_MS = 3_000


def values_of(batch: Batch) -> str:
    return bytes(batch.content[: batch.row_count]).decode()


def does_match(want: Want, batch: Batch) -> bool:
    if want.keeps is not None:
        return batch.stream.origin == want.keeps
    text = want.profile.text if want.profile is not None else None
    return want.topic == batch.stream.topic and any(value in WANTED.get(text, "") for value in values_of(batch))


def wants_of(place: Place) -> dict[str, StoredWant]:
    """The registrations on the place's disk."""
    return place.disk.content.records.get(WantRecord, {})


class AwaitedVersion(NamedTuple):
    """A version of a node's interest entry that a client waits for."""

    started: int
    """The life of the node."""
    incarnation: int
    ts: int
    at_ms: int
    """The time at which it was first on the node's disk: no other node had it before."""


class SelectiveLoad(Observer):
    """Clients that create the topics, register and unregister at random places, and wait for some of that."""

    outputs = (Subscribed, Refused)

    def __init__(self, world: World, random: Random, *, is_plain: bool = False) -> None:
        """`is_plain`: registrations begin with the earliest or the latest rows, and nobody waits."""
        self.is_plain = is_plain
        self.world = world
        self.random = random
        self.keepers = {topic: random.choice((0, 1, 2, 2)) for topic in TOPICS}
        self.share = SELECTED_SHARE
        self.answered = 0
        self.since: dict[tuple[str, str], tuple[Want, int]] = {}
        """(address, registration) -> as it was when its client was answered, and when that was."""
        self.awaited: dict[int, AwaitedVersion] = {}
        """Awaited versions by the request that waits for them."""
        self._request = FIRST_REQUEST
        self._asked: dict[int, str] = {}
        """Request -> registration that it makes; empty: another request."""
        self._made_ms: dict[tuple[NodeId, int, int], int] = {}
        """The times at which versions of interest entries were first on disk: (node, incarnation, ts) -> time."""

    def act(self) -> None:
        up = [place for place in self.world.up() if not place.paused]
        if not up:
            return
        for topic in TOPICS:
            if not any(_knows(place, topic) for place in up):
                self._ask(self.random.choice(up), CreateTopic(self._number(""), topic, self.keepers[topic]))
        place = self.random.choice(up)
        name = f"q{self.random.randrange(NAMES_PER_PLACE)}"
        if self.random.random() < 0.35:
            self._ask(place, Unsubscribe(self._number(""), (name,)))
            if self.random.random() < 0.5:
                return
        self._ask(place, Subscribe(self._number(name), (self._wish(place, name),)))

    def _wish(self, place: Place, name: str) -> Wish:
        """A wish from the earliest rows, the latest, a time or a position on."""
        text, topic, chance = self.random.choice(PROFILES), self.random.choice(TOPICS), self.random.random()
        profile = parse(text) if text else None
        if not self.is_plain and 0.3 <= chance < 0.45:
            wall_ms = self.world.now_ms + place.trouble.clock_offset_ms
            return Wish(name, topic, profile, from_ms=max(wall_ms - self.random.randint(0, 8_000), 0))
        if not self.is_plain and 0.45 <= chance < 0.6:
            contents = [other.disk.content for other in self.world.places.values()]
            logs = {each.node_id: each.logs.get(StreamId(each.node_id, topic)) for each in contents}
            ends = {origin: log.next for origin, log in logs.items() if log is not None}
            named = {each: self.random.randint(1, end + 2) for each, end in ends.items() if self.random.random() < 0.8}
            return Wish(name, topic, profile, positions=named)
        return Wish(name, topic, profile, earliest=chance < 0.3)

    def is_known_at(self, place: Place) -> bool:
        """True if the place knows that the topics are selective."""
        return all(_knows(place, topic) for topic in TOPICS)

    def payload(self, place: Place) -> Staged | None:
        """Rows of a selective topic, if the place knows one and chance has it."""
        topic = self.random.choice(TOPICS)
        if self.random.random() >= self.share or not _knows(place, topic):
            return None
        values = "".join(self.random.choice(VALUES) for _ in range(self.random.choice((1, 1, 2, 3))))
        size = 3_000 if self.random.random() < 0.2 else 60
        content = values.encode() + self.random.randbytes(8) + bytes(size)
        summary = [each for each in batch_extensions(values, 0) if each.type == SUMMARY_EXTENSION]
        return Staged(topic, len(values), 1, content, None, tuple(summary))

    def _number(self, name: str) -> int:
        self._request += 1
        self._asked[self._request] = name
        return self._request

    def _ask(self, place: Place, request: CreateTopic | Subscribe | Unsubscribe | WaitActive) -> None:
        self.world.feed(place, request)

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Subscribed | Refused)
        name = self._asked.get(output.request, "")
        if not name or isinstance(output, Refused):
            return
        self.answered += 1
        stored = wants_of(place).get(name)
        if stored is not None:
            self.since[place.address, name] = (stored.want, self.world.now_ms)
        if not self.is_plain and self.random.random() < WAITED_SHARE:
            self.world.after(1, self._wait, place, place.started, name)

    def synced(self, place: Place, append: Append) -> None:
        for state in (each.content for each in append.of(InterestStateRecord)):
            if state is not None:
                version = (place.disk.content.node_id, state.incarnation, state.ts)
                self._made_ms.setdefault(version, self.world.now_ms)

    def _wait(self, place: Place, started: int, name: str) -> None:
        """Wait until the registration is active, as a client does that was answered."""
        if place.node is None or place.started != started:
            return
        span = place.node.interest.history.lasting(name)
        own = place.node.interest.view.entries.get(place.node.me.node_id)
        if span is not None and own is not None:
            number = self._number("")
            # After a rollback, versions of the former identity may be greater.
            incarnation, ts = min((span.incarnation, span.ts), own.version[:2])
            made_ms = self._made_ms.get((place.node.me.node_id, incarnation, ts))
            if made_ms is not None:
                self.awaited[number] = AwaitedVersion(started, incarnation, ts, made_ms)
            self._ask(place, WaitActive(number, span.incarnation, span.ts, WAIT_MS))


def _knows(place: Place, topic: str) -> bool:
    return place.node is not None and topic in place.node.selection.descriptors


@dataclass
class SelectiveSafety(Observer):
    """Guarantees 10 and 11, always: what is reported as covered is on the disk, no registration begins after a row that
    was published since it was made or that it reaches back to, nobody is named as knowing it who does not, nothing is
    stored where nobody wants it, and acknowledged rows are where they were acknowledged."""

    outputs = (Covered, Published, Active)
    world: World
    load: SelectiveLoad
    numbers: Numbers
    acks: dict[int, int]
    """Request -> acks it asked for."""
    published: dict[StreamId, dict[int, tuple[Batch, int]]] = field(default_factory=dict)
    """Every batch that was ever durable at its origin, and when."""
    wanted_ever: dict[str, dict[Want, None]] = field(default_factory=dict)
    """Address -> everything that was ever wanted there."""
    stored: dict[tuple[StreamId, int], dict[NodeId, None]] = field(default_factory=dict)
    """(stream, first sequence) -> nodes other than its origin that had the batch on disk."""
    covered: dict[tuple[str, str, StreamId], int] = field(default_factory=dict)
    """The coverage in the outputs of the input that is being handled: (address, registration, stream) -> end."""
    kept: dict[NodeId, dict[NodeId, None]] = field(default_factory=dict)
    """Origin -> nodes that ever kept it."""
    trimmed: dict[StreamId, int] = field(default_factory=dict)
    """Some place does not keep the rows before these any longer."""

    def started(self, place: Place) -> None:
        content = place.disk.content
        self._wanted(place, [stored.want for stored in wants_of(place).values()])
        for stream, log in content.logs.items():
            for batch in log.batches:
                if stream.origin != content.node_id and is_selective(batch):
                    self.stored.setdefault((stream, batch.first_sequence), {})[content.node_id] = None

    def synced(self, place: Place, append: Append) -> None:
        node_id = place.disk.content.node_id
        self._wanted(place, [each.content.want for each in append.of(WantRecord) if each.content is not None])
        for write in append.of(AppendBatch):
            if is_selective(write.batch):
                batch = self._whole(place, write.batch)
                self.published.setdefault(batch.stream, {}).setdefault(batch.first_sequence, (batch, self.world.now_ms))
        for inserted in append.of(InsertBatch):
            batch = inserted.batch
            self.stored.setdefault((batch.stream, batch.first_sequence), {})[node_id] = None
            if not any(does_match(want, batch) for want in self.wanted_ever.get(place.address, ())):
                raise Violation("selection", f"{place.name} stores {values_of(batch)!r}, which it never wanted")

        for noted in append.of(NoteSkip):
            self._given_up(place, noted.skip)

    def _given_up(self, place: Place, skip: Skip) -> None:
        """Check that what is given up is nowhere: neither here nor at a node that could have been asked."""
        if skip.stream in self.numbers.forked:
            return  # others have another batch of that number
        wants = [stored.want for stored in wants_of(place).values()]
        for other in self.world.up():
            is_near = other is place or not (other.paused or self.world.are_apart(place, other))
            log = other.disk.content.logs.get(skip.stream)
            known_ms = self.world.now_ms - max(other.started_at_ms, other.resumed_at_ms)
            if log is None or not is_near or known_ms < KNOWN_MS:
                continue
            for batch in log.batches:
                is_inside = skip.first_sequence <= batch.first_sequence <= skip.last_sequence
                is_wanted = any(does_match(want, batch) for want in wants)
                if is_inside and is_wanted and batch.first_sequence not in log.damaged:
                    what = f"{short_id(skip.stream.origin)}/{skip.stream.topic} {batch.first_sequence}"
                    raise Violation(
                        "selection", f"{place.name} gives {what} up ({skip.reason.name}), {other.name} has it"
                    )

    def _whole(self, place: Place, batch: Batch) -> Batch:
        """The batch with its rows: those of a staged batch are only on disk."""
        log = place.disk.content.logs[batch.stream]
        return next((each for each in log.batches if each.first_sequence == batch.first_sequence), batch)

    def _wanted(self, place: Place, wants: list[Want]) -> None:
        ever = self.wanted_ever.setdefault(place.address, {})
        for want in wants:
            ever[replace(want, positions=None)] = None
            if want.keeps is not None:
                self.kept.setdefault(want.keeps, {})[place.disk.content.node_id] = None

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Covered):
            for origin, end in output.next.items():
                for each in output.registrations:
                    self.covered[place.address, each, StreamId(origin, output.topic)] = end
        elif isinstance(output, Published):
            self._acked(place, output)
        elif isinstance(output, Active) and output.request in self.load.awaited:
            self._named(place, output)

    def _named(self, place: Place, answer: Active) -> None:
        """Guarantee 11: whoever is named knows the registration. A node that was started since it was made may be
        another one by now, which numbers no rows before it has heard of it."""
        awaited = self.load.awaited[answer.request]
        if awaited.started != place.started:
            return
        me = place.disk.content.node_id
        for other in self.world.up():
            assert other.node is not None
            if other.node.me.node_id not in answer.confirmed or other.started_at_ms > awaited.at_ms:
                continue
            entry = other.node.interest.view.entries.get(me)
            if entry is None or entry.version[:2] < (awaited.incarnation, awaited.ts):
                raise Violation("active", f"{place.name} names {other.name}, which does not know its registration")

    def handled(self, place: Place, event: Input) -> None:
        """Check the coverage after an input: what was covered and taken back by the same input is never seen."""
        if isinstance(event, Trimmed):
            self.trimmed[event.stream] = max(event.low, self.trimmed.get(event.stream, 1))
        covered, self.covered = self.covered, {}
        for (_, name, stream), end in covered.items():
            self.check(place, name, stream, end)

    def check(self, place: Place, name: str, stream: StreamId, end: int) -> None:
        """The registration is covered up to `end`."""
        assert place.node is not None
        wants = place.node.selection.selective.wants
        stored = wants.durable.get(name)
        if stream in self.numbers.forked or end <= 1:
            return
        is_own = stream.origin == place.disk.content.node_id
        if stored is None and is_own:
            return  # every row is there, whoever wants it
        if stored is None:
            raise Violation("selection", f"{place.name} reports {name} as covered to {end}, which is not registered")
        begin = 1 if is_own else wants.begin(stored, stream)
        assert begin is not None, "what is covered has a begin"
        log = place.disk.content.logs.get(stream)
        held = {batch.first_sequence for batch in log.batches} if log is not None else set()
        asked, since_ms = self.load.since.get((place.address, name), (None, 0))
        for first, (batch, at_ms) in self.published.get(stream, {}).items():
            if first >= end or first in held or not does_match(stored.want, batch) or _is_removed(place, batch):
                continue
            what = f"{place.name} {name} on {short_id(stream.origin)}/{stream.topic}"
            if first >= begin:
                raise Violation("selection", f"{what} is covered from {begin} to {end}, {first} is missing")
            if asked == stored.want and at_ms > since_ms and asked.positions is None:
                raise Violation("active", f"{what} begins at {begin}, after {first}, which was published later")
            if asked == stored.want and reaches(asked, batch) and self._is_kept(batch):
                raise Violation("begin", f"{what} begins at {begin}, after {first}, which it reaches back to")

    def _is_kept(self, batch: Batch) -> bool:
        """True if retention removed the batch nowhere: else nobody may be left who knows where it stood."""
        logs = (place.disk.content.logs.get(batch.stream) for place in self.world.places.values())
        lows = [log.low for log in logs if log is not None]
        return batch.first_sequence >= max(lows, default=1) and batch.first_sequence >= self.trimmed.get(
            batch.stream, 1
        )

    def _acked(self, place: Place, answer: Published) -> None:
        """Guarantee 3 for selective topics: as many other disks as were asked for, keepers' first."""
        acks = self.acks.get(answer.request, 0)
        for rows in answer.ranges:
            for first, (batch, _) in self.published.get(rows.stream, {}).items():
                if not rows.first_sequence <= first < rows.next_sequence or rows.stream in self.numbers.forked:
                    continue
                copies = self.stored.get((rows.stream, first), {})
                others = [each for each in copies if each != place.disk.content.node_id]
                keepers = [each for each in others if each in self.kept.get(rows.stream.origin, {})]
                is_former = rows.stream.origin != place.disk.content.node_id  # nobody chooses more keepers for it
                wanted = 0 if is_former else min(acks, self.load.keepers.get(rows.stream.topic, 0))
                if len(others) < acks or len(keepers) < wanted:
                    had = f"{len(others)} copies, {len(keepers)} of them keepers'"
                    raise Violation(
                        "durability", f"{place.name} answered {batch.stream.topic} {first} with {acks=}: {had}"
                    )

    # ---- liveness

    def unsettled(self) -> list[str]:
        """Return what a channel without faults still owes: it has settled when every matching row that somebody can
        vouch for is everywhere it is wanted, and coverage reaches its end."""
        complaints = []
        for stream in self.published:
            if stream in self.numbers.forked:
                continue
            end = self._whole_end(stream)
            for place in self.world.up():
                if place.disk.content.node_id != stream.origin and end > 1:
                    complaints += self._lacking(place, stream, end)
        return complaints + self._waiting() + self._too_few_keepers()

    def arrived(self, accepted: Iterable[tuple[Range, ...]]) -> float:
        """The fraction of pairs of an accepted batch and another node that wanted it before, where it has arrived."""
        had = wanted = 0
        for rows in (each for ranges in accepted for each in ranges):
            for first, (batch, at_ms) in self.published.get(rows.stream, {}).items():
                if not rows.first_sequence <= first < rows.next_sequence:
                    continue
                for place in self.world.up():
                    if place.disk.content.node_id != rows.stream.origin and self._was_wanted(place, batch, at_ms):
                        wanted += 1
                        log = place.disk.content.logs.get(rows.stream)
                        had += log is not None and any(each.checksum == batch.checksum for each in log.batches)
        return had / wanted if wanted else 1.0

    def _was_wanted(self, place: Place, batch: Batch, at_ms: int) -> bool:
        for name, stored in wants_of(place).items():
            _, since_ms = self.load.since.get((place.address, name), (None, at_ms))
            is_later = at_ms > since_ms and is_due(stored.want, batch, at_ms, since_ms)
            if is_later and does_match(stored.want, batch):
                return True
        return False

    def _waiting(self) -> list[str]:
        """Registrations that wait for rows: nothing that is known to exist may be waited for without end."""
        complaints = []
        for place in self.world.up():
            assert place.node is not None
            selective = place.node.selection.selective
            for stream in selective.receiving.streams.values():
                for stored in selective.wants.of(stream.id) if stream.id not in self.numbers.forked else ():
                    covered = selective.receiving.coverage(stored.want.id, stream.id)
                    if (covered or 0) < stream.end:
                        what = f"{stored.want.id} on {short_id(stream.id.origin)}/{stream.id.topic}"
                        complaints.append(f"{place.name} {what} waits at {covered}, {stream.end} is known")
        return complaints

    def _lacking(self, place: Place, stream: StreamId, end: int) -> list[str]:
        assert place.node is not None
        selective = place.node.selection.selective
        complaints = []
        for stored in selective.wants.of(stream):
            covered = selective.receiving.coverage(stored.want.id, stream)
            _, since_ms = self.load.since.get((place.address, stored.want.id), (None, self.world.now_ms))
            is_wanted = any(
                first < end and is_due(stored.want, batch, at_ms, since_ms) and does_match(stored.want, batch)
                for first, (batch, at_ms) in self.published[stream].items()
            )
            if is_wanted and (covered is None or covered < end):
                what = f"{stored.want.id} on {short_id(stream.origin)}/{stream.topic}"
                complaints.append(f"{place.name} {what} is covered to {covered} of {end}")
            elif covered is not None:
                self.check(place, stored.want.id, stream, covered)
        return complaints

    def _whole_end(self, stream: StreamId) -> int:
        """Return how far a node that is up has the stream whole."""
        ends = [1]
        for place in self.world.up():
            if place.disk.content.node_id == stream.origin:
                log = place.disk.content.logs.get(stream)
                return log.next if log is not None else 1
            assert place.node is not None
            ends.append(place.node.selection.selective.receiving.coverage(keep_id(stream.origin), stream) or 1)
        return max(ends)

    def _too_few_keepers(self) -> list[str]:
        complaints = []
        for place in self.world.up():
            assert place.node is not None
            node_id, keeping = place.disk.content.node_id, place.node.selection.selective.keeping
            keepers = [other for other in self.world.up() if keep_id(node_id) in wants_of(other)]
            wanted = min(keeping.wanted, len(self.world.up()) - 1)
            if len(keepers) < wanted:
                complaints.append(f"{place.name} has {len(keepers)} of {wanted} keepers")
        return complaints


def _is_removed(place: Place, batch: Batch) -> bool:
    """Retention removed it here, or it was found that nobody has it any longer."""
    log = place.disk.content.logs.get(batch.stream)
    return log is not None and (
        batch.next_sequence <= log.low
        or any(
            skip.first_sequence <= batch.first_sequence <= skip.last_sequence
            for skip in log.skips
            if skip.reason in (SkipReason.EXPIRED, SkipReason.LOST)
        )
    )
