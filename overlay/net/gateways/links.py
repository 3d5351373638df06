"""All connections of a gatekeeper: listening, dialling, hello and certificates.

A gateway has trust anchors of its own: a peer that names a channel must have a node certificate of the CA that the
[[gateway]] for that channel names, and one of the own channel a certificate of the own CA. A connection is a link, or a
call: one message, and it ends. Whoever sends no hello in time is cut off, and no more than `STRANGERS_MAX` may wait.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Protocol, get_args

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.federation import FederationConfig
from m4cast.overlay.errors import M4castError, RemoteProtocolError
from m4cast.overlay.federation.messages import AdditionMessage
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.rules import GatewayRules
from m4cast.overlay.net.gateways.wire.frames import AVRO_BYTES_MAX, HELLO_BYTES_MAX
from m4cast.overlay.net.gateways.wire.messages import (
    GATEWAY_VERSION_MAX,
    GATEWAY_VERSION_MIN,
    GatewayHello,
    GatewayRefused,
)
from m4cast.overlay.net.refusals import Refusals
from m4cast.overlay.net.tls import Tls, peer_name
from m4cast.overlay.protocol.wire.frame import BATCH_OVERHEAD_BYTES, EXTENSIONS_BYTES_MAX

log = logging.getLogger("m4cast.gateway")

STRANGERS_MAX = 64
"""Connections without a hello. Guess. Raising it costs a file and a TLS handshake each."""
READ_BYTES = 1 << 20
HEARD = get_args(AdditionMessage)


class LinkListener(Protocol):
    """Is given the messages that arrive."""

    def heard(self, link: GatewayLink, message: Any, body: memoryview) -> None: ...
    def called(self, sender: GatewayHello, message: AdditionMessage) -> None: ...


class LinkOwner(Protocol):
    """Receives the events of connections."""

    @property
    def messages(self) -> LinkListener: ...

    def link_up(self, link: GatewayLink) -> None: ...
    def link_down(self, link: GatewayLink) -> None: ...
    def unreachable(self, address: str) -> None: ...


class GatewayLinks:
    def __init__(
        self,
        owner: LinkOwner,
        rules: GatewayRules,
        tls: Tls | None,
        refusals: Refusals,
        settings: tuple[ClusterConfig, NodeConfig, FederationConfig],
    ) -> None:
        cluster, node, self._config = settings
        self.links: dict[int, GatewayLink] = {}
        self.address = self._config.advertised
        """The address at which gatekeepers reach this one; it has the actual port where the configured one is 0 (any
        free one)."""
        self._owner = owner
        self._rules = rules
        self._tls = tls
        self._refusals = refusals
        self._timeout_s = node.call_timeout_ms / 1000
        self._frame_bytes_max = cluster.batch_bytes_max + BATCH_OVERHEAD_BYTES + EXTENSIONS_BYTES_MAX + AVRO_BYTES_MAX
        self._conns = 0
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._me = UnitId(b"")

    # ---- life

    async def listen(self, me: UnitId) -> None:
        self._me = me
        host, _, port = self._config.listen.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._accepted,
                host.strip("[]"),
                int(port),
                limit=READ_BYTES,
                ssl=self._context(ssl.PROTOCOL_TLS_SERVER, None) if self._tls else None,
            )
        except OSError as error:
            raise M4castError(
                f"[federation] cannot listen on {self._config.listen}: {error.strerror or error}"
            ) from error
        if port == "0":
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self.links.values()):
            link.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were closed report it in the next turn

    # ---- out

    def dial(self, address: str) -> None:
        """Make a link; `link_up` or `unreachable` follows."""
        self._spawn(self._dial(address))

    def call(self, address: str, message: AdditionMessage) -> None:
        """Say one thing, on a connection of its own."""
        self._spawn(self._call(address, message))

    def close(self, conn: int) -> None:
        link = self.links.pop(conn, None)
        if link is not None:
            self._spawn(link.close())

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, address: str) -> None:
        link = await self._connect(address, is_call=False)
        if link is None:
            self._owner.unreachable(address)
            return
        link.dialled = address
        await self._run(link)

    async def _call(self, address: str, message: AdditionMessage) -> None:
        link = await self._connect(address, is_call=True)
        if link is None:
            self._owner.unreachable(address)
            return
        link.send(message)
        await link.close()

    async def _connect(self, address: str, *, is_call: bool) -> GatewayLink | None:
        host, _, port = address.rpartition(":")
        link: GatewayLink | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                context = self._context(ssl.PROTOCOL_TLS_CLIENT, address) if self._tls else None
                reader, writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), limit=READ_BYTES, ssl=context
                )
                link = self._new_link(reader, writer)
                link.send(self._hello(is_call=is_call))
                link.start()
                await self._greet(link)
        except (OSError, EOFError, TimeoutError, M4castError) as error:
            if isinstance(error, RemoteProtocolError | ssl.SSLError):
                self._refusals.add("gateway", f"{address}, which was called: {error}")
            log.debug("gateway %s cannot be reached: %s", address, error)
            if link is not None:
                link.abort()
            return None
        except asyncio.CancelledError:
            if link is not None:
                link.abort()
            raise
        return link

    def _context(self, side: int, address: str | None) -> ssl.SSLContext:
        """The trust anchors for a dialled address, or for whoever dials."""
        assert self._tls is not None
        gateways = self._config.gateways
        if address is not None:
            named = [each for each in gateways if each.address == address]
            gateways = tuple(named) or gateways  # an address that others named: any of them
        authorities = [Path(each.ca) for each in gateways if each.ca]
        return self._tls.gateway(side, (*dict.fromkeys(authorities), self._tls.ca))

    def _hello(self, *, is_call: bool) -> GatewayHello:
        return GatewayHello(
            version_min=GATEWAY_VERSION_MIN,
            version_max=GATEWAY_VERSION_MAX,
            is_call=is_call,
            node=self._me,
            address=self.address,
            channel=self._rules.channel,
            top=self._config.top,
        )

    def _new_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> GatewayLink:
        self._conns += 1
        return GatewayLink(reader, writer, self._conns, self._frame_bytes_max)

    # ---- in

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._welcome(reader, writer))

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= STRANGERS_MAX:
            self._refusals.add("gateway", "too many connections without a hello")
            writer.close()
            return
        self._strangers += 1
        link = self._new_link(reader, writer)
        is_greeted = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._greet(link)
                link.send(self._hello(is_call=link.hello.is_call))
                link.start()
                if link.hello.is_call:
                    message, _ = await link.receive()
                    if not isinstance(message, HEARD):
                        raise RemoteProtocolError(f"{type(message).__name__} on a call")
                    self._owner.messages.called(link.hello, message)
            is_greeted = True
        except (OSError, EOFError, TimeoutError, M4castError) as error:
            self._refusals.add("gateway", f"{link.peer_address}: {str(error) or type(error).__name__}")
            if isinstance(error, RemoteProtocolError):
                link.send(GatewayRefused("refused", str(error)[:1000]))
                link.start()
                self._spawn(link.close())
        finally:
            self._strangers -= 1
        try:
            if is_greeted and not link.hello.is_call:
                await self._run(link)
            else:
                await link.close()
        finally:
            link.abort()

    async def _greet(self, link: GatewayLink) -> None:
        """Take the peer's hello, or refuse it."""
        message, _ = await link.receive(HELLO_BYTES_MAX)
        if isinstance(message, GatewayRefused):
            raise RemoteProtocolError(f"refused: {message.detail}")
        if not isinstance(message, GatewayHello):
            raise RemoteProtocolError(f"{type(message).__name__} before GatewayHello")
        hello = link.hello = message
        if not hello.version_min <= GATEWAY_VERSION_MAX or not hello.version_max >= GATEWAY_VERSION_MIN:
            raise RemoteProtocolError(
                f"gateway versions {hello.version_min} to {hello.version_max}: here are {GATEWAY_VERSION_MIN} to "
                f"{GATEWAY_VERSION_MAX}"
            )
        if hello.top != self._config.top:
            raise RemoteProtocolError(
                f"[federation] top = {hello.top} at {hello.address}, and {self._config.top} here: they must be equal"
            )
        if hello.node == self._me:
            raise RemoteProtocolError(f"{hello.address} is this node itself")
        is_own = hello.channel == self._rules.channel
        link.gateway = None if is_own else self._rules.gateway_to(hello.channel, hello.address)
        if link.gateway is None and not is_own:
            raise RemoteProtocolError(
                f"channel {hello.channel!r}: {self._rules.channel!r} has no [[gateway]] for it: add one"
            )
        self._check_certificate(link)

    def _check_certificate(self, link: GatewayLink) -> None:
        if self._tls is None:
            return
        from m4cast.overlay.net.certificates import is_issued_by  # slow to import, and unused without TLS

        certificate, der = link.certificate()
        link.peer_name = peer_name(certificate)
        if not link.peer_name:
            raise RemoteProtocolError("the certificate is not a node's: make one with `m4cast certs node`")
        authority = self._tls.ca if link.gateway is None else Path(link.gateway.ca)
        if not (link.gateway is None or link.gateway.ca) or not is_issued_by(der, authority):
            raise RemoteProtocolError(
                f"the certificate of {link.peer_name!r} is not of the CA that channel {link.hello.channel!r} has here: "
                "set `ca` of its [[gateway]]"
            )

    async def _run(self, link: GatewayLink) -> None:
        self.links[link.conn] = link
        self._owner.link_up(link)
        try:
            while link.conn in self.links:
                message, body = await link.receive()
                self._owner.messages.heard(link, message, body)
        except (OSError, EOFError) as error:
            log.debug("the link with %s ended: %r", link.hello.address, error)
        except RemoteProtocolError as error:
            self._refusals.add("gateway", f"{link.hello.address} is cut off: {error}")
        finally:
            if self.links.pop(link.conn, None) is not None:
                self._owner.link_down(link)
            link.abort()
