"""Room and calls: what one client may take while others wait."""

import threading
from collections.abc import Callable

import pytest

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.room import Calls, Room

WAIT_S = 30


def stays() -> bool:
    return False


class Taking:
    """A client that waits for room on a thread of its own."""

    def __init__(self, room: Room, client: str, size: int, is_cancelled: Callable[[], bool] = stays) -> None:
        self.refusal: Refusal | None = None
        self._room, self._client, self._size, self._is_cancelled = room, client, size, is_cancelled
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._room.take(self._client, self._size, WAIT_S, self._is_cancelled)
        except Refusal as refusal:
            self.refusal = refusal

    def until_waiting(self) -> None:
        while not self._room._waiting[self._client]:
            assert self._thread.is_alive()

    def done(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def take(room: Room, client: str, size: int) -> bool:
    """Whether there is room at once."""
    try:
        room.take(client, size, 0, stays)
    except Refusal as refusal:
        return refusal.code != "busy"
    return True


def test_one_client_alone_may_take_all_of_it_and_not_more() -> None:
    room = Room(100)
    assert take(room, "a", 60)
    assert take(room, "a", 40)
    assert not take(room, "a", 1)
    room.give_back("a", 40)
    assert take(room, "a", 1)


def test_one_that_is_larger_than_all_of_it_gets_it_alone() -> None:
    room = Room(100)
    assert take(room, "a", 500)
    assert not take(room, "b", 1)
    room.give_back("a", 500)
    assert take(room, "b", 1)
    assert not take(room, "a", 500)


def test_while_another_waits_a_client_is_held_to_half() -> None:
    room = Room(100)
    assert take(room, "greedy", 60) and take(room, "greedy", 30)
    other = Taking(room, "other", 45)
    other.until_waiting()
    room.give_back("greedy", 30)
    assert not take(room, "greedy", 5), "there would be room, but it has more than half"
    room.give_back("greedy", 60)
    other.done()
    assert take(room, "greedy", 55), "nobody waits any more"


def test_whoever_is_gone_does_not_wait() -> None:
    room = Room(100)
    assert take(room, "a", 100)
    other = Taking(room, "b", 1, is_cancelled=lambda: True)
    other.done()
    assert other.refusal is not None and other.refusal.code == "cancelled"


def test_calls_of_each_client_are_limited() -> None:
    calls = Calls(2)
    calls.begin("a")
    with calls.admitted("a"):
        with pytest.raises(Refusal, match="a has 2 calls open"):
            calls.begin("a")
        calls.begin("b")
    calls.begin("a")
