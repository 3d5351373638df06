"""Errors of commands, and how commands end: one line on stderr, a hint where there is one, and an exit code.

An `M4castError` is for the user: it is printed as one line, and the command exits with 2. Any other exception is a bug
and keeps its traceback.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

EXIT_CODE_FAILED = 1
"""The command ran, but a check failed or part of the work could not be done."""
EXIT_CODE_ERROR = 2
EXIT_CODE_INTERRUPTED = 130
"""The code that shells use: 128 plus the number of SIGINT."""
EXIT_CODE_BROKEN_PIPE = 141
"""The code that shells use: 128 plus the number of SIGPIPE."""
WORDS = {
    "ca": "--ca",
    "give_ca": "--ca (M4CAST_CA)",
    "give_pair": "--cert and --key (M4CAST_CERT, M4CAST_KEY)",
    "leave_out": "--ca, --cert and --key",
    "also": ", also in the environment",
    "token": "give --token, or set M4CAST_TOKEN: env:NAME, file:PATH, or the token itself",
}
"""The names that hints use for the settings of a client."""
_FOR_PROGRAMS = ": send the header "


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turn what ends a command early into a message and an exit code."""
    try:
        yield
    except M4castError as error:
        warn(message_of(error))
        hint = hint_for(error)
        if hint is not None:
            warn(f"hint: {hint}")
        raise SystemExit(EXIT_CODE_ERROR) from None
    except KeyboardInterrupt:
        warn("interrupted")
        raise SystemExit(EXIT_CODE_INTERRUPTED) from None
    except BrokenPipeError:
        _exit_unread()


def warn(message: str) -> None:
    """Print a line on stderr, marked as m4cast's."""
    click.echo(f"m4cast: {message}", err=True)


def message_of(error: M4castError) -> str:
    """The error as one line, without what concerns only authors of clients."""
    text = " ".join(str(error).split())
    if isinstance(error, RefusedError) and error.code == "unauthenticated":
        text = text.partition(_FOR_PROGRAMS)[0]
    return text or type(error).__name__


def hint_for(error: M4castError) -> str | None:
    """A hint for an error that new users often meet."""
    if not isinstance(error, RefusedError | UnreachableError):
        return None
    from m4cast.overlay.client import hints  # imports Arrow, which is loaded already when there is such an error

    return hints.hint_for(error, hints.HintWords(**WORDS))


def _exit_unread() -> NoReturn:
    """End after the reader of stdout has gone. What is still buffered is discarded, or Python would report the broken
    pipe again when it exits."""
    with suppress(OSError):  # stdout is not a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(EXIT_CODE_BROKEN_PIPE)
