"""Hosts: network namespaces with one TUN device each, joined by nothing but the wire (`wire.py`).

The process that makes them becomes host 0 itself, in a namespace of its own: what runs in it, such as clients, reaches
the others over the wire too. Host k has 10.77.k.1 on its device, which can be changed as often as one likes, and
10.77.k.200 for good.

The namespaces have no name. They live as long as somebody is in them or holds them, so nothing is left of them when
these processes end, however they do; and no other network of the machine is ever touched. Needs root and /dev/net/tun.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.processes.wire import Weather, change_words

TUN = Path("/dev/net/tun")
DEVICE = "wire"
MTU_BYTES = 1_500
STOP_TIMEOUT_S = 30

# From linux/prctl.h, linux/sched.h, linux/if_tun.h, linux/sockios.h and linux/if.h.
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI, IFF_UP = 0x1, 0x1000, 0x1
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """The things that this machine lacks for hosts; empty when it has all."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return "" if TUN.exists() else f"network namespaces are joined by TUN devices, and there is no {TUN}"


class Hosts:
    """Use `running`. Made by a process that has no other thread yet: threads stay in the namespace they began in."""

    def __init__(self, count: int, seed: int) -> None:
        self.packets: dict[str, int] = {}
        """What the wire counted; there when it has ended."""
        devices: list[int] = []
        self._namespaces: list[int] = []
        # The last one made is host 0, where this process stays.
        for host in (*range(1, count + 1), 0):
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            self._namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            devices.append(_open_device())
            _set_address(DEVICE, address_of(host), "255.255.0.0")
            _set_address("lo:0", door_address_of(host), "255.255.255.255")
            _bring_up(DEVICE)
            _bring_up("lo")
        devices.insert(0, devices.pop())
        self._namespaces.insert(0, self._namespaces.pop())
        self._wire = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.wire", str(seed), *map(str, devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=devices,
        )
        for device in devices:
            os.close(device)

    @classmethod
    @contextmanager
    def running(cls, count: int, seed: int) -> "Iterator[Hosts]":
        """Hosts 1 to `count`, and host 0, which is here."""
        hosts = cls(count, seed)
        try:
            yield hosts
        finally:
            hosts._close()

    def _close(self) -> None:
        try:
            said, _ = self._wire.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._wire.kill()
            said, _ = self._wire.communicate()
        for namespace in self._namespaces:
            os.close(namespace)
        self.packets = json.loads(said or "{}")

    def network(self, host: int) -> str:
        """The file of its namespace, for `enter_network`."""
        return f"/proc/{os.getpid()}/fd/{self._namespaces[host]}"

    def set_weather(self, lines: Sequence[tuple[int, int]], weather: Weather) -> None:
        """Set the lines (from host, to host)."""
        assert self._wire.stdin is not None
        self._wire.stdin.write(change_words(lines, weather))
        self._wire.stdin.flush()

    def set_address(self, host: int, address: str) -> None:
        """Replace the host's address; connections of the old one are dead, and no node is told."""
        _check(_libc.setns(self._namespaces[host], CLONE_NEWNET), "setns")
        try:
            _set_address(DEVICE, address, "255.255.0.0")
        finally:
            _check(_libc.setns(self._namespaces[0], CLONE_NEWNET), "setns")


def enter_network(file: str) -> None:
    """Moves this process, which has one thread, to a namespace. It ends when the thread that started it does."""
    namespace = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc.setns(namespace, CLONE_NEWNET), "setns")
    os.close(namespace)
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


def address_of(host: int, number: int = 1) -> str:
    assert 1 <= number < 200
    return f"10.77.{host}.{number}"


def door_address_of(host: int) -> str:
    return f"10.77.{host}.200"


def _open_device() -> int:
    device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        fcntl.ioctl(ask, SIOCSIFMTU, struct.pack("16si20x", DEVICE.encode(), MTU_BYTES))
    return device


def _set_address(device: str, address: str, mask: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, mask)):
            words = struct.pack("16sHH4s16x", device.encode(), socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(ask, request, words)


def _bring_up(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        said = fcntl.ioctl(ask, SIOCGIFFLAGS, struct.pack("16sH22x", device.encode(), 0))
        flags = struct.unpack("16sH22x", said)[1] | IFF_UP
        fcntl.ioctl(ask, SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), flags))


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
