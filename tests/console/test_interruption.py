"""Calls that wait where Python cannot hear Ctrl-C."""

import signal
import threading
from collections.abc import Iterator

import pytest

from m4cast.console.interruption import interruptible

TIMEOUT_S = 10


def test_a_call_gives_its_result_or_its_error() -> None:
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


@pytest.fixture
def _pythons_own_ctrl_c() -> Iterator[None]:
    """Tests before this one may have left another handler, or none: Spark has one of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_pythons_own_ctrl_c")
@pytest.mark.parametrize("by_another", [False, True])
def test_ctrl_c_is_heard_though_the_call_does_not_end(by_another: bool) -> None:
    """The system gives the signal to any thread, and that need not be the one which waits."""
    waits, never, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        waits.set()
        never.wait(TIMEOUT_S)
        ended.set()

    def press() -> None:
        waits.wait()
        signal.pthread_kill(threading.get_ident() if by_another else threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(call)
    assert not ended.is_set(), "it was heard before the call ended"
    never.set()


def test_an_expired_call_fails_at_once() -> None:
    def call() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        interruptible(call)


def test_a_call_is_waited_for_within_its_limit() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        interruptible(never.wait, 0.01)
    never.set()
