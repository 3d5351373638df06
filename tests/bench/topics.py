"""Batches of 100 rows of 100 bytes, published under 1, 64 and 1,000 topics in turn by eight clients, each when its last
batch was acknowledged; batches/s. m4cast: one node with fsync. Beside it: a JetStream of one replica, whose eight
clients are tasks that send the same bytes under as many subjects."""

import asyncio
import os
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from m4cast.overlay.client import Channel
from tests.bench import nats_server
from tests.bench.comparison import Bench, Missing, Side
from tests.bench.processes import Watch
from tests.bench.references import ROW_BYTES, bench_cluster, pids

TOPICS = (1, 64, 1_000)
BATCHES = 4_000
ROWS = 100
CLIENTS = 8
ROUNDS = 3
Work = Callable[[Watch], None]


def measure(bench: Bench) -> None:
    why = nats_server.missing()
    batches = bench.of(BATCHES, BATCHES // 8)
    with (
        tempfile.TemporaryDirectory() as folder,
        bench_cluster(1) as cluster,
        nats_server.running_servers(Path(folder), 0 if why else 1) as servers,
    ):
        for topics in TOPICS:
            bench.compare(
                f"{topics:,} topics",
                "batches/s",
                Side("m4cast", by_clients(cluster.node("n1").door, topics, batches), pids(cluster)),
                by_nats(servers[0], topics, batches) if servers else Missing("JetStream R1", why or ""),
                amount=batches,
                gb=batches * ROWS * ROW_BYTES / 1e9,
                rounds=ROUNDS,
            )


def by_clients(door: str, topics: int, batches: int) -> Work:
    rows = pa.table({"v": pa.array([os.urandom(ROW_BYTES) for _ in range(ROWS)])})

    def publish(client: int) -> None:
        channel = Channel([door])
        for number in range(client, batches, CLIENTS):
            channel.publish(f"{topics}-{number % topics}", rows)

    def work(watch: Watch) -> None:
        with watch, ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(publish, range(CLIENTS)))

    return work


def by_nats(server: nats_server.Server, topics: int, batches: int) -> Side:
    rows = os.urandom(ROWS * ROW_BYTES)

    async def send(watch: Watch) -> None:
        import nats

        name = uuid.uuid4().hex
        await nats_server.make_stream(server.address, f"{name}.*", 1)
        client = await nats.connect(f"nats://{server.address}")
        stream = client.jetstream()

        async def publish(first: int) -> None:
            for number in range(first, batches, CLIENTS):
                await stream.publish(f"{name}.{number % topics}", rows)

        with watch:
            await asyncio.gather(*(publish(first) for first in range(CLIENTS)))
        await client.close()

    how = "sync always" if server.syncs else "no sync"
    return Side(f"JetStream R1, {how}", lambda watch: asyncio.run(send(watch)), {server.name: server.pid})
