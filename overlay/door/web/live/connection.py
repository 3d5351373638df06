"""`/live`: publish and subscribe on one WebSocket, with cumulative acknowledgements, credits and positions.

A connection has one reader, which is the handler itself. Small publishes of plain rows are gathered with those of other
connections, on the loop (`gathering`); all others are sent by a thread, one piece of work at a time, so that publishes
keep their order. One task reports outcomes in that order, and one for each subscription sends rows (`RowFollower`).
Nothing waits on a thread, except publishes with a key and large ones.

Flow control: at most `window_frames` publishes of `window_bytes` together are unanswered, then the connection is not
read; a subscription sends one frame for each credit, and reads no further when it has none. A client that takes nothing
for `taking_ms` is cut off. The publishes of all connections share the memory for bodies (`BodyQuota`).
"""

import asyncio
import json
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web

from m4cast.overlay.door.fields import range_text, ranges_json
from m4cast.overlay.door.http.connections import connection_of
from m4cast.overlay.door.publish.gathering import GatheredRows, Gatherer
from m4cast.overlay.door.publish.posted import PostedRows
from m4cast.overlay.door.quotas import CallQuota
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import Put
from m4cast.overlay.door.web.bodies import INLINE_BYTES, BodyQuota, rows_of
from m4cast.overlay.door.web.calls import NeverRaised, WebCall
from m4cast.overlay.door.web.following.follower import Bell, RowFollower
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live.joined import joined, shares
from m4cast.overlay.door.web.live.messages import (
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
from m4cast.overlay.door.web.live.shares import LiveSubscription, LoopShare, OpenPublish, Publish, PublishWindow
from m4cast.overlay.door.web.positions import position_text
from m4cast.overlay.door.web.posts import FewRows, Sent, answered, gather_from_now_on, send
from m4cast.overlay.door.web.query import Query
from m4cast.overlay.door.web.reads import filtered
from m4cast.overlay.errors import StoreError
from m4cast.overlay.protocol.effects import Range

SUBSCRIPTIONS_MAX = 64
TRIALS_MAX = 64
"""Topics of a connection whose first publish is waited for. Others go by the threads until they are gathered. Guess."""
Outcome = Sent | FewRows | Refusal
BRACE: Mapping[WSMsgType, Any] = {WSMsgType.TEXT: "{", WSMsgType.BINARY: b"{"}
"""There is one for each row of a frame, at least."""
CLOSE_S = 2.0
VIOLATION = 1008
GOING_AWAY = 1001


async def live(
    request: web.Request, call: WebCall, bell: Bell, streams: CallQuota, bodies: BodyQuota, limits: WebLimits
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
        await LiveConnection(call, socket, bell, bodies, limits).serve()
        return socket
    finally:
        call.ended()
        streams.end(call.caller.name)


class LiveConnection:
    def __init__(
        self, call: WebCall, socket: web.WebSocketResponse, bell: Bell, bodies: BodyQuota, limits: WebLimits
    ) -> None:
        self._call = call
        self._socket = socket
        self._bell = bell
        self._bodies = bodies
        self._limits = limits
        self._window = PublishWindow(limits)
        self._last_id = 0
        self._open: deque[OpenPublish] = deque()
        """Publishes in the order in which they came and are answered."""
        self._waiting: deque[OpenPublish] = deque()
        """Those that were not sent yet."""
        self._pause: asyncio.Handle | None = None
        """Others have their turn before more of these are gathered."""
        self._on_threads = 0
        """Those that were sent by the threads and have no answer yet: gathered ones must not overtake them."""
        self._is_on_thread = False
        """A thread sends some of them right now."""
        self._lingering: PostedRows | None = None
        """The last that a thread has sent: it may wait to be coalesced, and the next must not overtake it."""
        self._tried: set[Put] = set()
        self._trial: OpenPublish | None = None
        """A thread sends the first publish of its kind, which opens a gatherer if it can: the next ones wait for that,
        since each costs the threads several times as much."""
        self._gatherer: Gatherer | None = None
        """The gatherer of its publishes at present."""
        self._settled = asyncio.Event()
        self._sent: asyncio.Queue[tuple[list[OpenPublish], Outcome]] = asyncio.Queue()
        self._subscriptions: dict[str, LiveSubscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._start(self._settle_sent())
        self._start(self._report())
        self._start(self._end_with_the_door())
        share = LoopShare()
        try:
            async for message in self._socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                if share.is_used_up(message.data.count(BRACE[message.type]), len(message.data)):
                    await asyncio.sleep(0)  # frames that have arrived together are taken without it
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
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it has begun
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
                await self._window.enter(len(frame))
                publish = self._admitted(message, len(frame))
                self._open.append(publish)
                self._waiting.append(publish)
                self._send_waiting()
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

    def _admitted(self, publish: Publish, size: int) -> OpenPublish:
        """Refused in its turn, if there is no memory for it."""
        try:
            self._call.check(lambda: self._bodies.take(self._call.caller.name, size))
        except Refusal as refusal:
            assert isinstance(publish.id, int)
            return OpenPublish(LiveRefused(publish.id, refusal), size, 0)
        return OpenPublish(publish, size, size)

    def _closed(self, publish: OpenPublish) -> None:
        if publish.taken:
            self._bodies.give_back(self._call.caller.name, publish.taken)
        self._window.leave(publish.size)

    # ---- publishing

    def _send_waiting(self) -> None:
        """Send what waits, in order: what can be gathered on the loop is; everything else is for the threads, where one
        piece of work of a connection is done at a time."""
        share = LoopShare()
        while self._waiting and not self._is_on_thread and self._trial is None and self._pause is None:
            publish = self._waiting[0]
            gatherer = self._gatherer_of(publish.publish)
            if gatherer is not None:
                if self._on_threads:
                    return
                if self._gather(publish, gatherer):
                    self._waiting.popleft()
                    assert isinstance(publish.publish, LivePublish) and publish.publish.rows
                    if share.is_used_up(len(publish.publish.rows), publish.size):
                        self._pause = asyncio.get_running_loop().call_soon(self._go_on)
                    continue
            if gatherer is None and self._is_first(publish.publish):
                self._trial = publish
            taken = [self._waiting.popleft() for _ in range(1 if self._trial is publish else len(self._waiting))]
            self._on_threads += len(taken)
            self._is_on_thread = True
            self._start(self._send_by_thread(taken))

    def _go_on(self) -> None:
        self._pause = None
        self._send_waiting()

    def _is_first(self, publish: Publish) -> bool:
        """True for the first publish of its kind that may be gathered."""
        if not isinstance(publish, LivePublish) or not publish.rows or publish.put.moves or publish.put.timeout_s:
            return False
        is_first = publish.put not in self._tried and len(self._tried) < TRIALS_MAX
        if is_first:
            self._tried.add(publish.put)
        return is_first

    def _gatherer_of(self, publish: Publish) -> Gatherer | None:
        if not isinstance(publish, LivePublish) or not publish.rows or publish.size > INLINE_BYTES:
            return None
        return self._call.services.publishing.gatherer(publish.put)

    def _gather(self, publish: OpenPublish, gatherer: Gatherer) -> bool:
        """Gather a publish; False if it cannot be gathered. Refusals are left to the threads, where they are
        counted."""
        message = publish.publish
        assert isinstance(message, LivePublish) and message.rows
        if not self._call.caller.rights.may("publish", message.put.topic):
            return False
        columns = gatherer.columns.fit(message.rows)
        if columns is None:
            return False
        if self._gatherer is not gatherer:
            if self._gatherer is not None:
                self._gatherer.flush()  # so that what it has of this connection is not overtaken
            self._gatherer = gatherer

        def tell(outcome: Range | Refusal) -> None:
            self._settle(publish, outcome if isinstance(outcome, Refusal) else f"[{range_text(outcome)}]")

        return gatherer.add(GatheredRows(columns, len(message.rows), message.size, self._call.caller.name, tell))

    def _settle(self, publish: OpenPublish, outcome: str | Refusal) -> None:
        publish.outcome = outcome
        self._settled.set()

    async def _send_by_thread(self, taken: list[OpenPublish]) -> None:
        if self._gatherer is not None:
            self._gatherer.flush()
        try:
            sent = await self._call.run(lambda: self._send_all(taken))
        except Refusal as refusal:  # there is no thread for it
            sent = [([publish], refusal) for publish in taken]
        for publishes, outcome in sent:
            self._sent.put_nowait((publishes, outcome))
        self._is_on_thread = False
        self._send_waiting()

    def _send_all(self, gathered: list[OpenPublish]) -> list[tuple[list[OpenPublish], Outcome]]:
        """Runs on a thread. Publishes that follow each other and can be one batch are sent as one; if that is refused,
        each is sent by itself, so that each has its own outcome."""
        sent: list[tuple[list[OpenPublish], Outcome]] = []
        for together in joined(gathered):
            outcome = self._send(together)
            if isinstance(outcome, Refusal) and len(together) > 1:
                sent += [([publish], self._send([publish])) for publish in together]
            else:
                sent.append((together, outcome))
        return sent

    def _send(self, publishes: list[OpenPublish]) -> Outcome:
        first = publishes[0].publish
        if isinstance(first, LiveRefused):
            return first.refusal
        call, put = self._call, first.put

        def work() -> Sent | FewRows:
            call.caller.rights.require_topics("publish", (put.topic,))
            body = b"\n".join(each.publish.body for each in publishes if isinstance(each.publish, LivePublish))
            headers = {"Content-Type": first.content_type}
            read = rows_of(body, headers, lambda: call.services.publishing.known_columns(put.topic))
            return send(call, put, read, self._lingering)

        try:
            sent = call.services.answer(call.name, work, NeverRaised)
        except Refusal as refusal:
            return refusal
        self._lingering = sent.posted if isinstance(sent, FewRows) else None
        return sent

    async def _settle_sent(self) -> None:
        """Wait for the answers to what the threads have sent, one after the other."""
        while True:
            publishes, outcome = await self._sent.get()
            try:
                outcomes: list[list[Any] | Refusal] = [*shares(publishes, await self._ranges(publishes[0], outcome))]
            except Refusal as refusal:
                outcomes = [refusal for _ in publishes]
            for publish, share in zip(publishes, outcomes, strict=True):
                self._settle(publish, share if isinstance(share, Refusal) else json.dumps(share))
            self._on_threads -= len(publishes)
            if publishes[0] is self._trial:
                await self._open_gatherer(publishes[0].publish, outcome)
                self._trial = None
            self._send_waiting()

    async def _open_gatherer(self, publish: Publish, outcome: Outcome) -> None:
        """Open a gatherer for the publishes that follow this first one, if that is possible."""
        if isinstance(outcome, FewRows) and isinstance(publish, LivePublish):
            gather = partial(self._call.services.publishing.gather, publish.put, outcome.schema)
            with suppress(Refusal, StoreError):  # the next ones are left to the threads, which say what is wrong
                await self._call.workers.run(self._call.caller.name, gather, is_limited=False)

    async def _ranges(self, publish: OpenPublish, outcome: Outcome) -> list[Any]:
        match outcome:
            case Refusal():
                raise outcome
            case Sent():
                return outcome.ranges
            case FewRows():
                message = publish.publish
                assert isinstance(message, LivePublish)
                timeout_s = message.put.timeout_s or self._call.services.timeout_s
                ranges = ranges_json(await answered(self._call, outcome.posted, timeout_s))
                if message.rows is not None and publish is not self._trial:
                    gather_from_now_on(self._call, message.put, outcome)
                return ranges

    async def _report(self) -> None:
        """Outcomes in the order of the publishes; those that are known together in one message."""
        while True:
            await self._settled.wait()
            self._settled.clear()
            done: list[tuple[int, str]] = []
            while self._open and (outcome := self._open[0].outcome) is not None:
                publish = self._open.popleft()
                number = publish.publish.id
                assert isinstance(number, int)
                if not isinstance(outcome, Refusal):
                    done.append((number, outcome))
                else:
                    if done:
                        await self._say(acked(done))
                        done = []
                    await self._say(refusal_message(outcome, number))
                self._closed(publish)
            if done:
                await self._say(acked(done))

    async def _give_up(self) -> None:
        """Drop what is still under way, without an answer."""
        self._waiting.clear()
        while self._open:
            self._closed(self._open.popleft())
        while not self._sent.empty():
            _, outcome = self._sent.get_nowait()
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
        follower: RowFollower | None = None
        try:
            get = await filtered(self._call, message.get, message.where, message.language)
            follower = RowFollower(
                self._call, self._bell, get, self._limits.chunk_bytes, form=message.form, early=message.early
            )
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
        finally:
            if follower is not None:
                follower.close()
