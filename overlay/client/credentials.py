"""Credentials: how a client authenticates to a node, and a node to a client: a token, certificates, or neither.

A token is given literally, or better by reference: `env:NAME` or `file:PATH`. A reference is resolved where and when it
is used, so a pickled channel does not contain the secret, and a new secret needs no restart.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight

from m4cast.overlay.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class Credentials:
    """`ca`, `cert` and `key` are paths of PEM files. With `ca`, every connection uses TLS."""

    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise LocalProtocolError("cert and key must be set together: set both or neither")

    def connect(self, node: str) -> Any:
        """A Flight client for the node. It connects when it is used."""
        scheme = "grpc+tls" if self.ca or self.cert else "grpc"
        files = {"tls_root_certs": self.ca, "cert_chain": self.cert, "private_key": self.key}
        middleware = []
        if self.token:
            self.secret()  # to raise now if it is invalid
            middleware.append(_ShowsToken(self))
        return flight.connect(
            node if "://" in node else f"{scheme}://{node}",
            middleware=middleware,
            # A separate pool: otherwise a new connection would wait out the back-off of one that failed before.
            generic_options=[("grpc.use_local_subchannel_pool", 1)],
            **{name: _read(path) for name, path in files.items() if path},
        )

    def secret(self) -> str:
        return resolved(self.token, "token")


def resolved(text: str, what: str) -> str:
    """The secret that a text is, or refers to: `env:NAME` or `file:PATH`. `what` names it in errors."""
    kind, _, where = text.partition(":")
    if kind == "env":
        if where not in os.environ:
            raise LocalProtocolError(f"{what} is env:{where}, but the environment has no {where}: set the variable")
        secret = os.environ[where]
    else:
        secret = _read(where).decode(errors="replace") if kind == "file" else text
    secret = secret.strip()
    if not secret.isascii() or not secret.isprintable() or not secret:
        raise LocalProtocolError(f"the {what} must be printable ASCII text: check it for spaces and line breaks")
    return secret


class _ShowsToken(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Adds the token to each call of a connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def start_call(self, info: Any) -> Any:
        try:
            return _Token(self._credentials.secret())
        except LocalProtocolError:  # it was valid before; without it the node says what is missing
            return None


class _Token(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._secret}"}


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LocalProtocolError(f"{path}: cannot be read: {error.strerror}") from error
