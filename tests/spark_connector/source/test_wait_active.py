"""Streams that begin when the channel, or the whole federation, knows what they want."""

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.rows import StreamReader
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_roaming_clients import blocking, make_selective

SCHEMA = StructType().add("n", LongType()).add("kind", StringType())


def reader(door: str, topic: str, level: str, **more: str) -> StreamReader:
    options = {"nodes": door, "topic": topic, "waitActive": level, **more}
    return StreamReader(read_options(parse(options), streaming=True), SCHEMA, drop_others=False)


def test_a_stream_begins_when_what_it_wants_is_known_in_the_whole_federation(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,) = await channels.add("a", 1)
        (b1,) = await channels.add("b", 1)
        door = await b1.open_door()
        await make_selective(door)
        await a1.open_gate(gates(gateway("b", exports=("orders", "ticks"))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",), on_demand=("ticks",))))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        for topic in ("orders", "ticks"):
            await blocking(lambda topic=topic: reader(door, topic, "system", where="n > 3").initialOffset())  # type: ignore[misc]
        assert any(name.startswith("demand:ticks") and level == 2 for name, level in b1.keeper.active.items())
        await blocking(lambda: reader(door, "local", "channel").initialOffset())
        with pytest.raises(ConnectorError, match=r"M4CAST_NOT_ACTIVE.*'local'.*gatekeepers have not confirmed it"):
            await blocking(lambda: reader(door, "local", "system", timeoutMs="1000").initialOffset())

    run(tmp_path, scenario)


def test_a_batch_read_does_not_wait() -> None:
    options = parse({"nodes": "a:1", "topic": "orders", "waitActive": "system"})
    with pytest.raises(ConnectorError, match="only for streams"):
        read_options(options, streaming=False)
