"""Connections to nodes, kept per process, node and credentials; what their errors mean; who did not answer lately."""

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
"""For so long a node that did not answer in time is asked after the others. Higher: less often waited for in vain;
lower: sooner asked again when it is well. Guess."""

NEVER_CONNECTED = tuple(
    f"Flight returned unavailable error, with message: {reason}"
    for reason in ("failed to connect to all addresses", "errors resolving ")
)
"""What Flight says of a call that never left: the node cannot have got it."""
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
"""Flight's and gRPC's errors without what only their authors can use, in this order."""

_connections: dict[tuple[str, Credentials], Any] = {}
_used_by: int | None = None
"""The process that made them."""
_silent_until: dict[str, float] = {}
"""By node, on the monotonic clock."""


def connection(node: str, credentials: Credentials) -> Any:
    global _used_by  # noqa: PLW0603 - it is a fact about the process
    if _used_by not in (None, os.getpid()):
        # gRPC's threads stay in the parent: any call here would wait for ever.
        raise LocalProtocolError(
            "this process was forked after its parent had used a channel: fork first, or start it by spawn"
        )
    _used_by = os.getpid()
    client = _connections.get((node, credentials))
    if client is None:
        client = _connections.setdefault((node, credentials), credentials.connect(node))
    return client


def greet(client: Any, limit_s: float) -> None:
    """Fails if the node does not answer at all. What is asked for may take long, and needs the time for it: whether
    somebody is there is known sooner."""
    list(client.list_actions(flight.FlightCallOptions(timeout=limit_s)))


def answering_first(nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes in their order, but those that did not answer lately at the end."""
    now = time.monotonic()
    return tuple(sorted(nodes, key=lambda node: _silent_until.get(node, now) > now))


def note_silence(node: str) -> None:
    _silent_until[node] = time.monotonic() + ASK_LAST_S


def note_answer(node: str) -> None:
    _silent_until.pop(node, None)


def as_client_error(node: str, error: Exception) -> M4castError:
    """The error as a user should see it."""
    said = getattr(error, "extra_info", b"")
    if said:
        try:
            refusal = json.loads(said)
            return RefusedError(str(refusal["code"]), str(refusal["detail"]))
        except (ValueError, TypeError, KeyError):
            pass  # somebody else's extra info
    text = str(error)
    is_sent = not text.startswith(NEVER_CONNECTED)
    for pattern, plain in PLAIN_WORDS:
        text = pattern.sub(plain, text)
    if isinstance(error, flight.FlightTimedOutError | flight.FlightUnavailableError | flight.FlightCancelledError):
        # The next call makes a new one: this one may stand, and yet lead to a host that is gone.
        for kept in [kept for kept in list(_connections) if kept[0] == node]:
            _connections.pop(kept, None)
    if isinstance(error, flight.FlightTimedOutError):
        return RefusedError("timeout", f"{node} did not answer in time; what was asked may be done yet")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError("unauthenticated", f"{node}: {text}")
    if isinstance(error, flight.FlightUnavailableError):
        return UnreachableError(f"{node} cannot be reached: {text}", is_sent=is_sent)
    if isinstance(error, flight.FlightCancelledError):  # a server that shuts down does this to calls under way
        return UnreachableError(f"{node} stopped during the call; what was asked may be done yet", is_sent=True)
    return RefusedError("flight", f"{node}: {text}")
