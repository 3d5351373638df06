"""Checkers: one per guarantee (design section 3), looking at the whole world from outside.

Safety checkers look after every event and raise `Violation` at the first broken promise. Liveness is a question
asked in a phase without faults: `unsettled` lists what is still not as it should be, and is empty when all is well.
"""

from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId, short_id
from m4cast.overlay.protocol.batch import Batch, Skip
from m4cast.overlay.protocol.calls import CALLS_MAX
from m4cast.overlay.protocol.effects import Append, Delivered, Input, Output, Published
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.world import Observer, Place, World


class Violation(AssertionError):
    """A guarantee is broken; the message says which and how."""

    def __init__(self, guarantee: str, detail: str) -> None:
        super().__init__(f"{guarantee}: {detail}")


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
    """A number is used once: whoever stores a sequence of a stream stores the same batch there."""

    batches: dict[tuple[StreamId, int], Batch] = field(default_factory=dict)

    def synced(self, place: Place, append: Append) -> None:
        for batch in append.batches:
            known = self.batches.setdefault((batch.stream, batch.first_sequence), batch)
            if known.checksum != batch.checksum:
                raise Violation(
                    "numbers",
                    f"{place.name} stores another {short_id(batch.stream.origin)}/{batch.stream.topic} "
                    f"{batch.first_sequence} than was stored before",
                )


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
        for stream, start in append.starts:
            self.delivered[place.disk.content.node_id].setdefault(stream, start)

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Delivered)
        what = output.delivery
        expected = self.delivered[place.disk.content.node_id].get(what.stream, 1)
        if what.first_sequence != expected:
            kind = "again" if what.first_sequence < expected else "past a hole"
            raise _misdelivered(place, what.stream, f"{what.first_sequence} {kind}, {expected} was next")
        if isinstance(what, Skip):
            reached = _reach(_ends(self.world), place.address)
            holders = [
                other.name
                for other in self.world.up()
                if other.address in reached and _keeps(other, what.stream, what.first_sequence)
            ]
            if holders:
                raise _misdelivered(place, what.stream, f"skip of {what.first_sequence}, which {holders} keep")
        else:
            batch = self.numbers.batches.get((what.stream, what.first_sequence))
            if batch is None or batch.last_sequence != what.last_sequence:
                raise _misdelivered(place, what.stream, f"{what.first_sequence} was never stored by its origin")
            log = place.disk.content.logs.get(what.stream)
            if log is None or log.next <= what.last_sequence:
                raise _misdelivered(place, what.stream, f"{what.first_sequence} before it is on disk")
        self.delivered[place.disk.content.node_id][what.stream] = what.last_sequence + 1


def _misdelivered(place: Place, stream: StreamId, how: str) -> Violation:
    return Violation("delivery", f"{place.name} {short_id(stream.origin)}/{stream.topic}: {how}")


def _keeps(place: Place, stream: StreamId, sequence: int) -> bool:
    log = place.disk.content.logs.get(stream)
    return log is not None and any(batch.first_sequence <= sequence <= batch.last_sequence for batch in log.batches)


@dataclass
class Durability(Observer):
    """Guarantee 3: at the answer, the rows are on the disk of the node and on as many others as were asked for."""

    outputs = (Published,)
    acks: dict[int, int] = field(default_factory=dict)
    """Request -> acks it asked for; filled by the workload."""
    stored: dict[StreamId, dict[NodeId, int]] = field(default_factory=dict)
    """How far a stream has ever been on a node's disk: a disk that is lost afterwards does not take the ack back."""

    def synced(self, place: Place, append: Append) -> None:
        for batch in append.batches:
            self.stored.setdefault(batch.stream, {})[place.disk.content.node_id] = batch.next_sequence

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Published)
        wanted = self.acks.get(output.request, 0)
        for rows in output.ranges:
            log = place.disk.content.logs.get(rows.stream)
            if log is None or log.next < rows.next_sequence:
                raise Violation("durability", f"{place.name} answered {rows.stream.topic} before it is on its disk")
            stored = self.stored[rows.stream]
            others = sum(
                1 for node_id, upto in stored.items() if upto >= rows.next_sequence and node_id != rows.stream.origin
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
        ordering, config = node.dissemination.ordering, place.config
        if not 0 <= ordering.held_bytes <= config.hold_back_bytes_max:
            raise Violation("memory", f"{place.name} holds {ordering.held_bytes} bytes back")
        if not 0 <= ordering.undurable_bytes <= config.undurable_bytes_max:
            raise Violation("memory", f"{place.name} has {ordering.undurable_bytes} bytes waiting for the disk")
        if len(node.calls) > CALLS_MAX + self.links_max:
            raise Violation("memory", f"{place.name} has {len(node.calls)} calls")


@dataclass
class ExactlyOnce(Observer):
    """Guarantee 5: every part of a keyed commit is stored under one number only, however often it was asked for.

    A store that was rolled back has forgotten commits and learns of them from its neighbours; what none of them has
    whole, it cannot know."""

    world: World
    parts: dict[tuple[str, str, int], tuple[StreamId, int]] = field(default_factory=dict)
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)

    def synced(self, place: Place, append: Append) -> None:
        for batch in append.batches:
            if not batch.publisher:
                continue
            place_of = (batch.stream, batch.first_sequence)
            known = self.parts.setdefault((batch.publisher, batch.position, batch.part), place_of)
            self.sizes[(batch.publisher, batch.position)] = batch.parts
            if known != place_of and not self._was_forgotten(place, batch, known[0].origin):
                raise Violation(
                    "exactly once",
                    f"part {batch.part} of {batch.publisher} {batch.position} is at {known[1]} and at {place_of[1]}",
                )

    def _was_forgotten(self, place: Place, batch: Batch, origin: NodeId) -> bool:
        """The commit was made by a former identity of this place, and no neighbour has all of it."""
        if origin not in place.disk.content.former_ids and batch.stream.origin not in place.disk.content.former_ids:
            return place.disk.content.node_id not in (origin, batch.stream.origin)  # it came from such a place
        commit = (batch.publisher, batch.position)
        whole = [self.parts.get((*commit, part)) for part in range(self.sizes[commit])]
        return not any(
            all(rows is not None and _keeps(end.other.place, *rows) for rows in whole) for end in place.ends.values()
        )

    def check_whole(self, key: str, position: str) -> None:
        """An answered commit is there with all its parts."""
        size = self.sizes.get((key, position), 0)
        missing = [part for part in range(size) if (key, position, part) not in self.parts]
        if not size or missing:
            raise Violation("exactly once", f"{key} {position} was answered, parts {missing or 'all'} are missing")


# ---- liveness


def unsettled(world: World) -> list[str]:
    """What a fault-free channel still owes; empty when it has settled."""
    return unsettled_graph(world) or unsettled_logs(world)


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


def unsettled_logs(world: World) -> list[str]:
    """Every stream that somebody up has, everybody up has, on disk and to the same end (guarantees 2 and 4)."""
    farthest: dict[StreamId, int] = {}
    for place in world.up():
        for stream, log in place.disk.content.logs.items():
            farthest[stream] = max(farthest.get(stream, 1), log.next)
    complaints = []
    for place in world.up():
        logs = place.disk.content.logs
        for stream, upto in farthest.items():
            has = logs[stream].next if stream in logs else 1
            if has != upto:
                name = f"{short_id(stream.origin)}/{stream.topic}"
                complaints.append(f"{place.name} has {name} to {has}, others to {upto}")
    return complaints
