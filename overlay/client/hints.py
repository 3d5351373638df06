"""Hints: what to try when a connection fails, one sentence for each common mistake.

gRPC reports what it saw on the wire; these say what that usually means. They name settings as their user knows them
(`HintWords`): the command line has flags, Spark has options.
"""

from dataclasses import dataclass

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

_NO_DOOR = "that port answers, but is not a door for clients: give the node's `door`, not its `listen` or `http`"
HINTS = (
    ("Socket closed", "the door may speak TLS: give {give_ca}, and if it has no tokens {give_pair}"),
    ("wrong version number", "the door does not speak TLS: leave {leave_out} out{also}"),
    (
        "certificate verify failed",
        "the door's certificate was not issued by this {ca}, or has expired: check it by `m4cast certs show`",
    ),
    (
        "is not in peer certificate",
        "the door's certificate does not name this address: use an address that it names (`m4cast certs show`)",
    ),
    ("Failed parsing HTTP/2", _NO_DOOR),
    ("missing selected ALPN", _NO_DOOR),
)
"""Hints, each with the part of gRPC's error that calls for it."""


@dataclass(frozen=True, slots=True)
class HintWords:
    """The names of a client's settings where its user sets them."""

    ca: str
    give_ca: str
    give_pair: str
    """The certificate and its key."""
    leave_out: str
    """All settings that turn TLS on."""
    also: str
    token: str


def hint_for(error: M4castError, words: HintWords) -> str | None:
    if isinstance(error, RefusedError) and error.code == "unauthenticated":
        return words.token
    if isinstance(error, UnreachableError):
        found = next((hint for piece, hint in HINTS if piece in str(error)), None)
        if found is not None:
            return found.format(
                ca=words.ca,
                give_ca=words.give_ca,
                give_pair=words.give_pair,
                leave_out=words.leave_out,
                also=words.also,
            )
    return None
