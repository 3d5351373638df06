"""Confirmations in a small world: nodes whose tables of routes differ, messages that are lost and overtake each other,
restarts. Whoever is named as confirmed has applied the entry; when the faults end, everybody is named."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Active, WaitActive
from m4cast.overlay.protocol.interest import confirmations
from m4cast.overlay.protocol.interest.confirmations import AppliedVersion, Confirmations, Content
from m4cast.overlay.protocol.interest.entry import EntryVersion
from m4cast.overlay.protocol.interest.timers import ActiveAskDue, ActiveMergeDue
from m4cast.overlay.protocol.interest.view import InterestView
from m4cast.overlay.protocol.routes.trees import RouteGraph
from m4cast.overlay.protocol.wire.selective import ActiveCall, ActiveStmt, Confirmation

NODES = 12
STEP_MS = 5
FAULTS_MS = 3_000
END_MS = 40_000
SUBSCRIBER = 0
WANTED = AppliedVersion(1, 3)


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(16, "big"))


def graph(random: Random) -> RouteGraph:
    """A ring with chords: connected, of degree 4 or less."""
    links: dict[NodeId, set[NodeId]] = {node_id(number): set() for number in range(NODES)}
    order = list(range(NODES))
    random.shuffle(order)
    chords = list(zip(order, random.sample(order, NODES), strict=True))
    for one, other in [*zip(order, order[1:] + order[:1], strict=True), *chords]:
        if one != other:
            links[node_id(one)].add(node_id(other))
            links[node_id(other)].add(node_id(one))
    return RouteGraph({each: sorted(others) for each, others in links.items()})


class ConfirmingNode:
    def __init__(self, world: "ConfirmingWorld", number: int, incarnation: int) -> None:
        self.number = number
        self.incarnation = incarnation
        self.graph = world.graph
        config = NodeConfig()
        me = Contact(node_id(number), f"h{number}:1")
        self.context = Context(me, incarnation, ClusterConfig(), config, Random(number))
        self.view = InterestView()
        self.machine = Confirmations(self.context, self.view, world.present, self._next_hop, self._send, self._state)
        self._world = world

    def _next_hop(self, to: NodeId, now_ms: int) -> NodeId | None:
        return self.graph.tree(to).parent.get(node_id(self.number))

    def _send(self, content: Content, to: Iterable[NodeId], now_ms: int) -> None:
        for each in to:
            self._world.send(self.number, int.from_bytes(each, "big"), content)

    def _state(self, subscriber: NodeId, now_ms: int) -> None:
        self._world.stated[self.number] = now_ms

    def apply(self, ts: int) -> None:
        """The subscriber's entry of this version has arrived."""
        entry = self.view.entries.get(node_id(SUBSCRIBER)) or self.view.add(node_id(SUBSCRIBER))
        entry.version = max(entry.version, EntryVersion(1, ts, 0))
        self._world.applied[self.number, self.incarnation] = entry.version.ts
        self.machine.applied(node_id(SUBSCRIBER), self._world.now_ms)

    def tick(self, now_ms: int) -> None:
        due = self.context.timers._due
        for timer, handle in ((ActiveAskDue(), self.machine.ask_due), (ActiveMergeDue(), self.machine.merge_due)):
            if due.get(timer, now_ms + 1) <= now_ms:
                self.context.timers.cancel(timer)
                handle(now_ms)


@dataclass
class ConfirmingWorld:
    random: Random
    now_ms: int = 0
    sent: int = 0
    applied: dict[tuple[int, int], int] = field(default_factory=dict)
    """Node and incarnation -> the last version that it applied."""
    incarnations: dict[int, int] = field(default_factory=dict)
    """As the subscriber's roster has them."""
    answers: list[Active] = field(default_factory=list)
    stated: dict[int, int] = field(default_factory=dict)
    """When each node last stated what it has to the subscriber."""

    def __post_init__(self) -> None:
        self.graph = graph(self.random)
        self._under_way: list[tuple[int, int, int, int, Content]] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.nodes = {number: ConfirmingNode(self, number, 1) for number in range(NODES)}
        self.incarnations = dict.fromkeys(range(1, NODES), 1)

    def present(self, now_ms: int) -> dict[NodeId, int]:
        return {node_id(number): incarnation for number, incarnation in self.incarnations.items()}

    def at(self, ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (ms, len(self._events), event))

    def send(self, sender: int, to: int, content: Content) -> None:
        self.sent += 1
        if self.now_ms < FAULTS_MS and self.random.random() < 0.25:
            return
        copies = 2 if self.random.random() < 0.1 else 1
        for _ in range(copies):
            arrives = self.now_ms + self.random.choice((5, 10, 10, 20, 200))
            heapq.heappush(self._under_way, (arrives, self.sent, sender, to, content))

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms and not self.answers:
            self.now_ms += STEP_MS
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
            while self._under_way and self._under_way[0][0] <= self.now_ms:
                _, _, sender, to, content = heapq.heappop(self._under_way)
                machine = self.nodes[to].machine
                if isinstance(content, ActiveCall):
                    machine.on_call(node_id(sender), content, self.now_ms)
                else:
                    machine.on_stmt(content, self.now_ms)
            for node in self.nodes.values():
                node.tick(self.now_ms)
            out = self.nodes[SUBSCRIBER].context.out
            self.answers += [each for each in out if isinstance(each, Active)]
            out.clear()

    def settle(self, agreed: RouteGraph) -> None:
        """All tables are those of this graph from now on."""
        for node in self.nodes.values():
            node.graph = agreed

    def restart(self, number: int) -> None:
        """It forgets the view, and gets it again later; the subscriber hears of the new incarnation in between."""
        incarnation = self.nodes[number].incarnation + 1
        self.nodes[number] = ConfirmingNode(self, number, incarnation)
        self.at(self.now_ms + self.random.randrange(10, 300), lambda: self._hear(number, incarnation))
        self.learn(number, self.now_ms + 300)

    def _hear(self, number: int, incarnation: int) -> None:
        self.incarnations[number] = max(self.incarnations[number], incarnation)

    def learn(self, number: int, from_ms: int) -> None:
        """News of the entry arrives, of older versions first."""
        at = from_ms
        for ts in range(1, WANTED.ts + 1):
            at += self.random.randrange(5, 600)
            self.at(at, lambda ts=ts: self.nodes[number].apply(ts))  # type: ignore[misc]


def campaign(seed: int, *, with_restarts: bool = True) -> ConfirmingWorld:
    random = Random(f"active {seed}")
    world = ConfirmingWorld(random)
    other = graph(random)
    for node in world.nodes.values():  # tables differ while the graph changes
        node.graph = random.choice((world.graph, other))
    world.at(FAULTS_MS, lambda: world.settle(other))
    for number in range(1, NODES):
        world.learn(number, 0)
    world.nodes[SUBSCRIBER].apply(WANTED.ts)
    for _ in range(3 if with_restarts else 0):
        number = random.randrange(1, NODES)
        world.at(random.randrange(FAULTS_MS - 600), lambda number=number: world.restart(number))  # type: ignore[misc]
    world.nodes[SUBSCRIBER].machine.wait(WaitActive(1, *WANTED, END_MS), 0)
    world.run(END_MS + 100)
    return world


def check(world: ConfirmingWorld) -> None:
    assert len(world.answers) == 1, "it is answered once"
    (answer,) = world.answers
    assert set(answer.confirmed) | set(answer.missing) == set(world.present(0)), "everybody who is present is named"
    for each in answer.confirmed:
        number = int.from_bytes(each, "big")
        said = world.applied.get((number, world.incarnations[number]), 0)
        assert said >= WANTED.ts, f"node {number} is named, and has applied {said}"
    assert not answer.missing, f"never active: {[int.from_bytes(each, 'big') for each in answer.missing]}"


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_whoever_is_named_has_applied_it_and_in_the_end_all_are(first: int) -> None:
    run_seeds(range(first, first + 25))


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            check(campaign(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def confirms_what_was_asked(self: Confirmations, subscriber: NodeId, now_ms: int) -> None:
    version = self._owed[subscriber].version if subscriber in self._owed else WANTED
    self._gather(subscriber, Confirmation(self._me, self._context.incarnation, *version), 0)
    self._set_merge(now_ms)


def counts_any_incarnation(self: Confirmations, node: NodeId, incarnation: int, version: AppliedVersion) -> bool:
    said = self._confirmed.get(node)
    return said is not None and (said.applied_incarnation, said.applied_ts) >= version


def asks_once(self: Confirmations, now_ms: int) -> None:
    self._answer(now_ms)
    self._context.timers.set(ActiveAskDue(), now_ms + 1_000)


def takes_the_first(one: Confirmation | None, other: Confirmation) -> Confirmation:
    return other if one is None else one


def counts_children(self: Confirmations, stmt: ActiveStmt, now_ms: int) -> None:
    """A repeated confirmation is taken for another child's."""
    present = self._present(now_ms)
    for each in stmt.confirmations if stmt.subscriber == self._me else ():
        unnamed = self._missing(WANTED, present)
        if unnamed and each.node_id not in unnamed:
            self._confirmed[unnamed[0]] = each._replace(node_id=unnamed[0], incarnation=present[unnamed[0]])
    ON_STMT(self, stmt, now_ms)


ON_STMT = Confirmations.on_stmt

BUGS: dict[str, tuple[object, str, object]] = {
    "confirms_what_was_asked": (Confirmations, "_confirm", confirms_what_was_asked),
    "counts_any_incarnation": (Confirmations, "_has", counts_any_incarnation),
    "asks_once": (Confirmations, "ask_due", asks_once),
    "takes_the_first": (confirmations, "_later", takes_the_first),
    "counts_children": (Confirmations, "on_stmt", counts_children),
    "gathers_for_ever": (Confirmations, "_set_merge", lambda self, now_ms: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_deliberate_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = BUGS[bug]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match="seed "):
        run_seeds(range(25))


def test_sets_are_merged_on_the_way() -> None:
    """One call costs each node of a quiet channel about one message, not one for each hop of each confirmation."""
    world = ConfirmingWorld(Random(5))
    for node in world.nodes.values():
        node.apply(WANTED.ts)
    world.random = Random(1)
    world.now_ms = FAULTS_MS
    world.nodes[SUBSCRIBER].machine.wait(WaitActive(1, *WANTED, 1_000), FAULTS_MS)
    calls = world.sent
    assert calls == NODES - 1, "one call, routed to all others"
    hops = world.graph.tree(node_id(SUBSCRIBER)).hops
    world.run(FAULTS_MS + 1_000)
    check(world)
    assert world.sent - calls < sum(hops.values()) + NODES


def test_nothing_is_sent_when_nobody_waits_and_a_lone_node_is_active_at_once() -> None:
    world = ConfirmingWorld(Random(1))
    world.run(1_000)
    assert world.sent == 0
    world.incarnations.clear()
    subscriber = world.nodes[SUBSCRIBER]
    subscriber.machine.wait(WaitActive(7, 1, 1, 1_000), 0)
    assert subscriber.context.out == [Active(7, (), ())]
    assert world.sent == 0


def test_when_the_time_is_over_those_who_have_not_confirmed_are_named() -> None:
    world = ConfirmingWorld(Random(2))
    world.now_ms = FAULTS_MS
    for number in range(1, NODES - 1):
        world.nodes[number].apply(WANTED.ts)
    world.nodes[NODES - 1].apply(WANTED.ts - 1)
    world.nodes[SUBSCRIBER].machine.wait(WaitActive(1, *WANTED, 2_000), FAULTS_MS)
    world.run(FAULTS_MS + 3_000)
    (answer,) = world.answers
    assert answer.missing == (node_id(NODES - 1),)
    assert len(answer.confirmed) == NODES - 2
    assert world.nodes[SUBSCRIBER].machine.waiters == {}


def test_the_entry_of_a_node_that_is_gone_is_not_confirmed() -> None:
    world = ConfirmingWorld(Random(3))
    node = world.nodes[1]
    node.apply(WANTED.ts)
    node.view.gone[node_id(SUBSCRIBER)] = 0
    node.machine.on_call(node_id(SUBSCRIBER), ActiveCall(*WANTED), 0)
    node.machine.merge_due(10)
    assert world.sent == 0
    del node.view.gone[node_id(SUBSCRIBER)]
    node.machine.applied(node_id(SUBSCRIBER), 20)
    node.machine.merge_due(30)
    assert world.sent == 1


def test_who_was_asked_too_early_confirms_when_it_has_applied_the_entry() -> None:
    """It is told of changes, and looks for none; and it states what it has before it confirms."""
    world = ConfirmingWorld(Random(6))
    world.now_ms = FAULTS_MS
    node = world.nodes[1]
    node.machine.on_call(node_id(SUBSCRIBER), ActiveCall(*WANTED), FAULTS_MS)
    assert not node.context.timers.is_set(ActiveMergeDue()), "there is nothing to look for"
    node.apply(WANTED.ts - 1)
    assert world.sent == 0 and not world.stated, "that is not what was asked for"
    node.apply(WANTED.ts)
    assert world.stated == {1: FAULTS_MS}
    node.tick(FAULTS_MS + confirmations.MERGE_MS)
    assert world.sent == 1
    node.apply(WANTED.ts)
    assert not node.context.timers.is_set(ActiveMergeDue()), "nothing is owed any longer"


def test_abandoned_calls_free_their_places() -> None:
    world = ConfirmingWorld(Random(7))
    node = world.nodes[1]
    for number in range(confirmations.CALLS_MAX):
        node.machine.on_call(node_id(1_000 + number), ActiveCall(*WANTED), 0)
    node.machine.on_call(node_id(SUBSCRIBER), ActiveCall(*WANTED), confirmations.CALL_KEPT_MS - 1)
    node.apply(WANTED.ts)
    assert not world.stated, "as many as it remembers"
    world.now_ms = confirmations.CALL_KEPT_MS
    node.machine.on_call(node_id(SUBSCRIBER), ActiveCall(1, WANTED.ts + 1), world.now_ms)
    world.stated.clear()
    node.apply(WANTED.ts + 1)
    assert world.stated


def test_a_set_that_went_too_far_goes_to_the_subscriber_itself() -> None:
    world = ConfirmingWorld(Random(4))
    far = next(number for number in range(NODES) if world.graph.tree(node_id(SUBSCRIBER)).hops[node_id(number)] > 1)
    said = (Confirmation(node_id(2), 1, *WANTED),)
    world.now_ms = FAULTS_MS  # nothing is lost
    towards: list[int] = []
    for hops in (confirmations.HOPS_MAX - 1, confirmations.HOPS_MAX):
        world._under_way.clear()
        world.nodes[far].machine.on_stmt(ActiveStmt(node_id(SUBSCRIBER), hops, said), 0)
        world.nodes[far].machine.merge_due(0)
        towards.append(world._under_way[0][3])
    parent = world.graph.tree(node_id(SUBSCRIBER)).parent[node_id(far)]
    assert towards == [int.from_bytes(parent, "big"), SUBSCRIBER]
