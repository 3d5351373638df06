"""Free ports on the loopback address."""

import random
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from m4cast.overlay.errors import M4castError

HOST = "127.0.0.1"
PORT_MIN = 10_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, taken: Collection[str] = ()) -> list[str]:
    """Addresses with ports that are unused now, below the range that the system uses for outgoing connections."""
    try:
        port_end = max(int(EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0]), PORT_MIN + 2_000)
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
    raise M4castError(
        f"{count} free ports are needed between {PORT_MIN} and {port_end}, but only {len(found)} are free: "
        "stop what uses them"
    )
