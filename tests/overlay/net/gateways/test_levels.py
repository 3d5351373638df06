"""Four real channels in three groups (top = 2), in a line with gateways of levels 2, 1 and 2, on loopback."""

from dataclasses import replace
from pathlib import Path

from m4cast.cluster.ports import free_ports
from m4cast.overlay.ids import StreamId
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_on_demand import TOPIC, covered, make_topic, publish, subscribe


def test_rows_cross_gateways_of_two_levels_whatever_comes_up_first(tmp_path: Path) -> None:
    """q | k l | m: the gateways of level 2 are called before that of level 1 can be made."""

    async def scenario(channels: Channels) -> None:
        q1, q2 = await channels.add("q", 2)
        (k1,), (l1, l2), (m1, m2) = [await channels.add(name, nodes) for name, nodes in (("k", 1), ("l", 2), ("m", 2))]
        passes = {"transits": ("orders", TOPIC)}
        taken = {"imports": ("orders",), "on_demand": (TOPIC,)}
        (k_gate,) = free_ports(1)
        await make_topic(q2)
        await l1.open_gate(gates(gateway("k", address=k_gate, **passes), top=2))
        await l2.open_gate(gates(gateway("m", **passes), join=l1.gate, top=2))
        await until(lambda: bool(l2.keeper.places.failure or l2.keeper.places.is_in))
        await m1.open_gate(gates(gateway("l", address=l2.gate, level=2, **taken), top=2))
        await until(lambda: bool(m1.keeper.places.failure or m1.keeper.links.links))
        await q1.open_gate(gates(gateway("k", address=k_gate, level=2, exports=("orders", TOPIC)), top=2))
        await k1.open_gate(replace(gates(gateway("q", **passes), gateway("l", **passes), top=2), listen=k_gate))
        await subscribe(m2, "country = 'PL'", earliest=True)

        def levels() -> list[list[int]]:
            """The ready links of each gatekeeper."""
            views = [member.keeper.view()["links"] for member in (q1, k1, l1, l2, m1)]
            return [sorted(each["level"] for each in links if each["level"] is not None) for links in views]

        await until(lambda: levels() == [[2], [1, 2], [0, 1], [0, 2], [2]])
        await until(lambda: m1.keeper.active.get("import:orders") == 3)  # everywhere
        groups = [member.keeper.view()["context"].split(".")[0] for member in (q1, k1, l1, l2, m1)]
        assert [group == groups[1] for group in groups] == [False, True, True, True, False] and groups[0] != groups[4]
        for number in range(20):
            await q2.running.publish("orders", b"%d" % number)
            await publish(q2, "PL" if number % 4 == 0 else "DE")
        await until(lambda: len(m2.rows("orders")) == 20)
        assert m2.rows("orders") == q1.rows("orders")
        stream = StreamId(q2.node_id, TOPIC)
        await until(lambda: covered(m2, stream) == 21)
        assert sorted(row[1] for row in m2.rows(TOPIC)) == [1, 5, 9, 13, 17]
        assert not any(member.rows("orders") or member.rows(TOPIC) for member in (k1, l1, l2)), "they want nothing"

    run(tmp_path, scenario)
