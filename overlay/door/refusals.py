"""How a client is told no: a stable code word, and a detail that names the thing and the fix.

On the wire it is a Flight error whose text is `code: detail` and whose extra info is the same as JSON. The type of the
error says what helps: `FlightUnavailableError` - the same again, later or at another node; `FlightTimedOutError` - the
outcome is not known; `FlightUnauthenticatedError` and `FlightUnauthorizedError` - another token; `FlightServerError` -
the request has to change; `FlightInternalError` - a mistake of the node.
"""

import json
import logging

from pyarrow import flight

log = logging.getLogger("m4cast.door")

TRY_AGAIN = frozenset({"behind", "busy", "leaving", "missing", "not-ready", "stopping", "store", "store-full"})
"""Refusals that the same request need not meet later, or at another node."""
KINDS = {
    "cancelled": flight.FlightCancelledError,
    "timeout": flight.FlightTimedOutError,
    "internal": flight.FlightInternalError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "forbidden": flight.FlightUnauthorizedError,
}
"""Others are `FlightServerError`. PROTOCOL.md has a table of all, which `tests/overlay/door/test_grpc.py` compares."""


class Refusal(Exception):
    """Raised anywhere behind the door; the door turns it into a Flight error."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


def bad_request(detail: str) -> Refusal:
    return Refusal("bad-request", detail)


def gone() -> Refusal:
    return Refusal("cancelled", "the client does not listen any more")


def internal(error: Exception) -> Refusal:
    """For a mistake of ours, or memory or threads that the system would not give. What happened is logged."""
    log.error("a mistake behind the door", exc_info=error)
    return Refusal("internal", f"{type(error).__name__}: see the node's log")


class SchemaError(OSError):
    """What GetSchema raises: of that call alone, pyarrow does not turn Flight errors into answers. It sends the text of
    any exception, followed by its traceback if that can be formatted. This one's cannot: the client gets the text."""

    @property
    def __cause__(self) -> BaseException | None:
        raise AttributeError("not to be formatted")

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """`raise ... from` has nothing to keep here."""


def as_json(refusal: Refusal) -> dict[str, str]:
    return {"code": refusal.code, "detail": refusal.detail}


def flight_error(refusal: Refusal) -> Exception:
    if refusal.code in TRY_AGAIN:
        kind = flight.FlightUnavailableError
    else:
        kind = KINDS.get(refusal.code, flight.FlightServerError)
    error: Exception = kind(f"{refusal.code}: {refusal.detail}", json.dumps(as_json(refusal)).encode())
    return error
