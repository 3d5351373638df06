"""Errors of the client in words of the command line."""

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

WORDS = {
    "ca": "--ca",
    "give_ca": "--ca (M4CAST_CA)",
    "give_pair": "--cert and --key (M4CAST_CERT, M4CAST_KEY)",
    "leave_out": "--ca, --cert and --key",
    "also": ", also in the environment",
    "token": "give --token, or set M4CAST_TOKEN: env:NAME, file:PATH, or the token itself",
}
_FOR_PROGRAMS = ": send the header "


def said_of(error: M4castError) -> str:
    """The error in one line, without what only authors of clients can use."""
    text = " ".join(str(error).split())  # one line, whatever the error quotes
    if isinstance(error, RefusedError) and error.code == "unauthenticated":
        text = text.partition(_FOR_PROGRAMS)[0]
    return text or type(error).__name__


def hint_for(error: M4castError) -> str | None:
    if not isinstance(error, RefusedError | UnreachableError):
        return None
    from m4cast.overlay.client import hints  # here, since it imports Arrow, which such an error has done already

    return hints.hint_for(error, hints.Words(**WORDS))
