"""Real NATS servers for benchmarks: a cluster with JetStream in files, on the loopback.

    with running_servers(folder, 3) as servers:
        nats.connect(f"nats://{servers[0].address}")

Servers sync every write before they acknowledge it if they know how (`sync_interval: always`, since 2.10);
`Server.syncs` says whether they do. Debian's `nats-server` is older, so one that knows it is built where there is Go,
once, into the user's cache; else Debian's is installed when root asks for it. `nats-py` belongs to the development
dependencies. `missing()` says what is not there.
"""

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from m4cast.cluster.ports import free_ports

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.05
SYNC = "sync_interval: always"
MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
BUILT = Path.home() / ".cache" / "m4cast" / "nats-2.15.2"
BUILD_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    address: str
    syncs: bool
    pid: int


@cache
def missing() -> str | None:
    """The missing program and how to get it; None if nothing is missing."""
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed: make setup"
    if _program() is None:
        return "nats-server is not installed: apt-get install nats-server, or from nats.io"
    return None


@cache
def _program() -> str | None:
    """The newest server that can be had here."""
    built = BUILT / "nats-server"
    if not built.exists() and shutil.which("go") is not None:
        _run({"GOBIN": str(BUILT)}, "go", "install", MODULE)
    if built.exists():
        return str(built)
    if shutil.which("nats-server") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        for words in (["update"], ["install", "--yes", "--no-install-recommends", "nats-server"]):
            _run({"DEBIAN_FRONTEND": "noninteractive"}, "apt-get", *words)
    return shutil.which("nats-server")


def _run(environment: dict[str, str], *command: str) -> None:
    """Run it; success is judged by what is there afterwards."""
    subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )


@contextmanager
def running_servers(folder: Path, count: int) -> Iterator[list[Server]]:
    addresses = free_ports(2 * count)
    clients, routes = addresses[:count], addresses[count:]
    processes: list[subprocess.Popen[bytes]] = []
    servers: list[Server] = []
    try:
        for number, address in enumerate(clients, start=1):
            name = f"s{number}"
            conf = _conf(folder / name, address, routes[number - 1], routes if count > 1 else [])
            syncs = _accepts(conf)
            if not syncs:
                conf.write_text(conf.read_text(encoding="utf-8").replace(SYNC, ""), encoding="utf-8")
                assert _accepts(conf), conf
            with (folder / name / "log").open("wb") as log:
                words = [_known_program(), "--config", str(conf)]
                processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            servers.append(Server(name, address, syncs, processes[-1].pid))
        for server in servers:
            _wait_for(server)
        yield servers
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(STOP_TIMEOUT_S)


def _conf(folder: Path, address: str, route: str, routes: list[str]) -> Path:
    folder.mkdir(parents=True)
    peers = ", ".join(f"nats-route://{each}" for each in routes)
    cluster = f"cluster {{ name: bench, listen: {route}, routes: [{peers}] }}\n" if routes else ""
    conf = folder / "server.conf"
    conf.write_text(
        f"server_name: {folder.name}\nlisten: {address}\nmax_payload: 8MB\n"
        f'jetstream {{ store_dir: "{folder / "data"}", {SYNC} }}\n{cluster}',
        encoding="utf-8",
    )
    return conf


def _accepts(conf: Path) -> bool:
    command = [_known_program(), "--config", str(conf), "-t"]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def _known_program() -> str:
    program = _program()
    assert program is not None, "ask `missing` first"
    return program


def _wait_for(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"{server.name} did not come"
            time.sleep(POLL_S)


async def make_stream(address: str, subjects: str, replicas: int) -> None:
    """One that keeps these subjects in files. A cluster that was just started takes some time to agree."""
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(f"nats://{address}")
    config = StreamConfig(name=uuid.uuid4().hex, subjects=[subjects], num_replicas=replicas, storage=StorageType.FILE)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            await client.jetstream().add_stream(config)
            break
        except nats.errors.Error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(POLL_S)
    await client.close()
