"""Acknowledgements to clients, and the threads that send them: reused, limited in number, gone with the door."""

import json
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from m4cast.overlay.door.node_handle import NodeRequest
from m4cast.overlay.door.publish import acks
from m4cast.overlay.door.publish.acks import AckStream, AckThreads
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.protocol.effects import Published, Range
from tests.overlay.protocol.stream_parts import stream_id

WAIT_S = 30


def test_a_thread_is_used_again_also_after_a_mistake() -> None:
    threads = AckThreads()
    seen: SimpleQueue[threading.Thread] = SimpleQueue()

    def told(*, fails: bool = False) -> threading.Thread:
        def task() -> None:
            seen.put(threading.current_thread())
            if fails:
                raise ValueError("of the task's own")

        threads.run(task)
        thread = seen.get(timeout=WAIT_S)
        until_idle(threads, 1)
        return thread

    first = told()
    assert told(fails=True) is first
    assert told() is first
    threads.close()
    first.join(WAIT_S)
    assert not first.is_alive()


def test_those_beyond_the_limit_and_those_of_a_closed_door_end_when_they_are_done() -> None:
    threads = AckThreads()
    go = threading.Event()
    seen: SimpleQueue[threading.Thread] = SimpleQueue()

    def task() -> None:
        seen.put(threading.current_thread())
        go.wait(WAIT_S)

    for _ in range(acks.IDLE_MAX + 1):
        threads.run(task)
    started = [seen.get(timeout=WAIT_S) for _ in range(acks.IDLE_MAX + 1)]
    assert len(set(started)) == acks.IDLE_MAX + 1, "each call that is under way has its own"
    go.set()
    until_idle(threads, acks.IDLE_MAX)
    threads.run(task)
    seen.get(timeout=WAIT_S)
    threads.close()
    for thread in started:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in started)


def until_idle(threads: AckThreads, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while threads._idle < count:
        assert time.monotonic() < deadline, "it did not come about"
        threading.Event().wait(0.001)


def test_rows_after_refused_ones_are_not_acknowledged() -> None:
    told: SimpleQueue[bytes] = SimpleQueue()

    class Writer:
        def write(self, message: bytes) -> None:
            told.put(message)

    class Later(AckThreads):
        """They begin when all is said: the thread is late."""

        def run(self, task: Callable[[], None]) -> None:
            tasks.append(task)

    tasks: list[Callable[[], None]] = []
    given_up: list[Callable[[], object]] = []
    stream = AckStream(Writer(), WAIT_S, lambda: False, Later())
    stream.fail(Refusal("too-large", "the first rows"))
    behind = NodeRequest(given_up.append, holders=1)
    stream.add(behind, 1)
    behind.answer.set_result(Published(1, (Range(stream_id(), 1, 2),)))
    (task,) = tasks
    task()
    assert json.loads(told.get_nowait()) == {"error": {"code": "too-large", "detail": "the first rows"}}
    assert told.empty()
    assert stream.rows == 0
    assert len(given_up) == 1


def test_rows_that_were_sent_before_refused_ones_are_acknowledged_before_the_error() -> None:
    told: list[dict[str, object]] = []

    class Writer:
        def write(self, message: bytes) -> None:
            told.append(json.loads(message))

    first, second = (NodeRequest(lambda later: None, holders=1) for _ in range(2))
    answers = [first, second]

    def is_cancelled() -> bool:
        """Asked when the thread has nothing to do but to wait: only then the next answer comes."""
        number = 3 - len(answers)
        answers.pop(0).answer.set_result(Published(number, (Range(stream_id(), number, number + 1),)))
        return False

    stream = AckStream(Writer(), WAIT_S, is_cancelled, AckThreads())
    stream.add(first, 1)
    stream.add(second, 1)
    stream.fail(Refusal("bad-rows", "the third row"))
    stream.finish()
    assert [message.get("rows") for message in told] == [1, 2, None]
    assert told[-1] == {"error": {"code": "bad-rows", "detail": "the third row"}}
    assert stream.rows == 2
