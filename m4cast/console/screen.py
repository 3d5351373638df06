"""Where tables for people are printed: on a terminal as wide as that is, into a file or a pipe as wide as they are."""

import sys
from typing import NoReturn

from rich.console import Console
from rich.text import Text

WIDTH_NOT_A_TERMINAL = 10_000
"""Wider than any table of ours: nothing is cut or folded that a program reads."""


STATE_STYLES = {
    "full": "green",
    "partial": "yellow",
    "seeking": "yellow",
    "heard": "blue",
    "apart": "red",
    "silent": "red",
    "down": "red",
}
"""By the state of a node."""


class Screen(Console):
    """A console of rich, for stdout. Text is printed as it is: names may have brackets, which rich takes for markup, so
    what is styled is a `Text`. A reader of a pipe who has gone is `BrokenPipeError`, as everywhere else."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, quiet=quiet)
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = WIDTH_NOT_A_TERMINAL

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich where it caught the error."""
        self.quiet = True
        error = sys.exception()
        assert isinstance(error, BrokenPipeError)
        raise error


def styled_state(state: str) -> Text:
    """The state of a node, in its colour."""
    return Text(state, STATE_STYLES[state])
