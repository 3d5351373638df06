"""Calls that wait where Python cannot hear Ctrl-C."""

import signal
import threading

import pytest

from m4cast.interruptible import interruptible


def test_a_call_gives_its_result_or_its_error() -> None:
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_ctrl_c_is_heard_though_the_call_never_ends() -> None:
    waits, never = threading.Event(), threading.Event()

    def call() -> None:
        waits.set()
        never.wait()

    def press() -> None:
        waits.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(call)
    never.set()


def test_a_call_is_not_waited_for_longer_than_is_said() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        interruptible(never.wait, 0.01)
    never.set()
