"""Prints results: tables are as wide as the terminal, or as wide as they need to be in a file or a pipe."""

import json
import sys
from typing import NoReturn

import click
from rich.console import Console
from rich.text import Text

WIDTH_NOT_A_TERMINAL = 10_000
"""Wider than any of our tables, so that nothing that a program reads is cut or folded."""
STATE_STYLES = {
    "full": "green",
    "partial": "yellow",
    "seeking": "yellow",
    "heard": "blue",
    "apart": "red",
    "silent": "red",
    "down": "red",
}
"""Styles of the states of a node."""


class Screen(Console):
    """A rich console for stdout. Strings are printed as they are, because names may contain brackets, which rich would
    take for markup; styled text is a `Text`. If the reader of a pipe has gone, it raises `BrokenPipeError`."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, quiet=quiet)
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = WIDTH_NOT_A_TERMINAL

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich while it handles the error."""
        self.quiet = True
        error = sys.exception()
        assert isinstance(error, BrokenPipeError)
        raise error


def styled_state(state: str) -> Text:
    """The state of a node in its colour."""
    return Text(state, STATE_STYLES[state])


def print_json(value: object) -> None:
    """Print a value as one line of JSON; moments and the like become strings."""
    click.echo(json.dumps(value, default=str))
