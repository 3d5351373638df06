"""Reaching the channel: a client from the options, and retries while nodes are unreachable.

Refusals become connector errors with ids. Only temporary conditions are retried (a node that starts, is busy or lags),
until the time-out of the options.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.refusals import PASSING, REFUSALS
from m4cast.spark_connector.errors import ConnectorError, ErrorId
from m4cast.spark_connector.options import Access, ReadOptions

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel, Client
    from m4cast.overlay.client.roaming.planned import ClientPosition

T = TypeVar("T")

RETRY_S = 0.25
"""Guess."""

FIXES: dict[str, str] = {
    "unknown-topic": "list the names with `m4cast topics`; to wait for a topic to be created, set its columns with "
    "schema()",
    "schema-conflict": "read or publish the topics separately, or cast the column",
    "missing": "list a node that still keeps them, start at a later offset, or set failOnDataLoss to false",
    "behind": "restart the query later, raise timeoutMs, or add another node to nodes",
    "not-arrow": 'inspect it with option("read", "raw"), and start after it',
    "unknown-client": "check client, add its access point to nodes, or create it with `m4cast client new`",
    "bad-credential": "set credential to the one that the client was created with",
    "client-connected": "subscribe in the process that is connected, or end it first",
    "client-elsewhere": "each query needs a client of its own: end the other process, then restart the query, which "
    "continues where it stopped",
    "missing-stage": "restart the query, which stages the micro-batch again; keep micro-batches shorter than the "
    "node's stage_expire_ms",
}
"""The fix by refusal code, in terms of the connector's options. These refusals have their own error ids."""

WORDS = {
    "ca": "tlsCa",
    "give_ca": "tlsCa",
    "give_pair": "tlsCert and tlsKey",
    "leave_out": "tlsCa, tlsCert and tlsKey",
    "also": "",
    "token": "set token to env:NAME, file:PATH, or the token itself",
}
"""The names of the options in hints."""


def channel_of(access: Access, *, batch_bytes: int = 1 << 20) -> "Channel":
    from m4cast.overlay.client import Channel

    return Channel(
        access.nodes,
        timeout_s=access.timeout_s,
        batch_bytes=batch_bytes,
        token=access.token,
        ca=access.tls_ca,
        cert=access.tls_cert,
        key=access.tls_key,
        compression=access.compression,
    )


def client_of(options: ReadOptions) -> "Client":
    """The client whose rows are read, not connected."""
    from m4cast.overlay.client import Client

    channel = channel_of(options.access)
    return Client(channel, key=options.client, credential=options.credential, acknowledge="manual")


def saved_by_client(client: "Client", options: ReadOptions) -> "ClientPosition":
    """The position that a client's access point has saved."""
    try:
        return patiently(client.saved, options.access.timeout_s)
    except LocalProtocolError as error:
        fix = "set it to env:NAME, file:PATH, or the credential itself"
        raise ConnectorError("M4CAST_BAD_OPTION", f"option credential: {error}", fix) from None


def patiently(call: Callable[[], T], timeout_s: float, temporary: frozenset[str] = PASSING) -> T:
    """The result of the call, which is retried while nodes are unreachable, until the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except (RefusedError, UnreachableError) as error:
            is_temporary = isinstance(error, UnreachableError) or error.code in temporary
            if not is_temporary or time.monotonic() + RETRY_S > deadline:
                raise as_connector_error(error, timeout_s) from error
        time.sleep(RETRY_S)


def as_connector_error(error: M4castError, timeout_s: float) -> ConnectorError:
    """The client's error as a connector error."""
    from m4cast.overlay.client import hints

    hint = hints.hint_for(error, hints.HintWords(**WORDS))
    if isinstance(error, UnreachableError):
        fix = hint or "start the nodes or correct nodes, then restart the query: it continues where it stopped"
        return ConnectorError("M4CAST_UNREACHABLE", f"no answer for {timeout_s:g} s: {error}", fix)
    if isinstance(error, RefusedError) and error.code in FIXES:
        error_id = cast(ErrorId, REFUSALS[error.code].spark_id)
        return ConnectorError(error_id, error.detail, FIXES[error.code])
    return ConnectorError("M4CAST_REFUSED", str(error), hint or "the node's log has more details")
