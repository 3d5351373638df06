"""Workers: the threads of the web door. Whatever may take longer than a moment runs there, never on the node's loop.

One client uses at most half of the threads, and what it has waiting is limited: others are served meanwhile (guarantee
7). A client that disconnects does not stop its work in progress, so it keeps its thread until that is done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from m4cast.overlay.door.refusals import Refusal, stopping

T = TypeVar("T")


@dataclass(slots=True)
class _Share:
    free: asyncio.Semaphore
    users: int = 0
    """Its work in progress and waiting."""


class Workers:
    """Used on the loop."""

    def __init__(self, threads: int, waiting_max: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._each = max(threads // 2, 1)
        self._waiting_max = waiting_max
        self._shares: dict[str, _Share] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self, client: str, work: Callable[[], T], *, is_limited: bool = True) -> T:
        """Do it on a thread. Not limited: whoever asks is limited in another way, and rather waits than is refused."""
        share = self._shares.setdefault(client, _Share(asyncio.Semaphore(self._each)))
        if is_limited and share.users >= self._waiting_max:
            raise Refusal("busy", f"{client} has {share.users} requests in progress at this node: end some first")
        share.users += 1
        try:
            await share.free.acquire()
        except BaseException:
            self._done(client, share, is_running=False)
            raise
        try:
            future = self._threads.submit(work)
        except RuntimeError:
            self._done(client, share, is_running=True)
            raise stopping() from None
        future.add_done_callback(lambda ended: self._ended(client, share, ended))
        return await asyncio.wrap_future(future)

    def later(self, work: Callable[[], object]) -> None:
        """Do it at some time. Nobody waits for it."""
        with suppress(RuntimeError):  # closed: the node stops
            self._threads.submit(work)

    def close(self) -> None:
        """Take no more work. What is in progress ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, client: str, share: _Share, future: "Future[T]") -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self._done(client, share, is_running=True))

    def _done(self, client: str, share: _Share, *, is_running: bool) -> None:
        if is_running:
            share.free.release()
        share.users -= 1
        if not share.users:
            self._shares.pop(client, None)
