"""The node handle: any thread sends requests to the node's loop and receives answers as futures."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.refusals import Refusal, gone, stopping
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.driver import Answer, Driver, Request
from m4cast.overlay.protocol.effects import (
    Abort,
    Disown,
    Drain,
    Leave,
    Published,
    Refused,
    Shutdown,
    Trimmed,
)
from m4cast.overlay.protocol.node import Node

T = TypeVar("T")


class NodeRequest:
    """A request to the node and its answer, shared by one or more calls."""

    def __init__(self, later: Callable[[Callable[[], object]], None], holders: int) -> None:
        self.answer: Future[Answer] = Future()
        self._later = later
        self._holders = holders
        self._lock = threading.Lock()
        self._inner: asyncio.Future[Answer] | None = None

    def begin(self, inner: "asyncio.Future[Answer]") -> None:
        """Runs on the loop."""
        self._inner = inner
        inner.add_done_callback(self._end)

    def _end(self, inner: "asyncio.Future[Answer]") -> None:
        if inner.cancelled():
            self.stopped()
        else:
            self.answer.set_result(inner.result())

    def stopped(self) -> None:
        """There will be no answer. (`wait` does not return for a future that is only cancelled.)"""
        self.answer.set_exception(stopping())

    def give_up(self) -> None:
        """One of the calls no longer waits. When none does, the node drops the request."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        with suppress(Refusal):  # the loop is closed, and the request with it
            self._later(lambda: self._inner is not None and self._inner.cancel())


class NodeHandle:
    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop

    def request(self, make: Callable[[int], Request], holders: int = 1) -> NodeRequest:
        asked = NodeRequest(self.later, holders)

        def begin() -> None:
            if self._driver.stopped.is_set():
                asked.stopped()
            else:
                asked.begin(self._driver.request(make))

        self.later(begin)
        return asked

    def request_here(self, make: Callable[[int], Request]) -> "asyncio.Future[Answer]":
        """The same for whoever is on the loop already."""
        if self.is_stopped:
            raise stopping()
        return self._driver.request(make)

    @property
    def is_stopped(self) -> bool:
        return self._driver.stopping

    def notify(self, what: Abort | Disown | Drain | Leave | Shutdown | Trimmed) -> None:
        """Send what has no answer."""
        self.later(lambda: self._driver.feed(what))

    @property
    def channel_name(self) -> str:
        return self._driver.channel_name

    def now_ms(self) -> int:
        """The node's monotonic time."""
        return self._driver.clock.now_ms()

    def clock_ms(self) -> int:
        """Wall-clock time, with which rows and leases are stamped."""
        return self._driver.clock.wall_ms()

    def count_refusal(self, refusal: Refusal) -> None:
        """Count a client that lacks a right or a token."""
        with suppress(Refusal):  # the node stops, and its counters with it
            self.later(lambda: self._driver.refusals.add(refusal.code, refusal.detail))

    def now(self, at: Callable[[Node], T]) -> T:
        """The same as `look`, for those who are on the loop."""
        return at(self._driver.node)

    def units(self, timeout_s: float) -> dict[str, Any]:
        """Return the report of the gatekeeper beside the node; empty if there is none."""
        return self.look(lambda _: self._driver.network.federation(), timeout_s)

    def trace(self, stream: StreamId, sequence: int, timeout_s: float) -> dict[str, Any] | None:
        """Return the way of a row, from the gatekeeper beside the node; None if there is none."""
        found: Future[dict[str, Any] | None] = Future()

        def begin() -> None:
            ask = self._driver.network.trace
            if ask is None:
                found.set_result(None)
            else:
                ask(stream, sequence, found.set_result)

        self.later(begin)
        try:
            return found.result(timeout_s)
        except TimeoutError:
            raise Refusal("busy", f"gatekeepers did not answer within {timeout_s:g} s: repeat it later") from None

    def look(self, at: Callable[[Node], T], timeout_s: float) -> T:
        """The function's result, computed from the node on its loop."""
        found: Future[T] = Future()

        def begin() -> None:
            try:
                found.set_result(at(self._driver.node))
            except Exception as error:
                found.set_exception(error)

        self.later(begin)
        try:
            return found.result(timeout_s)
        except TimeoutError:
            raise Refusal("busy", f"the node's loop did not run this within {timeout_s:g} s: repeat it later") from None

    def after(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call it on the loop after this long. Used on the loop."""
        self._loop.call_later(delay_s, function)

    def later(self, function: Callable[[], object]) -> None:
        """Call it on the loop."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            raise stopping() from None


def answered(asked: NodeRequest, timeout_s: float, is_cancelled: Callable[[], bool]) -> Published | None:
    """Wait for an answer. None: it is done, without ranges. After a refusal the request is given up."""
    answer = waited(asked, timeout_s, is_cancelled)
    return answer if isinstance(answer, Published) else None


def waited(asked: NodeRequest, timeout_s: float, is_cancelled: Callable[[], bool]) -> Answer:
    """Wait for an answer of any kind. A refusal is raised."""
    deadline = time.monotonic() + timeout_s
    while not is_cancelled():
        left_s = deadline - time.monotonic()
        done, _ = wait((asked.answer,), max(min(left_s, LOOK_S), 0))
        if done:
            answer = asked.answer.result(0)
            if isinstance(answer, Refused):
                raise Refusal(answer.code, answer.detail)
            return answer
        if left_s <= LOOK_S:
            asked.give_up()
            raise timed_out(timeout_s)
    asked.give_up()
    raise gone()


def answer_of(asked: NodeRequest) -> Published | None:
    """The answer of a request that is done."""
    answer = asked.answer.result(0)
    if isinstance(answer, Refused):
        raise Refusal(answer.code, answer.detail)
    return answer if isinstance(answer, Published) else None


def until_written(written: "Future[T]", timeout_s: float) -> T:
    """Wait for the store's writer."""
    try:
        return written.result(timeout_s)
    except TimeoutError:
        raise Refusal("busy", f"the store did not write this within {timeout_s:g} s: repeat it later") from None


def timed_out(timeout_s: float) -> Refusal:
    detail = (
        f"no answer within {timeout_s:g} s (too few nodes for the acks?). It may still be published: repeat it with "
        "the same key and positions, or look for the rows"
    )
    return Refusal("timeout", detail)
