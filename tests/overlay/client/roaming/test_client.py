"""Clients at real doors: they leave, miss rows, return anywhere, and get each row once."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from tests.overlay.door.served import Served, serving

SECRET = "a-secret-of-this-test"
IDLE_S = 0.5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("clients"), 3) as served:
        yield served


def client_of(served: Served, key: str, at: int = 0, **settings: Any) -> Client:
    """A client that knows all nodes, and tries them from this one on."""
    nodes = served.addresses[at:] + served.addresses[:at]
    return Client(nodes, key=key, credential=SECRET, timeout_s=20, **settings)


def created(served: Served, key: str, at: int = 0, **settings: Any) -> Client:
    client = client_of(served, key, at, **settings)
    client.connect(create=True)
    return client


def publish(served: Served, topic: str, first: int, count: int) -> None:
    """Rows on the disks of all nodes."""
    rows = [{"n": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(first, first + count)]
    Channel([served.addresses[0]]).publish(topic, rows, acks=2)


def got(client: Client) -> list[int]:
    return [n for rows in client.notifications(idle_s=IDLE_S) for n in rows.column("n").to_pylist()]


def test_a_client_that_leaves_gets_what_it_missed_elsewhere_once(served: Served) -> None:
    client = created(served, "leaver")
    client.subscribe("leaving", "n >= 5")
    publish(served, "leaving", 0, 10)
    assert got(client) == [5, 6, 7, 8, 9]
    client.disconnect()
    publish(served, "leaving", 10, 5)
    back = client_of(served, "leaver", at=1)  # another process, which knows key and credential only
    assert back.connect() == 5
    assert back.profiles == {"default": ("leaving", "n >= 5")}
    assert got(back) == [10, 11, 12, 13, 14]
    assert got(back) == []
    assert back.node == served.addresses[1]
    assert back.memory.session == 2
