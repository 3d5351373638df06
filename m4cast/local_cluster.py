"""A local cluster: real `m4cast node` processes on this machine's loopback, to try things.

Everything is in one folder:

    cluster.json        the plan: nodes with their ports, and what they are configured with
    NAME/node.toml      the node's configuration, made from the plan
    NAME/store/         its store
    NAME/log            what it said
    NAME/pid            which process it is
    certs/              if the cluster speaks TLS: its CA, a certificate for each node and one for clients

The nodes are n1, n2, ...; the first two are the portals. They are processes of their own and go on when the command
or the program that started them ends. Ports are chosen when the cluster is made and then stay the same, below those
that the system hands out to connections, so that a node that comes back finds its port free.

    cluster = LocalCluster.make(folder, nodes=5)
    cluster.up()
    cluster.channel("n1").publish("orders", [{"id": 1}])
    cluster.kill("n3")
    cluster.start("n3")
    cluster.pause("n4")
    cluster.resume("n4")
    cluster.down()

Errors are `M4castError`; one that is about a node that did not come has the end of its log. A folder that holds
something else, or a cluster of another version, is left as it is.
"""

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m4cast.detached_process import DetachedProcess
from m4cast.overlay.errors import M4castError, RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel  # imported where it is used: nodes are started before that takes its time

CLUSTER_DIR = "m4cast-cluster"
"""Where a cluster is, unless it is said."""
CLUSTER_DIR_VARIABLE = "M4CAST_CLUSTER_DIR"
PLAN_FILE = "cluster.json"
LOCK_FILE = "cluster.lock"
PLAN_VERSION = 1
NODES_MAX = 64
PORTALS = 2
HOST = "127.0.0.1"
PORT_MIN = 10_000
UP_TIMEOUT_S = 60.0
DOWN_TIMEOUT_S = 20.0
"""A node that leaves hands its rows over for at most 5 s, closes its links for at most 10, and its door for at most
2."""
KILL_TIMEOUT_S = 10.0
POLL_S = 0.05
LOOK_TIMEOUT_S = 2.0
HTTP_BYTES_MAX = 16 << 20
LOG_TAIL_LINES = 12
PORT_ATTEMPTS = 3
PORT_TAKEN = ("cannot listen on", "cannot open a door", "cannot answer HTTP")
"""What a node says when a port of it is not free."""
CLIENT = "client"
Setting = str | int | bool
Told = Callable[[int, int], None]
"""Called with how many nodes are ready, and of how many."""


class NodeFailedError(M4castError):
    """A node did not come. `log_tail` is the end of what it said."""

    def __init__(self, message: str, log_tail: str) -> None:
        super().__init__(message, log_tail)
        self.message = message
        self.log_tail = log_tail

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class PlannedNode:
    name: str
    listen: str
    door: str
    http: str


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: tuple[PlannedNode, ...]
    cluster: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of [cluster] for all nodes."""
    node: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of [node] for all nodes."""
    tls: bool = False

    def portals(self) -> list[str]:
        return [node.listen for node in self.nodes[:PORTALS]]

    @property
    def degree(self) -> int:
        return int(self.cluster["degree"])


@dataclass(frozen=True, slots=True)
class Sight:
    """A node as it was found. `status` is its own word, empty when it did not answer."""

    name: str
    address: str
    """Its door."""
    http: str
    pid: int | None
    state: str
    """Its own word (full, partial, seeking), or `silent` (a process that does not answer), or `down`."""
    status: dict[str, Any] = field(default_factory=dict)
    listen: str = ""
    """Where other nodes reach it."""

    def neighbours(self) -> list[str]:
        """Their names, as far as it has heard them; by its own word, so none when it did not answer."""
        names = {node["node_id"]: str(node["name"]) for node in self.status.get("roster", ())}
        ids = [str(node["node_id"]) for node in self.status.get("neighbours", ())]
        return sorted(names.get(node_id, node_id) for node_id in ids)


class LocalCluster:
    """The cluster in a folder. `make` a new one or `open` one that is there; nothing runs because of either."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan

    # ---- the plan

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
    ) -> "LocalCluster":
        """Plan a cluster in a folder that is empty or not there."""
        if not 1 <= nodes <= NODES_MAX:
            raise M4castError(f"a local cluster has 1 to {NODES_MAX} nodes, not {nodes}")
        if (folder / PLAN_FILE).exists():
            raise M4castError(
                f"{folder}: a cluster is there already: start it again with `up` alone, or choose another"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise M4castError(f"{folder}: holds something else: choose an empty folder, or one that is not there")
        except OSError as error:
            raise M4castError(f"{folder}: cannot hold a cluster: {error.strerror}") from error
        # Nodes that start all at once ask for the portals before those are there. On loopback a walk that takes long is
        # lost.
        plan = Plan(
            _planned([f"n{number}" for number in range(1, nodes + 1)], ()),
            {"degree": degree, **(cluster_settings or {})},
            {"seek_retry_ms": 100, "walk_timeout_ms": 500, **(node_settings or {})},
            tls,
        )
        cluster = cls(folder, plan)
        if tls:
            cluster._make_certificates(cluster.names(), is_new=True)
        cluster._save()
        return cluster

    @classmethod
    def open(cls, folder: Path) -> "LocalCluster":
        path = folder / PLAN_FILE
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise M4castError(f"{folder}: no cluster is there: make one with `m4cast cluster up`") from None
        except (OSError, ValueError) as error:
            raise M4castError(f"{path}: cannot be read: {error}") from error
        version = said.get("version") if isinstance(said, dict) else None
        if version != PLAN_VERSION:
            raise M4castError(
                f"{path}: is of version {version!r}, this m4cast knows {PLAN_VERSION}: "
                "use the m4cast that made it, or another folder"
            )
        try:
            nodes = tuple(PlannedNode(**node) for node in said["nodes"])
            plan = Plan(nodes, dict(said["cluster"]), dict(said["node"]), bool(said["tls"]))
            assert nodes and isinstance(plan.degree, int)
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise M4castError(f"{path}: is not a plan of a cluster: {error!r}") from error
        return cls(folder, plan)

    def _save(self) -> None:
        """Write the plan, whole or not at all, and the configurations that follow from it."""
        for node in self.plan.nodes:
            (self.folder / node.name).mkdir(exist_ok=True)
            settings: dict[str, object] = {
                "name": node.name,
                "listen": node.listen,
                "door": node.door,
                "http": node.http,
                "portals": self.plan.portals(),
                **self._protection(node.name),
                **self.plan.node,
            }
            conf = f"[cluster]\n{_toml(self.plan.cluster)}\n[node]\n{_toml(settings)}"
            _write_whole(self._conf(node.name), conf)
        _write_whole(
            self.folder / PLAN_FILE, json.dumps({"version": PLAN_VERSION, **asdict(self.plan)}, indent=2) + "\n"
        )

    def _protection(self, name: str) -> dict[str, Setting]:
        if not self.plan.tls:
            return {"insecure": True}
        return {"tls_ca": "../certs/ca.crt", "tls_cert": f"../certs/{name}.crt", "tls_key": f"../certs/{name}.key"}

    def _make_certificates(self, names: Sequence[str], *, is_new: bool) -> None:
        from m4cast.overlay.net.certificates import make_ca, make_client_certificate, make_node_certificate

        certs = self.folder / "certs"
        if is_new:
            certs.mkdir()
            make_ca(certs)
            make_client_certificate(certs, CLIENT)
        for name in names:
            make_node_certificate(certs, name)

    def credentials(self) -> dict[str, str]:
        """What a client of this cluster shows: `ca`, `cert` and `key`, or nothing."""
        if not self.plan.tls:
            return {}
        certs = self.folder.resolve() / "certs"
        paths = {"ca": certs / "ca.crt", "cert": certs / f"{CLIENT}.crt", "key": certs / f"{CLIENT}.key"}
        return {name: str(path) for name, path in paths.items()}

    def names(self) -> list[str]:
        return [node.name for node in self.plan.nodes]

    def node(self, name: str) -> PlannedNode:
        for node in self.plan.nodes:
            if node.name == name:
                return node
        raise M4castError(f"{self.folder}: has no node {name!r}: there are {', '.join(self.names())}")

    def store(self, name: str) -> Path:
        return self.folder / self.node(name).name / "store"

    def log(self, name: str) -> Path:
        return self.folder / self.node(name).name / "log"

    def _conf(self, name: str) -> Path:
        return self.folder / name / "node.toml"

    # ---- looking

    def process(self, name: str) -> DetachedProcess | None:
        """The node's process, if it runs."""
        try:
            text = (self.folder / self.node(name).name / "pid").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
        process = DetachedProcess.parse(text)
        return process if process is not None and process.is_running() else None

    def running(self) -> list[str]:
        return [name for name in self.names() if self.process(name) is not None]

    def channel(self, *names: str, timeout_s: float = 30, token: str = "") -> "Channel":
        """A client of these nodes; of all, if none is named. `token`: if they ask for one."""
        from m4cast.overlay.client import Channel

        doors = [self.node(name).door for name in names or self.names()]
        who = self.credentials()
        return Channel(
            doors,
            timeout_s=timeout_s,
            token=token,
            ca=who.get("ca", ""),
            cert=who.get("cert", ""),
            key=who.get("key", ""),
        )

    def look(self) -> list[Sight]:
        """Every node as it is now."""
        with ThreadPoolExecutor(len(self.plan.nodes)) as pool:
            return list(pool.map(self._look_at, self.plan.nodes))

    def _look_at(self, node: PlannedNode) -> Sight:
        process = self.process(node.name)
        if process is None:
            return Sight(node.name, node.door, node.http, None, "down", listen=node.listen)
        with suppress(M4castError):
            status = self._status(node)
            if status["address"] == node.listen:  # else somebody else got the port
                state = str(status["state"])
                return Sight(node.name, node.door, node.http, process.pid, state, status, node.listen)
        return Sight(node.name, node.door, node.http, process.pid, "silent", listen=node.listen)

    def _status(self, node: PlannedNode) -> dict[str, Any]:
        """What the node reports at its door; if that asks for a token, which the cluster has not got, at its HTTP
        door, which asks for none."""
        try:
            return self.channel(node.name, timeout_s=LOOK_TIMEOUT_S).status()
        except RefusedError as error:
            if error.code != "unauthenticated":
                raise
        return _status_by_http(node.http)

    # ---- starting

    def up(self, told: Told | None = None) -> None:
        """Start all nodes and wait until they are on the channel. If that fails, none is left running."""
        with self._changing():
            running = self.running()
            if len(running) == len(self.plan.nodes):
                raise M4castError(f"{self.folder}: this cluster is up already")
            if running:
                down = [name for name in self.names() if name not in running]
                raise M4castError(
                    f"{self.folder}: {', '.join(running)} of this cluster run, {', '.join(down)} do not: "
                    "`cluster start` those, or take all `cluster down` first"
                )
            is_new = not any(self.store(name).exists() for name in self.names())
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    self._start(self.names(), told)
                    return
                except BaseException as error:
                    self._stop(self.running(), 0)
                    if not (is_new and attempt < PORT_ATTEMPTS and _port_was_taken(error)):
                        raise
                for name in self.names():  # nothing was published yet
                    shutil.rmtree(self.store(name), ignore_errors=True)
                self.plan = replace(self.plan, nodes=_planned(self.names(), ()))
                self._save()

    def start(self, *names: str, told: Told | None = None) -> None:
        """Start nodes that are down and wait until they are on the channel."""
        with self._changing():
            for name in names:
                process = self.process(name)
                if process is not None:
                    raise M4castError(f"{name} runs already, as process {process.pid}")
            self._start(list(names), told)

    def add(self, told: Told | None = None) -> str:
        """One node more; its name."""
        with self._changing():
            if len(self.plan.nodes) >= NODES_MAX:
                raise M4castError(f"a local cluster has 1 to {NODES_MAX} nodes, and this one has them")
            name = f"n{1 + max(int(name[1:]) for name in self.names())}"
            if self.plan.tls:
                self._make_certificates([name], is_new=False)
            self.plan = replace(self.plan, nodes=(*self.plan.nodes, *_planned([name], self.plan.nodes)))
            self._save()
            self._start([name], told)
            return name

    def _start(self, names: Sequence[str], told: Told | None) -> None:
        log_starts = {name: self._spawn(name) for name in names}
        deadline = time.monotonic() + UP_TIMEOUT_S
        while True:
            sights = self.look()
            ready = [name for name in names if self._is_settled(name, sights)]
            if told is not None:
                told(len(ready), len(names))
            if len(ready) == len(names) and _are_one(sights):
                return
            for name in names:
                if self.process(name) is None:
                    raise self._failed(name, "stopped", log_starts[name])
            if time.monotonic() > deadline:
                late = next((name for name in names if name not in ready), names[0])
                raise self._failed(late, f"was not on the channel after {UP_TIMEOUT_S:g} s", log_starts[late])
            time.sleep(POLL_S)

    def _spawn(self, name: str) -> int:
        """Start a node's process; says where its new log begins."""
        log = self.log(name)
        log_start = log.stat().st_size if log.exists() else 0
        words = [
            sys.executable,
            "-m",
            "m4cast",
            "node",
            "--conf",
            str(self._conf(name)),
            "--dir",
            str(self.store(name)),
        ]
        _write_whole(self.folder / name / "pid", str(DetachedProcess.spawn(words, log)))
        return log_start

    def _is_settled(self, name: str, sights: list[Sight]) -> bool:
        """It is on the channel and has the neighbours that it can have: of an odd degree, one may be missing."""
        (sight,) = [sight for sight in sights if sight.name == name]
        others = sum(1 for sight in sights if sight.pid is not None) - 1
        holes_at_rest = max(self.plan.degree - others, 0) + self.plan.degree % 2
        return sight.state == "full" and sight.status["holes"] <= holes_at_rest

    def _failed(self, name: str, what: str, log_start: int) -> NodeFailedError:
        log = self.log(name)
        with log.open("rb") as file:
            file.seek(log_start)
            lines = file.read(1 << 20).decode(errors="replace").splitlines()
        return NodeFailedError(f"{name} {what}: see {log}", "\n".join(lines[-LOG_TAIL_LINES:]))

    # ---- stopping

    def kill(self, *names: str) -> None:
        """End nodes at once, as a crash does (SIGKILL)."""
        with self._changing():
            for name in names:
                if self.process(name) is None:
                    raise M4castError(f"{name} is not running")
            self._stop(names, 0)

    def pause(self, name: str) -> None:
        """Stop a node where it is, as a machine that hangs (SIGSTOP), until `resume`."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a node that was paused go on (SIGCONT)."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.process(name)
        if process is None or not process.send(number):
            raise M4castError(f"{name} is not running")

    def down(self) -> list[str]:
        """Let every node leave in order; one that takes too long is killed. Returns those that were killed."""
        with self._changing():
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
                raise M4castError(f"{name}: process {processes[name].pid} does not end, not even killed")
        for name in processes:
            (self.folder / name / "pid").unlink(missing_ok=True)
        return late

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One command at a time changes a cluster."""
        with (self.folder / LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise M4castError(f"{self.folder}: another command is at work on this cluster: wait for it") from None
            yield


def _status_by_http(http: str) -> dict[str, Any]:
    """What the action `status` says, as far as it is needed here, put together of what the HTTP door says."""
    from prometheus_client.parser import text_string_to_metric_families

    topology = json.loads(_http_get(http, "/topology"))
    families = {family.name: family.samples for family in text_string_to_metric_families(_http_get(http, "/metrics"))}
    own = next(node for node in topology["nodes"] if node["node_id"] == topology["node_id"])
    return {
        "node_id": topology["node_id"],
        "address": own["address"],
        "state": next(sample.labels["state"] for sample in families["m4cast_node_state"] if sample.value),
        "holes": int(families["m4cast_holes"][0].value),
        "neighbours": [{"node_id": node_id} for node_id in own["neighbours"]],
        "roster": topology["nodes"],
    }


def _http_get(http: str, path: str) -> str:
    host, _, port = http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=LOOK_TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(HTTP_BYTES_MAX)
    except (OSError, HTTPException) as error:
        raise M4castError(f"http://{http}{path}: no answer: {error}") from error
    finally:
        connection.close()
    if reply.status != HTTPStatus.OK:
        raise M4castError(f"http://{http}{path}: answers {reply.status}")
    return body.decode()


def _are_one(sights: list[Sight]) -> bool:
    """Every node that runs is reached from every other over links."""
    links = {sight.status["node_id"]: sight.status["neighbours"] for sight in sights if sight.status}
    if not links:
        return False
    reached: set[str] = set()
    ahead = [next(iter(links))]
    while ahead:
        node_id = ahead.pop()
        if node_id not in reached:
            reached.add(node_id)
            ahead += [neighbour["node_id"] for neighbour in links.get(node_id, ())]
    return set(links) <= reached


def _port_was_taken(error: BaseException) -> bool:
    return isinstance(error, NodeFailedError) and any(words in error.log_tail for words in PORT_TAKEN)


def _planned(names: Sequence[str], beside: Sequence[PlannedNode]) -> tuple[PlannedNode, ...]:
    taken = {address for node in beside for address in (node.listen, node.door, node.http)}
    ports = iter(free_ports(3 * len(names), taken))
    return tuple(PlannedNode(name, next(ports), next(ports), next(ports)) for name in names)


def free_ports(count: int, taken: Collection[str] = ()) -> list[str]:
    """Addresses with ports that nobody uses now, below those that the system gives to outgoing connections."""
    try:
        handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        port_end = max(int(handed_out[0]), PORT_MIN + 2_000)
    except OSError:
        port_end = 32_768
    found: list[str] = []
    with ExitStack() as stack:
        for port in random.sample(range(PORT_MIN, port_end), port_end - PORT_MIN):
            if len(found) == count:
                return found
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((HOST, port))
                if f"{HOST}:{port}" not in taken:
                    found.append(f"{HOST}:{port}")
    raise M4castError(f"{count} free ports are needed from {PORT_MIN} to {port_end}, and there are {len(found)}")


def _toml(settings: Mapping[str, object]) -> str:
    # Of text, numbers, truth and lists of text, JSON's spelling is TOML's.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def _write_whole(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
