"""State watch: polls whether an access point is on the channel, and reports changes (the patents' connect callback)."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Literal

from m4cast.overlay.errors import M4castError

log = logging.getLogger("m4cast.client")

State = Literal["connected", "lost"]
OnState = Callable[[State, dict[str, Any] | None], object]

INTERVAL_S = 0.5
"""Interval between polls. Lower: changes are reported sooner; each poll takes about 1 ms at the node. Guess."""


class StateWatch:
    """`ask` returns a node's status, or raises an `M4castError`. A callback that fails is logged."""

    def __init__(self, ask: Callable[[], dict[str, Any]], on_state: OnState) -> None:
        self._ask = ask
        self._on_state = on_state
        self._reported: State | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="m4cast-state", daemon=True)

    def start(self) -> "StateWatch":
        self._thread.start()
        return self

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Returns when the callback no longer runs (unless the callback itself closes it)."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                status: dict[str, Any] | None = self._ask()
            except M4castError:
                status = None
            if status is not None and status["state"] != "full":
                status = None
            state: State = "lost" if status is None else "connected"
            if state != self._reported and not self._closed.is_set():
                self._reported = state
                try:
                    self._on_state(state, status)
                except Exception:
                    log.exception("on_state of a channel failed")
            self._closed.wait(INTERVAL_S)
