"""A local cluster: real `m4cast node` processes on this machine's loopback.

Everything is in one folder:

    cluster.json        the plan, with the files that follow from it (see `plan`)
    NAME/store/         a node's store
    NAME/log            its log
    NAME/pid            its process

The nodes are called n1, n2, ...; the first two are the portals. They are separate processes, which keep running when
the command or the program that started them ends.

    cluster = LocalCluster.make(folder, nodes=5)
    cluster.up()
    cluster.channel("n1").publish("orders", [{"id": 1}])
    cluster.kill("n3")
    cluster.start("n3")
    cluster.pause("n4")
    cluster.resume("n4")
    cluster.down()

Errors are `M4castError`; a `NodeFailedError` has the end of the node's log. A folder with other content, or with a
cluster of another version, is left unchanged.
"""

import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m4cast.cluster.detached_process import DetachedProcess
from m4cast.cluster.plan import (
    NODES_MAX,
    PLAN_FILE,
    ClusterPlan,
    PlannedNode,
    Setting,
    client_credentials,
    conf_file,
    make_certificates,
    planned_nodes,
    read_plan,
    write_atomically,
    write_plan,
)
from m4cast.cluster.view import LOOK_TIMEOUT_S, NodeView, are_connected, status_by_http
from m4cast.overlay.errors import M4castError, RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel  # imported on use, so that nodes start before Arrow is loaded

CLUSTER_DIR = "m4cast-cluster"
"""The default folder of a cluster."""
CLUSTER_DIR_VARIABLE = "M4CAST_CLUSTER_DIR"
LOCK_FILE = "cluster.lock"
UP_TIMEOUT_S = 60.0
DOWN_TIMEOUT_S = 20.0
"""A leaving node hands over its rows for at most 5 s, and closes its links within 10 s and its door within 2 s."""
KILL_TIMEOUT_S = 10.0
POLL_S = 0.05
LOG_TAIL_LINES = 12
PORT_ATTEMPTS = 3
PORT_TAKEN = ("cannot listen on", "cannot open a door", "cannot serve HTTP")
"""Words that a node logs when one of its ports is in use."""
OnProgress = Callable[[int, int], None]
"""Called with the number of nodes that are ready and the number of all."""


class NodeFailedError(M4castError):
    """A node did not start. `log_tail` is the end of its log."""

    def __init__(self, message: str, log_tail: str) -> None:
        super().__init__(message, log_tail)
        self.message = message
        self.log_tail = log_tail

    def __str__(self) -> str:
        return self.message


class LocalCluster:
    """The cluster in a folder. `make` plans a new one, `open` reads the plan of an existing one; neither starts it."""

    def __init__(self, folder: Path, plan: ClusterPlan) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def make(
        cls,
        folder: Path,
        nodes: int,
        *,
        degree: int = 4,
        tls: bool = False,
        cluster_settings: Mapping[str, Setting] | None = None,
        node_settings: Mapping[str, Setting] | None = None,
        sites: Sequence[str] = (),
    ) -> "LocalCluster":
        """Plan a cluster in a folder that is empty or does not exist. The nodes are at these sites in turn."""
        if not 1 <= nodes <= NODES_MAX:
            raise M4castError(f"a local cluster has 1 to {NODES_MAX} nodes, not {nodes}")
        if (folder / PLAN_FILE).exists():
            raise M4castError(
                f"{folder}: already has a cluster: start it with `up` and no other option, or choose another folder"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise M4castError(f"{folder}: is not empty: choose an empty folder, or one that does not exist")
        except OSError as error:
            raise M4castError(f"{folder}: cannot hold a cluster: {error.strerror}") from error
        # Nodes that start at the same time look for the portals before these listen, so they retry soon. On loopback
        # a walk that takes long is lost.
        plan = ClusterPlan(
            nodes=planned_nodes([f"n{number}" for number in range(1, nodes + 1)], sites=sites),
            cluster={"degree": degree, **(cluster_settings or {})},
            node={"seek_retry_ms": 100, "walk_timeout_ms": 500, **(node_settings or {})},
            tls=tls,
        )
        cluster = cls(folder, plan)
        if tls:
            make_certificates(folder, cluster.names(), with_ca=True)
        cluster._save()
        return cluster

    @classmethod
    def open(cls, folder: Path) -> "LocalCluster":
        return cls(folder, read_plan(folder))

    def _save(self) -> None:
        write_plan(self.folder, self.plan)

    # ---- the nodes and their files

    def names(self) -> list[str]:
        return [node.name for node in self.plan.nodes]

    def node(self, name: str) -> PlannedNode:
        for node in self.plan.nodes:
            if node.name == name:
                return node
        raise M4castError(f"{self.folder}: there is no node {name!r}: the nodes are {', '.join(self.names())}")

    def store(self, name: str) -> Path:
        return self.folder / self.node(name).name / "store"

    def log(self, name: str) -> Path:
        return self.folder / self.node(name).name / "log"

    def credentials(self) -> dict[str, str]:
        """The credentials of a client of this cluster: `ca`, `cert` and `key`, or nothing without TLS."""
        return client_credentials(self.folder) if self.plan.tls else {}

    def channel(self, *names: str, timeout_s: float = 30, token: str = "") -> "Channel":
        """A client of these nodes, or of all if none is named."""
        from m4cast.overlay.client import Channel

        doors = [self.node(name).door for name in names or self.names()]
        own = {"ca": "", "cert": "", "key": "", **self.credentials()}
        return Channel(doors, timeout_s=timeout_s, token=token, ca=own["ca"], cert=own["cert"], key=own["key"])

    # ---- looking

    def process(self, name: str) -> DetachedProcess | None:
        """The node's process, if it is running."""
        try:
            text = (self.folder / self.node(name).name / "pid").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
        process = DetachedProcess.parse(text)
        return process if process is not None and process.is_running() else None

    def running(self) -> list[str]:
        return [name for name in self.names() if self.process(name) is not None]

    def look(self) -> list[NodeView]:
        """Every node as it is now."""
        with ThreadPoolExecutor(len(self.plan.nodes)) as pool:
            return list(pool.map(self._look_at, self.plan.nodes))

    def _look_at(self, node: PlannedNode) -> NodeView:
        process = self.process(node.name)
        pid = None if process is None else process.pid
        state = "down" if process is None else "silent"
        view = NodeView(
            name=node.name, door=node.door, http=node.http, listen=node.listen, pid=pid, state=state, web=node.web
        )
        if process is not None:
            with suppress(M4castError):
                status = self._status(node)
                if status["address"] == node.listen:  # else another program has taken the port
                    return replace(view, state=str(status["state"]), status=status)
        return view

    def _status(self, node: PlannedNode) -> dict[str, Any]:
        """The status that the node reports at its door. If the door asks for a token, which the cluster does not have,
        the HTTP door is asked instead."""
        try:
            return self.channel(node.name, timeout_s=LOOK_TIMEOUT_S).status()
        except RefusedError as error:
            if error.code != "unauthenticated":
                raise
        return status_by_http(node.http)

    # ---- starting

    def up(self, on_progress: OnProgress | None = None) -> None:
        """Start all nodes and wait until they are on the channel. If that fails, none is left running."""
        with self._locked():
            running = self.running()
            if len(running) == len(self.plan.nodes):
                raise M4castError(
                    f"{self.folder}: this cluster is already up: m4cast cluster status shows its addresses"
                )
            if running:
                down = [name for name in self.names() if name not in running]
                found = f"running: {', '.join(running)}; down: {', '.join(down)}"
                raise M4castError(
                    f"{self.folder}: part of this cluster is up ({found}): "
                    f"run `cluster start {' '.join(down)}`, or `cluster down` first"
                )
            is_new = not any(self.store(name).exists() for name in self.names())
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    self._start(self.names(), on_progress)
                    return
                except BaseException as error:
                    self._stop(self.running(), 0)
                    if not (is_new and attempt < PORT_ATTEMPTS and _was_port_taken(error)):
                        raise
                for name in self.names():  # nothing was published yet
                    shutil.rmtree(self.store(name), ignore_errors=True)
                self.plan = replace(
                    self.plan, nodes=planned_nodes(self.names(), sites=[node.site for node in self.plan.nodes])
                )
                self._save()

    def start(self, *names: str, on_progress: OnProgress | None = None) -> None:
        """Start nodes that are down and wait until they are on the channel."""
        with self._locked():
            for name in names:
                process = self.process(name)
                if process is not None:
                    raise M4castError(
                        f"{name} is already running, as process {process.pid}: m4cast cluster kill {name} stops it"
                    )
            self._start(list(names), on_progress)

    def add(self, on_progress: OnProgress | None = None) -> str:
        """Add a node and start it; returns its name."""
        with self._locked():
            if len(self.plan.nodes) >= NODES_MAX:
                raise M4castError(
                    f"{self.folder}: has {NODES_MAX} nodes, the most that a local cluster can have: use those, or make "
                    "another cluster (--dir)"
                )
            name = f"n{1 + max(int(name[1:]) for name in self.names())}"
            if self.plan.tls:
                make_certificates(self.folder, [name], with_ca=False)
            self.plan = replace(self.plan, nodes=(*self.plan.nodes, *planned_nodes([name], self.plan.nodes)))
            self._save()
            self._start([name], on_progress)
            return name

    def _start(self, names: Sequence[str], on_progress: OnProgress | None) -> None:
        log_starts = {name: self._spawn(name) for name in names}
        deadline = time.monotonic() + UP_TIMEOUT_S
        while True:
            views = self.look()
            ready = [name for name in names if self._is_settled(name, views)]
            if on_progress is not None:
                on_progress(len(ready), len(names))
            if len(ready) == len(names) and are_connected(views):
                return
            for name in names:
                if self.process(name) is None:
                    raise self._failed(name, "stopped", log_starts[name])
            if time.monotonic() > deadline:
                late = next((name for name in names if name not in ready), names[0])
                raise self._failed(late, f"was not on the channel after {UP_TIMEOUT_S:g} s", log_starts[late])
            time.sleep(POLL_S)

    def _spawn(self, name: str) -> int:
        """Start a node's process; returns where in its log the new lines begin."""
        log = self.log(name)
        log_start = log.stat().st_size if log.exists() else 0
        words = [sys.executable, "-m", "m4cast", "node"]
        words += ["--conf", str(conf_file(self.folder, name)), "--dir", str(self.store(name))]
        write_atomically(self.folder / name / "pid", str(self._launch(words, log)))
        return log_start

    def _launch(self, words: list[str], log: Path) -> DetachedProcess:
        return DetachedProcess.spawn(words, log)

    def _is_settled(self, name: str, views: list[NodeView]) -> bool:
        """True if it is on the channel with all neighbours it can have; with an odd degree, one may be missing."""
        (view,) = [view for view in views if view.name == name]
        others = sum(1 for view in views if view.pid is not None) - 1
        holes_at_rest = max(self.plan.degree - others, 0) + self.plan.degree % 2
        return view.state == "full" and view.status["holes"] <= holes_at_rest

    def _failed(self, name: str, what: str, log_start: int) -> NodeFailedError:
        log = self.log(name)
        with log.open("rb") as file:
            file.seek(log_start)
            lines = file.read(1 << 20).decode(errors="replace").splitlines()
        return NodeFailedError(f"{name} {what}: see {log}", "\n".join(lines[-LOG_TAIL_LINES:]))

    # ---- stopping

    def kill(self, *names: str) -> None:
        """Kill nodes, as in a crash (SIGKILL)."""
        with self._locked():
            for name in names:
                if self.process(name) is None:
                    raise M4castError(f"{name} is not running: m4cast cluster status lists the nodes that are")
            self._stop(names, 0)

    def pause(self, name: str) -> None:
        """Suspend a node, as if its machine hung (SIGSTOP), until `resume`."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Continue a node that was paused (SIGCONT)."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.process(name)
        if process is None or not process.send(number):
            raise M4castError(f"{name} is not running")

    def down(self) -> list[str]:
        """Let every node leave gracefully and kill those that take too long; returns the names of the latter."""
        with self._locked():
            return self._stop(self.running(), DOWN_TIMEOUT_S)

    def _stop(self, names: Sequence[str], patience_s: float) -> list[str]:
        processes = {name: process for name in names if (process := self.process(name)) is not None}
        deadline = time.monotonic() + patience_s
        if patience_s:
            for process in processes.values():
                process.send(signal.SIGTERM)
        late = [name for name, process in processes.items() if not process.wait(deadline - time.monotonic())]
        for name in late:
            processes[name].send(signal.SIGKILL)
        for name in late:
            if not processes[name].wait(KILL_TIMEOUT_S):
                raise M4castError(f"{name}: process {processes[name].pid} does not end, although it was killed")
        for name in processes:
            (self.folder / name / "pid").unlink(missing_ok=True)
        return late

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one command at a time changes a cluster."""
        with (self.folder / LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise M4castError(
                    f"{self.folder}: another command is changing this cluster: wait until it is done"
                ) from None
            yield


def _was_port_taken(error: BaseException) -> bool:
    return isinstance(error, NodeFailedError) and any(words in error.log_tail for words in PORT_TAKEN)
