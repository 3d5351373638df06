"""Streams whose origin is a neighbour: what it has not told yet is on its way, and is left to it for a while."""

from m4cast.overlay.protocol.holdings import ORIGIN_PATIENCE_MS
from tests.overlay.protocol.receiver import Receiver
from tests.overlay.protocol.stream_parts import chain, node_id


def test_what_the_origin_has_not_told_yet_is_not_asked_for_elsewhere() -> None:
    receiver = Receiver(links="ao")
    receiver.claim("a", 4)
    receiver.pass_time(ORIGIN_PATIENCE_MS - 1)
    assert receiver.pulls() == []
    receiver.receive(*chain(3), sender="o")
    receiver.pass_time(10 * ORIGIN_PATIENCE_MS)
    assert receiver.pulls() == []
    assert receiver.accepted() == [1, 2, 3]


def test_it_is_asked_for_elsewhere_when_nothing_came_for_a_while() -> None:
    receiver = Receiver(links="ao")
    receiver.claim("a", 4)
    receiver.pass_time(ORIGIN_PATIENCE_MS)
    assert receiver.pulls() == [("a", 1, 4)]


def test_patience_begins_again_with_every_batch() -> None:
    receiver = Receiver(links="ao")
    batches = chain(3)
    receiver.claim("a", 4)
    for batch in batches[:2]:
        receiver.pass_time(ORIGIN_PATIENCE_MS - 1)
        receiver.receive(batch, sender="o")
    receiver.pass_time(ORIGIN_PATIENCE_MS - 1)
    assert receiver.pulls() == []
    receiver.pass_time(1)
    assert receiver.pulls() == [("a", 3, 4)]


def test_a_batch_that_others_bring_sooner_is_no_gap_yet() -> None:
    receiver = Receiver(links="ao")
    batches = chain(3)
    receiver.receive(batches[2], sender="a")
    assert receiver.pulls() == []
    receiver.receive(*batches[:2], sender="o")
    assert receiver.accepted() == [1, 2, 3]


def test_what_the_origin_tells_without_sending_it_is_asked_for_at_once() -> None:
    receiver = Receiver(links="ao")
    receiver.claim("a", 6)
    receiver.claim("o", 4)
    assert receiver.pulls() == [("o", 1, 4)]


def test_when_the_origin_is_gone_others_are_asked_at_once() -> None:
    receiver = Receiver(links="ao")
    receiver.claim("o", 1)
    receiver.claim("a", 4)
    receiver.pulling.source_down(node_id("o"), receiver.now_ms)
    assert receiver.pulls() == [("a", 1, 4)]
