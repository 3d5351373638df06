"""The order of a channel's ports: the same on every host, another one for every channel (PROTOCOL.md 4.2).

A node with no fixed port listens on the first free port of this order, and a node that looks for it tries the ports in
the same order: no port has to be agreed on, and two channels on one host seldom want the same one.
"""

from functools import lru_cache
from heapq import nsmallest

from xxhash import xxh3_64_intdigest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.config.settings import port_ranges

LISTEN_TRIES = 1_000
"""Ports that are tried until one is free; guess."""


def port_order(cluster: ClusterConfig, count: int) -> tuple[int, ...]:
    """The first so many ports of the channel's order; fewer when it has fewer."""
    return _order(cluster.channel_type, cluster.channel_instance, cluster.channel_ports, count)


@lru_cache(maxsize=64)  # a hash for each of up to 65,535 ports is some 50 ms, and the simulator asks for each node
def _order(channel_type: str, instance: str, ports: str, count: int) -> tuple[int, ...]:
    name = f"{channel_type}\0{instance}\0"
    ordered = nsmallest(
        count, ((xxh3_64_intdigest(f"{name}{port}".encode()), port) for each in port_ranges(ports) for port in each)
    )
    return tuple(port for _, port in ordered)
