"""Threads that tell clients what is safe: used again, kept within a limit, gone when the door closes."""

import threading
import time
from queue import SimpleQueue

from m4cast.overlay.door import acks
from m4cast.overlay.door.acks import Tellers

WAIT_S = 30


def test_a_thread_is_used_again_also_after_a_mistake() -> None:
    tellers = Tellers()
    seen: SimpleQueue[threading.Thread] = SimpleQueue()

    def told(*, fails: bool = False) -> threading.Thread:
        def task() -> None:
            seen.put(threading.current_thread())
            if fails:
                raise ValueError("of the task's own")

        tellers.run(task)
        thread = seen.get(timeout=WAIT_S)
        until_idle(tellers, 1)
        return thread

    first = told()
    assert told(fails=True) is first
    assert told() is first
    tellers.close()
    first.join(WAIT_S)
    assert not first.is_alive()


def test_those_beyond_the_limit_and_those_of_a_closed_door_end_when_they_are_done() -> None:
    tellers = Tellers()
    go = threading.Event()
    seen: SimpleQueue[threading.Thread] = SimpleQueue()

    def task() -> None:
        seen.put(threading.current_thread())
        go.wait(WAIT_S)

    for _ in range(acks.IDLE_MAX + 1):
        tellers.run(task)
    threads = [seen.get(timeout=WAIT_S) for _ in range(acks.IDLE_MAX + 1)]
    assert len(set(threads)) == acks.IDLE_MAX + 1, "each call that is under way has its own"
    go.set()
    until_idle(tellers, acks.IDLE_MAX)
    tellers.run(task)
    seen.get(timeout=WAIT_S)
    tellers.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)


def until_idle(tellers: Tellers, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while tellers._idle < count:
        assert time.monotonic() < deadline, "it did not come about"
        threading.Event().wait(0.001)
