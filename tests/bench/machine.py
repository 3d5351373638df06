"""Facts about the machine of a result."""

import os
import platform
import subprocess
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles

from tests.bench.comparison import Row

SYNCS = 200
PACKAGES = ("pyarrow", "lmdb", "uvloop", "pyspark", "delta-spark", "kafka-python", "nats-py")
ROOT = Path(__file__).parent.parent.parent


def machine_facts() -> Row:
    sync_ms = sync_times_ms()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "fsync_4kb_ms_p50": round(median(sync_ms), 2),
        "fsync_4kb_ms_p99": round(quantiles(sync_ms, n=100)[98], 2),
        "python": platform.python_version(),
        **{name: _package(name) for name in PACKAGES},
        "java": _said("java", "-version"),
        "nats-server": _said("nats-server", "--version"),
        "commit": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def sync_times_ms() -> list[float]:
    """The time of an fsync of 4 KB that are written over the same place of a file in the temporary folder."""
    page = os.urandom(4096)
    taken: list[float] = []
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(file.fileno(), page, 0)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started) * 1e3)
    return taken


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _said(*words: str) -> str:
    """The first line of what a program says."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return "none"
    said = (done.stdout or done.stderr).strip()
    return said.splitlines()[0] if done.returncode == 0 and said else "none"
