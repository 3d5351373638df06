"""Reaching the channel: a client from the options, and patience with nodes that are away for a while.

Refusals become errors of the connector, with their ids. Waiting is only for what passes by itself (a node that starts,
is busy, or is behind), and ends at the time-out of the options.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.overlay.refusals import PASSING, REFUSALS
from m4cast.spark_connector.errors import ConnectorError, ErrorId
from m4cast.spark_connector.options import Access

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel

T = TypeVar("T")

RETRY_S = 0.25
"""Guess."""

FIXES: dict[str, str] = {
    "unknown-topic": "look at the names by `m4cast topics`; to wait for a topic that is not there yet, give its "
    "columns by schema()",
    "schema-conflict": "read or publish these apart, or cast the column",
    "missing": "list a node that keeps them, begin later, or set failOnDataLoss to false",
    "behind": "wait and restart the query, raise timeoutMs, or list another node in nodes",
    "not-arrow": 'look at it by option("read", "raw"), and begin behind it',
    "missing-stage": "restart the query, which stages the micro-batch again; make micro-batches shorter than the "
    "node's stage_expire_ms",
}
"""By the code of a refusal: the fix in the words of the connector's options. It has an error id of its own."""

WORDS = {
    "ca": "tlsCa",
    "give_ca": "tlsCa",
    "give_pair": "tlsCert and tlsKey",
    "leave_out": "tlsCa, tlsCert and tlsKey",
    "also": "",
    "token": "give token: env:NAME, file:PATH, or the token itself",
}
"""The options that hints speak of."""


def channel_of(access: Access, *, batch_bytes: int = 1 << 20) -> "Channel":
    from m4cast.overlay.client import Channel

    return Channel(
        access.nodes,
        timeout_s=access.timeout_s,
        batch_bytes=batch_bytes,
        token=access.token,
        ca=access.tlsCa,
        cert=access.tlsCert,
        key=access.tlsKey,
        compression=access.compression,
    )


def patiently(call: Callable[[], T], timeout_s: float, passes: frozenset[str] = PASSING) -> T:
    """What the call answers; again and again while nodes are away, until the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except (RefusedError, UnreachableError) as error:
            is_passing = isinstance(error, UnreachableError) or error.code in passes
            if not is_passing or time.monotonic() + RETRY_S > deadline:
                raise told(error, timeout_s) from error
        time.sleep(RETRY_S)


def told(error: M4castError, timeout_s: float) -> ConnectorError:
    """A client's error as one of the connector."""
    from m4cast.overlay.client import hints

    hint = hints.hint_for(error, hints.Words(**WORDS))
    if isinstance(error, UnreachableError):
        fix = hint or "start the nodes or correct nodes, then restart the query: it goes on where it was"
        return ConnectorError("M4CAST_UNREACHABLE", f"no answer for {timeout_s:g} s: {error}", fix)
    if isinstance(error, RefusedError) and error.code in FIXES:
        error_id = cast(ErrorId, REFUSALS[error.code].spark_id)
        return ConnectorError(error_id, error.detail, FIXES[error.code])
    return ConnectorError("M4CAST_REFUSED", str(error), hint or "see the detail; the node's log has more")
