"""Mail between clients of different channels: it comes where its client is, and unknown clients are told."""

from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.client import Client
from m4cast.overlay.errors import RefusedError
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_roaming_clients import SECRET, blocking, has_let_go


def texts(client: Client, count: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for message in client.inbox(idle_s=20):
        found.append((message.sender, message.text))
        if len(found) == count:
            break
    return found


def test_mail_finds_its_client_in_another_channel_and_wherever_it_goes(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a, b = await channels.add("a", 2), await channels.add("b", 2)
        at_a, at_b = [await member.open_door() for member in a], [await member.open_door() for member in b]
        rules: dict[str, Any] = {"exports": ("_mail",), "on_demand": ("_mail",)}
        await a[0].open_gate(gates(gateway("b", **rules)))
        await b[0].open_gate(gates(gateway("a", address=a[0].gate, **rules)))
        await until(lambda: all(member.keeper.links.links for member in (a[0], b[0])))
        ann = Client(at_a[1], key="ann", credential=SECRET)
        bob = Client(at_b[1], key="bob", credential=SECRET)
        for client in (ann, bob):
            await blocking(lambda client=client: client.connect(create=True))  # type: ignore[misc]
        await until(lambda: all(2 in member.keeper.active.values() for member in (a[0], b[0])))

        await blocking(lambda: ann.send("bob", "to another channel"))
        assert await blocking(lambda: texts(bob, 1)) == [("ann", "to another channel")]
        await blocking(lambda: bob.send("ann", "and back"))
        assert await blocking(lambda: texts(ann, 1)) == [("bob", "and back")]

        with pytest.raises(RefusedError, match="no client is known under the key 'carl'"):
            await blocking(lambda: ann.send(["bob", "carl"], "neither gets it"))

        await blocking(lambda: ann.send("bob", "before it moved"))
        await blocking(lambda: bob.move(at_a[1]))
        assert await blocking(lambda: texts(bob, 1)) == [("ann", "before it moved")]
        await until(lambda: has_let_go(b, "bob"))
        carl = Client(at_b[0], key="carl", credential=SECRET)
        await blocking(lambda: carl.connect(create=True))
        await until(lambda: any("demand:_mail" in name and level == 2 for name, level in b[0].keeper.active.items()))
        await blocking(lambda: carl.send(["ann", "bob"], "both are there"))
        for client in (ann, bob):
            assert await blocking(lambda client=client: texts(client, 1)) == [("carl", "both are there")]  # type: ignore[misc]

    run(tmp_path, scenario)
