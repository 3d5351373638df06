"""Waiting that Ctrl-C ends at once. A call that waits in C, as those to nodes do, would keep Python from hearing of it:
such a call is made on another thread, and the main one waits for its result.

The system gives the signal to any thread of the process, also to one of gRPC's, and only the main one may act on it:
so that one never sleeps for longer than `LISTEN_S`.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

EXIT_CODE_INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""
LISTEN_S = 0.1
"""How late Ctrl-C may be heard. Lower: more wake-ups while nothing happens."""


def interruptible(call: Callable[[], T], timeout_s: float | None = None) -> T:
    """The result of the call, or its error. On Ctrl-C `KeyboardInterrupt`, after the time-out `TimeoutError`; the call
    goes on then, until the process ends at the latest."""
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
