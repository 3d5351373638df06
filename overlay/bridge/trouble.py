"""Trouble: what goes wrong again and again is said once, and once more when it is over."""

import logging
import threading
import time

from m4cast.overlay.bridge.metrics import BridgeMetrics

log = logging.getLogger("m4cast.bridge")

WAIT_MIN_S = 0.1
WAIT_MAX_S = 5.0


class Trouble:
    """One thing that may be away: it is tried again after a while, longer each time. Threads may share it."""

    def __init__(self, kind: str, name: str, metrics: BridgeMetrics, stop: threading.Event) -> None:
        self._name = name
        self._gauge = metrics.trouble(what=kind)
        self._stop = stop
        self._lock = threading.Lock()
        self._since: float | None = None
        self._wait_s = WAIT_MIN_S

    def wait(self, error: object) -> None:
        """It happened (again): say so if it is new, and wait, unless the bridge is to stop."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self._gauge.set(1)
                log.warning("%s: %s; waiting and trying again", self._name, " ".join(str(error).split())[:500])
            wait_s = self._wait_s
            self._wait_s = min(2 * self._wait_s, WAIT_MAX_S)
        self._stop.wait(wait_s)

    def over(self) -> None:
        """It went well. Cheap, so that it can be said each time."""
        if self._since is None:
            return
        with self._lock:
            if self._since is not None:
                log.info("%s: well again after %.1f s", self._name, time.monotonic() - self._since)
                self._since = None
                self._gauge.set(0)
                self._wait_s = WAIT_MIN_S
