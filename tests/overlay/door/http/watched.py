"""HTTP doors for the nodes of a test, and what a Prometheus finds there."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from m4cast.overlay.door.http.monitoring import HttpDoor, HttpLimits
from m4cast.overlay.store.store import ChannelName
from tests.overlay.door.served import Served, serving
from tests.overlay.net.running import LOOK_S, TIMEOUT_S

CHANNEL = ChannelName("m4cast", "default")


class Watched:
    """`served`, with an HTTP door for each node."""

    def __init__(self, served: Served, limits: HttpLimits | None = None) -> None:
        self.served = served
        self._limits = limits
        self.doors: list[HttpDoor] = []

    async def open(self) -> None:
        for node, door in zip(self.served.nodes, self.served.doors, strict=True):
            self.doors.append(
                HttpDoor(node.driver, node.store, CHANNEL, "127.0.0.1:0", door.services.calls, self._limits)
            )

    async def stop(self) -> None:
        while self.doors:
            await self.doors.pop().stop()

    def get(self, at: int, path: str) -> tuple[int, str]:
        return get(self.doors[at].address, path)

    def sample(self, at: int, name: str, /, **labels: str) -> float:
        """The value of one sample of /metrics; 0 if it is not there."""
        return samples(self.get(at, "/metrics")[1]).get((name, tuple(sorted(labels.items()))), 0)


@contextmanager
def watching(folder: Path, count: int, limits: HttpLimits | None = None) -> Iterator[Watched]:
    with serving(folder, count) as served:
        watched = Watched(served, limits)
        try:
            served.run(watched.open())
            yield watched
        finally:
            served.run(watched.stop())


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def get_json(address: str, path: str) -> tuple[int, Any]:
    status, body = get(address, path)
    return status, json.loads(body)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + TIMEOUT_S
    while not condition():
        assert monotonic() < deadline, f"{what}: not within {TIMEOUT_S} s"
        sleep(LOOK_S)  # between looks; what is waited for is the condition
