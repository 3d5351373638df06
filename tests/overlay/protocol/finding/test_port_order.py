"""The order of ports: a permutation, the same everywhere, another one for every channel."""

import subprocess
import sys

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.finding.port_order import port_order

ALL = 65_535 - 2_056
ORDERS = ClusterConfig(channel_type="orders", channel_instance="eu")


def test_every_user_port_is_in_it_once() -> None:
    assert sorted(port_order(ORDERS, ALL + 1)) == list(range(2_057, 65_536))


def test_the_beginning_is_the_same_however_much_is_asked_for() -> None:
    assert port_order(ORDERS, 8) == port_order(ORDERS, 100)[:8]


def test_it_is_part_of_the_protocol() -> None:
    """Written out, so that it does not change: nodes of two versions would not find each other."""
    assert port_order(ClusterConfig(), 4) == (25977, 62100, 31109, 12502)
    assert port_order(ORDERS, 4) == (33621, 55831, 15085, 15484)


def test_another_process_has_the_same() -> None:
    script = (
        "from m4cast.overlay.config import ClusterConfig;"
        "from m4cast.overlay.protocol.finding.port_order import port_order;"
        "print(port_order(ClusterConfig(channel_type='orders', channel_instance='eu'), 20))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert printed.strip() == str(port_order(ORDERS, 20))


def test_type_and_instance_both_change_it() -> None:
    orders = {
        port_order(ClusterConfig(channel_type=kind, channel_instance=instance), 8)
        for kind in ("orders", "prices")
        for instance in ("eu", "us")
    }
    assert len(orders) == 4


def test_it_is_spread_over_all_ports() -> None:
    """Each eighth of the space has about 125 of 1,000 ports."""
    eighths = [0] * 8
    for port in port_order(ORDERS, 1_000):
        eighths[(port - 2_057) * 8 // ALL] += 1
    assert all(90 < count < 165 for count in eighths), eighths


def test_ports_can_be_reserved_for_the_channel() -> None:
    reserved = ClusterConfig(channel_ports="7400-7403,7500")
    assert sorted(port_order(reserved, 8)) == [7_400, 7_401, 7_402, 7_403, 7_500]
    assert port_order(reserved, 2) == port_order(reserved, 8)[:2]
