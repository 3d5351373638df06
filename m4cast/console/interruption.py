"""Waiting that Ctrl-C ends at once.

A call that blocks in C, as calls to nodes do, keeps Python from handling the signal. Such a call is made on another
thread while the main thread waits for its result. The system may deliver the signal to any thread of the process,
including gRPC's, but only the main thread can act on it; so that thread never sleeps longer than `LISTEN_S`.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

LISTEN_S = 0.1
"""Longest delay before Ctrl-C is handled. Lower: more wake-ups while nothing happens."""


def interruptible(call: Callable[[], T], timeout_s: float | None = None) -> T:
    """The result of the call, or its error. Raises `KeyboardInterrupt` on Ctrl-C and `TimeoutError` after the time-out;
    the call then continues in the background until it returns or the process ends."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="m4cast-call", daemon=True).start()
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while not wait((future,), min(LISTEN_S, max(deadline - time.monotonic(), 0))).done:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not done after {timeout_s:g} s")
    return future.result()
