"""Waiting for something that other nodes do in their own time."""

import time
from collections.abc import Callable
from typing import TypeVar

from m4cast.overlay.errors import RefusedError

T = TypeVar("T")
LIMIT_S = 30.0
LOOK_S = 0.05


def until(look: Callable[[], T], wanted: T) -> None:
    """Wait until this is seen."""
    deadline = time.monotonic() + LIMIT_S
    found = look()
    while found != wanted and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        found = look()
    assert found == wanted


def until_ready(act: Callable[[], object]) -> None:
    """Repeat it while its node is not ready to number rows of selective topics."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            act()
            return
        except RefusedError as error:
            if error.code != "not-ready" or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)
