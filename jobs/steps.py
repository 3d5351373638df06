"""The steps of a job on the console: one line per step, with its duration."""

import sys
from time import perf_counter

from rich.console import Console


class Steps:
    """Reports steps on a console; without one, it prints nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._doing: str | None = None
        self._since = perf_counter()

    @classmethod
    def on_stderr(cls) -> "Steps":
        return cls(Console(file=sys.stderr, highlight=False))

    def step(self, doing: str) -> None:
        self.done()
        self._doing, self._since = doing, perf_counter()
        if self._console is not None and self._console.is_terminal:
            self._console.print(f"{doing} ...", end="\r", markup=False)

    def done(self) -> None:
        if self._console is not None and self._doing is not None:
            done = f"{self._doing}: {perf_counter() - self._since:.1f} s"
            self._console.print(done, markup=False, soft_wrap=True)  # never wrapped, whatever the width
        self._doing = None
