"""Interest machines joined by links, in lock step: what is sent in a round arrives in the next. Disks are at once."""

from collections.abc import Iterable
from random import Random
from typing import Any

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import (
    Append,
    InterestChanged,
    Output,
    Recovered,
    Send,
    StoredRecord,
    Subscribe,
    Unsubscribe,
    Wish,
)
from m4cast.overlay.protocol.interest.interest import Interest
from m4cast.overlay.protocol.interest.timers import InterestDue
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.wire.frame import wire_bytes
from m4cast.overlay.protocol.wire.interest import (
    INTEREST_VERSION,
    InterestAskStmt,
    InterestDigestStmt,
    InterestNewsStmt,
    InterestVersionsStmt,
)

InterestMessage = InterestDigestStmt | InterestVersionsStmt | InterestAskStmt | InterestNewsStmt


def wish(each: str, topic: str = "t", where: str = "", *, earliest: bool = False) -> Wish:
    return Wish(each, topic, parse(where) if where else None, earliest)


class Member:
    """One machine, its disk and its links."""

    def __init__(
        self, number: int, config: NodeConfig, records: Iterable[StoredRecord[str, Any]] = (), incarnation: int = 1
    ):
        self.number = number
        self.node_id = NodeId(number.to_bytes(16, "big"))
        self.config = config
        self.disk: dict[type, dict[Any, object]] = {}
        self.changes: list[InterestChanged] = []
        self.answers: list[Output] = []
        self.rolled_back = ""
        self.gone: dict[NodeId, None] = {}
        self.is_disk_slow = False
        self.appends: list[Append] = []
        self.open(1)

    def open(self, incarnation: int) -> None:
        recovered = Recovered(self.node_id, incarnation, records={kind: dict(rows) for kind, rows in self.disk.items()})
        me = Contact(self.node_id, f"h{self.number}:1")
        self.context = Context(me, incarnation, ClusterConfig(), self.config, Random(self.number))
        self.interest = Interest(self.context, recovered, self._roll_back, self.gone.__contains__)
        self.interest.start(0)

    def _roll_back(self, detail: str) -> None:
        self.rolled_back = detail

    def keep(self, records: Iterable[StoredRecord[Any, Any]]) -> None:
        for record in records:
            rows = self.disk.setdefault(type(record), {})
            if record.content is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.content

    def link(self, other: "Member", version: int = INTEREST_VERSION) -> None:
        neighbour = Neighbour(Contact(other.node_id, f"h{other.number}:1"), other.number, 1, 0)
        self.context.table.neighbours[other.node_id] = neighbour
        self.context.calls._calls[other.number] = Call(other.number, None, neighbour.contact, version=version)
        if self.interest.is_active:
            self.interest.link_up(neighbour)

    def unlink(self, other: "Member") -> None:
        neighbour = self.context.table.neighbours.pop(other.node_id, None)
        if neighbour is not None:
            self.interest.link_down(neighbour)

    def subscribe(self, *wishes: Wish, now_ms: int = 0, request: int = 1) -> None:
        self.interest.subscribe(Subscribe(request, wishes), now_ms)

    def unsubscribe(self, *ids: str, now_ms: int = 0, request: int = 2) -> None:
        self.interest.unsubscribe(Unsubscribe(request, ids), now_ms)

    def take(self, sender: "Member", message: InterestMessage, now_ms: int = 0) -> None:
        neighbour = self.context.table.neighbours[sender.node_id]
        match message:
            case InterestDigestStmt():
                self.interest.on_digest(neighbour, message, now_ms)
            case InterestVersionsStmt():
                self.interest.on_versions(neighbour, message, now_ms)
            case InterestAskStmt():
                self.interest.on_ask(neighbour, message, now_ms)
            case InterestNewsStmt():
                self.interest.on_news(neighbour, message, now_ms)

    def out(self, now_ms: int = 0) -> list[tuple[int, InterestMessage]]:
        """(number of the neighbour, message): what it sends, after everything for its disk was written."""
        sends: list[tuple[int, InterestMessage]] = []
        outputs = self.context.out
        while outputs:
            output = outputs.pop(0)
            match output:
                case Send(conn, message):
                    sends.append((conn, message))  # type: ignore[arg-type]  # these machines send no other
                case Append() if self.is_disk_slow:
                    self.appends.append(output)
                case Append():
                    self.write(output, now_ms)
                case InterestChanged():
                    self.changes.append(output)
                case _:
                    self.answers.append(output)
        return sends

    def write(self, append: Append, now_ms: int = 0) -> None:
        self.keep(append.of(StoredRecord))
        self.interest.durable(append.token, now_ms)

    def seen(self) -> dict[int, tuple[int, ...]]:
        """The epochs of the items of each entry that is used, in the order of their keys."""
        return {
            int.from_bytes(entry.node_id, "big"): tuple(item.epoch for _, item in sorted(entry.items.items()))
            for entry in self.interest.view.used()
        }

    def version_of(self, other: "Member") -> tuple[int, int]:
        version = self.interest.view.entries[other.node_id].version
        return version.incarnation, version.ts


class Mesh:
    """`quiet_ms` 0: everything is passed on at once."""

    def __init__(self, edges: Iterable[tuple[int, int]], **settings: int) -> None:
        config = NodeConfig(**{"interest_quiet_ms": 0, **settings})  # type: ignore[arg-type]
        self.edges = list(edges)
        numbers = sorted({end for edge in self.edges for end in edge})
        self.members = {number: Member(number, config) for number in numbers}
        self.copies = 0
        self.bytes = 0
        self.sent: list[tuple[int, int, InterestMessage]] = []
        for one, other in self.edges:
            self.join(one, other)

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def join(self, one: int, other: int) -> None:
        self.members[one].link(self.members[other])
        self.members[other].link(self.members[one])

    def cut(self, one: int, other: int) -> None:
        self.members[one].unlink(self.members[other])
        self.members[other].unlink(self.members[one])

    def crash(self, number: int) -> None:
        gone = self.members.pop(number)
        for member in self.members.values():
            member.unlink(gone)

    def run(self, now_ms: int = 0, rounds_max: int = 100) -> int:
        """Let everything that is sent arrive; how many rounds that took."""
        for round_ in range(rounds_max):
            if not self.step(now_ms):
                return round_
        raise AssertionError("there is no end to it")

    def step(self, now_ms: int = 0) -> bool:
        """One round: all that is sent arrives. False: nothing was sent."""
        sends = self._outs(now_ms)
        self.tick(now_ms)
        sends += self._outs(now_ms)
        for number, to, message in sends:
            self.copies += 1
            self.bytes += wire_bytes(message)
            self.sent.append((number, to, message))
            if to in self.members:
                self.members[to].take(self.members[number], message, now_ms)
        return bool(sends)

    def _outs(self, now_ms: int) -> list[tuple[int, int, InterestMessage]]:
        return [(number, to, message) for number, member in self.members.items() for to, message in member.out(now_ms)]

    def tick(self, now_ms: int) -> None:
        """Time passes: news that is due is sent."""
        for member in self.members.values():
            due = member.context.timers._due.get(InterestDue())
            if due is not None and due <= now_ms:
                member.context.timers.cancel(InterestDue())
                member.interest.due(now_ms)

    def views(self) -> list[dict[int, tuple[int, ...]]]:
        return [member.seen() for member in self.members.values()]

    def agree(self) -> bool:
        first, *others = self.views()
        return all(view == first for view in others)
