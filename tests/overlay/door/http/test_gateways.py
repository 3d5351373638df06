"""The metrics of a gatekeeper: what it knows of other units, and what its links carried."""

import asyncio
from pathlib import Path
from typing import Any

from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.http.metrics import FAMILIES, NodeCollector
from m4cast.overlay.door.node_handle import NodeHandle
from tests.overlay.net.gateways.federated import Channels, Member, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run


async def metrics_of(member: Member) -> dict[str, list[tuple[dict[str, str], float]]]:
    running = member.running
    handle = NodeHandle(running.driver, asyncio.get_running_loop())
    collector = NodeCollector(running.driver, running.store, handle, CallCounts(), 5)
    return await asyncio.to_thread(collector.as_json)


def test_a_gatekeeper_counts_what_crosses_and_who_is_out_of_reach(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a,), (b,) = await channels.add("a", 1), await channels.add("b", 1)
        await a.open_gate(gates(gateway("b", exports=("orders",))))
        await b.open_gate(gates(gateway("a", address=a.gate, imports=("orders",))))
        await a.running.publish("orders", b"three", rows=3)
        await until(lambda: len(b.rows("orders")) == 1)
        found = await metrics_of(a)
        assert found["m4cast_gateway_sent_rows_total"] == [({"channel": "m4cast/b"}, 3)]
        assert found["m4cast_gateway_links"] == [({"channel": "m4cast/b"}, 1)]
        assert found["m4cast_gateway_units"] == [({}, 1)] and found["m4cast_gateway_unreached_units"] == [({}, 0)]
        assert {name for name in FAMILIES if name.startswith("m4cast_gateway_")} <= found.keys()

        async def unreached() -> Any:
            return (await metrics_of(a))["m4cast_gateway_unreached_units"][0][1]

        await b.close_gate()
        await until(lambda: any(not unit["is_reached"] for unit in a.keeper.view()["units"]))
        assert await unreached() == 1

    run(tmp_path, scenario)
