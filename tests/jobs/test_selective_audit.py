"""The audit of a selective topic on real nodes: what was not wanted is not expected, what was wanted and did not arrive
is missing, whatever the nodes say about it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.jobs.wants import MARGIN
from m4cast.overlay.client import Channel
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from tests.overlay.door.http.watched import until
from tests.overlay.door.selected.test_reads import publish, selective_at, stored
from tests.overlay.door.served import serving

LOST = 8
"""The sequence of a row that n2 wants and is not sent, though the origin tells it that nothing was for it."""


def test_wanted_unwanted_and_missing_rows_of_real_nodes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "nodes", 4) as served:
        origin, polish, german, _ = channels = [Channel(address) for address in served.addresses]
        ids = [node.driver.node.me.node_id for node in served.nodes]
        origin.create_topic("sel", keepers=0, route_by=["country"])
        for at, channel, country in ((1, polish, "PL"), (2, german, "DE")):
            until(lambda at=at: "sel" in selective_at(served, at), "known there")  # type: ignore[misc]
            channel.register("sel", f"country = '{country}'")
        epochs = {}
        for at, channel, country in ((1, polish, "PL"), (2, german, "DE")):
            found = channel.active("sel", f"country = '{country}'", timeout_s=20)
            assert found.is_active
            epochs[at] = found.epoch
        sure_at = time.time() + MARGIN.total_seconds()
        until(lambda: time.time() > sure_at, "registered for long enough to be sure")
        takers = Demand.takers

        def takers_but_one(self: Demand, batch: Batch) -> Iterator[NodeId]:
            is_lost = batch.stream.topic == "sel" and batch.first_sequence == LOST
            return (node_id for node_id in takers(self, batch) if not (is_lost and node_id == ids[2]))

        monkeypatch.setattr(Demand, "takers", takers_but_one)
        publish(origin, "sel", 0, 12)  # PL DE FR PL DE FR ...
        until(lambda: (stored(served, 1, "sel"), stored(served, 2, "sel")) == (4, 3), "all but one have arrived")

        folder = str(tmp_path / "tables")
        nodes = ",".join(served.addresses)
        run(spark, Ingest({"nodes": nodes}, folder, kinds=("deliveries", "roster", "interest")))
        # Who reads every row wants every row: the origin has them.
        run(spark, Ingest({"nodes": served.addresses[0]}, folder, topics=("sel",), kinds=("events",)))
        assert stored(served, 3, "sel") == 0 and len(channels) == 4
        as_of = datetime.now(UTC) + timedelta(minutes=2)
        audited = delivery_audit.run(spark, folder, as_of=as_of, grace=timedelta(0))
        gaps = ordering_gaps.run(spark, folder, as_of=as_of, grace=timedelta(0))

    rows = TableFolder(spark, folder).read(DELIVERY_AUDIT).where("topic = 'sel'").collect()
    by_node = {ids.index(NodeId(bytes.fromhex(row["node_id"]))): row for row in rows if row["published"]}

    def total(at: int, name: str) -> int:
        """Over the minutes, of which the test may meet two."""
        node = ids[at].hex()
        return sum(row[name] for row in rows if row["node_id"] == node)

    assert {at: total(at, "expected") for at in range(4)} == {0: 12, 1: 4, 2: 4, 3: 0} | {0: total(0, "expected")}
    assert {at: total(at, "missing") for at in range(4)} == {0: 0, 1: 0, 2: 1, 3: 0}
    assert (total(1, "declined"), total(2, "declined"), total(3, "declined")) == (8, 8, 12)
    assert by_node[1]["status"] == "OK" and by_node[1]["epoch"] == epochs[1]
    assert {row["status"] for row in rows if row["node_id"] == ids[2].hex()} & {"INCOMPLETE", "STALLED"}
    assert by_node[2]["epoch"] == epochs[2]
    assert {row["status"] for row in rows if row["node_id"] == ids[3].hex()} == {"NOT_EXPECTED"}
    assert all(row["epoch"] is None for row in rows if row["node_id"] == ids[3].hex())
    assert (audited.run.missing, audited.run.verdict) == (1, "INCOMPLETE")
    assert (gaps.missing, gaps.run.verdict) == (1, "INCOMPLETE")
