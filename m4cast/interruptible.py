"""Waiting that Ctrl-C ends at once. A call that waits in C, as those to nodes do, would keep Python from hearing of it:
such a call is made on another thread, and the main one waits for its result."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

EXIT_CODE_INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""


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
    return future.result(timeout_s)
