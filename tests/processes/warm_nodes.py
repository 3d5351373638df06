"""Node processes that need not import anything: each is forked from a process that has imported all that a node does.

Importing is most of what a node does until it is on the channel (0.9 s of CPU), and tests start hundreds of them. What
is forked runs `m4cast node` with its own session, environment, folder and log, as if it had been executed; only its
command line tells them apart. Tests of the command itself and of `m4cast cluster` execute it
(`tests/cli/test_node.py`, `tests/cluster/test_local.py`).

    python -m tests.processes.warm_nodes    reads requests from stdin, one line of JSON each, and prints pids
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from m4cast.cluster.detached_process import DetachedProcess
from m4cast.cluster.local import LocalCluster
from tests.processes.hosts import enter_network

FORKS_WELL = "jemalloc_bg_thd"
"""The thread of Arrow's allocator, which goes on without it in a child."""


class WarmCluster(LocalCluster):
    """A local cluster whose nodes are forked."""

    def _launch(self, words: list[str], log: Path) -> DetachedProcess:
        assert words[:3] == [sys.executable, "-m", "m4cast"], words
        return nursery().launch(words[3:], log)


class Nursery:
    """The process that nodes are forked from; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A thread of numpy's would be missing in what is forked.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def launch(self, words: list[str], log: Path, network: str | None = None) -> DetachedProcess:
        """`network`: the file of a network namespace. What runs there ends with the process that it is forked from."""
        asked = {
            "words": words,
            "log": str(log),
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "network": network,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the process that nodes are forked from has ended"
        return DetachedProcess.of(int(answer))


_MAKING = threading.Lock()


def nursery() -> Nursery:
    """The one of this process. Nodes are started on several threads, which would make several without the lock."""
    with _MAKING:
        return _made()


@cache
def _made() -> Nursery:
    return Nursery()


def main() -> None:
    import lmdb  # noqa: F401  # as below: what nodes import when they start
    import uvloop  # noqa: F401

    import m4cast.cli.nodes.node
    import m4cast.overlay.door.web.door
    import m4cast.overlay.profiles.profile  # noqa: F401

    threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    assert sum(name != FORKS_WELL for name in threads) == 1, f"what is forked would lack one of {threads}"
    signal.signal(signal.SIGCHLD, _reap)
    gc.collect()
    gc.freeze()
    asked = _next_child()
    if asked is not None:
        _become(**asked)


def _next_child() -> dict[str, Any] | None:
    """Forks a child for every request; returns what was requested in each of them, and None at the end of requests:
    then whoever made them is gone, and the children go, too."""
    children: list[int] = []
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        while line := requests.readline():
            pid = os.fork()
            if not pid:
                asked: dict[str, Any] = json.loads(line)
                return asked
            children.append(pid)
            answers.write(b"%d\n" % pid)
    for pid in children:
        with suppress(ChildProcessError):  # it ended before
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
    return None


def _become(words: list[str], log: str, folder: str, environment: dict[str, str], network: str | None) -> None:
    """Runs in the child: everything that `DetachedProcess.spawn` would have given to a new process."""
    os.setsid()
    if network is not None:
        enter_network(network)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, to in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, to)
    os.close(nothing)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["m4cast", *words]

    from m4cast.cli import main as m4cast_main

    m4cast_main()


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
