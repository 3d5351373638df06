"""CPU time and memory of processes while something is measured, as the kernel tells them.

Memory is RssAnon, what a process has for itself: pages of mapped files, such as a store's, are the system's cache and
go when somebody needs them. The kernel keeps no peak of it, so it is sampled. A process counts with its descendants
(a JVM with its Python workers); the process that measures counts alone, since it starts the others.
"""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

CLIENT = "client"
"""The process that measures, which is the client of what it measures."""
SAMPLE_S = 0.5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Watch:
    """`with watch:` goes around the part of a round that counts. Afterwards it has its seconds, and by the name of each
    process the CPU seconds and the peak of RssAnon. Of a process that ends meanwhile, what was seen last."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self.seconds = 0.0
        self.cpu_s: dict[str, float] = {}
        self.peak_mb: dict[str, float] = {}
        self._pids = dict(processes)
        self._cpu_before: dict[str, float] = {}
        self._started = 0.0
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._sampler = threading.Thread(target=self._sample, name="watch", daemon=True)

    def add(self, name: str, pid: int) -> None:
        """A process that is started within the round: all its CPU time counts."""
        with self._lock:
            self._pids[name] = pid

    def __enter__(self) -> "Watch":
        self._look()
        self._cpu_before = dict(self.cpu_s)
        self._sampler.start()
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        self._done.set()
        self._sampler.join()
        self._look()
        self.cpu_s = {name: cpu - self._cpu_before.get(name, 0.0) for name, cpu in self.cpu_s.items()}

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            pids = dict(self._pids)
        families = {CLIENT: [os.getpid()], **_families(pids)}
        for name, members in families.items():
            seen = [figures for pid in members if (figures := _figures(pid)) is not None]
            if seen:
                self.cpu_s[name] = max(self.cpu_s.get(name, 0.0), sum(cpu for cpu, _ in seen))
                self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), sum(memory for _, memory in seen))


def _families(pids: Mapping[str, int]) -> dict[str, list[int]]:
    """Each process with its descendants; one that has a name of its own is left out of those above it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir() if pids else ():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    named = set(pids.values())
    families = {}
    for name, pid in pids.items():
        family, ahead = [], [pid]
        while ahead:
            member = ahead.pop()
            family.append(member)
            ahead += [child for child in children.get(member, ()) if child not in named]
        families[name] = family
    return families


def _stat(pid: int) -> list[str] | None:
    """The fields that follow the name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _figures(pid: int) -> tuple[float, float] | None:
    """CPU seconds, with those of children that ended, and MB of RssAnon; None when it is gone."""
    fields = _stat(pid)
    if fields is None:
        return None
    ticks = sum(int(field) for field in fields[11 : 13 if pid == os.getpid() else 15])
    try:
        return ticks * _TICK_S, anonymous_mb(pid)
    except OSError:
        return None


def anonymous_mb(pid: int) -> float:
    """None of it, when the process is about to be gone."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon:"))
