"""The node, asked from any thread: requests go to its loop, answers come back as futures."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.net.driver import Answer, Driver
from m4cast.overlay.protocol.effects import Abort, Commit, Publish, Published, Refused, Stage, Trimmed
from m4cast.overlay.protocol.node import Node

T = TypeVar("T")


class Asking:
    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop

    def request(self, make: Callable[[int], Publish | Commit | Stage]) -> "Future[Answer]":
        answer: Future[Answer] = Future()

        def begin() -> None:
            if self._driver.stopped.is_set():
                answer.cancel()
            else:
                self._driver.request(make).add_done_callback(end)

        def end(inner: "asyncio.Future[Answer]") -> None:
            if inner.cancelled():
                answer.cancel()
            else:
                answer.set_result(inner.result())

        self._later(begin)
        return answer

    def tell(self, what: Abort | Trimmed) -> None:
        """What has no answer."""
        self._later(lambda: self._driver.feed(what))

    def now_ms(self) -> int:
        """The node's clock, by which it keeps rows and leases."""
        return self._driver.now_ms()

    def look(self, at: Callable[[Node], T], timeout_s: float) -> T:
        """What the function finds, looking at the node on its loop."""
        found: Future[T] = Future()

        def begin() -> None:
            try:
                found.set_result(at(self._driver.node))
            except Exception as error:
                found.set_exception(error)

        self._later(begin)
        try:
            return found.result(timeout_s)
        except TimeoutError:
            raise Refusal("busy", f"the node did not turn to this within {timeout_s:g} s: try again") from None

    def _later(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            raise stopping() from None


def answered(answer: "Future[Answer]", timeout_s: float) -> Published | None:
    """Wait for an answer; None is one that says only that it is done."""
    try:
        said = answer.result(timeout_s)
    except TimeoutError:
        raise timed_out(timeout_s) from None
    except CancelledError:
        raise stopping() from None
    if isinstance(said, Refused):
        raise Refusal(said.code, said.detail)
    return said if isinstance(said, Published) else None


def kept(written: "Future[T]", timeout_s: float) -> T:
    """Wait for the store's writer."""
    try:
        return written.result(timeout_s)
    except TimeoutError:
        raise Refusal("busy", f"the store did not turn to this within {timeout_s:g} s: try again") from None


def stopping() -> Refusal:
    return Refusal("stopping", "this node stops: ask another one, or again when it is back")


def timed_out(timeout_s: float) -> Refusal:
    detail = (
        f"no answer within {timeout_s:g} s (too few nodes for the acks?). It may be published yet: ask again with "
        "the same key and positions, or look for the rows"
    )
    return Refusal("timeout", detail)
