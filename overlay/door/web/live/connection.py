"""`/live`: publish and subscribe on one WebSocket, with cumulative acknowledgements, credits and positions.

A connection has one reader, which is the handler itself, and tasks: one sends publishes, in the order in which they
came, all that have gathered at a time; one reports their outcomes, in the same order; and one for each subscription
(`RowFollower`). Nothing waits on a thread, except publishes with a key and large ones.

Flow control: at most `window_frames` publishes are unanswered, then the connection is not read; a subscription sends
one frame for each credit, and reads no further when it has none. A client that takes nothing for `taking_ms` is cut
off.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web

from m4cast.overlay.door.fields import ranges_json
from m4cast.overlay.door.http.connections import connection_of
from m4cast.overlay.door.quotas import CallQuota
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.web.bodies import rows_of
from m4cast.overlay.door.web.calls import NeverRaised, WebCall
from m4cast.overlay.door.web.follower import Bell, RowFollower
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live.messages import (
    CREDIT_MAX,
    LiveCredit,
    LivePublish,
    LiveRefused,
    LiveSubscribe,
    LiveUnsubscribe,
    acked,
    message_of,
    refusal_message,
    row_frames,
    subscribed,
)
from m4cast.overlay.door.web.positions import position_text
from m4cast.overlay.door.web.posts import FewRows, Sent, answered, send
from m4cast.overlay.door.web.query import Query
from m4cast.overlay.door.web.reads import filtered

INLINE_BYTES = 8 << 10
"""Frames of up to this size are parsed on the loop: it takes less time than a thread."""
SUBSCRIPTIONS_MAX = 64
Publish = LivePublish | LiveRefused
Outcome = Sent | FewRows | Refusal
CLOSE_S = 2.0
VIOLATION = 1008
GOING_AWAY = 1001


async def live(
    request: web.Request, call: WebCall, bell: Bell, streams: CallQuota, limits: WebLimits
) -> web.StreamResponse:
    call.check(lambda: Query(request, "live"))
    streams.begin(call.caller.name)
    try:
        socket = web.WebSocketResponse(
            timeout=CLOSE_S, heartbeat=limits.ping_ms / 1000, max_msg_size=limits.frame_bytes_max, compress=False
        )
        if not socket.can_prepare(request).ok:
            raise bad_request("this is no WebSocket handshake: send Upgrade: websocket, as WebSocket clients do")
        connection_of(request).is_upgraded = True
        await socket.prepare(request)
        await LiveConnection(call, socket, bell, limits).serve()
        return socket
    finally:
        call.ended()
        streams.end(call.caller.name)


class LiveSubscription:
    """The credit of a subscription: how many more frames its client wants."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._added = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def add(self, frames: int) -> None:
        self._credit = min(self._credit + frames, CREDIT_MAX)
        self._added.set()

    async def take(self) -> None:
        """Use one. Only the subscription's own task does."""
        while not self._credit:
            self._added.clear()
            await self._added.wait()
        self._credit -= 1


class LiveConnection:
    def __init__(self, call: WebCall, socket: web.WebSocketResponse, bell: Bell, limits: WebLimits) -> None:
        self._call = call
        self._socket = socket
        self._bell = bell
        self._limits = limits
        self._timeout_s = call.services.timeout_s
        self._window = asyncio.Semaphore(limits.window_frames)
        self._last_id = 0
        self._publishes: deque[Publish] = deque()
        self._arrived = asyncio.Event()
        self._outcomes: asyncio.Queue[tuple[list[Publish], Outcome]] = asyncio.Queue()
        self._subscriptions: dict[str, LiveSubscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._start(self._send_publishes())
        self._start(self._report())
        self._start(self._end_with_the_door())
        try:
            async for message in self._socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                try:
                    await self._receive(message.data)
                except Refusal as refusal:
                    await self._say(refusal_message(refusal, None))
                    await self._socket.close(code=VIOLATION, message=refusal.code.encode())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._give_up()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Without one of its tasks a connection is of no use."""
        try:
            await work
        except (ConnectionError, TimeoutError, RuntimeError):
            await self._socket.close(code=GOING_AWAY)

    async def _end_with_the_door(self) -> None:
        await self._bell.closed.wait()
        await self._socket.close(code=GOING_AWAY)

    async def _say(self, frame: str | bytes) -> None:
        async with asyncio.timeout(self._limits.taking_ms / 1000):
            if isinstance(frame, str):
                await self._socket.send_str(frame)
            else:
                await self._socket.send_bytes(frame)

    # ---- from the client

    async def _receive(self, frame: str | bytes) -> None:
        if len(frame) <= INLINE_BYTES:
            message = self._call.check(lambda: message_of(frame))
        else:
            message = await self._call.run(lambda: message_of(frame))
        match message:
            case LivePublish(number) | LiveRefused(int(number)):
                if number <= self._last_id:
                    raise bad_request(f"publish {number} follows {self._last_id}: ids must rise")
                self._last_id = number
                await self._window.acquire()
                self._publishes.append(message)
                self._arrived.set()
            case LiveRefused(name, refusal):
                await self._say(refusal_message(refusal, name))
            case LiveSubscribe():
                self._subscribe(message)
            case LiveCredit(name, frames):
                if name in self._subscriptions:
                    self._subscriptions[name].add(frames)
            case LiveUnsubscribe(name):
                ended = self._subscriptions.pop(name, None)
                if ended is not None and ended.task is not None:
                    ended.task.cancel()

    # ---- publishing

    async def _send_publishes(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            gathered = list(self._publishes)
            self._publishes.clear()
            if not gathered:
                continue
            try:
                sent = await self._call.run(lambda gathered=gathered: self._send_all(gathered))  # type: ignore[misc]
            except Refusal as refusal:  # there is no thread for it
                sent = [([publish], refusal) for publish in gathered]
            for publishes, outcome in sent:
                self._outcomes.put_nowait((publishes, outcome))

    def _send_all(self, gathered: list[Publish]) -> list[tuple[list[Publish], Outcome]]:
        """On a thread. Publishes that follow each other and can be one batch are sent as one; if that is refused, each
        is sent by itself, so that each has its own outcome."""
        sent: list[tuple[list[Publish], Outcome]] = []
        for together in _joined(gathered):
            outcome = self._send(together)
            if isinstance(outcome, Refusal) and len(together) > 1:
                sent += [([publish], self._send([publish])) for publish in together]
            else:
                sent.append((together, outcome))
        return sent

    def _send(self, publishes: list[Publish]) -> Outcome:
        first = publishes[0]
        if isinstance(first, LiveRefused):
            return first.refusal
        call, put = self._call, first.put
        body = b"\n".join(each.body for each in publishes if isinstance(each, LivePublish))

        def work() -> Sent | FewRows:
            call.caller.rights.require_topics("publish", (put.topic,))
            headers = {"Content-Type": first.content_type}
            read = rows_of(body, headers, lambda: call.services.publishing.known_columns(put.topic))
            return send(call, put, read)

        try:
            return call.services.answer(call.name, work, NeverRaised)
        except Refusal as refusal:
            return refusal

    async def _report(self) -> None:
        """Outcomes in the order of the publishes; those that are known together in one message."""
        done: list[tuple[int | str, list[Any]]] = []
        while True:
            publishes, outcome = await self._outcomes.get()
            try:
                done += _shares(publishes, await self._ranges(publishes[0], outcome))
            except Refusal as refusal:
                if done:
                    await self._say(acked(done))
                    done = []
                for publish in publishes:
                    await self._say(refusal_message(refusal, publish.id))
            for _ in publishes:
                self._window.release()
            if done and (self._outcomes.empty() or len(done) >= self._limits.window_frames):
                await self._say(acked(done))
                done = []

    async def _ranges(self, publish: Publish, outcome: Outcome) -> list[Any]:
        match outcome:
            case Refusal():
                raise outcome
            case Sent():
                return outcome.ranges
            case FewRows():
                asked_s = publish.put.timeout_s if isinstance(publish, LivePublish) else None
                return ranges_json(await answered(self._call, outcome.posted, asked_s or self._timeout_s))

    async def _give_up(self) -> None:
        """Nobody is told of what is still on its way."""
        while not self._outcomes.empty():
            _, outcome = self._outcomes.get_nowait()
            if isinstance(outcome, FewRows):
                self._call.workers.later(outcome.posted.close)

    # ---- subscriptions

    def _subscribe(self, message: LiveSubscribe) -> None:
        if message.name in self._subscriptions:
            raise bad_request(f"subscription {message.name!r} exists: choose another id, or unsubscribe first")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Refusal("busy", f"this connection has {SUBSCRIPTIONS_MAX} subscriptions: end some first")
        subscription = self._subscriptions[message.name] = LiveSubscription(message.credit)
        subscription.task = self._start(self._follow(message, subscription))

    async def _follow(self, message: LiveSubscribe, subscription: LiveSubscription) -> None:
        render = partial(row_frames, message.name, message.form)
        try:
            get = await filtered(self._call, message.get, message.where, message.language)
            follower = RowFollower(self._call, self._bell, get, self._limits.chunk_bytes)
            await follower.begin()
            await self._say(subscribed(message.name, position_text(follower.at, message.get.topics[0])))
            while True:
                if await follower.ready(self._limits.ping_ms / 1000):
                    await subscription.take()
                    frames = await follower.take(render)
                    for at, frame in enumerate(frames):
                        if at:
                            await subscription.take()
                        await self._say(frame)
                    if not frames:  # a filter left out all of them
                        subscription.add(1)
        except Refusal as refusal:
            self._subscriptions.pop(message.name, None)
            if refusal.code != "stopping":
                await self._say(refusal_message(refusal, message.name))


def _joined(publishes: list[Publish]) -> Iterator[list[Publish]]:
    """The same in their order, those together that can be one batch."""
    together: list[Publish] = []
    for publish in publishes:
        if together and not _may_join(together[-1], publish):
            yield together
            together = []
        together.append(publish)
    if together:
        yield together


def _may_join(last: Publish, publish: Publish) -> bool:
    return isinstance(last, LivePublish) and isinstance(publish, LivePublish) and last.may_join(publish)


def _shares(publishes: list[Publish], ranges: list[Any]) -> list[tuple[int | str, list[Any]]]:
    """What each of these has of the ranges that they have together."""
    if len(publishes) == 1:
        return [(publishes[0].id, ranges)]
    shares: list[tuple[int | str, list[Any]]] = []
    left = [dict(each) for each in ranges]
    for publish in publishes:
        assert isinstance(publish, LivePublish)
        wanted = publish.rows
        own: list[Any] = []
        while wanted:
            first = left[0]["first"]
            until = min(first + wanted, left[0]["next"])
            own.append({**left[0], "next": until})
            wanted -= until - first
            left[0]["first"] = until
            if until == left[0]["next"]:
                left.pop(0)
        shares.append((publish.id, own))
    return shares
