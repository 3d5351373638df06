"""`m4cast doctor`: check whether this machine has what m4cast needs, and whether nodes answer from here.

The result of each check is ok, warn (something will not work, or not well) or fail (m4cast will not work). The exit
code is 1 if any check failed. Nothing is changed, but a file is written and removed to measure the disk.
"""

import importlib
import importlib.metadata
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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from m4cast.console.access import NodeAccess, access_options
from m4cast.console.errors import EXIT_CODE_FAILED, hint_for, message_of
from m4cast.console.options import command, folder_option, json_option
from m4cast.console.quantities import size_of
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.config import NodeConfig
from m4cast.overlay.errors import M4castError

Level = Literal["ok", "warn", "fail"]
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
JAVA_MIN = 17
JAVA_TIMEOUT_S = 20
PACKAGES = {
    "client": ("click", "fastavro", "pyarrow", "rich", "xxhash"),
    "node": ("aiohttp", "cryptography", "lmdb", "numpy", "orjson", "prometheus_client", "sqlglot", "uvloop"),
    "spark": ("delta", "pandas", "pyspark"),
    "kafka": ("crc32c", "kafka", "prometheus_client"),
    "sim": ("networkx", "numpy", "sqlglot"),
    "aio": ("aiohttp",),
}
"""Modules by the extra that installs them; those of a client are installed with m4cast itself."""
DISTRIBUTIONS = {"delta": "delta-spark", "kafka": "kafka-python"}
"""Packages whose name differs from that of their module."""
IVY_FOLDERS = (".ivy2/jars", ".ivy2.5.2/jars", ".ivy2/cache/io.delta", ".m2/repository/io/delta")
DISK_FAIL_BYTES, DISK_WARN_BYTES = 100 << 20, 2 << 30
SYNC_ROUNDS = 20
SYNC_WARN_MS = 20.0
FILES_FAIL, FILES_WARN = 256, 1024
EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
NODE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    said: str


@command()
@folder_option(default=".", help="Folder for stores, whose disk is checked.")
@access_options("Door of a node to check as well. Can be repeated.", from_environment=False)
@json_option
def doctor(folder: Path, access: NodeAccess, as_json: bool) -> None:
    """Check whether this machine has what m4cast needs: Python, packages, Java, ports, disk, limits, clock."""
    found = [*findings(folder), *(_node(replace(access, nodes=(node,))) for node in access.nodes)]
    levels = [finding.level for finding in found]
    if as_json:
        print_json({"healthy": "fail" not in levels, "checks": [asdict(finding) for finding in found]})
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in found:
            table.add_row(Text(finding.level, STYLES[finding.level]), finding.name, finding.said)
        console = Screen()
        console.print(table)
        console.print(f"{levels.count('ok')} ok, {levels.count('warn')} warnings, {levels.count('fail')} failed")
    if "fail" in levels:
        raise SystemExit(EXIT_CODE_FAILED)


def findings(folder: Path) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield _java()
    yield _jars()
    yield from _ports()
    yield from _disk(folder)
    yield _open_files()
    yield _clock()


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    fits = sys.version_info >= (3, 11)
    return Finding("python", "ok" if fits else "fail", version if fits else f"{version}: m4cast needs 3.11 or newer")


def _packages() -> Iterator[Finding]:
    for extra, modules in PACKAGES.items():
        installed, missing = [], []
        for module in modules:
            distribution = DISTRIBUTIONS.get(module, module)
            try:
                with warnings.catch_warnings(action="ignore"):  # meant for the authors of the package
                    importlib.import_module(module)
                installed.append(f"{distribution} {importlib.metadata.version(distribution)}")
            except ImportError as error:
                missing.append(f"{distribution} ({error})")
        if not missing:
            yield Finding(f"packages: {extra}", "ok", ", ".join(installed))
        elif extra == "client":
            yield Finding(f"packages: {extra}", "fail", f"missing: {', '.join(missing)}: pip install m4cast")
        else:
            fix = f"if you need it, pip install 'm4cast[{extra}]'"
            yield Finding(f"packages: {extra}", "warn", f"missing: {', '.join(missing)}: {fix}")


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    fix = f"Spark needs Java {JAVA_MIN} or newer: install it, or set JAVA_HOME"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "warn", f"{java} cannot be run ({error}): {fix}")
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', ran.stderr)
    if version is None:
        return Finding("java", "warn", f"{java} does not report its version: {fix}")
    fits = int(version[1]) >= JAVA_MIN
    return Finding("java", "ok" if fits else "warn", version[0] if fits else f"{version[0]}: {fix}")


def _jars() -> Finding:
    """Check Spark's jars, which pyspark includes. Delta's may be missing, since Spark downloads them on first use."""
    try:
        spark_jars = Path(str(importlib.import_module("pyspark").__file__)).parent / "jars"
    except ImportError:
        return Finding("jars", "ok", "not checked: pyspark is not installed")
    if not any(spark_jars.glob("spark-core_*.jar")):
        return Finding("jars", "warn", f"{spark_jars} does not contain Spark's jars: reinstall pyspark")
    found = [*spark_jars.glob("delta-spark_*.jar")]
    for name in IVY_FOLDERS:
        found += sorted((Path.home() / name).rglob("*delta-spark_*.jar"))
    delta = f"Delta in {found[0]}" if found else "Delta not in the Ivy cache yet: Spark downloads it on first use"
    return Finding("jars", "ok", f"Spark in {spark_jars}; {delta}")


def _ports() -> Iterator[Finding]:
    config = NodeConfig()
    for setting in ("listen", "door", "http"):
        address = getattr(config, setting)
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
                yield Finding(f"port: {setting}", "ok", f"{address} is free")
            except OSError as error:
                said = f"{address}: {error.strerror}: set another `{setting}`, unless one of your nodes uses it"
                yield Finding(f"port: {setting}", "warn", said)


def _disk(folder: Path) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(folder).free
        times_ms = list(_sync_times_ms(folder))
    except OSError as error:
        yield Finding("disk", "fail", f"{folder}: cannot be written: {error.strerror}")
        return
    level: Level = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "ok"
    yield Finding("disk: space", level, f"{size_of(free)} free in {folder.resolve()}")
    typical_ms = statistics.median(times_ms)
    slow = typical_ms > SYNC_WARN_MS
    said = f"writing 4 KiB takes {typical_ms:.2f} ms (median), at most {max(times_ms):.2f} ms"
    meaning = f"{said}: every publish waits for this" if slow else said
    yield Finding("disk: fsync", "warn" if slow else "ok", meaning)


def _sync_times_ms(folder: Path) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_ROUNDS):
            file.write(b"." * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            yield (time.perf_counter() - began) * 1000


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Level = "fail" if soft < FILES_FAIL else "warn" if soft < FILES_WARN else "ok"
    fix = "" if level == "ok" else f": a node with many clients needs more: raise it with ulimit -n (at most {hard})"
    return Finding("open files", level, f"limit {soft}{fix}")


def _clock() -> Finding:
    now = datetime.now(UTC)
    if now < EARLIEST:
        return Finding("clock", "fail", f"{now:%Y-%m-%d} cannot be right: set the clock, because rows carry its time")
    return Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def _node(access: NodeAccess) -> Finding:
    (node,) = access.nodes
    try:
        began = time.perf_counter()
        status = access.channel().at(node, timeout_s=NODE_TIMEOUT_S).status()
    except M4castError as error:
        hint = hint_for(error)
        return Finding(f"node {node}", "fail", message_of(error) + (f"; {hint}" if hint else ""))
    took_ms = (time.perf_counter() - began) * 1000
    level: Level = "ok" if status["state"] == "full" else "warn"
    said = f"{status['name']} answers in {took_ms:.0f} ms, its state is {status['state']}"
    clock = status.get("clock", {})  # older versions do not report it
    if clock.get("agrees") is False:
        how = "ahead of" if clock["ahead_ms"] > 0 else "behind"
        seconds = abs(clock["ahead_ms"]) / 1000
        said += f"; its clock is {seconds:.0f} s {how} its neighbours': set whichever is wrong (timedatectl, chronyc)"
        level = "warn"
    return Finding(f"node {node}", level, said)
