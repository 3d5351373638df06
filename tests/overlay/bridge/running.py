"""Bridges for tests: as processes, to be killed and stopped as operators do, and as threads, which begin at once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from m4cast.cli.rows.bridge import bridge_of
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.settings import Direction, load_settings
from m4cast.overlay.client import Channel
from tests.processes.clusters import until

TIMEOUT_S = 60.0


class BridgeProcess:
    def __init__(self, direction: str, node: str, broker: str, log: Path, *flags: str) -> None:
        self.log = log
        words = [sys.executable, "-m", "m4cast", "bridge", direction, "--node", node, "--broker", broker, *flags]
        with log.open("ab") as output:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT_S)

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until_says(self, words: str) -> None:
        until(lambda: words in self.said(), f"{words!r} in\n{self.said()[-3000:]}")


@contextmanager
def running_bridge(
    direction: str, cluster: LocalCluster, broker: str, log: Path, *flags: str, node: str = "n1"
) -> Iterator[BridgeProcess]:
    bridge = BridgeProcess(direction, cluster.node(node).door, broker, log, *flags)
    try:
        yield bridge
    finally:
        bridge.kill()


class BridgeThread:
    """A bridge in this process, for tests that need not kill it: quick to start."""

    def __init__(self, direction: Direction, channel: Channel, broker: str, settings: Mapping[str, Any]) -> None:
        made, kafka = load_settings(direction, None, {"brokers": [broker], **settings}, {})
        self.stop = threading.Event()
        self.metrics = BridgeMetrics(direction, made.name)
        brokers = Brokers(made.brokers, made.name, kafka)
        self._bridge = bridge_of(made, brokers, channel, self.metrics, self.stop)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=direction)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._bridge.run()
        except BaseException as error:
            self.error = error

    def wait(self) -> BaseException | None:
        """Wait until it ends by itself; returns why."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "it still runs"
        return self.error

    def close(self) -> None:
        self.stop.set()
        self.wait()

    def counted(self, name: str) -> float:
        """The sum of a metric over all labels."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"m4cast_bridge_{name}"
        )


@contextmanager
def bridge_thread(direction: Direction, channel: Channel, broker: str, **settings: Any) -> Iterator[BridgeThread]:
    with bridge_threads(direction, channel, broker, [settings]) as (bridge,):
        yield bridge


@contextmanager
def bridge_threads(
    direction: Direction, channel: Channel, broker: str, settings: Iterable[Mapping[str, Any]]
) -> Iterator[list[BridgeThread]]:
    """Several at the same time: most of what a bridge does when it begins and ends is waiting for Kafka."""
    bridges: list[BridgeThread] = []
    try:
        for each in settings:
            bridges.append(BridgeThread(direction, channel, broker, each))
        yield bridges
    finally:
        for bridge in bridges:
            bridge.stop.set()
        for bridge in bridges:
            bridge.close()
    for bridge in bridges:
        if bridge.error is not None:
            raise bridge.error
