"""The window of selective topics: a destination that does not acknowledge slows publishers down, for a while (H19)."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.publishing.window import PATIENCE_MS, DestinationWindow
from m4cast.overlay.protocol.wire.batch import Batch

ME, FAR, OTHER = (NodeId(bytes([number]) * 16) for number in (1, 2, 3))


def batch(first: int, size: int = 100, topic: str = "orders") -> Batch:
    return Batch(StreamId(ME, topic), 1, first, 1, first, 1, 0, "", "", 0, 1, 0, bytes(size))


def test_the_window_is_full_at_its_size_and_not_before() -> None:
    far = DestinationWindow(200)
    far.sent(batch(1), [FAR, OTHER], 0)
    assert far.window.has_room(0) and far.window.bytes() == 100
    far.sent(batch(2), [FAR], 0)
    assert not far.window.has_room(0)
    far.acked(FAR, {"orders": 2}, 0)
    assert far.window.has_room(0) and far.window.bytes() == 100
    far.acked(FAR, {"orders": 3}, 0)
    far.acked(OTHER, {"orders": 3}, 0)
    assert far.window.bytes() == 0


def test_an_acknowledgement_of_one_topic_says_nothing_of_another() -> None:
    far = DestinationWindow(100)
    far.sent(batch(1, topic="news"), [FAR], 0)
    far.acked(FAR, {"orders": 9}, 0)
    assert not far.window.has_room(0)


def test_a_destination_without_progress_leaves_the_window_and_rejoins_when_it_has_caught_up() -> None:
    far = DestinationWindow(200)
    for first in (1, 2):
        far.sent(batch(first), [FAR], 0)
    assert not far.window.has_room(PATIENCE_MS)
    assert far.window.has_room(PATIENCE_MS + 1)
    for first in (3, 4, 5):
        far.sent(batch(first), [FAR], PATIENCE_MS + 1)
    assert far.window.has_room(PATIENCE_MS + 1), "it does not count"
    far.acked(FAR, {"orders": 6}, PATIENCE_MS + 1)
    for first in (6, 7):
        far.sent(batch(first), [FAR], PATIENCE_MS + 1)
    assert not far.window.has_room(PATIENCE_MS + 1), "it counts again"


def test_what_a_destination_wants_no_longer_neither_fills_the_window_nor_keeps_it_out() -> None:
    far = DestinationWindow(100)
    far.sent(batch(1), [FAR], 0)
    assert not far.window.has_room(0)
    far.wants(FAR, ("news",))
    assert far.window.has_room(0)
    far.sent(batch(2), [FAR], 0)
    assert far.window.has_room(PATIENCE_MS + 1), "it leaves the window"
    far.wants(FAR, ("news",))
    far.sent(batch(1, topic="news"), [FAR], PATIENCE_MS + 1)
    assert not far.window.has_room(PATIENCE_MS + 1), "it counts again"


def test_a_destination_that_is_gone_does_not_count() -> None:
    far = DestinationWindow(100)
    far.sent(batch(1), [FAR], 0)
    far.gone(FAR)
    assert far.window.has_room(0)
