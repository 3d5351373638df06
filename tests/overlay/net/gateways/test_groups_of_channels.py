"""Clients, mail and traces over two levels of gateways (top = 2): a, and b with c, which has no gateway of level 2."""

from pathlib import Path
from typing import Any

from m4cast.overlay.client import Channel, Client
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_mail_across import texts
from tests.overlay.net.gateways.test_roaming_clients import SECRET, blocking, got, has_let_go, publish


def test_clients_mail_and_traces_pass_two_levels(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,), (b1,), (c1,) = [await channels.add(name, 1) for name in ("a", "b", "c")]
        at_a, _, at_c = [await member.open_door() for member in (a1, b1, c1)]
        topics = ("orders", "_mail")
        rules: dict[str, Any] = {"exports": topics, "imports": ("orders",), "on_demand": ("_mail",)}
        passing = {**rules, "transits": topics}
        await b1.open_gate(gates(gateway("a", **passing), gateway("c", **passing), top=2))
        await until(lambda: b1.keeper.places.is_in)
        await c1.open_gate(gates(gateway("b", address=b1.gate, **rules), top=2))
        await until(lambda: [link["level"] for link in c1.keeper.view()["links"]] == [1])
        await a1.open_gate(gates(gateway("b", address=b1.gate, level=2, **rules), top=2))
        await until(lambda: all(member.keeper.active.get("import:orders") == 3 for member in (a1, c1)))  # everywhere

        ann, bob = (Client(door, key=key, credential=SECRET) for door, key in ((at_a, "ann"), (at_c, "bob")))
        for client in (ann, bob):
            await blocking(lambda client=client: client.connect(create=True))  # type: ignore[misc]
        await blocking(lambda: bob.subscribe("orders"))
        await publish(at_a, "orders", 0, 3)
        assert await blocking(lambda: got(bob, 3)) == [0, 1, 2]
        way = await blocking(lambda: Channel([at_c]).trace("orders", a1.node_id.hex(), 1))
        steps = [(step["hops"], step["channel"], step["kind"]) for step in way["steps"] if step["kind"] != "matched"]
        assert steps[0] == (0, "m4cast/a", "issued") and steps[-1] == (2, "m4cast/c", "delivered")
        assert {step["unit"]["level"] for step in way["steps"] if step["kind"] == "matched"} >= {2, 3}

        wanted = [(c1, "bob"), (a1, "ann")]
        await until(
            lambda: all(
                any("demand:_mail" in name and level == 3 for name, level in member.keeper.active.items())
                for member, _ in wanted
            )
        )
        await blocking(lambda: ann.send("bob", "to another group"))
        assert await blocking(lambda: texts(bob, 1)) == [("ann", "to another group")]
        await blocking(lambda: bob.send("ann", "and back"))
        assert await blocking(lambda: texts(ann, 1)) == [("bob", "and back")]

        await blocking(bob.disconnect)
        await publish(at_c, "orders", 3, 2)
        await blocking(lambda: ann.send("bob", "while it was away"))
        await blocking(lambda: bob.move(at_a))
        assert await blocking(lambda: got(bob, 2)) == [3, 4]
        assert await blocking(lambda: texts(bob, 1)) == [("ann", "while it was away")]
        await until(lambda: has_let_go([c1], "bob"))

    run(tmp_path, scenario)
