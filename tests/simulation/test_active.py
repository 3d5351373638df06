"""Active registrations between the nodes of a simulated channel: all that are present are named, each has the entry,
nodes of older versions and those that are away are not; nothing is sent for nobody."""

from collections import Counter
from collections.abc import Iterable

import pytest

from m4cast.overlay.protocol import calls
from m4cast.overlay.protocol.effects import Active, Output, Subscribe, WaitActive, Wish
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.selective import ActiveCall, ActiveStmt, RoutedFrame, WireFrame
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.world import World, node_config

NODES = 12


class ActiveWatch(Observer):
    """Keeps the answers, and counts the messages about them on all links."""

    outputs = (Active,)

    def __init__(self, world: World) -> None:
        self.answers: dict[int, tuple[Active, int]] = {}
        self.copies: Counter[type] = Counter()
        self._world = world
        world.watch(self)

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Active)
        for each in output.confirmed:
            (there,) = (other for other in self._world.up() if node_of(other).me.node_id == each)
            entry = node_of(there).interest.view.entries[node_of(place).me.node_id]
            own = node_of(place).interest.view.entries[node_of(place).me.node_id]
            assert entry.version == own.version, "it is named, and has another version"
        self.answers[output.request] = (output, self._world.now_ms)

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, RoutedFrame):
            self.copies[type(message.content)] += 1


def node_of(place: Place) -> Node:
    assert place.node is not None
    return place.node


def channel(nodes: int = NODES, old: Iterable[int] = (), *, registered: bool = True) -> World:
    """Those that are `old` speak version 3. Unless something is registered, nobody states a version."""
    world = World(7, wire=True)
    for number in range(nodes):
        with pytest.MonkeyPatch.context() as patch:
            if number in old:
                patch.setattr(calls, "PROTOCOL_VERSION_MAX", 3)
            world.start(world.add(node_config(number, (0,))))
        world.run(world.now_ms + 300)
    world.run(world.now_ms + 10_000)
    if registered:
        world.feed(world.up()[1], Subscribe(1, (Wish("first", "t"),)))
        world.run(world.now_ms + 10_000)
    return world


def wait(world: World, place: Place, request: int, timeout_ms: int = 20_000) -> int:
    """Register something and wait for it; when that was."""
    world.feed(place, Subscribe(request, (Wish(f"r{request}", f"t{request}"),)))
    begun_ms = world.now_ms
    while (span := node_of(place).interest.history.lasting(f"r{request}")) is None:
        world.run(world.now_ms + 1)
    world.feed(place, WaitActive(request, span.incarnation, span.ts, timeout_ms))
    return begun_ms


def test_active_names_all_that_are_present() -> None:
    world = channel()
    watch = ActiveWatch(world)
    place = world.up()[3]
    begun_ms = wait(world, place, 100)
    world.run(world.now_ms + 2_000)
    answer, at_ms = watch.answers[100]
    others = sorted(node_of(other).me.node_id for other in world.up() if other is not place)
    assert (list(answer.confirmed), answer.missing) == (others, ())
    assert at_ms - begun_ms < 2_000
    calls_and_sets = watch.copies[ActiveCall], watch.copies[ActiveStmt]
    assert calls_and_sets[0] >= NODES - 1 and calls_and_sets[1] >= NODES - 1
    before = watch.copies.copy()
    world.feed(place, WaitActive(101, 1, 1, 1_000))
    world.run(world.now_ms + 2_000)
    assert watch.answers[101][0].missing == () and watch.copies == before, "what is known is not asked again"


def test_who_cannot_be_reached_yet_is_asked_as_soon_as_there_is_a_way() -> None:
    """Nodes begin to state their versions with the first registration of a channel, and so which routes there are."""
    world = channel(registered=False)
    watch = ActiveWatch(world)
    begun_ms = wait(world, world.up()[3], 100)
    world.run(world.now_ms + 3_000)
    answer, at_ms = watch.answers[100]
    assert len(answer.confirmed) == NODES - 1
    assert at_ms - begun_ms < 500, "and not when it asks a third time"


def test_nothing_is_sent_when_nobody_waits() -> None:
    world = channel()
    watch = ActiveWatch(world)
    world.feed(world.up()[2], Subscribe(5, (Wish("x", "t"),)))
    world.run(world.now_ms + 10_000)
    assert not watch.copies


def test_a_node_that_crashes_and_returns_confirms_in_its_new_incarnation() -> None:
    world = channel()
    watch = ActiveWatch(world)
    place, away = world.up()[3], world.up()[8]
    world.crash(away, silent=False)
    wait(world, place, 100, timeout_ms=60_000)
    world.run(world.now_ms + 1_000)
    world.start(away)
    world.run(world.now_ms + 60_000)
    answer, _ = watch.answers[100]
    assert answer.missing == ()
    assert set(answer.confirmed) >= {node_of(other).me.node_id for other in world.up() if other not in (place, away)}


def test_a_node_of_an_older_version_is_named_as_missing() -> None:
    world = channel(old=(5,))
    watch = ActiveWatch(world)
    place = world.up()[3]
    wait(world, place, 100, timeout_ms=3_000)
    world.run(world.now_ms + 4_000)
    answer, _ = watch.answers[100]
    assert node_of(world.up()[5]).me.node_id in answer.missing
    assert len(answer.confirmed) + len(answer.missing) == NODES - 1
