"""A channel of 64 origins with 1,000 topics each: 64,000 streams. "Link-up": two nodes meet that hold the same, or
all but ten rows, and the bytes are counted that they exchange until they are quiet. "Trigger": of a Spark query on one
of these topics, in turns with the same query on a channel that has no other topic."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.connection import Connection
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Callbacks, ChannelName, Store
from tests.bench.comparison import Bench, Side
from tests.bench.hot_path import SILENT, Wire, counted_send
from tests.bench.processes import Watch
from tests.bench.references import pids
from tests.bench.spark import bench_session, jvm_pid
from tests.bench.triggers import OneRow
from tests.overlay.net.running import Running, settled, start_node
from tests.overlay.protocol.append_parts import append_of

ORIGINS = 64
TOPICS = 1_000
TRIGGERS = 60
WARM_TRIGGERS = 10
MISSING = 10
QUIET_S = 1.0
LINK_UP_BYTES_MAX = 1_000_000
FILL_GROUP = 1_000


def measure(bench: Bench) -> None:
    topics = bench.of(TOPICS, TOPICS // 20)
    for origins, of_each, missing in ((1, 1, 0), (ORIGINS, topics, 0), (ORIGINS, topics, MISSING)):
        with tempfile.TemporaryDirectory() as folder:
            seconds, sent = asyncio.run(_link_up(Path(folder), origins, of_each, missing))
            is_met = "met" if sent <= LINK_UP_BYTES_MAX else "MISSED"
            bench.fact(
                what="link-up",
                streams=origins * of_each,
                missing=missing,
                seconds=round(seconds, 2),
                bytes=sent,
                bar=f"<= {LINK_UP_BYTES_MAX:,} {is_met}",
            )
    _triggers(bench, topics)


# ---- link-up


async def _link_up(folder: Path, origins: int, topics: int, missing: int) -> tuple[float, int]:
    """Seconds until both are neighbours that have exchanged what they hold, and bytes until they are quiet."""
    batches = one_of_each(origins, topics)
    fill(folder / "n0", batches)
    step = len(batches) // missing if missing else len(batches) + 1
    fill(folder / "n1", [batch for number, batch in enumerate(batches, start=1) if number % step])
    wire = Wire()
    loop = asyncio.get_running_loop()
    with patch.object(Connection, "send", counted_send(wire)):
        first = await start_node(folder, "n0", cluster=SILENT)
        started = loop.time()
        second = await start_node(folder, "n1", (first.address,), cluster=SILENT)
        nodes: list[Running] = [first, second]
        try:
            await settled(nodes)
            seconds = loop.time() - started
            before = -1
            while wire.sent_bytes != before:
                before = wire.sent_bytes
                await asyncio.sleep(QUIET_S)
            assert len(second.deliveries) == missing, f"{len(second.deliveries)} of {missing} rows came"
        finally:
            for node in nodes:
                await node.stop()
    return seconds, wire.sent_bytes


def fill(folder: Path, batches: list[Batch]) -> None:
    """A store that holds these."""
    durable = threading.Event()
    last = (len(batches) - 1) // FILL_GROUP

    def on_durable(token: int) -> None:
        if token == last:
            durable.set()

    def on_trouble(*said: object) -> None:
        raise AssertionError(said)

    config = ClusterConfig()
    channel = ChannelName(config.channel_type, config.channel_instance)
    store = Store.open(folder, channel, Callbacks(on_durable, on_trouble, on_trouble))
    for token in range(last + 1):
        group = tuple(batches[token * FILL_GROUP : (token + 1) * FILL_GROUP])
        deliveries = tuple(_delivery(each) for each in group)
        store.append(append_of(token, batches=group, deliveries=deliveries))
    assert durable.wait(120)
    store.close()


def _delivery(batch: Batch) -> Delivery:
    at_ms = batch.published_at_ms
    return Delivery(batch.stream, 1, 1, at_ms, at_ms, 1, How.PUSHED, batch.stream.origin)


def one_of_each(origins: int, topics: int) -> list[Batch]:
    """A row of each stream, of origins that are not there themselves."""
    found = []
    now_ms = time.time_ns() // 1_000_000
    for origin in range(origins):
        node_id = NodeId(bytes([origin + 1]) * 16)
        for topic in range(topics):
            stream = StreamId(node_id, f"topic-{topic:04}")
            found.append(seal(Batch(stream, 1, 1, 1, topic + 1, 1, now_ms, "", "", 0, 1, 0, bytes(100))))
    return found


# ---- a Spark trigger


def _triggers(bench: Bench, topics: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        _cluster(Path(folder) / "many", topics) as many,
        _cluster(Path(folder) / "one", 0) as one,
        bench_session() as spark,
    ):
        beside_many = OneRow(spark, many.node("n1").door, Path(folder) / "many-query")
        alone = OneRow(spark, one.node("n1").door, Path(folder) / "one-query")

        def side(name: str, row: OneRow, cluster: LocalCluster) -> Side:
            def work(watch: Watch) -> float:
                with watch:
                    return row.trigger_ms()

            return Side(name, work, {"Spark": jvm_pid(spark), **pids(cluster)})

        try:
            bench.compare(
                "trigger on one topic",
                "ms",
                side(f"m4cast, one of {ORIGINS * topics:,} streams", beside_many, many),
                side("m4cast, the only topic", alone, one),
                better="lower",
                bar=1.1,
                rounds=TRIGGERS,
                warm_rounds=WARM_TRIGGERS,
            )
        finally:
            beside_many.stop()
            alone.stop()


@contextmanager
def _cluster(folder: Path, topics: int) -> Iterator[LocalCluster]:
    """One node, which holds the streams of many."""
    cluster = LocalCluster.make(folder, 1)
    if topics:
        fill(cluster.store("n1"), one_of_each(ORIGINS, topics))
    cluster.up()
    try:
        yield cluster
    finally:
        cluster.down()
