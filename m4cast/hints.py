"""What to try when a node does not answer as hoped: one sentence for each error that new users meet.

gRPC says what it saw on the wire. These say what that usually means, in words of the command line.
"""

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

HINTS = (
    (
        "Socket closed",
        "the door may speak TLS: give --ca (M4CAST_CA), and if it has no tokens --cert and --key (M4CAST_CERT, "
        "M4CAST_KEY)",
    ),
    ("wrong version number", "the door does not speak TLS: leave --ca, --cert and --key out, also in the environment"),
    (
        "certificate verify failed",
        "the door's certificate is not of this --ca, or has ended: `m4cast certs show` tells whose it is",
    ),
    (
        "is not in peer certificate",
        "the door's certificate does not name this address: use one that it names (`m4cast certs show`)",
    ),
    (
        "Failed parsing HTTP/2",
        "that port answers, and is no door for clients: give the node's `door`, not its `listen` or `http`",
    ),
    (
        "missing selected ALPN",
        "that port answers, and is no door for clients: give the node's `door`, not its `listen` or `http`",
    ),
)
"""By a piece of what gRPC says of a connection that failed."""
TOKEN = "give --token, or set M4CAST_TOKEN: env:NAME, file:PATH, or the token itself"
_FOR_PROGRAMS = ": send the header "


def said_of(error: M4castError) -> str:
    """The error in one line, without what only authors of clients can use."""
    text = " ".join(str(error).split())  # one line, whatever the error quotes
    if isinstance(error, RefusedError) and error.code == "unauthenticated":
        text = text.partition(_FOR_PROGRAMS)[0]
    return text or type(error).__name__


def hint_for(error: M4castError) -> str | None:
    if isinstance(error, RefusedError) and error.code == "unauthenticated":
        return TOKEN
    if isinstance(error, UnreachableError):
        return next((hint for piece, hint in HINTS if piece in str(error)), None)
    return None
