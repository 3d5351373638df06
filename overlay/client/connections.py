"""Connections to nodes, kept per process, node and credentials; what their errors mean; which nodes did not answer."""

import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from pyarrow import flight

from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError

ASK_LAST_S = 60.0
"""Time for which a node that did not answer is asked after the others. Higher: fewer vain waits; lower: it is used
again sooner after it recovers. Guess."""

NEVER_CONNECTED = tuple(
    f"Flight returned unavailable error, with message: {reason}"
    for reason in ("failed to connect to all addresses", "errors resolving ")
)
"""The beginnings of Flight's errors for a call that was never sent: the node cannot have received it."""
PLAIN_WORDS = tuple(
    (re.compile(pattern, re.DOTALL), plain)
    for pattern, plain in (
        (r"\.? ?gRPC client debug context.*", ""),
        (r"\. Detail: \w+$", ""),
        (r"^Flight returned \w+ error, with message: ", ""),
        (r"^failed to connect to all addresses; last error: [A-Z_]+: \S+: ", ""),
        (r"^Failed to connect to remote host: ", ""),
        (r"^errors resolving .*: ([^:\]]*)\]?$", r"\1"),
        (r"^(Failed parsing HTTP/2).*", r"\1"),
        (r" \(Error in HTTP transport.*", ""),
        (r"^Stream removed \((.*)\)$", r"\1"),
    )
)
"""Replacements that shorten Flight's and gRPC's errors to what helps a user, applied in this order."""

_connections: dict[tuple[str, Credentials], Any] = {}
_used_by: int | None = None
"""The process that made them."""
_silent_until: dict[str, float] = {}
"""The time, on the monotonic clock, until which each node is asked after the others."""


def connection(node: str, credentials: Credentials) -> Any:
    global _used_by  # noqa: PLW0603 - it is a fact about the process
    if _used_by not in (None, os.getpid()):
        # gRPC's threads stay in the parent: any call here would hang.
        raise LocalProtocolError(
            "this process was forked after its parent had used a channel: fork before that, or start it by spawn"
        )
    _used_by = os.getpid()
    client = _connections.get((node, credentials))
    if client is None:
        client = _connections.setdefault((node, credentials), credentials.connect(node))
    return client


def greet(client: Any, limit_s: float) -> None:
    """Fails if the node does not answer at all. The call itself may take long; whether the node answers is known
    sooner."""
    list(client.list_actions(flight.FlightCallOptions(timeout=limit_s)))


def answering_first(nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes in their order, with those that recently did not answer at the end."""
    now = time.monotonic()
    return tuple(sorted(nodes, key=lambda node: _silent_until.get(node, now) > now))


def note_silence(node: str) -> None:
    _silent_until[node] = time.monotonic() + ASK_LAST_S


def note_answer(node: str) -> None:
    _silent_until.pop(node, None)


def as_client_error(node: str, error: Exception) -> M4castError:
    """An error of Flight as one of m4cast: the node's refusal, if it has one, else what the transport reports."""
    extra_info = getattr(error, "extra_info", b"")
    if extra_info:
        try:
            refusal = json.loads(extra_info)
            return RefusedError(str(refusal["code"]), str(refusal["detail"]))
        except (ValueError, TypeError, KeyError):
            pass  # not the extra info of a node of ours
    text = str(error)
    is_sent = not text.startswith(NEVER_CONNECTED)
    for pattern, plain in PLAIN_WORDS:
        text = pattern.sub(plain, text)
    if isinstance(error, flight.FlightTimedOutError | flight.FlightUnavailableError | flight.FlightCancelledError):
        # The next call opens a new one: this one may look open although its host is gone.
        for kept in [kept for kept in list(_connections) if kept[0] == node]:
            _connections.pop(kept, None)
    if isinstance(error, flight.FlightTimedOutError):
        return RefusedError("timeout", f"{node} did not answer in time; the request may still be performed")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError("unauthenticated", f"{node}: {text}")
    if isinstance(error, flight.FlightUnavailableError):
        return UnreachableError(f"{node} cannot be reached: {text}", is_sent=is_sent)
    if isinstance(error, flight.FlightCancelledError):  # what a server that shuts down does to calls in progress
        return UnreachableError(f"{node} stopped during the call; the request may still be performed", is_sent=True)
    return RefusedError("flight", f"{node}: {text}")
