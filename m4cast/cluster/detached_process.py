"""Processes that outlive the command that started them and can be identified later.

A process is identified by its pid, its start time and the boot of the machine. Pids are reused, the three together are
not, so an unrelated process that got the pid of one that has ended is never signalled. Between the check and the signal
a pidfd holds the process, which closes the remaining race. Needs Linux.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from m4cast.overlay.errors import M4castError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # in /proc/PID/stat, counted from the field after the name


@dataclass(frozen=True, slots=True)
class DetachedProcess:
    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def spawn(cls, words: list[str], log: Path) -> "DetachedProcess":
        """Start a program in its own session; its output is appended to `log`."""
        if not _BOOT_ID.exists():
            raise M4castError(
                f"processes cannot be identified on {sys.platform}: a local cluster needs Linux with /proc"
            )
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            pid = os.posix_spawn(
                words[0],
                words,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, nothing, 0), *((os.POSIX_SPAWN_DUP2, output, to) for to in (1, 2))],
                setsid=True,
            )
        finally:
            os.close(output)
            os.close(nothing)
        return cls.of(pid)

    @classmethod
    def of(cls, pid: int) -> "DetachedProcess":
        """The process that has this pid now."""
        return cls(pid, _start_ticks(pid) or 0, _boot_id())

    @classmethod
    def parse(cls, text: str) -> "DetachedProcess | None":
        """The inverse of `str`; None if the text is anything else."""
        words = text.split()
        if len(words) != 3 or not words[0].isdecimal() or not words[1].isdecimal():
            return None
        return cls(int(words[0]), int(words[1]), words[2])

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot_id}\n"

    def is_running(self) -> bool:
        return not self.wait(0)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; returns False if the process has ended."""
        with self._held() as pidfd:
            if pidfd is None:
                return False
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
                return True
            return False

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended, with all its threads; returns False if it has not by then."""
        with self._held() as pidfd:
            if pidfd is None:
                return True
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            gone = bool(poll.poll(max(timeout_s, 0) * 1000))
        if gone:
            with suppress(ChildProcessError):  # it is the child of another process, or already reaped
                os.waitpid(self.pid, os.WNOHANG)
        return gone

    @contextmanager
    def _held(self) -> Iterator[int | None]:
        """A pidfd of exactly this process, or None if it has ended, even if its pid is in use again."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield pidfd if (_start_ticks(self.pid), _boot_id()) == (self.start_ticks, self.boot_id) else None
        finally:
            os.close(pidfd)


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def _start_ticks(pid: int) -> int | None:
    """The start of the process, in ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_FIELD])  # the name in parentheses may contain anything
