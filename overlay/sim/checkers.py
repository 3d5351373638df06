"""Checkers: one per guarantee (design section 3), looking at the whole world from outside.

Safety checkers look after every event and raise `Violation` at the first broken guarantee. Liveness is checked in a
phase without faults: `unsettled` lists what is not yet as it should be, and is empty when all is well.
"""

from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId, short_id
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS, CALLS_MAX
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    Delivered,
    Input,
    InsertBatch,
    MarksRecord,
    Output,
    Published,
    SpreadRecord,
    StartStream,
    Trace,
)
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.batch import Batch, Skip
from m4cast.overlay.protocol.wire.selective import is_selective
from m4cast.overlay.sim.disk import Content, Disk
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.world import World


class Violation(AssertionError):
    """A guarantee is broken; the message says which and how."""

    def __init__(self, guarantee: str, detail: str) -> None:
        super().__init__(f"{guarantee}: {detail}")
        self.guarantee = guarantee


def is_selected(content: Content, stream: StreamId) -> bool:
    """True if the stream is one of a selective topic there: such streams have checkers of their own
    (`sim/selective/nodes.py`)."""
    if stream in content.records.get(MarksRecord, {}):
        return True
    log = content.logs.get(stream)
    if log is not None and log.batches:
        return is_selective(log.batches[-1])
    return stream.origin == content.node_id and stream.topic in content.records.get(SpreadRecord, {})


class GraphSafety(Observer):
    """Guarantee 1, always: never more than `degree` neighbours, never oneself, never promised more than there is."""

    def handled(self, place: Place, event: Input) -> None:
        assert place.node is not None
        table = place.node.membership.table
        if len(table.neighbours) > table.degree:
            raise Violation("graph", f"{place.name} has {len(table.neighbours)} neighbours")
        if table.me in table.neighbours:
            raise Violation("graph", f"{place.name} is its own neighbour")


@dataclass
class Numbers(Observer):
    """A number is used once: nobody stores another row under it.

    With a `world`, an origin is excused that could not know: all nodes that had the other row on disk were unknown to
    it, down, paused or beyond a split when it asked them what they have of its rows. Such a stream is forked, and a
    node that receives rows of both histories reports it (`Trace`)."""

    outputs = (Trace,)
    world: World | None = None
    batches: dict[StreamId, dict[int, dict[int, Batch]]] = field(default_factory=dict)
    """Stream -> first sequence -> checksum -> batch: all that was ever stored."""
    forked: dict[StreamId, None] = field(default_factory=dict)
    reports: dict[tuple[str, StreamId], None] = field(default_factory=dict)
    """(address, stream) of the nodes that reported a fork since they were started."""

    def started(self, place: Place) -> None:
        self.reports = {report: None for report in self.reports if report[0] != place.address}

    def synced(self, place: Place, append: Append) -> None:
        for batch in (write.batch for write in append.writes if isinstance(write, AppendBatch | InsertBatch)):
            stored = self.batches.setdefault(batch.stream, {})
            same = stored.setdefault(batch.first_sequence, {})
            if batch.checksum not in same:
                for known in [known for each in stored.values() for known in each.values()]:
                    if known.first_sequence < batch.next_sequence and batch.first_sequence < known.next_sequence:
                        self._used_twice(place, batch, known)
                same[batch.checksum] = batch

    def _used_twice(self, place: Place, batch: Batch, known: Batch) -> None:
        stream = batch.stream
        is_numbered_here = stream.origin == place.disk.content.node_id
        if self.world is not None and (is_numbered_here or stream in self.forked):
            self.forked[stream] = None
            keepers = [
                other.name for other in _askable(self.world, place) if is_numbered_here and has_batch(other, known)
            ]
            if not keepers:
                return
        raise Violation(
            "numbers",
            f"{place.name} stores another {short_id(stream.origin)}/{stream.topic} {batch.first_sequence} than was "
            "stored before",
        )

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Trace)
        if output.name == "fork":
            facts = dict(output.detail)
            stream = StreamId(NodeId(bytes.fromhex(str(facts["origin"]))), str(facts["topic"]))
            if stream not in self.forked:
                raise Violation("numbers", f"{place.name} reports a fork of {stream.topic} that there is not")
            self.reports[place.address, stream] = None

    def known(self, stream: StreamId, first_sequence: int, last_sequence: int) -> bool:
        """True if a batch with this range was ever stored."""
        batches = self.batches.get(stream, {}).get(first_sequence, {}).values()
        return any(batch.last_sequence == last_sequence for batch in batches)


@dataclass
class PublishTimes(Observer):
    """`published_at_ms` never goes back along a stream, whatever was done to the clock of its origin. Two histories of
    a forked stream have nothing to do with each other."""

    numbers: Numbers = field(default_factory=Numbers)
    latest: dict[tuple[StreamId, int], int] = field(default_factory=dict)
    """The time at which the batch before a sequence was published."""

    def synced(self, place: Place, append: Append) -> None:
        for batch in (write.batch for write in append.of(AppendBatch)):
            before_ms = self.latest.get((batch.stream, batch.first_sequence), 0)
            if batch.published_at_ms < before_ms and batch.stream not in self.numbers.forked:
                raise Violation(
                    "times",
                    f"{place.name} stores {short_id(batch.stream.origin)}/{batch.stream.topic} {batch.first_sequence}, "
                    f"published at {batch.published_at_ms}, after rows published at {before_ms}",
                )
            self.latest[batch.stream, batch.next_sequence] = batch.published_at_ms


@dataclass
class Order(Observer):
    """Guarantee 2, always: deliveries of a stream at a store follow each other without hole or repeat, and what is
    delivered is what its origin stored. A restart begins where the store is, which is where deliveries ended."""

    outputs = (Delivered,)
    world: World
    numbers: Numbers
    delivered: dict[NodeId, dict[StreamId, int]] = field(default_factory=dict)
    disks: dict[str, Disk] = field(default_factory=dict)

    def started(self, place: Place) -> None:
        content = place.disk.content
        held = {stream: log.next for stream, log in content.logs.items()}
        if self.disks.get(place.address) is place.disk:
            for stream, upto in self.delivered.get(content.node_id, {}).items():
                if held.get(stream, 1) < upto:
                    raise Violation("durability", f"{place.name} delivered {stream.topic} to {upto} and lost it")
        self.disks[place.address] = place.disk
        self.delivered[content.node_id] = held

    def synced(self, place: Place, append: Append) -> None:
        for start in append.of(StartStream):
            self.delivered[place.disk.content.node_id].setdefault(start.stream, start.first_sequence)

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Delivered)
        what = output.delivery
        if is_selected(place.disk.content, what.stream):
            return
        expected = self.delivered[place.disk.content.node_id].get(what.stream, 1)
        if what.first_sequence != expected:
            kind = "again" if what.first_sequence < expected else "past a hole"
            raise _misdelivered(place, what.stream, f"{what.first_sequence} {kind}, {expected} was next")
        if isinstance(what, Skip):
            holders = [
                other.name
                for other in self.world.places.values()
                if other is not place and self._may_serve(other) and _keeps(other, what.stream, what.first_sequence)
            ]
            if holders:
                raise _misdelivered(place, what.stream, f"skip of {what.first_sequence}, which {holders} keep")
        else:
            if not self.numbers.known(what.stream, what.first_sequence, what.last_sequence):
                raise _misdelivered(place, what.stream, f"{what.first_sequence} was never stored by its origin")
            log = place.disk.content.logs.get(what.stream)
            if log is None or log.next <= what.last_sequence:
                raise _misdelivered(place, what.stream, f"{what.first_sequence} before it is on disk")
        self.delivered[place.disk.content.node_id][what.stream] = what.last_sequence + 1

    def _may_serve(self, place: Place) -> bool:
        """It is up, or comes back with its store before its absence counts as lasting."""
        return place.up or (place.will_return and self.world.now_ms - place.stopped_at_ms < ABSENT_PATIENCE_MS)


def _misdelivered(place: Place, stream: StreamId, how: str) -> Violation:
    return Violation("delivery", f"{place.name} {short_id(stream.origin)}/{stream.topic}: {how}")


def _askable(world: World, place: Place) -> list[Place]:
    """Those whom the node could ask what they have of its rows: it knew of them, and they have been up, awake and
    within reach since before it started."""
    if place.node is None:  # it crashed while this was on its way to the disk
        return []
    began_ms, considered = place.started_at_ms, place.node.dissemination.past.considered
    return [
        other
        for other in world.up()
        if other.disk.content.node_id in considered
        and not other.paused
        and other.started_at_ms < began_ms
        and other.resumed_at_ms < began_ms
        and not world.were_apart(place, other, began_ms)
    ]


def has_batch(place: Place, batch: Batch) -> bool:
    log = place.disk.content.logs.get(batch.stream)
    return log is not None and any(
        kept.checksum == batch.checksum and kept.first_sequence not in log.damaged for kept in log.batches
    )


def _keeps(place: Place, stream: StreamId, sequence: int) -> bool:
    log = place.disk.content.logs.get(stream)
    return log is not None and any(
        batch.first_sequence <= sequence <= batch.last_sequence and batch.first_sequence not in log.damaged
        for batch in log.batches
    )


@dataclass
class Durability(Observer):
    """Guarantee 3: at the answer, the rows are on the disk of the node and on as many others as were asked for."""

    outputs = (Published,)
    acks: dict[int, int] = field(default_factory=dict)
    """Request -> acks it asked for; filled by the workload."""
    stored: dict[StreamId, dict[NodeId, int]] = field(default_factory=dict)
    """The farthest position of a stream that was ever on a node's disk: a disk that is lost afterwards does not take
    the ack back."""

    def started(self, place: Place) -> None:
        """A store that was copied back, or whose node took a new id, holds what it holds."""
        node_id = place.disk.content.node_id
        for stream, log in place.disk.content.logs.items():
            stored = self.stored.setdefault(stream, {})
            stored[node_id] = max(log.next, stored.get(node_id, 1))

    def synced(self, place: Place, append: Append) -> None:
        for batch in (write.batch for write in append.of(AppendBatch)):
            self.stored.setdefault(batch.stream, {})[place.disk.content.node_id] = batch.next_sequence

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Published)
        wanted = self.acks.get(output.request, 0)
        for rows in output.ranges:
            log = place.disk.content.logs.get(rows.stream)
            if log is None or log.next < rows.next_sequence:
                raise Violation("durability", f"{place.name} answered {rows.stream.topic} before it is on its disk")
            if is_selected(place.disk.content, rows.stream):
                continue
            stored = self.stored[rows.stream]
            others = sum(
                1
                for node_id, upto in stored.items()
                if upto >= rows.next_sequence and node_id not in (rows.stream.origin, place.disk.content.node_id)
            )
            if others < wanted:
                raise Violation("durability", f"{place.name} answered with {others} of {wanted} acks")


@dataclass
class Memory(Observer):
    """Guarantee 7: what a node keeps in memory stays within its limits."""

    links_max: int = 64

    def handled(self, place: Place, event: Input) -> None:
        node = place.node
        assert node is not None
        ordering, backlogs, config = node.dissemination.ordering, node.dissemination.backlogs, place.config
        if not 0 <= backlogs.held_bytes <= config.hold_back_bytes_max:
            raise Violation("memory", f"{place.name} holds {backlogs.held_bytes} bytes back")
        if not 0 <= ordering.undurable_bytes <= config.undurable_bytes_max:
            raise Violation("memory", f"{place.name} has {ordering.undurable_bytes} bytes waiting for the disk")
        if len(node.calls) > CALLS_MAX + self.links_max:
            raise Violation("memory", f"{place.name} has {len(node.calls)} calls")


@dataclass
class ExactlyOnce(Observer):
    """Guarantee 5: every part of a keyed commit is stored under one number only, however often it was asked for.

    A store that was rolled back has forgotten commits and learns of them from other nodes; what none of those that it
    can ask has whole, it cannot know. Nor can it take what is in another history of a forked stream."""

    numbers: Numbers
    parts: dict[tuple[str, str, int], Batch] = field(default_factory=dict)
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)

    def synced(self, place: Place, append: Append) -> None:
        for batch in (write.batch for write in append.of(AppendBatch)):
            if not batch.publisher:
                continue
            known = self.parts.setdefault((batch.publisher, batch.position, batch.part), batch)
            self.sizes[(batch.publisher, batch.position)] = batch.parts
            at = (known.first_sequence, batch.first_sequence)
            if (known.stream, at[0]) != (batch.stream, at[1]) and not self._was_forgotten(place, batch):
                raise Violation(
                    "exactly once",
                    f"part {batch.part} of {batch.publisher} {batch.position} is at {at[0]} and at {at[1]}",
                )

    def _was_forgotten(self, place: Place, batch: Batch) -> bool:
        """The commit was made in a life that this store has forgotten, and nobody who could be asked has all of it."""
        if batch.stream.origin != place.disk.content.node_id:
            return True  # numbered anew elsewhere, and judged there
        commit = (batch.publisher, batch.position)
        whole = [self.parts.get((*commit, part)) for part in range(self.sizes[commit])]
        world = self.numbers.world
        if world is None:
            return False
        if any(part is not None and part.stream in self.numbers.forked for part in whole):
            return True
        return not any(
            all(part is not None and has_batch(other, part) for part in whole) for other in _askable(world, place)
        )

    def check_whole(self, key: str, position: str) -> None:
        """An answered commit is there with all its parts."""
        size = self.sizes.get((key, position), 0)
        missing = [part for part in range(size) if (key, position, part) not in self.parts]
        if not size or missing:
            raise Violation("exactly once", f"{key} {position} was answered, parts {missing or 'all'} are missing")


# ---- liveness


def unsettled(world: World, numbers: Numbers | None = None) -> list[str]:
    """Return what a fault-free channel still owes; empty when it has settled. For streams that `numbers` saw forked, it
    owes a report."""
    return unsettled_graph(world) or unsettled_logs(world, numbers) or unrepaired(world) or unfilled(world, numbers)


def unsettled_graph(world: World) -> list[str]:
    up = world.up()
    count, degree = len(up), world.cluster.degree
    complaints = [f"{place.name} is not on the channel" for place in up if not _full(place)]
    ends = _ends(world)
    for place in up:
        assert place.node is not None
        if len(ends[place.address]) != len(place.node.membership.table.neighbours):
            complaints.append(f"{place.name} has a link that its other end has not")
    wanted = min(degree, count - 1)
    short = [address for address, others in ends.items() if len(others) < wanted]
    allowed = 1 if degree * count % 2 and count > degree + 1 else 0
    if len(short) > allowed or any(len(ends[address]) < wanted - 1 for address in short):
        complaints.append(f"holes at {short}")
    if up and len(_reach(ends, up[0].address)) < count:
        complaints.append("the graph is not connected")
    return complaints


def _full(place: Place) -> bool:
    return place.node is not None and place.node.membership.state is State.FULL


def _ends(world: World) -> dict[str, list[str]]:
    """Address -> addresses of the neighbours that agree that they are."""
    ends: dict[str, list[str]] = {place.address: [] for place in world.up()}
    for a, b in world.edges():
        ends[a].append(b)
        ends[b].append(a)
    return ends


def _reach(ends: dict[str, list[str]], start: str) -> dict[str, None]:
    seen = {start: None}
    todo = [start]
    while todo:
        for other in ends[todo.pop()]:
            if other not in seen:
                seen[other] = None
                todo.append(other)
    return seen


def unfilled(world: World, numbers: Numbers | None) -> list[str]:
    """Skips of rows that another node which is up has."""
    return [
        f"{place.name} skips {short_id(stream.origin)}/{stream.topic} {skip.first_sequence}, {other.name} has it"
        for place in world.up()
        for stream, log in place.disk.content.logs.items()
        if (numbers is None or stream not in numbers.forked) and not is_selected(place.disk.content, stream)
        for skip in log.skips
        if skip.last_sequence >= log.low
        for other in world.up()
        if other is not place and _keeps(other, stream, max(skip.first_sequence, log.low))
    ]


def unrepaired(world: World) -> list[str]:
    """Batches that cannot be read at a node that is up, though another one has them."""
    return [
        f"{place.name} cannot read {short_id(stream.origin)}/{stream.topic} {batch.first_sequence}, {other.name} can"
        for place in world.up()
        for stream, log in place.disk.content.logs.items()
        if log.damaged
        for batch in log.batches
        if batch.first_sequence in log.damaged
        for other in world.up()
        if other is not place and has_batch(other, batch)
    ]


def unsettled_logs(world: World, numbers: Numbers | None = None) -> list[str]:
    """Every stream that somebody up has, everybody up has, on disk and to the same end (guarantees 2 and 4). Of a
    stream with two histories a node has all that its neighbours have, or reports it."""
    farthest: dict[StreamId, int] = {}
    for place in world.up():
        for stream, log in place.disk.content.logs.items():
            if not is_selected(place.disk.content, stream):
                farthest[stream] = max(farthest.get(stream, 1), log.next)
    near = _ends(world) if numbers is not None and numbers.forked else {}
    complaints = []
    for place in world.up():
        logs = place.disk.content.logs
        for stream, upto in farthest.items():
            has = logs[stream].next if stream in logs else 1
            if numbers is not None and stream in numbers.forked:
                if (place.address, stream) in numbers.reports:
                    continue
                others = (world.places[address].disk.content.logs.get(stream) for address in near[place.address])
                upto = max((log.next for log in others if log is not None), default=has)  # noqa: PLW2901
            if has < upto:
                name = f"{short_id(stream.origin)}/{stream.topic}"
                complaints.append(f"{place.name} has {name} to {has}, others to {upto}")
    return complaints
