"""The web door. Single rows over `/live`, open loop, acks = 1, beside JetStream R3 in the same rounds (three and five
nodes); batches of 100 rows by 8 clients over `/live`, beside JetStream R1; single-row POSTs by 64 keep-alive
connections, beside a bare aiohttp server that reads and discards them; and what 1,000 idle tails and as many idle
WebSockets take of a node's memory."""

import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import aiohttp

from m4cast.cluster.local import LocalCluster
from tests.bench import nats_server
from tests.bench.comparison import Bench, Missing, Side
from tests.bench.latency import _Path
from tests.bench.processes import Watch, anonymous_mb
from tests.bench.references import bench_cluster, pids

RATES = (100, 1_000, 10_000)
BARS = {(3, 100): 1.0, (3, 1_000): 1.0, (5, 100): 1.0, (5, 1_000): 1.5}
"""By nodes and rows/s, of p50 beside JetStream R3."""
SECONDS = 5
ROUNDS = 3
CLIENTS = 8
BATCH_ROWS = 100
BATCHES = 400
CONNECTIONS = 64
POSTS = 4_000
IDLE = 1_000
FILLER = "x" * 90
TIMEOUT_S = 120.0


def measure(bench: Bench) -> None:
    for nodes in (3, 5):
        _single_rows(bench, nodes)
    with bench_cluster(3) as cluster:
        web = cluster.node("n1").web
        _small_batches(bench, web, pids(cluster))
        _posts(bench, web, pids(cluster))
    for tls in (False, True):
        with bench_cluster(1, tls=tls) as cluster:
            before_mb = anonymous_mb(pids(cluster)["n1"])
            held_mb = asyncio.run(_idle(cluster, bench.of(IDLE, 50)))
            count = 2 * bench.of(IDLE, 50)
            bench.fact(idle=count, tls=tls, before_mb=round(before_mb), held_mb=round(held_mb))


def _single_rows(bench: Bench, nodes: int) -> None:
    why = nats_server.missing()
    with tempfile.TemporaryDirectory() as folder, bench_cluster(nodes) as cluster:
        at, to = cluster.node("n1").web, cluster.node(f"n{nodes}").web
        ours = _Path(f"m4cast /live, {nodes} nodes, acks = 1", "live", at, to, pids(cluster))
        if why is not None:
            _compare_rows(bench, nodes, [ours], [Missing("JetStream R3", why)])
            return
        with nats_server.running_servers(Path(folder), 3) as servers:
            processes = {server.name: server.pid for server in servers}
            theirs = _Path("JetStream R3", "jetstream", servers[0].address, servers[-1].address, processes, replicas=3)
            _compare_rows(bench, nodes, [ours, theirs], [])


def _compare_rows(bench: Bench, nodes: int, paths: list[_Path], missing: list[Missing]) -> None:
    for rate in RATES if not bench.quick else RATES[1:2]:
        sides = [Side(path.name, _p50(path, rate, bench.of(SECONDS, 2)), path.processes) for path in paths]
        bench.compare(
            f"single rows: p50 at {rate:,} rows/s, {nodes} nodes",
            "ms",
            *sides,
            *missing,
            better="lower",
            bar=BARS.get((nodes, rate)),
            rounds=bench.of(ROUNDS, 1),
            warm_rounds=0,
        )
        for path in paths:
            figures = {f"{name} ms": round(median(each[name] for each in path.seen), 2) for name in ("p50", "p99")}
            bench.fact(**{"rows/s": rate, "who": path.name, **figures})
            path.seen.clear()


def _p50(path: _Path, rate: int, seconds: int) -> Callable[[Watch], float]:
    work = path.work(rate, seconds)

    def run(watch: Watch) -> float:
        work(watch)
        return path.seen[-1]["p50"]

    return run


# ---- small batches


def _small_batches(bench: Bench, web: str, processes: dict[str, int]) -> None:
    batches = bench.of(BATCHES, 40)
    rows = CLIENTS * batches * BATCH_ROWS

    def ours(watch: Watch) -> None:
        with watch:
            asyncio.run(_everybody(CLIENTS, lambda: _publish_live(web, f"batches-{uuid.uuid4().hex[:8]}", batches)))

    why = nats_server.missing()
    side = Side("m4cast /live", ours, processes)
    title = f"batches of {BATCH_ROWS} rows, {CLIENTS} clients"
    if why is not None:
        bench.compare(title, "rows/s", side, Missing("JetStream R1", why), amount=rows, rounds=ROUNDS)
        return
    with tempfile.TemporaryDirectory() as folder, nats_server.running_servers(Path(folder), 3) as servers:

        def theirs(watch: Watch) -> None:
            topic = f"batches-{uuid.uuid4().hex[:8]}"
            asyncio.run(nats_server.make_stream(servers[0].address, topic, 1))
            with watch:
                asyncio.run(_everybody(CLIENTS, lambda: _publish_jetstream(servers[0].address, topic, batches)))

        other = Side("JetStream R1", theirs, {server.name: server.pid for server in servers})
        bench.compare(title, "rows/s", side, other, amount=rows, bar=1.0, rounds=bench.of(ROUNDS, 1))


async def _everybody(count: int, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(work() for _ in range(count)))


async def _publish_live(web: str, topic: str, batches: int) -> None:
    rows = json.dumps([{"id": number, "v": FILLER} for number in range(BATCH_ROWS)])
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{web}/live") as socket:

        async def acknowledged() -> None:
            while (await socket.receive_json())["id"] < batches:
                pass

        waiting = asyncio.get_running_loop().create_task(acknowledged())
        for number in range(1, batches + 1):
            await socket.send_str(f'{{"type":"publish","id":{number},"topic":"{topic}","rows":{rows}}}')
        await waiting


async def _publish_jetstream(address: str, topic: str, batches: int) -> None:
    """A message for each batch; acknowledgements are not waited for one by one."""
    import nats

    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    batch = (FILLER.encode() + bytes(10)) * BATCH_ROWS
    for _ in range(batches):
        await stream.publish_async(topic, batch)
    await asyncio.wait_for(stream.publish_async_completed(), TIMEOUT_S)
    await client.close()


# ---- posts


def _posts(bench: Bench, web: str, processes: dict[str, int]) -> None:
    posts = bench.of(POSTS, 256)

    def work(address: str) -> Callable[[Watch], None]:
        def run(watch: Watch) -> None:
            with watch:
                asyncio.run(_post_all(address, posts))

        return run

    with _bare_server() as (bare, pid):
        bench.compare(
            f"single-row POSTs, {CONNECTIONS} connections",
            "requests/s",
            Side("m4cast", work(web), processes),
            Side("bare aiohttp that discards", work(bare), {"bare": pid}),
            amount=posts,
            bar=0.5,
            rounds=bench.of(ROUNDS, 1),
        )


async def _post_all(address: str, posts: int) -> None:
    left = iter(range(posts))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def some() -> None:
            for number in left:
                body = {"id": number, "v": FILLER}
                async with session.post(f"http://{address}/topics/posts", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

        await _everybody(CONNECTIONS, some)


BARE = """
import asyncio, uvloop
from aiohttp import web

async def discard(request):
    await request.read()
    return web.json_response({})

async def main():
    application = web.Application()
    application.router.add_post("/{path:.*}", discard)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@contextmanager
def _bare_server() -> Iterator[tuple[str, int]]:
    server = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"127.0.0.1:{int(server.stdout.readline())}", server.pid
    finally:
        server.terminate()
        server.wait()


# ---- idle connections


async def _idle(cluster: LocalCluster, count: int) -> float:
    """The node's RssAnon in MB while so many tails and as many WebSockets wait for rows."""
    tls: ssl.SSLContext | bool = True
    if files := cluster.credentials():
        tls = ssl.create_default_context(cafile=files["ca"])
        tls.load_cert_chain(files["cert"], files["key"])
    url = f"{'https' if files else 'http'}://{cluster.node('n1').web}"
    connector = aiohttp.TCPConnector(limit=0, ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session:
        tails = [await session.get(f"{url}/topics/idle/tail") for _ in range(count)]
        sockets = [await session.ws_connect(f"{url}/live") for _ in range(count)]
        for tail in tails:
            assert (await tail.content.readline()).startswith(b"retry")
        held = anonymous_mb(pids(cluster)["n1"])
        for each in sockets:
            await each.close()
        for tail in tails:
            tail.close()
    return held
