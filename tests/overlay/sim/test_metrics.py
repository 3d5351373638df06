"""Counting, on events made up one by one."""

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Delivered, Published, Range, Refused, Trace
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.messages import AnnounceStmt, BeaconStmt, Heartbeat, PullCall, RosterEntry
from m4cast.overlay.sim.metrics import GapRepair, Join, Metrics, percentile
from m4cast.overlay.sim.places import End, Place
from m4cast.overlay.sim.world import World
from tests.overlay.protocol.append_parts import append_of

ORIGIN = NodeId(b"o" * 16)
STREAM = StreamId(ORIGIN, "t")


class Scene:
    """Two places with a link of 7 ms between them."""

    def __init__(self) -> None:
        self.world = World(1)
        self.metrics = Metrics(self.world)
        self.a = self.world.add(NodeConfig(name="a", listen="a:1"))
        self.b = self.world.add(NodeConfig(name="b", listen="b:1"))
        self.link = End(self.a, 1, 1)
        self.link.other = End(self.b, 2, 1)
        self.link.other.other = self.link
        self.link.latency_ms = self.link.other.latency_ms = 7

    def deliver(self, place: Place, first: int, last: int, how: How = How.PUSHED, hops: int = 1) -> None:
        record = Delivery(STREAM, first, last, 0, 0, hops, how, None)
        self.metrics.output(place, Delivered(record))

    def append(self, place: Place, first: int) -> None:
        self.metrics.output(place, append_of(1, batches=(batch(first),)))

    def pull(self, first: int) -> None:
        """a asks b."""
        self.metrics.sent(self.link, PullCall(ORIGIN, "t", first, first + 1, 1_000))

    def announce(self, first: int) -> None:
        """b announces to a."""
        self.metrics.sent(self.link.other, AnnounceStmt(ORIGIN, "t", first, first + 1, 1_000))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def batch(first: int) -> Batch:
    return Batch(STREAM, 1, first, 1, first, 1, 0, "", "", 0, 1, 0, b"x")


def rows(first: int, last: int) -> Range:
    return Range(STREAM, first, last + 1)


def test_payload_control_and_background_are_counted_apart(scene: Scene) -> None:
    entry = RosterEntry(ORIGIN, 1, 1, "o:1", "", "o", "", 0, False, 5_000, ())
    for message in (
        Heartbeat(0),
        BeaconStmt(entry, 1),
        BatchFrame(batch(1), 1, How.PUSHED),
        BatchFrame(batch(2), 1, How.PULLED),
    ):
        scene.metrics.sent(scene.link, message)
    scene.pull(1)
    scene.announce(5)
    scene.announce(6)
    assert scene.metrics.payload_copies == 2
    assert scene.metrics.announcements == 2
    assert scene.metrics.control_messages() == {"PullCall": 1, "AnnounceStmt": 2}
    assert scene.metrics.control_total() == 3


def test_own_deliveries_are_not_remote(scene: Scene) -> None:
    scene.deliver(scene.a, 1, 3, How.PUBLISHED, hops=0)
    assert scene.metrics.remote_deliveries == 0
    scene.deliver(scene.b, 1, 3, How.PUSHED, hops=2)
    scene.deliver(scene.b, 4, 4, How.PULLED, hops=5)
    assert (scene.metrics.remote_deliveries, scene.metrics.hops_total, scene.metrics.hops_max) == (2, 7, 5)


@pytest.mark.parametrize(
    ("delivered", "duplicates", "out_of_order"),
    [
        ([(1, 1), (2, 4), (5, 5)], 0, 0),
        ([(1, 1), (1, 1), (2, 2)], 1, 0),
        ([(1, 2), (2, 3)], 1, 0),
        ([(2, 2)], 0, 1),
        ([(1, 1), (3, 3), (2, 2), (4, 4)], 1, 1),
    ],
)
def test_repeats_and_holes_are_counted(
    scene: Scene, delivered: list[tuple[int, int]], duplicates: int, out_of_order: int
) -> None:
    for first, last in delivered:
        scene.deliver(scene.a, first, last)
    assert (scene.metrics.duplicates, scene.metrics.out_of_order) == (duplicates, out_of_order)
    scene.deliver(scene.b, 1, 1)
    assert (scene.metrics.duplicates, scene.metrics.out_of_order) == (duplicates, out_of_order), "places are apart"


def test_a_restarted_place_goes_on_where_its_disk_is(scene: Scene) -> None:
    scene.a.disk._apply(append_of(1, batches=(batch(1), batch(2))))
    scene.metrics.started(scene.a)
    assert scene.metrics.has("a:1", rows(1, 2))
    scene.deliver(scene.a, 3, 3)
    assert (scene.metrics.duplicates, scene.metrics.out_of_order) == (0, 0)
    scene.deliver(scene.a, 2, 2)
    assert scene.metrics.duplicates == 1


def test_a_stream_may_start_late(scene: Scene) -> None:
    scene.metrics.output(scene.a, append_of(1, starts=((STREAM, 10),)))
    scene.deliver(scene.a, 10, 10)
    assert scene.metrics.out_of_order == 0


def test_a_skip_is_progress_but_no_delivery(scene: Scene) -> None:
    scene.deliver(scene.a, 1, 1)
    scene.metrics.output(scene.a, Delivered(Skip(STREAM, 2, 3, SkipReason.LOST, ORIGIN)))
    scene.deliver(scene.a, 4, 5)
    assert scene.metrics.out_of_order == 0
    assert scene.metrics.frontier("a:1") == {STREAM: 6}
    assert [scene.metrics.has("a:1", rows(*each)) for each in ((1, 1), (1, 2), (2, 3), (3, 4), (4, 5), (6, 6))] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_join_lasts_from_the_start_to_full(scene: Scene) -> None:
    scene.metrics.started(scene.a)
    scene.metrics.output(scene.a, Trace("founded"))
    scene.metrics.output(scene.a, Trace("full"))
    assert scene.metrics.joins == [], "founding is not joining"
    scene.world.run(100)
    scene.metrics.started(scene.b)
    scene.world.run(350)
    scene.metrics.output(scene.b, Trace("full"))
    scene.metrics.output(scene.b, Trace("full"))
    assert scene.metrics.joins == [Join("b:1", 250)], "full again, after having lost all, is no join"


def test_a_repair_lasts_from_the_first_pull_to_the_append(scene: Scene) -> None:
    scene.pull(1)
    scene.world.run(10)
    scene.pull(1)
    scene.world.run(25)
    scene.append(scene.b, 1)
    assert scene.metrics.repairs == []
    scene.append(scene.a, 1)
    scene.append(scene.a, 1)
    assert scene.metrics.repairs == [GapRepair(25, 14)]


def test_what_was_announced_is_no_repair(scene: Scene) -> None:
    scene.announce(1)
    scene.pull(1)
    scene.append(scene.a, 1)
    assert scene.metrics.repairs == []


def test_a_crash_ends_what_was_being_repaired(scene: Scene) -> None:
    scene.pull(1)
    scene.announce(2)
    scene.metrics.stopped(scene.a)
    scene.metrics.started(scene.a)
    scene.append(scene.a, 1)
    assert scene.metrics.repairs == []
    scene.pull(2)
    scene.append(scene.a, 2)
    assert scene.metrics.repairs == [GapRepair(0, 14)], "the announcement died with the node that heard it"


def test_answers_are_kept_by_request(scene: Scene) -> None:
    scene.metrics.output(scene.a, Published(1, (rows(1, 3),)))
    scene.metrics.output(scene.b, Refused(2, "not-ready", "try again"))
    assert scene.metrics.accepted == {1: ("a:1", (rows(1, 3),))}
    assert scene.metrics.refused == {2: "not-ready"}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, None),
        ([5], 1, 5),
        ([5], 99, 5),
        ([3, 1, 2], 50, 2),
        ([4, 3, 1, 2], 50, 2),
        (range(1, 101), 99, 99),
        (range(1, 201), 99, 198),
        (range(1, 11), 99, 10),
        (range(1, 11), 100, 10),
        (range(1, 11), 0, 1),
    ],
)
def test_percentile(values: list[int], percent: float, expected: int | None) -> None:
    assert percentile(values, percent) == expected
