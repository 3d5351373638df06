"""TLS of a node. On links both sides show a certificate of the cluster's CA (guarantee 8), and TLS is 1.3 only; at the
web door, clients show one or none, and TLS 1.2 is accepted as well.

Host names are not compared: a peer is identified by the name in its certificate (`peer_name`), and the
protocol binds node ids to it. The files are checked whenever a connection is made: new ones are used from then on,
without a restart. New ones that cannot be used are logged by name, and the old ones stay in use.
"""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.errors import ConfigError, M4castError

log = logging.getLogger("m4cast.node")

WARN_BEFORE = timedelta(days=30)
"""A node that reads a certificate which ends sooner than this logs a warning."""
SETTINGS = ("tls_ca", "tls_cert", "tls_key")


class Tls:
    """The certificates of one node, as contexts for new connections."""

    def __init__(self, config: NodeConfig) -> None:
        self.ca, self.cert, self.key = (Path(getattr(config, name)) for name in SETTINGS)
        self._name = config.name
        self._looked = self._look()
        self._server, self._client = self._load()
        self._web: dict[bool, ssl.SSLContext] = {}

    def server(self) -> ssl.SSLContext:
        self._refresh()
        return self._server

    def client(self) -> ssl.SSLContext:
        self._refresh()
        return self._client

    def web(self, *, verifies_clients: bool) -> ssl.SSLContext:
        """The context of the web door, where clients present a certificate of the cluster's CA, or none."""
        self._refresh()
        if verifies_clients not in self._web:
            context = self._context(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.verify_mode = ssl.CERT_REQUIRED if verifies_clients else ssl.CERT_NONE
            context.set_alpn_protocols(["http/1.1"])
            self._web[verifies_clients] = context
        return self._web[verifies_clients]

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(file_stamp(path) for path in (self.ca, self.cert, self.key))

    def _refresh(self) -> None:
        looked = self._look()
        if looked == self._looked:
            return
        self._looked = looked
        try:
            self._server, self._client = self._load()
            self._web.clear()
        except M4castError as error:
            log.error("the new certificates are not used, the old ones stay: %s", error)
        else:
            log.info("new certificates are used from now on: %s", self.cert)

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        from m4cast.overlay.net.certificates import facts_of  # slow to import, and unused without TLS

        facts = facts_of(self.cert)
        if facts.kind != "node":
            raise ConfigError(
                f"tls_cert {self.cert}: is not a node's certificate: make one with `m4cast certs node {self._name}`"
            )
        if facts.name != self._name:
            raise ConfigError(
                f"tls_cert {self.cert}: is the certificate of node {facts.name!r}, but this node's name is "
                f"{self._name!r}: use this node's certificate, or correct its name"
            )
        left = facts.not_after - datetime.now(UTC)
        if left <= timedelta():
            raise ConfigError(f"tls_cert {self.cert}: ended at {facts.not_after:%Y-%m-%d %H:%M} UTC: make a new one")
        if left < WARN_BEFORE:
            log.warning("%s ends at %s UTC: make a new one", self.cert, f"{facts.not_after:%Y-%m-%d %H:%M}")
        return self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)

    def gateway(self, side: int, authorities: tuple[Path, ...]) -> ssl.SSLContext:
        """A context of the gateways' own, in which these authorities are trusted, and not the cluster's."""
        return self._context(side, authorities)

    def _context(self, side: int, authorities: tuple[Path, ...] = ()) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # Links are long-lived; resuming one would bypass new certificates.
        for authority in authorities or (self.ca,):
            try:
                context.load_verify_locations(authority)
            except (OSError, ssl.SSLError) as error:
                name = "ca" if authorities else "tls_ca"
                raise ConfigError(f"{name} {authority}: cannot be used: {_reason(error)}") from error
        try:
            context.load_cert_chain(
                self.cert, self.key, password=""
            )  # Without it, an encrypted key would prompt on the terminal.
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_key {self.key} and tls_cert {self.cert}: cannot be used: {_reason(error)}"
            ) from error
        return context


def tls_of(config: NodeConfig) -> Tls | None:
    """The certificates of a node; None if it has none. `ConfigError` if it has some of them."""
    given = [name for name in SETTINGS if getattr(config, name)]
    if not given:
        return None
    missing = [name for name in SETTINGS if name not in given]
    if missing:
        raise ConfigError(f"{', '.join(given)} without {', '.join(missing)}: TLS needs all of {', '.join(SETTINGS)}")
    if config.insecure:
        raise ConfigError("insecure = true together with certificates: remove one of them")
    return Tls(config)


def check_protected(config: NodeConfig) -> None:
    """`ConfigError` unless the node has certificates, or its settings state that it needs none."""
    if not config.insecure and not any(getattr(config, name) for name in SETTINGS):
        raise ConfigError(
            "the node has no certificates: set tls_ca, tls_cert and tls_key (`m4cast certs` makes them), or, on a "
            "network that you trust, insecure = true"
        )


def peer_name(certificate: dict[str, Any] | None) -> str:
    """The node that a verified certificate names; empty if it names none."""
    if certificate is None:
        return ""
    from m4cast.overlay.net.certificates import URI_PREFIX

    prefix = f"{URI_PREFIX}node:"
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(prefix):
            return str(value.removeprefix(prefix))
    return ""


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is written or replaced; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
