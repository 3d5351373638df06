"""The simulated channel: places, an unreliable network between them, and a clock that jumps."""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from random import Random

from m4cast.overlay.ids import NodeId, StreamId, heir_of, new_node_id
from m4cast.overlay.protocol.effects import Append, FindTimes, ReadSelected, RolledBack, TimesFound, Trace, Want
from m4cast.overlay.protocol.selective.contract import (
    KEEPS_TOPIC,
    KeepWish,
    SelectiveRecovered,
    SelectiveSettings,
    keep_id,
)
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.batch import Batch, How
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.selective import ProfileText, RoutedFrame
from m4cast.overlay.sim.selective.checkers import SelectiveChecks
from m4cast.overlay.sim.selective.places import (
    OwnEntry,
    SelectiveContent,
    SelectivePlace,
    SimEntry,
    announced,
    apply_write,
    batch_extensions,
    selected,
)

SETTINGS = SelectiveSettings(cover_ms=300, clock_skew_ms=500, pull_timeout_ms=600, pull_bytes=200)


class SelectiveWorld:
    """Places, an unreliable network between them, and a clock that jumps."""

    def __init__(self, seed: int, places: int, keepers: int = 2, topics: Iterable[str] = ("t",)) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.keepers = keepers
        self.topics = tuple(topics)
        self.loss = self.repeat = 0.0
        self.delay_ms = (1, 5)
        self.sync_ms = (1, 10)
        self.loses: Callable[[RoutedFrame], bool] = lambda frame: False
        """Returns whether the network loses this frame, for schedules that are written down."""
        self.uninformed: dict[str, None] = {}
        """Names of places that no news of interest reaches."""
        self.frames: dict[str, int] = {}
        """The number of copies that were sent to destinations, by kind of content."""
        self.checks = SelectiveChecks()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.places = [
            SelectivePlace(f"p{index}", SelectiveContent((new_node_id(self.random),))) for index in range(places)
        ]

    # ---- time

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._count, act))

    def run(self, for_ms: int) -> None:
        end_ms = self.now_ms + for_ms
        while True:
            due = [at for place in self.places if place.up and (at := place.timers.next_at()) is not None]
            at_ms = min([at for at, *_ in self._queue[:1]] + due, default=end_ms + 1)
            if at_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, at_ms)
            if self._queue and self._queue[0][0] <= self.now_ms:
                heappop(self._queue)[2]()
            for place in self.places:
                while place.up and (timer := place.timers.pop_due(self.now_ms)) is not None:
                    assert place.machine is not None
                    place.machine.timer(timer, self.now_ms)
                    self._perform(place)
        self.now_ms = end_ms

    # ---- places

    def start(self, place: SelectivePlace) -> None:
        content = place.content
        place.life += 1
        own = {
            stream_id.topic: (max(log) + log[max(log)].row_count, log[max(log)].checksum)
            for stream_id, log in content.logs.items()
            if stream_id.origin == content.node_id and log
        }
        recovered = SelectiveRecovered(
            incarnation=place.life,
            version=content.entry.version,
            wants=dict(content.wants),
            begins=dict(content.begins),
            marks=dict(content.marks),
            own=own,
        )
        place.timers, place.waiting = Timers(), []
        place.held, place.present = {}, {}
        place.machine = Selective(content.ids, recovered, SETTINGS, place.timers, lambda: self._token(place))
        place.machine.set_present(lambda: list(place.present))
        life = place.life
        for other in self.places:
            if other is not place and other.up:
                self._hear(place, other.content.node_id, life)
                self._hear(other, content.node_id, other.life)
        self.after(self.random.randint(20, 300), lambda: self._exchange(place, life))

    def _token(self, place: SelectivePlace) -> int:
        place.tokens += 1
        return place.tokens

    def _hear(self, place: SelectivePlace, node_id: NodeId, life: int) -> None:
        """A beacon arrives."""

        def heard() -> None:
            if place.life != life or place.machine is None or node_id in place.present:
                return
            place.present[node_id] = None
            place.machine.returned(node_id, self.now_ms)
            if node_id in place.held:
                entry = place.held[node_id]
                place.machine.interest_changed(node_id, entry.version, entry.items.values(), (), self.now_ms)
            self._perform(place)

        self.after(self.random.randint(1, 50), heard)

    def _exchange(self, place: SelectivePlace, life: int) -> None:
        """The interest exchange with a neighbour: its view, and an end mark."""
        if place.life != life or place.machine is None:
            return
        others = [other for other in self.places if other.up and other is not place]
        if others:
            other = self.random.choice(others)
            entries = {**other.held, other.content.node_id: other.content.entry}
            for node_id, entry in entries.items():
                self.news(place, node_id, entry)
        if place.life == life:  # it was not found to be rolled back
            place.machine.end_mark(self.now_ms)
            self._perform(place)
            self.announce(place)

    def crash(self, place: SelectivePlace) -> None:
        """The place goes down; others hear of it later, each at its own time."""
        place.machine = None
        place.waiting = []
        place.wished = {name: at_ms for name, at_ms in place.wished.items() if name in place.content.wants}
        node_id = place.content.node_id
        for other in self.places:
            if other is not place and other.up:
                self._fail(other, node_id, self.random.randint(100, 2_000))

    def _fail(self, place: SelectivePlace, node_id: NodeId, delay_ms: int) -> None:
        """A word that the node failed; a beacon refutes a false one."""
        life = place.life

        def failed() -> None:
            if place.life != life or place.machine is None or node_id not in place.present:
                return
            del place.present[node_id]
            place.machine.departed(node_id, self.now_ms)
            self._perform(place)
            if any(other.up and other.content.node_id == node_id for other in self.places):
                self.after(self.random.randint(200, 2_000), lambda: self._hear(place, node_id, life))

        self.after(delay_ms, failed)

    def accuse(self, place: SelectivePlace, other: SelectivePlace) -> None:
        """A false word about a failure."""
        self._fail(place, other.content.node_id, 1)

    # ---- interest

    def news(self, place: SelectivePlace, node_id: NodeId, entry: SimEntry) -> None:
        """An entry arrives at a place."""
        if place.machine is None or place.name in self.uninformed:
            return
        if node_id == place.content.node_id:
            if entry.version > place.content.entry.version:
                self.roll_back(place)
            return
        before = place.held.get(node_id, SimEntry(0, {}))
        if entry.version <= before.version:
            return
        place.held[node_id] = entry
        if node_id in place.present:
            joined = [item for key, item in entry.items.items() if before.items.get(key) != item]
            left = [key for key in before.items if key not in entry.items]
            place.machine.interest_changed(node_id, entry.version, joined, left, self.now_ms)
            self._perform(place)

    def announce(self, place: SelectivePlace) -> None:
        entry = place.content.entry
        if entry.version:
            for other in self.places:
                if other is not place:
                    self._send(lambda other=other: self.news(other, place.content.node_id, entry))  # type: ignore[misc]

    def register(self, place: SelectivePlace, added: Iterable[Want] = (), removed: Iterable[str] = ()) -> None:
        """Change what is wanted at a place: entry, joins and begins are one append."""
        assert place.machine is not None
        content, added, removed = place.content, tuple(added), tuple(removed)
        pending = [write for _, writes in place.waiting for write in writes if isinstance(write, OwnEntry)]
        entry, epochs = (pending[-1].entry, pending[-1].epochs) if pending else (content.entry, content.epochs)
        version, epochs = entry.version + 1, epochs + 1
        token = self._token(place)
        writes = place.machine.plan(token, version, added, removed)
        wants = dict(place.machine.wants.planned)  # what the entry will announce
        items = announced(wants, entry, epochs, {want.id for want in added})
        place.waiting.append((token, (OwnEntry(SimEntry(version, items), epochs), *writes)))
        for want in added:
            place.wished[want.id] = self.now_ms
            place.asked[want.id] = want
            self.checks.wanted_ever.setdefault(content.node_id, []).append(want)
        self._sync_soon(place)

    def subscribe(
        self,
        place: SelectivePlace,
        topic: str,
        text: str | None,
        *,
        earliest: bool = False,
        from_ms: int | None = None,
        positions: Mapping[NodeId, int] | None = None,
    ) -> str:
        name = f"{topic}/{text}"
        profile = ProfileText("sql", 1, text) if text is not None else None
        since_ms = max(self.now_ms + place.clock_ms, 0)
        self.register(place, [Want(name, topic, profile, since_ms, earliest, None, from_ms, positions)])
        return name

    # ---- rows

    def publish(self, place: SelectivePlace, topic: str, values: str) -> bool:
        """Number a batch and write it; False if the place may not number now."""
        assert place.machine is not None
        if place.machine.keeping.why_not_ready(self.now_ms) is not None:
            return False
        stream_id = StreamId(place.content.node_id, topic)
        waiting = [write for _, writes in place.waiting for write in writes if isinstance(write, Batch)]
        log = place.content.logs.get(stream_id, {})
        last = [batch for batch in waiting if batch.stream == stream_id][-1:] or [log[first] for first in log][-1:]
        batch = seal(
            Batch(
                stream=stream_id,
                incarnation=place.life,
                first_sequence=last[0].next_sequence if last else 1,
                row_count=len(values),
                origin_batch=0,
                schema_id=1,
                published_at_ms=max(self.now_ms + place.clock_ms, last[0].published_at_ms if last else 0),
                publisher="",
                position="",
                part=0,
                parts=1,
                previous_checksum=last[0].checksum if last else 0,
                payload=values.encode(),
                extensions=batch_extensions(values, self.keepers),
            )
        )
        place.waiting.append((self._token(place), (batch,)))
        self._sync_soon(place)
        return True

    def trim(self, place: SelectivePlace, stream_id: StreamId) -> None:
        """Retention removes the oldest batch of a log."""
        log = place.content.logs.get(stream_id)
        if log and len(log) > 1:
            oldest = log.pop(min(log))
            low = place.content.lows[stream_id] = max(place.content.lows.get(stream_id, 1), oldest.next_sequence)
            self.checks.trimmed[stream_id] = max(self.checks.trimmed.get(stream_id, 1), low)

    # ---- the disk

    def _sync_soon(self, place: SelectivePlace) -> None:
        life = place.life
        self.after(self.random.randint(*self.sync_ms), lambda: self._sync(place, life))

    def _sync(self, place: SelectivePlace, life: int) -> None:
        """Everything that waits becomes durable."""
        if place.life != life or place.machine is None or not place.waiting:
            return
        waiting, place.waiting = place.waiting, []
        changed = False
        own: list[Batch] = []
        for token, writes in waiting:
            for write in writes:
                apply_write(place.content, write)
                changed |= isinstance(write, OwnEntry)
                if isinstance(write, Batch):
                    self.checks.numbered(place, write, self.now_ms)
                    own.append(write)
            place.machine.durable(token, self.now_ms)
        for batch in own:
            place.machine.published(batch, self.keepers, self.now_ms)
        self._perform(place)
        if changed:
            self.announce(place)

    # ---- outputs

    def _perform(self, place: SelectivePlace) -> None:
        assert place.machine is not None
        for output in place.machine.take_outputs():
            match output:
                case RoutedFrame():
                    self._route(place, output)
                case Append(token, writes):
                    place.waiting.append((token, writes))  # type: ignore[arg-type]  # those of selective topics
                    self._sync_soon(place)
                case ReadSelected() | FindTimes():
                    self._read_soon(place, output)
                case KeepWish(origin, keep):
                    self._keep(place, origin, keep=keep)
                case RolledBack():
                    self.roll_back(place)
                    return
                case Trace():
                    pass
        self.checks.covered(place, self.now_ms)

    def _keep(self, place: SelectivePlace, origin: NodeId, *, keep: bool) -> None:
        assert place.machine is not None
        name = keep_id(origin)
        planned = place.machine.wants.planned
        if keep and name not in planned:
            self.register(place, [Want(name, KEEPS_TOPIC, None, 0, earliest=True, keeps=origin)])
        elif not keep and name in planned:
            self.register(place, removed=[name])

    def roll_back(self, place: SelectivePlace) -> None:
        """The store is older than the channel: the place takes a new identity, and its registrations join anew."""
        content = place.content
        self.crash(place)
        content.ids = (heir_of(content.node_id, self.now_ms, self.random.randbytes(4)), *content.ids)
        wants = [stored.want for stored in content.wants.values()]
        self.start(place)
        if wants:
            self.register(place, wants)

    def _read_soon(self, place: SelectivePlace, output: ReadSelected | FindTimes) -> None:
        life = place.life
        self.after(1, lambda: self._read(place, output, life))

    def _read(self, place: SelectivePlace, output: ReadSelected | FindTimes, life: int) -> None:
        if place.life != life or place.machine is None:
            return
        log = place.content.logs.get(output.stream, {})
        if isinstance(output, FindTimes):
            found = []
            for time_ms in output.times_ms:
                later = [first for first in sorted(log) if log[first].published_at_ms >= time_ms]
                found.append(later[0] if later else 0)
            place.machine.found(TimesFound(output.token, tuple(found)), self.now_ms)
        else:
            skipped = [skip.last_sequence + 1 for skip in place.content.skips if skip.stream == output.stream]
            low = max(place.content.lows.get(output.stream, 1), *skipped, 1)
            place.machine.read(selected(output, log, low), self.now_ms)
        self._perform(place)

    def _route(self, place: SelectivePlace, frame: RoutedFrame) -> None:
        kind = type(frame.content).__name__
        for destination in frame.destinations:
            self.frames[kind] = self.frames.get(kind, 0) + 1
            if isinstance(frame.content, Batch) and frame.how is How.PUSHED:
                self.checks.sent(frame.content, destination.node_id)
            copy = RoutedFrame(frame.speaker, (destination,), frame.content, frame.hops, frame.how)
            if not self.loses(copy):
                self._send(lambda copy=copy: self._deliver(copy))  # type: ignore[misc]

    def _send(self, arrive: Callable[[], None]) -> None:
        copies = 1 + (self.random.random() < self.repeat)
        for _ in range(copies):
            if self.random.random() >= self.loss:
                self.after(self.random.randint(*self.delay_ms), arrive)

    def _deliver(self, frame: RoutedFrame) -> None:
        for place in self.places:
            if place.machine is not None and place.content.node_id == frame.destinations[0].node_id:
                place.machine.received(frame, self.now_ms)
                self._perform(place)
