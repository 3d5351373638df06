"""The window of selective topics: a destination that does not acknowledge slows publishers down, for a while (H19)."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.publishing.acks import PATIENCE_MS
from m4cast.overlay.protocol.publishing.window import DestinationWindow
from m4cast.overlay.protocol.wire.batch import Batch

ME, FAR, OTHER = (NodeId(bytes([number]) * 16) for number in (1, 2, 3))


def batch(first: int, size: int = 100, topic: str = "orders") -> Batch:
    return Batch(StreamId(ME, topic), 1, first, 1, first, 1, 0, "", "", 0, 1, 0, bytes(size))


def test_the_window_is_full_at_its_size_and_not_before() -> None:
    window = DestinationWindow(200)
    window.sent(batch(1), [FAR, OTHER], 0)
    assert window.has_room(0) and window.bytes() == 100
    window.sent(batch(2), [FAR], 0)
    assert not window.has_room(0)
    window.acked(FAR, {"orders": 2}, 0)
    assert window.has_room(0) and window.bytes() == 100
    window.acked(FAR, {"orders": 3}, 0)
    window.acked(OTHER, {"orders": 3}, 0)
    assert window.bytes() == 0


def test_an_acknowledgement_of_one_topic_says_nothing_of_another() -> None:
    window = DestinationWindow(100)
    window.sent(batch(1, topic="news"), [FAR], 0)
    window.acked(FAR, {"orders": 9}, 0)
    assert not window.has_room(0)


def test_a_destination_without_progress_leaves_the_window_and_rejoins_when_it_has_caught_up() -> None:
    window = DestinationWindow(200)
    for first in (1, 2):
        window.sent(batch(first), [FAR], 0)
    assert not window.has_room(PATIENCE_MS)
    assert window.has_room(PATIENCE_MS + 1)
    for first in (3, 4, 5):
        window.sent(batch(first), [FAR], PATIENCE_MS + 1)
    assert window.has_room(PATIENCE_MS + 1), "it does not count"
    window.acked(FAR, {"orders": 6}, PATIENCE_MS + 1)
    for first in (6, 7):
        window.sent(batch(first), [FAR], PATIENCE_MS + 1)
    assert not window.has_room(PATIENCE_MS + 1), "it counts again"


def test_a_destination_that_is_gone_does_not_count() -> None:
    window = DestinationWindow(100)
    window.sent(batch(1), [FAR], 0)
    window.gone(FAR)
    assert window.has_room(0)
