"""Nodes that do not answer, though their connections stand; and a clock that jumps, so that nobody has to wait."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace

import pytest


@contextmanager
def hanging() -> Iterator[str]:
    """The address of somebody who takes connections and says nothing: the system does so for whoever listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Relay:
    """Between clients and a door, until it falls silent: connections stand, as with a host that lost its power."""

    def __init__(self, door: str) -> None:
        host, _, port = door.rpartition(":")
        self._door = (host, int(port))
        self._silent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def fall_silent(self) -> None:
        self._silent.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._door)
                self._sockets += [client, node]
                for pair in ((client, node), (node, client)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._silent.is_set():
                    to.sendall(data)


class Clock:
    """The monotonic clock of some modules, ahead of the real one by what was skipped."""

    def __init__(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.skipped_s = 0.0
        for module in modules:
            patch.setattr(module, "time", SimpleNamespace(monotonic=self._now, sleep=time.sleep))

    def _now(self) -> float:
        return time.monotonic() + self.skipped_s
