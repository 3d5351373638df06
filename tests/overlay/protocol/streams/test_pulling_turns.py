"""Many streams to catch up with: each source has so many pulls to answer at a time, and the others wait their turn."""

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.streams.sources import PULLS_PER_SOURCE_MAX
from m4cast.overlay.protocol.streams.spreading import PULLS_WAITING_MAX
from m4cast.overlay.protocol.wire.messages import PullCall, PullResp
from tests.overlay.protocol.receiver import CONNS, NAMES, PULL_MS, Receiver
from tests.overlay.protocol.stream_parts import node_id, sends, stream_id, take

MANY = 2 * PULLS_PER_SOURCE_MAX + 5


def topic(number: int) -> StreamId:
    return stream_id("o", f"t{number}")


def show(receiver: Receiver, name: str, *numbers: int, next_sequence: int = 3) -> None:
    """A source tells of streams with these numbers, as in its holdings."""
    for number in numbers:
        stream = receiver.holdings.open(topic(number))
        stream.claim(node_id(name), 1, next_sequence)
        receiver.pulling.want(stream, node_id(name), receiver.now_ms)


def asked(receiver: Receiver) -> list[tuple[str, int, int]]:
    """The pulls since the last look: (from whom, number of the stream, first sequence)."""
    calls = sends(take(receiver.out), PullCall)
    return [(NAMES[conn], int(call.topic.removeprefix("t")), call.first_sequence) for conn, call in calls]


def answer(receiver: Receiver, name: str, number: int, first: int, served_next: int, next_sequence: int = 3) -> None:
    """The source answers; the batches came before (or not), this is only the end of them."""
    stream = receiver.holdings.open(topic(number))
    receiver.holdings.advance(stream, max(stream.next, served_next), 0)
    resp = PullResp(*topic(number), first, served_next, 1, next_sequence)
    receiver.pulling.answered(resp, node_id(name), receiver.now_ms)


def test_both_ends_of_a_connection_agree_on_what_is_too_much() -> None:
    """Answers on a link, and on the call of a holder that has become a neighbour, whose late answers free places
    here."""
    assert 2 * PULLS_PER_SOURCE_MAX <= PULLS_WAITING_MAX


def test_streams_beyond_the_limit_are_asked_for_in_order_as_answers_come() -> None:
    receiver = Receiver(links="a")
    show(receiver, "a", *range(MANY))
    begun = asked(receiver)
    assert begun == [("a", number, 1) for number in range(PULLS_PER_SOURCE_MAX)]
    for number in range(MANY):
        answer(receiver, "a", number, 1, 3)
        begun += asked(receiver)
        assert len(begun) <= number + 1 + PULLS_PER_SOURCE_MAX
    assert begun == [("a", number, 1) for number in range(MANY)], "each once, none forgotten"


def test_a_long_stream_does_not_keep_its_place_to_its_end() -> None:
    receiver = Receiver(links="a")
    show(receiver, "a", *range(PULLS_PER_SOURCE_MAX + 1), next_sequence=100)
    asked(receiver)
    answer(receiver, "a", 0, 1, 10, next_sequence=100)
    assert asked(receiver) == [("a", PULLS_PER_SOURCE_MAX, 1)]
    answer(receiver, "a", 1, 1, 10, next_sequence=100)
    assert asked(receiver) == [("a", 0, 10)], "its turn has come again"


def test_a_pull_that_expired_keeps_its_place_since_the_source_has_it_still() -> None:
    receiver = Receiver(links="a")
    show(receiver, "a", *range(MANY))
    assert len(asked(receiver)) == PULLS_PER_SOURCE_MAX
    receiver.pass_time(20 * PULL_MS)
    assert asked(receiver) == []
    answer(receiver, "a", 0, 1, 1)
    assert len(asked(receiver)) == 1


def test_whoever_could_serve_a_stream_and_has_answered_enough_first_is_asked() -> None:
    receiver = Receiver(links="ab")
    show(receiver, "a", *range(PULLS_PER_SOURCE_MAX))
    show(receiver, "b", *range(100, 100 + PULLS_PER_SOURCE_MAX))
    show(receiver, "a", 50)
    show(receiver, "b", 50)
    asked(receiver)
    answer(receiver, "b", 101, 1, 3)
    assert asked(receiver) == [("b", 50, 1)]
    answer(receiver, "a", 1, 1, 3)
    assert asked(receiver) == [], "once"


def test_a_source_with_places_left_is_asked_at_once() -> None:
    receiver = Receiver(links="ab")
    show(receiver, "a", *range(PULLS_PER_SOURCE_MAX + 1))
    asked(receiver)
    show(receiver, "b", PULLS_PER_SOURCE_MAX)
    assert asked(receiver) == [("b", PULLS_PER_SOURCE_MAX, 1)]


def test_what_waits_for_a_source_that_goes_is_asked_for_elsewhere() -> None:
    receiver = Receiver(links="ab")
    for name in "ab":
        show(receiver, name, *range(MANY))
    asked(receiver)
    receiver.pulling.source_down(node_id("a"), receiver.now_ms)
    done: list[int] = []
    while len(done) < MANY:
        number = next(iter(number for number in range(MANY) if number not in done and is_asked(receiver, number)))
        answer(receiver, "b", number, 1, 3)
        done.append(number)
    assert all(receiver.holdings.open(topic(number)).next == 3 for number in range(MANY))


def is_asked(receiver: Receiver, number: int) -> bool:
    pulls = receiver.backlogs.of(topic(number)).pulls.values()
    return any(pull.source == node_id("b") for pull in pulls)


def test_another_connection_to_the_same_node_begins_with_all_places() -> None:
    receiver = Receiver(links="a")
    show(receiver, "a", *range(MANY))
    asked(receiver)
    receiver.sources.up(node_id("a"), CONNS["c"])
    show(receiver, "a", MANY)
    assert asked(receiver) == [("c", MANY, 1)]


def test_answers_that_nobody_waits_for_free_no_places() -> None:
    receiver = Receiver(links="a")
    for _ in range(5):
        answer(receiver, "a", 0, 1, 1, next_sequence=1)
    show(receiver, "a", *range(1, MANY))
    assert len(asked(receiver)) == PULLS_PER_SOURCE_MAX


def test_who_failed_before_is_asked_again_while_the_other_is_busy() -> None:
    receiver = Receiver(links="ab")
    show(receiver, "b", *range(100, 100 + PULLS_PER_SOURCE_MAX))
    show(receiver, "a", 1)
    receiver.pass_time(PULL_MS // 2)
    asked(receiver)
    show(receiver, "b", 1)
    answer(receiver, "a", 1, 1, 1)  # it served nothing, and b has no place
    assert asked(receiver) == []
    receiver.pass_time(PULL_MS // 2)
    assert ("a", 1, 1) in asked(receiver)
