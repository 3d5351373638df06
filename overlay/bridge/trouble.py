"""Trouble with a service: logged when it begins and when it is over, and retried with growing pauses."""

import logging
import threading
import time

from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.refusals import PASSING

log = logging.getLogger("m4cast.bridge")

WAIT_MIN_S = 0.1
WAIT_MAX_S = 5.0
TRY_AGAIN = PASSING | {"internal", "missing-stage"}
"""Refusals by a node after which a bridge retries: temporary ones, and a stage that expired is staged again."""


class Trouble:
    """One service that may be down. Threads may share it."""

    def __init__(self, kind: str, name: str, metrics: BridgeMetrics, stop: threading.Event) -> None:
        self._name = name
        self._gauge = metrics.trouble(what=kind)
        self._stop = stop
        self._lock = threading.Lock()
        self._since: float | None = None
        self._wait_s = WAIT_MIN_S

    def wait(self, error: object) -> None:
        """A call failed: log it if it is the first failure, and pause, unless the bridge is stopping."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self._gauge.set(1)
                log.warning("%s: %s; retrying", self._name, " ".join(str(error).split())[:500])
            wait_s = self._wait_s
            self._wait_s = min(2 * self._wait_s, WAIT_MAX_S)
        self._stop.wait(wait_s)

    def over(self) -> None:
        """A call succeeded. Cheap enough to be called each time."""
        if self._since is None:
            return
        with self._lock:
            if self._since is not None:
                log.info("%s: recovered after %.1f s", self._name, time.monotonic() - self._since)
                self._since = None
                self._gauge.set(0)
                self._wait_s = WAIT_MIN_S


class Troubles:
    """The services that a bridge depends on."""

    def __init__(self, brokers: str, node: str, metrics: BridgeMetrics, stop: threading.Event) -> None:
        self.kafka = Trouble("kafka", f"Kafka at {brokers}", metrics, stop)
        self.node = Trouble("node", f"node {node}", metrics, stop)
        self.registry = Trouble("registry", "schema registry", metrics, stop)
        self.stop = stop
