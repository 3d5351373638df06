"""Rows of another channel: gaps and audit of real channels that are joined by a gateway (H45)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.beyond import take_over
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.overlay.client import Channel
from m4cast.overlay.ids import StreamId
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.gateways.test_on_demand import TOPIC, covered, make_topic, publish, subscribe
from tests.overlay.net.gateways.test_roaming_clients import blocking

ARRIVED, LOST = 5, 2
"""Batches of `orders` that come here, and that are published while the gateway is down."""


def test_rows_of_another_channel_are_audited_where_they_come_to(spark: SparkSession, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / f"tables-{name}") for name in ("a", "b")}
    ids: dict[str, str] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    rosters: dict[str, list[dict[str, Any]]] = {}

    async def scenario(channels: Channels) -> None:
        (a1,), (b1, b2) = await channels.add("a", 1), await channels.add("b", 2)
        ids.update({member.running.name: member.node_id.hex() for member in (a1, b1, b2)})
        doors = {"a": [await a1.open_door()], "b": [await member.open_door() for member in (b1, b2)]}
        await make_topic(a1)
        await a1.open_gate(gates(gateway("b", exports=("orders", TOPIC))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",), on_demand=(TOPIC,))))
        await subscribe(b2, "country = 'PL'", earliest=True)
        await until(lambda: any("demand" in name and level == 2 for name, level in b1.keeper.active.items()))
        for number in range(ARRIVED):
            await a1.running.publish("orders", b"%d" % number)
            await a1.running.publish("local", b"of a alone")
            await publish(a1, "PL" if number % 2 == 0 else "DE")
        await b2.running.publish("of-b", b"of b alone")
        await until(lambda: all(len(member.rows("orders")) == ARRIVED for member in (b1, b2)))
        await until(lambda: covered(b2, StreamId(a1.node_id, TOPIC)) == ARRIVED + 1)
        await a1.close_gate()
        for number in range(LOST):
            await a1.running.publish("orders", b"%d" % number)
        for name, nodes in doors.items():
            told = [await blocking(lambda door=door: Channel(door).deliveries()) for door in nodes]  # type: ignore[misc]
            records[name] = [row for table in told for row in table.to_pylist()]
            roster = await blocking(lambda nodes=nodes: Channel(nodes).roster())  # type: ignore[misc]
            rosters[name] = [{**row, "read_at": row["from_at"]} for row in roster.to_pylist()]

    run(tmp_path / "nodes", scenario)
    as_of = datetime.now(UTC) + timedelta(minutes=2)
    of_b = TableFolder(spark, folders["b"])
    for name, folder in folders.items():  # as ingest writes them
        tables = TableFolder(spark, folder)
        for table, rows in ((DELIVERIES, records[name]), (ROSTER, rosters[name])):
            tables.ensure(table)
            tables.append(table, frame(spark, rows, table.schema))

    gaps = ordering_gaps.run(spark, folders["b"], as_of=as_of, grace=timedelta(0))
    assert (gaps.run.verdict, gaps.missing, gaps.unaccounted) == ("OK", 0, 0), "nothing here tells of what did not come"
    lines = of_b.read(ORDERING_GAPS)
    assert {row["origin"] for row in lines.where("line = 'origin'").collect()} == {ids["b2"]}
    assert lines.where((F.col("node_id") == EVERYBODY) & (F.col("state") == "MISSING")).isEmpty()

    audited = delivery_audit.run(spark, folders["b"], as_of=as_of, grace=timedelta(0), beyond=[folders["a"]])
    stated = of_b.read(DELIVERY_AUDIT).where(F.col("node_id").isin(ids["b1"], ids["b2"])).collect()
    found: dict[tuple[str, str], list[int]] = {}
    for row in stated:  # over the minutes, of which the test may meet two
        counts = found.setdefault((row["topic"], row["node_id"]), [0, 0, 0])
        for at, name in enumerate(("expected", "delivered", "missing")):
            counts[at] += row[name]
    for node in ("b1", "b2"):
        assert found["orders", ids[node]] == [ARRIVED + LOST, ARRIVED, LOST]
        assert found[TOPIC, ids[node]][2] == 0
    assert not any(topic == "local" for topic, _ in found), "it does not come here"
    assert (audited.run.verdict, audited.run.missing) == ("INCOMPLETE", 2 * LOST)
    assert take_over(of_b, [folders["a"]]) == 0, "each record once"
