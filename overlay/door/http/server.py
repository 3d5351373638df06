"""The HTTP server: metrics, health and topology for operators and their tools. Plain HTTP, GET and HEAD, read only.

    /metrics    for Prometheus (`metrics`, docs/METRICS.md)
    /healthz    200 while the node's loop runs, else 503: restart it
    /readyz     200 when the node is on the channel and accepts publishes, else 503 with the reason: ask another
    /topology   the graph as this node knows it, as JSON

It is neither encrypted nor authenticated: listen on an internal address only. It reveals the names of nodes and
readers, and the amount of traffic; never a row.

Whatever it receives, the node is unharmed (guarantee 8): the number of connections, the size of a request and its time
are limited (`HttpLimits`), and a connection has one request. Requests are answered on their own threads, which wait for
the node's loop for a limited time.
"""

import asyncio
import json
import logging
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, RawIOBase
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from m4cast.overlay.door.admin.status import topology_of, unready_of
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.http.metrics import NodeCollector
from m4cast.overlay.door.node_handle import NodeHandle, stopping
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.errors import M4castError, StoreError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.store.store import ChannelName, Store

log = logging.getLogger("m4cast.door")

POLL_S = 0.1
"""How often the server checks for connections that are too old, and whether it should stop."""
TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Each number is a guess."""

    connections_max: int = 16
    """Each has a thread. When one more arrives, the oldest that has not sent its request yet is closed, or else the
    oldest that has not read its answer. While all are being answered, the new one is closed."""
    connection_ms: int = 5_000
    """From the first byte of the request to the last of the answer. Prometheus itself waits for 10 s."""
    request_bytes_max: int = 16 << 10
    look_ms: int = 2_000
    """How long the node's loop may take to answer. Higher: a stuck node is noticed later."""


class Reply(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


class HttpDoor:
    """Serves as soon as it is made, on the driver's loop, once that has started. `address` is where.

    `calls`: the counts of the client door, for metrics. Stop it before the store is closed.
    """

    def __init__(
        self,
        driver: Driver,
        store: Store,
        channel: ChannelName,
        listen: str,
        calls: CallCounts | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        self._look_s = limits.look_ms / 1000
        self._driver = driver
        self._store = store
        self._channel = channel
        self._node = NodeHandle(driver, asyncio.get_running_loop())
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server(host.strip("[]"), int(port), self.answer, limits)
        except OSError as error:
            detail = error.strerror or error
            raise M4castError(f"cannot serve HTTP at {listen}: {detail}; choose another address for `http`") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        calls = calls or CallCounts()
        self._registry.register(NodeCollector(driver, store, self._node, calls, self._server.refused, self._look_s))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="http", daemon=True)
        self._thread.start()
        log.info("metrics, health and topology are served at http://%s/", self.address)

    async def stop(self) -> None:
        """Close all connections and free the port."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up(self._look_s)

    def answer(self, path: str) -> Reply:
        """On any thread."""
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
                return Reply(HTTPStatus.OK, TEXT, b"/metrics /healthz /readyz /topology\n")
            case "/metrics":
                return Reply(HTTPStatus.OK, METRICS_TEXT, generate_latest(self._registry))
            case "/healthz":
                self._node.look(lambda node: None, self._look_s)
                return _json(HTTPStatus.OK, {"status": "ok"})
            case "/readyz":
                return self._ready()
            case "/topology":
                topology = self._node.look(topology_of, self._look_s)
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


# ---- sockets


Phase = Literal["asking", "answering", "taking"]


@dataclass(slots=True)
class _Connection:
    until_s: float
    """When it is closed at the latest, on the monotonic clock."""
    phase: Phase = "asking"


class _Server(socketserver.ThreadingTCPServer):
    """Not `http.server.HTTPServer`, which resolves its own name by DNS before it serves."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, answer: Callable[[str], Reply], limits: HttpLimits) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self.limits = limits
        self.refused: Counter[str] = Counter()
        self._open: dict[socket.socket, _Connection] = {}  # the oldest first
        self._changed = threading.Condition()
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            admitted = len(self._open) < self.limits.connections_max or self._close_one()
            if admitted:
                self._open[request] = _Connection(time.monotonic() + self.limits.connection_ms / 1000)
        if admitted:
            super().process_request(request, client_address)
        else:
            self.refused["connections"] += 1
            self.shutdown_request(request)

    def _close_one(self) -> bool:
        """Close a connection whose thread waits for the client. Returns whether there was one. The thread ends by
        itself."""
        for phase in ("asking", "taking"):
            for request, connection in self._open.items():
                if connection.phase == phase:
                    self.refused["connections"] += 1
                    _hang_up(request)
                    del self._open[request]
                    return True
        return False

    def enter(self, request: Any, phase: Phase) -> None:
        with self._changed:
            if request in self._open:
                self._open[request].phase = phase

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Every `POLL_S`: close connections whose clients are slow to send or to read. Their threads then end."""
        now_s = time.monotonic()
        with self._changed:
            for request, connection in self._open.items():
                if now_s > connection.until_s:
                    _hang_up(request)

    def hang_up(self, timeout_s: float) -> None:
        """Close all connections, and wait for their threads."""
        with self._changed:
            for request in self._open:
                _hang_up(request)
            self._changed.wait_for(lambda: not self._open, timeout_s)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("an HTTP connection broke", exc_info=True)


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


class _BoundedInput(RawIOBase):
    """The input of a connection, limited to the size of a request."""

    def __init__(self, connection: socket.socket, bytes_max: int) -> None:
        self._connection = connection
        self._left = bytes_max

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise HTTPException("the request is too long")
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """One request of HTTP/1.0, parsed by the standard library."""

    server: _Server
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(_BoundedInput(self.connection, self.server.limits.request_bytes_max))

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        self.server.enter(self.connection, "answering")
        reply = self.server.answer(self.path.partition("?")[0])
        self.server.enter(self.connection, "taking")
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(reply.body)

    def version_string(self) -> str:
        return "m4cast"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http %s", format % args)
