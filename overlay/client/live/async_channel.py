"""The asynchronous channel: publish, read and follow through the web doors of nodes (`docs/HTTP.md`).

    async with AsyncChannel("127.0.0.1:7700") as channel:
        await channel.publish("orders", [{"id": 1, "price": 9.5}])
        async for rows in channel.tail("orders", "earliest"):
            ...

Publishes and tails share one WebSocket; everything else is a request. As with `Channel`, the first node is the access
point. Reads, tails and publishes without a key go to the next node when one cannot be reached; a publish with a key
stays with the first one, which stores the key. A tail continues from its position, without losing or repeating a row.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import pyarrow as pa

from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.client.doors import nodes_of
from m4cast.overlay.client.live.link import CONNECT_S, CREDIT_FRAMES, LiveLink, LiveRows
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.tables import table_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.refusals import PUBLISH_ELSEWHERE, READ_ELSEWHERE

ARROW = "application/vnd.apache.arrow.stream"
RETRY_S = 0.2
"""The time for which a tail waits after it has tried all nodes. Guess."""
Positions = dict[str, int]
"""Origin -> the sequence to continue from, in one topic."""
JSON_ROWS_MAX = 256
JSON_BYTES_MAX = 32 << 10
"""The largest JSON that a node parses without using a thread."""
_PLAIN = {int, float, str, bool}


class AsyncChannel:
    """A channel, through the web doors at `nodes`: a list of `host:port`, or text separated by commas. The settings are
    those of `Channel`. Made anywhere; used on one loop."""

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        timeout_s: float = 30,
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
    ) -> None:
        if timeout_s <= 0:
            raise LocalProtocolError(f"timeout_s is {timeout_s}: must be greater than 0")
        self.nodes = nodes_of(nodes)
        self.timeout_s = timeout_s
        self._credentials = Credentials(token, str(ca), str(cert), str(key))
        self._session: aiohttp.ClientSession | None = None
        self._links: dict[str, LiveLink] = {}
        self._opening: dict[str, asyncio.Task[LiveLink]] = {}
        self._tails = 0

    async def __aenter__(self) -> "AsyncChannel":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. The channel can be used again."""
        for opening in list(self._opening.values()):
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ---- publishing

    async def publish(
        self,
        topic: str,
        rows: Any,
        *,
        acks: int | None = None,
        key: str | None = None,
        expect: object = None,
        next: object = None,
    ) -> list[RowRange]:
        """Publish rows; their ranges, once they are on disk. Several may be under way at a time: rows are published in
        the order of the calls. With `key` it is exactly-once, from position `expect` to `next`."""
        head = {
            "topic": topic,
            "acks": acks,
            "key": key,
            "expect": None if expect is None else str(expect),
            "next": None if next is None else str(next),
        }
        text = plain_json(rows)
        written = _stream_of(table_of(rows)) if text is None else text
        problems: list[str] = []
        for node in self.nodes if key is None else self.nodes[:1]:
            try:
                async with asyncio.timeout(self.timeout_s):
                    return await (await self._link(node)).publish(head, written)
            except TimeoutError:
                raise RefusedError("timeout", f"{node} did not answer within {self.timeout_s:g} s") from None
            except UnreachableError as error:
                if key is not None:
                    raise
                problems.append(str(error))
            except RefusedError as error:
                if key is not None or error.code not in PUBLISH_ELSEWHERE:
                    raise
                problems.append(f"{node}: {error}")
        raise UnreachableError("; ".join(problems))

    # ---- reading

    async def read(
        self, topic: str, start: str = "earliest", end: str = "latest", *, where: str | None = None
    ) -> pa.Table:
        """The rows of a range, with the channel's columns. `start` and `end` are positions, as text, or edges; `where`
        is a filter (`docs/FILTERS.md`)."""
        path = f"/topics/{quote(topic, safe='')}/rows"
        params = {"from": start, "to": end, **({} if where is None else {"where": where})}
        body = await self._ask("GET", path, params=params, headers={"Accept": ARROW})
        with pa.ipc.open_stream(body) as stream:
            return stream.read_all()

    async def act(self, action: str, body: dict[str, Any] | None = None) -> Any:
        """Perform an action of the client door, such as `status`, at the first node that answers."""
        written = {} if body is None else {"data": json.dumps(body).encode()}
        return json.loads(await self._ask("POST", f"/actions/{quote(action)}", **written))

    def tail(
        self,
        topic: str,
        start: str = "latest",
        *,
        where: str | None = None,
        on_missing: str = "fail",
        early: bool = False,
    ) -> "AsyncTail":
        """Rows as they arrive: `async for rows in channel.tail(...)`, record batches with the channel's columns. Early:
        before the node has them on disk, if they come from another one (docs/HTTP.md)."""
        self._tails += 1
        head = {"topic": topic, "where": where, "on_missing": on_missing, "early": early}
        return AsyncTail(self, f"tail-{self._tails}", head, start)

    # ---- connections

    async def _ask(self, method: str, path: str, **request: Any) -> bytes:
        problems: list[str] = []
        for node in self.nodes:
            headers = {**self._headers(), **request.pop("headers", {})}
            try:
                session = self._sessions()
                timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=CONNECT_S)
                url = f"{self._url(node)}{path}"
                async with session.request(
                    method, url, headers=headers, ssl=self._tls(), timeout=timeout, **request
                ) as answer:
                    body: bytes = await answer.read()
                    if answer.status == 200:
                        return body
                    said = await answer.json()
                    raise RefusedError(said["code"], said["detail"])
            except RefusedError as error:
                if error.code not in READ_ELSEWHERE or node == self.nodes[-1]:
                    raise
                problems.append(f"{node}: {error}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problems.append(f"{node}: {str(error) or type(error).__name__}")
            request["headers"] = headers
        raise UnreachableError("; ".join(problems))

    async def _link(self, node: str) -> LiveLink:
        """The link to a node; opened if there is none, or the last one was lost."""
        link = self._links.get(node)
        if link is not None and not link.is_lost:
            return link
        opening = self._opening.get(node)
        if opening is None:
            opening = self._opening[node] = asyncio.get_running_loop().create_task(self._open(node))
            opening.add_done_callback(lambda ended: self._opened(node, ended))
        return await asyncio.shield(opening)  # others may wait for it, too

    async def _open(self, node: str) -> LiveLink:
        lost = self._links.pop(node, None)
        if lost is not None:
            await lost.close()
        options = {"headers": self._headers(), "ssl": self._tls()}
        link = self._links[node] = await LiveLink.open(self._sessions(), node, self._url(node), **options)
        return link

    def _opened(self, node: str, ended: "asyncio.Task[LiveLink]") -> None:
        self._opening.pop(node, None)
        if not ended.cancelled():
            ended.exception()  # those who waited have it, if there still are any

    def _sessions(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    def _url(self, node: str) -> str:
        if "://" in node:
            return node.rstrip("/")
        return f"{'https' if self._credentials.ca or self._credentials.cert else 'http'}://{node}"

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._credentials.secret()}"} if self._credentials.token else {}

    def _tls(self) -> ssl.SSLContext | bool:
        credentials = self._credentials
        if not credentials.ca and not credentials.cert:
            return True
        try:
            context = ssl.create_default_context(cafile=credentials.ca or None)
            if credentials.cert:
                context.load_cert_chain(credentials.cert, credentials.key)
        except (OSError, ssl.SSLError) as error:
            raise LocalProtocolError(f"ca, cert or key cannot be used: {error}") from error
        return context


class AsyncTail:
    """An asynchronous iterator of record batches. `position` is where it continues, as text; None before it began."""

    def __init__(self, channel: AsyncChannel, name: str, head: dict[str, Any], start: str) -> None:
        self._channel = channel
        self._name = name
        self._head = head
        self._start = start
        self._at: Positions | None = None

    @property
    def position(self) -> str | None:
        """The position after the last rows that were given; a new tail continues from it, at any node. None: it has not
        begun."""
        if self._at is None:
            return None
        return ",".join(f"{origin}:{until}" for origin, until in sorted(self._at.items())) or "-"

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while True:
            problems: list[str] = []
            for node in self._channel.nodes:
                try:
                    async for rows in self._follow(node):
                        problems.clear()
                        yield rows
                except UnreachableError as error:
                    problems.append(str(error))
                except RefusedError as error:
                    if error.code not in READ_ELSEWHERE:
                        raise
                    problems.append(f"{node}: {error}")
            if self._at is None:
                raise UnreachableError("; ".join(problems), is_sent=False)
            await asyncio.sleep(RETRY_S)

    async def _follow(self, node: str) -> AsyncIterator[pa.RecordBatch]:
        link = await self._channel._link(node)
        arriving: LiveRows = await link.subscribe(self._name, {**self._head, "from": self.position or self._start})
        taken = 0
        try:
            while True:
                arrived = await arriving.get()
                if isinstance(arrived, M4castError):
                    raise arrived
                message, rows = arrived
                if message["type"] == "subscribed":
                    self._at = _positions(message["position"])
                    continue
                assert self._at is not None
                self._at[message["origin"]] = message["next"]
                for batch in rows.to_batches():
                    yield batch
                taken += 1
                if taken >= CREDIT_FRAMES // 2:
                    await link.credit(self._name, taken)
                    taken = 0
        finally:
            await link.unsubscribe(self._name)


def _positions(text: str) -> Positions:
    parts = [] if text == "-" else text.split(",")
    return {origin: int(until) for origin, _, until in (part.partition(":") for part in parts)}


def plain_json(rows: Any) -> str | None:
    """Few rows as JSON, if that says the same of them as Arrow does: a node takes them faster. Else None."""
    if not isinstance(rows, list) or not 0 < len(rows) <= JSON_ROWS_MAX:
        return None
    first = rows[0]
    if type(first) is not dict or not first or any(type(row) is not dict or row.keys() != first.keys() for row in rows):
        return None
    for name in first:
        values = [row[name] for row in rows if row[name] is not None]
        kinds = set(map(type, values))
        if type(name) is not str or len(kinds) != 1 or not kinds <= _PLAIN:
            return None
        if int in kinds and not all(-(2**63) <= value < 2**63 for value in values):
            return None
    try:
        text = json.dumps(rows, allow_nan=False)
    except ValueError:
        return None
    return text if len(text) <= JSON_BYTES_MAX and "\\ud" not in text else None


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written
