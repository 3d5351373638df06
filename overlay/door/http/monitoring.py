"""The HTTP door: metrics, health and topology for operators and their tools. Plain HTTP, GET and HEAD, read only.

    /metrics    for Prometheus (`metrics`, docs/METRICS.md)
    /healthz    200 while the node's loop runs, else 503: restart it
    /readyz     200 when the node is on the channel and accepts publishes, else 503 with the reason: ask another
    /topology   the graph as this node knows it, as JSON

It is neither encrypted nor authenticated: listen on an internal address only. It reveals the names of nodes and
readers, and the amount of traffic; never a row.

It has a thread and a loop of its own, so that it can report that the node's loop is stuck, and answers whatever clients
do to the other doors. Requests are answered on further threads, which wait for the node's loop for a limited time.
Whatever it receives, the node is unharmed (guarantee 8): the number of connections, the size of a request and its time
are limited (`HttpLimits`), and a connection has one request.
"""

import asyncio
import json
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from m4cast.overlay.door.admin.status import topology_of, unready_of
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.http.connections import ConnectionLimits
from m4cast.overlay.door.http.metrics import NodeCollector
from m4cast.overlay.door.http.server import HttpServer
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.refusals import Refusal, stopping
from m4cast.overlay.errors import M4castError, StoreError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.store.store import ChannelName, Store

log = logging.getLogger("m4cast.door")

TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/metrics", "/healthz", "/readyz", "/topology")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Each number is a guess."""

    connections_max: int = 16
    """Connections that have sent a request, and as many that have not. Each of the former may have a thread."""
    connection_ms: int = 5_000
    """The time from the connection to the last byte of the answer. Prometheus itself waits for 10 s."""
    request_bytes_max: int = 16 << 10
    look_ms: int = 2_000
    """The time that the node's loop may take to answer. Higher: a stuck node is noticed later."""


class Reply(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


class HttpDoor:
    """Serves as soon as it is made, on the driver's loop, once that has started. `address` is where.

    `calls`: the counts of the client doors, for metrics; `collector`: that of a door which shows the same metrics, so
    that nothing is counted twice. Stop it before the store is closed.
    """

    def __init__(
        self,
        driver: Driver,
        store: Store,
        channel: ChannelName,
        listen: str,
        calls: CallCounts | None = None,
        limits: HttpLimits | None = None,
        *,
        collector: NodeCollector | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        self._look_s = limits.look_ms / 1000
        self._driver = driver
        self._store = store
        self._channel = channel
        self._node = NodeHandle(driver, asyncio.get_running_loop())
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        collector = collector or NodeCollector(driver, store, self._node, calls or CallCounts(), self._look_s)
        self._refused = collector.http_refused
        self._registry.register(collector)
        self._threads = ThreadPoolExecutor(limits.connections_max, "http-answer")
        self._opened: Future[str] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(listen, limits),), name="http")
        self._thread.daemon = True
        self._thread.start()
        try:
            self.address = self._opened.result()
        except M4castError as error:
            self._thread.join()
            raise M4castError(f"{error} for `http`") from None
        log.info("metrics, health and topology are served at http://%s/", self.address)

    async def stop(self) -> None:
        """Close all connections and free the port."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    # ---- on its own thread

    async def _serve(self, listen: str, limits: HttpLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        application = web.Application()
        application.router.add_get("/{path:.*}", self._handle)
        connections = ConnectionLimits(
            connections_max=limits.connections_max,
            asking_ms=limits.connection_ms,
            head_bytes_max=limits.request_bytes_max,
            requests_max=1,
        )
        server = HttpServer(application, connections, self._count_refusal)
        try:
            await server.open(listen)
        except M4castError as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(server.address)
        await self._stopping.wait()
        await server.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count_refusal(self, reason: str, detail: str) -> None:
        self._refused[reason] += 1
        log.debug("an HTTP connection was refused (%s): %s", reason, detail)

    async def _handle(self, request: web.Request) -> web.Response:
        reply = await self._loop.run_in_executor(self._threads, self.answer, request.path)
        headers = {"Content-Type": reply.content_type}
        return web.Response(status=reply.status, body=reply.body, headers=headers)

    # ---- on any thread

    def answer(self, path: str) -> Reply:
        try:
            return self._answer(path)
        except Refusal as refusal:
            return _unavailable(refusal.code, refusal.detail)
        except StoreError as error:
            return _unavailable("store", str(error))
        except Exception:
            log.exception("unexpected error in the HTTP door")
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"an unexpected error of the node: see its log\n")

    def _answer(self, path: str) -> Reply:
        match path:
            case "/":
                return Reply(HTTPStatus.OK, TEXT, f"{' '.join(PATHS)}\n".encode())
            case "/metrics":
                return Reply(HTTPStatus.OK, METRICS_TEXT, generate_latest(self._registry))
            case "/healthz":
                self._node.look(lambda node: None, self._look_s)
                return _json(HTTPStatus.OK, {"status": "ok"})
            case "/readyz":
                return self._ready()
            case "/topology":
                topology = self._node.look(lambda node: topology_of(node, self._node.now_ms()), self._look_s)
                return _json(HTTPStatus.OK, {"channel": asdict(self._channel), **topology})
        return Reply(HTTPStatus.NOT_FOUND, TEXT, b"not found: use /metrics, /healthz, /readyz or /topology\n")

    def _ready(self) -> Reply:
        if self._driver.stopping:
            raise stopping()
        unready = self._node.look(unready_of, self._look_s)
        if unready is not None:
            return _unavailable(*unready)
        space = self._store.free_space()
        if space.is_nearly_full:
            left = f"{space.available_bytes} bytes are left, fewer than the reserve of {space.reserve_bytes}"
            return _unavailable("store-full", f"{left}: retain less, or give it more space")
        return _json(HTTPStatus.OK, {"status": "ready"})


def _unavailable(reason: str, detail: str) -> Reply:
    return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"reason": reason, "detail": detail})


def _json(status: HTTPStatus, value: object) -> Reply:
    return Reply(status, "application/json", json.dumps(value).encode() + b"\n")
