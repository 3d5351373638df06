"""A link of the asynchronous client: one WebSocket to the `/live` of a web door, shared by publishes and tails.

It sends publishes as binary frames with Arrow, or few plain rows as JSON, resolves them as their acknowledgements
arrive, and hands the rows of each subscription to a queue that holds no more frames than the subscription has credit
for.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pyarrow as pa

from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

CREDIT_FRAMES = 32
"""Frames of rows that may be on their way to a tail. Higher: more memory; lower: more waiting. Guess."""
FRAME_BYTES_MAX = 64 << 20
CONNECT_S = 5.0
"""A node that has not accepted a connection by then is unreachable, and the next one is asked. Guess."""
HEARTBEAT_S = 20.0
"""After so long without a message the node is pinged, and unreachable if it sends nothing for half as long again: it
may have vanished without closing its connections. A node pings every 15 s by itself (`ping_ms`), even if it does not
read because too many publishes are unanswered. Higher: tails wait for longer at such a node. Guess."""


class LiveRows(asyncio.Queue[tuple[dict[str, Any], pa.Table] | M4castError]):
    """The arrivals of one subscription: heads with rows, or the error that ended it."""


class LiveLink:
    """Made by `open`. Used on one loop."""

    def __init__(self, node: str, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.node = node
        self._session = session
        self._socket = socket
        self._last_id = 0
        self._publishes: dict[int, asyncio.Future[list[RowRange]]] = {}
        self._subscriptions: dict[str, LiveRows] = {}
        self._is_lost = False
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, session: aiohttp.ClientSession, node: str, url: str, **options: Any) -> "LiveLink":
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await session.ws_connect(
                    f"{url}/live", max_msg_size=FRAME_BYTES_MAX, heartbeat=HEARTBEAT_S, **options
                )
        except aiohttp.WSServerHandshakeError as error:
            code = {401: "unauthenticated", 403: "forbidden", 503: "busy"}.get(error.status)
            if code is None:
                raise UnreachableError(f"{node}: HTTP status {error.status}", is_sent=False) from None
            raise RefusedError(code, f"{node} refused the connection: check the token, or repeat it later") from None
        except TimeoutError:
            raise UnreachableError(f"{node}: no connection within {CONNECT_S:g} s", is_sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{node}: {str(error) or type(error).__name__}", is_sent=False) from None
        return cls(node, session, socket)

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._socket.close()
        self._lose()

    async def publish(self, head: dict[str, Any], rows: bytes | str) -> list[RowRange]:
        """`head` is a publish without its id, `rows` an Arrow stream, or JSON."""
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[list[RowRange]] = asyncio.get_running_loop().create_future()
        self._publishes[number] = answer
        try:
            await self._say({**head, "type": "publish", "id": number}, rows)
            return await answer
        finally:
            self._publishes.pop(number, None)

    async def subscribe(self, name: str, head: dict[str, Any]) -> LiveRows:
        rows = self._subscriptions[name] = LiveRows()
        await self._say({**head, "type": "subscribe", "id": name, "credit": CREDIT_FRAMES, "format": "arrow"})
        return rows

    async def credit(self, name: str, frames: int) -> None:
        await self._say({"type": "credit", "id": name, "frames": frames})

    async def unsubscribe(self, name: str) -> None:
        if self._subscriptions.pop(name, None) is not None and not self._is_lost:
            await self._say({"type": "unsubscribe", "id": name})

    async def _say(self, head: dict[str, Any], rows: bytes | str | None = None) -> None:
        written = json.dumps({name: value for name, value in head.items() if value is not None})
        sent: Coroutine[Any, Any, None]
        if rows is None:
            sent = self._socket.send_str(written)
        elif isinstance(rows, str):
            sent = self._socket.send_str(f'{written[:-1]}, "rows": {rows}}}')
        else:
            encoded = written.encode()
            sent = self._socket.send_bytes(len(encoded).to_bytes(4, "big") + encoded + rows)
        try:
            await sent
        except (aiohttp.ClientError, ConnectionError, RuntimeError):
            raise self._lost() from None

    def _lost(self) -> UnreachableError:
        return UnreachableError(f"{self.node}: the connection was lost")

    # ---- what arrives

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type == aiohttp.WSMsgType.TEXT:
                    self._heard(json.loads(message.data))
                elif message.type == aiohttp.WSMsgType.BINARY:
                    size = int.from_bytes(message.data[:4], "big")
                    with pa.ipc.open_stream(pa.py_buffer(message.data).slice(4 + size)) as stream:
                        rows = stream.read_all()
                    head = json.loads(message.data[4 : 4 + size])
                    if head["id"] in self._subscriptions:
                        self._subscriptions[head["id"]].put_nowait((head, rows))
        finally:
            self._lose()

    def _heard(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "acked":
                for publish in message["publishes"]:
                    answer = self._publishes.get(publish["id"])
                    if answer is not None and not answer.done():
                        answer.set_result([RowRange(**each) for each in publish["ranges"]])
            case "subscribed":
                if message["id"] in self._subscriptions:  # else it was given up meanwhile
                    self._subscriptions[message["id"]].put_nowait((message, pa.table({})))
            case "refused":
                self._refused(message["id"], RefusedError(message["code"], message["detail"]))

    def _refused(self, of: object, error: RefusedError) -> None:
        answer = self._publishes.get(of) if isinstance(of, int) else None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        elif isinstance(of, str) and of in self._subscriptions:
            self._subscriptions.pop(of).put_nowait(error)

    def _lose(self) -> None:
        self._is_lost = True
        for answer in self._publishes.values():
            if not answer.done():
                answer.set_exception(self._lost())
        for rows in self._subscriptions.values():
            rows.put_nowait(self._lost())
        self._subscriptions.clear()
