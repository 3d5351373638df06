"""Clients that roam between real channels: what they want, where they are and what they missed follow them."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.net.gateways.reports.client_finding import FoundClient
from m4cast.overlay.net.gateways.reports.roamers import AGAIN_S, FINDS_MAX, ChannelRoamers
from m4cast.overlay.protocol.clients.access_point import SeenRow
from m4cast.overlay.protocol.effects import ClientRow
from tests.overlay.net.gateways.federated import Channels, Member, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.running import TIMEOUT_S

T = TypeVar("T")
SECRET = "a-secret-of-this-test"
TOPICS = ("orders", "ticks")


async def blocking(work: Callable[[], T]) -> T:
    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.to_thread(work)


async def make_selective(door: str) -> None:
    """Make topic ticks, once all nodes of the channel have stated their version."""

    def make() -> None:
        while True:
            try:
                Channel([door]).create_topic("ticks", route_by=["kind"])
                return
            except RefusedError as error:
                if error.code != "old-nodes":
                    raise

    await blocking(make)


async def publish(door: str, topic: str, first: int, count: int) -> None:
    rows = [{"n": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(first, first + count)]
    await blocking(lambda: Channel([door]).publish(topic, rows))


def got(client: Client, count: int) -> list[int]:
    """The next rows, at least so many, and those that come shortly after them."""
    found: list[int] = []
    while len(found) < count:
        found += [n for rows in client.notifications(idle_s=0.5) for n in rows.column("n").to_pylist()]
    return sorted(found)


def has_let_go(members: list[Member], key: str) -> bool:
    """No node of the channel has a row, a state or a registration of the client, nor has to be told of it."""
    return all(
        key not in member.running.driver.node.interest.clients.rows
        and member.running.store.clients.get(key) is None
        and not any(name.endswith(f"/{key}") for name in member.running.driver.node.interest.registrations.rows)
        for member in members
    )


async def two_channels(channels: Channels) -> tuple[list[Member], list[Member], list[str], list[str]]:
    """Channels a and b, whose topics cross both ways, and the doors of their nodes."""
    a, b = await channels.add("a", 2), await channels.add("b", 2)
    at_a, at_b = [await member.open_door() for member in a], [await member.open_door() for member in b]
    rules: dict[str, Any] = {"exports": TOPICS, "imports": ("orders",), "on_demand": ("ticks",)}
    await a[0].open_gate(gates(gateway("b", **rules)))
    await b[0].open_gate(gates(gateway("a", address=a[0].gate, **rules)))
    await until(lambda: all(member.keeper.active.get("import:orders") == 2 for member in (a[0], b[0])))
    return a, b, at_a, at_b


async def each(clients: list[Client], work: Callable[[Client], T]) -> list[T]:
    return list(await asyncio.gather(*(blocking(partial(work, client)) for client in clients)))


def test_clients_roam_to_another_channel_and_back_with_what_they_missed(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a, b, at_a, at_b = await two_channels(channels)
        for door in (at_a[0], at_b[0]):
            await make_selective(door)
        clients = [Client([at_a[number % 2]], key=f"c{number}", credential=SECRET) for number in range(4)]
        await each(clients, lambda client: client.connect(create=True))
        await each(clients, lambda client: client.subscribe("orders", "n >= 5"))
        await each(clients, lambda client: client.subscribe("ticks", "kind = 'even'", name="t"))
        await publish(at_a[1], "orders", 0, 10)
        await publish(at_a[1], "ticks", 100, 10)
        assert await each(clients, lambda client: got(client, 10)) == [[*range(5, 10), *range(100, 110, 2)]] * 4
        await each(clients, lambda client: client.disconnect())
        await publish(at_a[1], "orders", 10, 5)
        await publish(at_a[0], "ticks", 110, 4)
        await each(clients, lambda client: client.move(at_b[1]))
        await publish(at_b[0], "orders", 15, 5)
        assert await each(clients, lambda client: got(client, 12)) == [[*range(10, 20), 110, 112]] * 4
        await until(lambda: all(has_let_go(a, client.key) for client in clients))
        assert all(client.memory.session == 2 for client in clients)
        await publish(at_a[1], "ticks", 114, 4)
        assert await each(clients, lambda client: got(client, 2)) == [[114, 116]] * 4
        await each(clients, lambda client: client.move(at_a[0]))  # and back, to the gatekeeper itself
        await publish(at_b[1], "orders", 20, 3)
        assert await each(clients, lambda client: got(client, 3)) == [[20, 21, 22]] * 4
        await until(lambda: all(has_let_go(b, client.key) for client in clients))
        await until(lambda: not a[0].keeper.machine.interest.clients.keys() & {client.key for client in clients})

    run(tmp_path, scenario)


def test_clients_that_move_on_at_once_are_let_go_wherever_they_were(tmp_path: Path) -> None:
    """Two gatekeepers in each channel, which share the clients; answers come when a client is elsewhere again."""

    async def scenario(channels: Channels) -> None:
        a, b = await channels.add("a", 2), await channels.add("b", 2)
        doors = [[await member.open_door() for member in members] for members in (a, b)]
        rules: dict[str, Any] = {"exports": ("orders",), "imports": ("orders",)}
        await a[0].open_gate(gates(gateway("b", **rules)))
        await a[1].open_gate(gates(gateway("b", **rules), join=a[0].gate))
        await b[0].open_gate(gates(gateway("a", address=a[0].gate, **rules)))
        await b[1].open_gate(gates(gateway("a", address=a[1].gate, **rules), join=b[0].gate))
        await until(lambda: all(member.keeper.active.get("import:orders") == 2 for member in (*a, *b)))
        clients = [Client(doors[0][number % 2], key=f"c{number}", credential=SECRET) for number in range(6)]
        await each(clients, lambda client: client.connect(create=True))
        await each(clients, lambda client: client.subscribe("orders"))

        def wander(client: Client) -> None:
            rng = random.Random(client.key)
            for number in range(1, 8):
                client.move(rng.choice(doors[number % 2]))

        await each(clients, wander)
        await until(lambda: all(has_let_go(a, client.key) for client in clients))
        await publish(doors[0][0], "orders", 0, 2)
        assert await each(clients, lambda client: got(client, 2)) == [[0, 1]] * 6

    run(tmp_path, scenario)


def test_clients_that_cannot_be_looked_for_now_keep_no_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is cut off, so that no answer counts: all are asked for in turn, and again."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(
        "m4cast.overlay.net.gateways.reports.roamers.time", SimpleNamespace(monotonic=lambda: clock.now_s)
    )
    driver: Any = SimpleNamespace(node=SimpleNamespace(interest=SimpleNamespace(view=SimpleNamespace(used=tuple))))
    machine: Any = SimpleNamespace(vertex=SimpleNamespace(me=SimpleNamespace(id=b"me")))
    asked: list[str] = []

    def find(key: str, digest: bytes, session: int, answer: Callable[[FoundClient | None], None]) -> None:
        asked.append(key)
        answer(None)

    here = ChannelRoamers(driver, machine, lambda event: None, list)
    here.finding = SimpleNamespace(find=find, echo=SimpleNamespace(look=lambda: None))  # type: ignore[assignment]
    monkeypatch.setattr(here, "_tell", lambda: None)
    monkeypatch.setattr(here, "_rows", lambda key: [SeenRow(NodeId(b"n"), ClientRow(2, True, 0, b"digest"))])
    clients = [f"c{number}" for number in range(FINDS_MAX + 10)]
    here._new.update(dict.fromkeys(clients))
    for _ in range(3):
        here.look()
        clock.now_s += AGAIN_S
    assert asked == [*clients, *clients, *clients][: 3 * FINDS_MAX]


def test_a_client_cannot_be_taken_with_another_credential(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a, b, at_a, at_b = await two_channels(channels)
        owner = Client(at_a, key="anna", credential=SECRET)
        await blocking(lambda: owner.connect(create=True))
        await blocking(lambda: owner.subscribe("orders"))
        thief = Client(at_b, key="anna", credential="another-secret-altogether")
        thief.memory.state, thief.memory.session = owner.memory.state, 7
        await blocking(thief.connect)
        mover = Client(at_a, key="bert", credential=SECRET)
        await blocking(lambda: mover.connect(create=True))
        former = Client(at_a, key="bert", credential=SECRET)
        await blocking(former.connect)  # the same client: `mover` is over
        await blocking(lambda: former.move(at_b[0]))
        await until(lambda: has_let_go(a, "bert"))
        roamers = b[0].keeper.reports.roamers
        roamers._new["bert"] = None
        roamers._found("bert", 1, FoundClient())
        assert "bert" in roamers._new, "that was the answer for a session before this one"
        await publish(at_a[1], "orders", 0, 3)
        assert await blocking(lambda: got(owner, 3)) == [0, 1, 2]
        assert not has_let_go(a, "anna")

        def late() -> str:
            try:
                mover.save()
            except RefusedError as error:
                return error.code
            return ""

        assert await blocking(late) == "client-elsewhere"

    run(tmp_path, scenario)
