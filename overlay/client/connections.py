"""Connections to nodes, kept per process, node and credentials; and what their errors mean."""

import json
import os
from typing import Any

from pyarrow import flight

from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError

_connections: dict[tuple[str, Credentials], Any] = {}
_used_by: int | None = None
"""The process that made them."""


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


def told(node: str, error: Exception) -> M4castError:
    """The error as a user should see it."""
    said = getattr(error, "extra_info", b"")
    if said:
        try:
            refusal = json.loads(said)
            return RefusedError(str(refusal["code"]), str(refusal["detail"]))
        except (ValueError, TypeError, KeyError):
            pass  # somebody else's extra info
    text = str(error).partition(" gRPC client debug context")[0]
    if isinstance(error, flight.FlightTimedOutError | flight.FlightUnavailableError):
        # The next call makes a new one: this one may stand, and yet lead to a host that is gone.
        for kept in [kept for kept in list(_connections) if kept[0] == node]:
            _connections.pop(kept, None)
    if isinstance(error, flight.FlightTimedOutError):
        return RefusedError("timeout", f"{node} did not answer in time; what was asked may be done yet: {text}")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError("unauthenticated", f"{node}: {text}")
    if isinstance(error, flight.FlightUnavailableError):
        return UnreachableError(f"{node} cannot be reached: {text}")
    return RefusedError("flight", f"{node}: {text}")
