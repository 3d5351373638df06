"""The way of a row between channels, gatekeeper by gatekeeper, with its matchings."""

from pathlib import Path
from xml.etree import ElementTree as Xml

from click.testing import CliRunner, Result

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.net.gateways.reports import ways
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_roaming_clients import blocking


def traced(door: str, row: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["trace", "--topic", "orders", row, "--node", door, *more])


def test_a_row_is_traced_from_its_channel_through_another_to_where_it_is_wanted(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,), (b1,), (c1,) = [await channels.add(name, 1) for name in ("a", "b", "c")]
        door, plain = await a1.open_door(), await c1.open_door()
        passing = {"transits": ("orders",)}
        await b1.open_gate(gates(gateway("a", **passing), gateway("c", **passing)))
        await until(lambda: b1.keeper.places.is_in)
        await a1.open_gate(gates(gateway("b", address=b1.gate, exports=("orders",))))
        refused = await blocking(lambda: traced(plain, f"{a1.node_id.hex()}:1"))
        assert refused.exit_code == 2 and "this node is no gatekeeper" in refused.output
        await c1.open_gate(gates(gateway("b", address=b1.gate, imports=("orders",))))
        await until(lambda: c1.keeper.active.get("import:orders") == 2)
        await a1.running.publish("orders", b"first", rows=3)
        await a1.running.publish("orders", b"second")
        await until(lambda: len(c1.rows("orders")) == 2)

        way = await blocking(lambda: Channel([door]).trace("orders", a1.node_id.hex(), 2))
        assert not way["is_cut"]
        steps = [(step["hops"], step["channel"], step["kind"]) for step in way["steps"]]
        assert [step for step in steps if step[2] != "matched"] == [
            (0, "m4cast/a", "issued"),
            (0, "m4cast/a", "sent"),
            (1, "m4cast/b", "came"),
            (1, "m4cast/b", "sent"),
            (2, "m4cast/c", "came"),
            (2, "m4cast/c", "delivered"),
        ]
        top = [step for step in way["steps"] if step["kind"] == "matched" and step["unit"]["level"] == 2]
        channel = c1.keeper.machine.vertex.unit(1).id.hex()
        assert [[hit["id"] for hit in step["hits"]] for step in top] == [[channel]], (
            "one match for the whole federation"
        )
        assert [step["wants"] for step in way["steps"] if step["kind"] == "delivered"] == [["import:orders"]]

        said = await blocking(lambda: traced(door, f"{a1.node_id.hex()}:4"))
        assert said.exit_code == 0, said.output
        assert "delivered" in said.output and "for import:orders" in said.output
        unknown = await blocking(lambda: traced(door, f"{a1.node_id.hex()}:99"))
        assert unknown.exit_code == 2 and "no gatekeeper remembers row" in unknown.output
        svg = tmp_path / "graph.svg"
        command = ["topology", "--svg", str(svg), "--node", door]
        drawn = await blocking(lambda: CliRunner().invoke(main, command))
        assert drawn.exit_code == 0, drawn.output
        picture = Xml.fromstring(svg.read_text())
        space = "{http://www.w3.org/2000/svg}"
        named = [box.findtext(f"{space}title") for box in picture.findall(f"{space}rect")]
        assert len(named) == 2 and "b" in named, "the channel that it is linked with has a name, the other a number"
        titles = [line.findtext(f"{space}title") or "" for line in picture.findall(f"{space}line")]
        assert sum(title.startswith("gateway of level 1: up") for title in titles) == 2

        wrong = await blocking(lambda: traced(door, "orders"))
        assert wrong.exit_code == 2 and "give ORIGIN:SEQUENCE" in wrong.output

    run(tmp_path, scenario)


def test_the_memory_of_ways_is_bounded(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,) = await channels.add("a", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        for number in range(6):
            await a1.running.publish("orders", b"%d" % number)
        await until(lambda: a1.keeper.exports.batches == 6)
        remembered = a1.keeper.reports.ways._ways
        assert [event.sequence for event in remembered] == [3, 4, 5, 6]

    before, ways.BATCHES_MAX = ways.BATCHES_MAX, 4
    try:
        run(tmp_path, scenario)
    finally:
        ways.BATCHES_MAX = before
