"""`m4cast doctor`: does this machine have what m4cast needs, and do nodes answer from here.

One line for each check: ok, warn (something will not work, or not well) or fail (m4cast will not work). The exit code
is 1 if any check failed, else 0. Nothing is changed; a file is written and removed to time the disk.
"""

import importlib
import importlib.metadata
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click
from rich.table import Table
from rich.text import Text

from m4cast.console.access import channel_of, credential_options, node_option
from m4cast.console.errors import hint_for, said_of
from m4cast.console.screen import Screen
from m4cast.overlay.config import NodeConfig
from m4cast.overlay.errors import M4castError

Level = Literal["ok", "warn", "fail"]
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
EXIT_CODE_FAILED = 1
JAVA_MIN = 17
JAVA_TIMEOUT_S = 20
PACKAGES = {
    "client": ("click", "fastavro", "pyarrow", "rich", "xxhash"),
    "node": ("cryptography", "lmdb", "prometheus_client", "uvloop"),
    "spark": ("delta", "pandas", "pyspark"),
    "kafka": ("kafka",),
    "sim": ("networkx",),
}
"""Modules by the extra that brings them; those of a client come with m4cast itself."""
DISTRIBUTIONS = {"delta": "delta-spark", "kafka": "kafka-python"}
"""Where the package is not called as its module."""
IVY_FOLDERS = (".ivy2/jars", ".ivy2.5.2/jars", ".ivy2/cache/io.delta", ".m2/repository/io/delta")
DISK_FAIL_BYTES, DISK_WARN_BYTES = 100 << 20, 2 << 30
SYNC_ROUNDS = 20
SYNC_WARN_MS = 20.0
FILES_FAIL, FILES_WARN = 256, 1024
EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
NODE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: Level
    said: str


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--dir",
    "folder",
    default=".",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Whose disk to look at: where stores will be.",
)
@node_option("Does this door answer; several are possible.", from_environment=False)
@credential_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def doctor(folder: Path, nodes: tuple[str, ...], as_json: bool, **credentials: str) -> None:
    """Check whether this machine has what m4cast needs: Python, packages, Java, ports, disk, limits, clock."""
    found = [*checks(folder), *(_node(node, credentials) for node in nodes)]
    levels = [check.level for check in found]
    if as_json:
        click.echo(json.dumps({"healthy": "fail" not in levels, "checks": [asdict(check) for check in found]}))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for check in found:
            table.add_row(Text(check.level, STYLES[check.level]), check.name, check.said)
        console = Screen()
        console.print(table)
        console.print(f"{levels.count('ok')} ok, {levels.count('warn')} to look at, {levels.count('fail')} failed")
    if "fail" in levels:
        raise SystemExit(EXIT_CODE_FAILED)


def checks(folder: Path) -> Iterator[Check]:
    yield _python()
    yield from _packages()
    yield _java()
    yield _jars()
    yield from _ports()
    yield from _disk(folder)
    yield _open_files()
    yield _clock()


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    fits = sys.version_info >= (3, 11)
    return Check("python", "ok" if fits else "fail", version if fits else f"{version}: m4cast needs 3.11 or newer")


def _packages() -> Iterator[Check]:
    for extra, modules in PACKAGES.items():
        there, missing = [], []
        for module in modules:
            distribution = DISTRIBUTIONS.get(module, module)
            try:
                with warnings.catch_warnings(action="ignore"):  # what a package says to its own authors
                    importlib.import_module(module)
                there.append(f"{distribution} {importlib.metadata.version(distribution)}")
            except ImportError as error:
                missing.append(f"{distribution} ({error})")
        if not missing:
            yield Check(f"packages: {extra}", "ok", ", ".join(there))
        elif extra == "client":
            yield Check(f"packages: {extra}", "fail", f"missing: {', '.join(missing)}: pip install m4cast")
        else:
            fix = f"pip install 'm4cast[{extra}]' if you need it"
            yield Check(f"packages: {extra}", "warn", f"missing: {', '.join(missing)}: {fix}")


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    fix = f"Spark needs Java {JAVA_MIN} or newer: install it, or point JAVA_HOME at it"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", "warn", f"{java} does not run ({error}): {fix}")
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said.stderr)
    if version is None:
        return Check("java", "warn", f"{java} does not tell its version: {fix}")
    fits = int(version[1]) >= JAVA_MIN
    return Check("java", "ok" if fits else "warn", version[0] if fits else f"{version[0]}: {fix}")


def _jars() -> Check:
    """Spark brings its own jars; Delta's are fetched by Spark on first use, so their absence is only a hint."""
    try:
        spark_jars = Path(str(importlib.import_module("pyspark").__file__)).parent / "jars"
    except ImportError:
        return Check("jars", "ok", "not looked for: there is no pyspark")
    if not any(spark_jars.glob("spark-core_*.jar")):
        return Check("jars", "warn", f"{spark_jars} has no jars of Spark: install pyspark again")
    found = [*spark_jars.glob("delta-spark_*.jar")]
    for name in IVY_FOLDERS:
        found += sorted((Path.home() / name).rglob("*delta-spark_*.jar"))
    delta = f"Delta in {found[0]}" if found else "Delta not in the Ivy cache yet: Spark fetches it on first use"
    return Check("jars", "ok", f"Spark in {spark_jars}; {delta}")


def _ports() -> Iterator[Check]:
    config = NodeConfig()
    for setting in ("listen", "door", "http"):
        address = getattr(config, setting)
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
                yield Check(f"port: {setting}", "ok", f"{address} is free")
            except OSError as error:
                said = f"{address}: {error.strerror}: choose another `{setting}`, unless a node of yours has it"
                yield Check(f"port: {setting}", "warn", said)


def _disk(folder: Path) -> Iterator[Check]:
    try:
        free = shutil.disk_usage(folder).free
        times_ms = list(_sync_times_ms(folder))
    except OSError as error:
        yield Check("disk", "fail", f"{folder}: cannot be written: {error.strerror}")
        return
    level: Level = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "ok"
    yield Check("disk: room", level, f"{free / 1e9:.1f} GB free in {folder.resolve()}")
    typical_ms = statistics.median(times_ms)
    slow = typical_ms > SYNC_WARN_MS
    said = f"4 KiB are on disk after {typical_ms:.2f} ms, at worst {max(times_ms):.2f}"
    meaning = f"{said}: every publish waits for that" if slow else said
    yield Check("disk: fsync", "warn" if slow else "ok", meaning)


def _sync_times_ms(folder: Path) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_ROUNDS):
            file.write(b"." * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            yield (time.perf_counter() - began) * 1000


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Level = "fail" if soft < FILES_FAIL else "warn" if soft < FILES_WARN else "ok"
    fix = "" if level == "ok" else f": a node with many clients needs more, raise it with ulimit -n (at most {hard})"
    return Check("open files", level, f"{soft} at a time{fix}")


def _clock() -> Check:
    now = datetime.now(UTC)
    if now < EARLIEST:
        return Check("clock", "fail", f"it is not {now:%Y-%m-%d}: set the clock, rows carry its time")
    return Check("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def _node(node: str, credentials: dict[str, str]) -> Check:
    try:
        began = time.perf_counter()
        status = channel_of((node,), **credentials).at(node, timeout_s=NODE_TIMEOUT_S).status()
    except M4castError as error:
        hint = hint_for(error)
        return Check(f"node {node}", "fail", said_of(error) + (f"; {hint}" if hint else ""))
    took_ms = (time.perf_counter() - began) * 1000
    level: Level = "ok" if status["state"] == "full" else "warn"
    said = f"{status['name']} answers in {took_ms:.0f} ms, its state is {status['state']}"
    clock = status.get("clock", {})  # not there in a node of an older version
    if clock.get("agrees") is False:
        how = "ahead of" if clock["ahead_ms"] > 0 else "behind"
        seconds = abs(clock["ahead_ms"]) / 1000
        said += f"; its clock is {seconds:.0f} s {how} its neighbours': set whichever is wrong (timedatectl, chronyc)"
        level = "warn"
    return Check(f"node {node}", level, said)
