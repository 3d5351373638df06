"""Levels of wants, from node to system, told to clients and at the command line."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from m4cast.cli import main
from m4cast.cli.nodes.node import close_gate
from m4cast.overlay.client import Channel
from m4cast.overlay.client.interest import UnitLevels
from m4cast.overlay.protocol.clients.unit_levels import GATE_PREFIXES
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_roaming_clients import blocking, make_selective, publish

WHERE = "kind = 'even'"


def subscribe(door: str, topic: str, wait_s: float) -> Result:
    words = ["subscribe", topic, "--where", WHERE, "--node", door, "--wait", "system", "--wait-s", str(wait_s)]
    return CliRunner().invoke(main, words)


def test_a_registration_rises_to_system_active_and_reports_its_level(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a1, _ = await channels.add("a", 2)
        b1, b2 = await channels.add("b", 2)
        at_a, at_b = await a1.open_door(), await b2.open_door()
        alone = Channel([at_b])
        await blocking(lambda: alone.register("ticks", WHERE))
        found = await blocking(lambda: alone.active("ticks", WHERE, level="system"))
        assert found.is_system_active and found.levels == UnitLevels(1, 1, 1), "the channel is all there is"

        await b1.open_gate(gates(gateway("a", on_demand=("ticks",))))
        await until(lambda: b1.keeper.places.is_in)
        await a1.open_gate(gates(gateway("b", address=b1.gate, exports=("ticks",))))
        for door in (at_a, at_b):
            await make_selective(door)
        found = await blocking(lambda: alone.active("ticks", WHERE, level="system"))
        assert found.is_system_active and found.levels == UnitLevels(seen=0, confirmed=2, system=2)
        await publish(at_a, "ticks", 0, 2)
        await until(lambda: bool(b2.rows("ticks")))
        said = await blocking(lambda: subscribe(at_b, "ticks", 20))
        assert said.exit_code == 0, said.output
        await until(lambda: max(b1.keeper.machine.interest.seen_level(each) for each in b1.keeper.active) == 2)
        words = ["subscribe", "ticks", "--where", WHERE, "--node", at_b, "--wait", "system", "--json"]
        told = json.loads((await blocking(lambda: CliRunner().invoke(main, words))).stdout)
        assert told["levels"]["confirmed"] == told["levels"]["system"] == 2
        assert "active in the system: confirmed up to level 2 of 2" in said.output

        nobody = await blocking(lambda: subscribe(at_b, "unheard", 0))
        assert nobody.exit_code == 1
        assert "no gatekeeper of this channel brings rows of 'unheard'" in nobody.output

    run(tmp_path, scenario)


def test_what_is_out_of_reach_confirms_nothing(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,) = await channels.add("a", 1)
        b1, b2 = await channels.add("b", 2)
        at_b = await b2.open_door()
        await a1.open_gate(gates(gateway("b", exports=("orders", "ticks"))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",), on_demand=("ticks",))))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        there = Channel([at_b])
        await blocking(lambda: there.register("orders", "n > 3"))
        found = await blocking(lambda: there.active("orders", "n > 3", level="system"))
        assert found.is_system_active, "whatever is imported comes whole"
        await a1.close_gate()
        await until(lambda: not b1.keeper.links.links)
        await blocking(lambda: there.register("ticks", WHERE))
        found = await blocking(lambda: there.active("ticks", WHERE, level="system", timeout_s=1))
        assert found.is_active and not found.is_system_active
        assert found.levels is not None and found.levels.confirmed < 2

        await b1.close_gate()
        rows = b1.running.driver.node.interest.registrations.rows
        assert any(each.startswith("_gateway/") for each in rows) and any(each.startswith("_units/") for each in rows)
        close_gate(b1.running.driver)  # as a node does that is started without a [federation]
        await until(lambda: not any(each.startswith(GATE_PREFIXES) for each in rows))
        found = await blocking(lambda: there.active("ticks", WHERE, level="system"))
        assert found.levels == UnitLevels(1, 1, 1), "it is alone again"

    run(tmp_path, scenario)
