"""The web door and its bars, in one table. Single rows over `/live`, open loop, acks = 1, beside JetStream R3 in the
same rounds (three and five nodes), read when they are on the reader's node's disk, and early; batches of 100 rows by 8
clients over `/live`, and by DoPut of the Flight door, beside JetStream R1; single-row POSTs by 64 keep-alive
connections, beside a bare aiohttp server that discards them; how long a node's loop and `/healthz` are held up
while 64 MB of Parquet is posted and filtered reads run; and what 1,000 idle tails and as many idle WebSockets take of a
node's memory.

Whole, it takes less than seven minutes with three rounds. Parts: `python -m tests.bench web.rows_3 web.idle`; see
`PARTS`."""

import asyncio
import io
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq

from m4cast.cluster.local import LocalCluster
from tests.bench import nats_server, topics
from tests.bench.comparison import Bench, Comparison, Missing, Side
from tests.bench.latency import _Path
from tests.bench.processes import Watch, anonymous_mb
from tests.bench.references import bench_cluster, pids

RATES = (100, 1_000)
FASTEST = 10_000
"""JetStream does not keep up with this rate, so it is not asked to."""
BARS = {
    (3, 100): {"p50": 1.0, "p99": 1.0},
    (3, 1_000): {"p50": 1.0, "p99": 1.0},
    (5, 100): {"p50": 1.0},
    (5, 1_000): {"p50": 1.5},
}
"""By nodes and rows/s, beside JetStream R3."""
KEEPS_UP_MS = 1_000
SECONDS = 3
WARM_S = 2
ROUNDS = 3
CLIENTS = 8
BATCH_ROWS = 100
BATCHES = 400
CONNECTIONS = 64
POSTS = 4_000
BATCHES_BAR = 1.0
POSTS_BAR = 0.5
PUTS_BAR = 1.3 * 0.25
"""1.3 times what it was."""
IDLE = 1_000
IDLE_MB = {False: 200, True: 350}
HEALTH_MS = 100
HEARTBEAT_MS = 1_000
PARQUET_BYTES = 64 << 20
LOOP_S = 8
FILLER = "x" * 90
TIMEOUT_S = 120.0


def measure(bench: Bench) -> None:
    for part in PARTS.values():
        part(bench)


def _bar(
    bench: Bench, what: str, ours: float, beside: str, ratio: float | None, wanted: str, is_met: bool | None
) -> None:
    """A line of the table of bars. `is_met` None: there is nothing to compare with."""
    bench.fact(
        bar=what,
        m4cast=f"{ours:,.0f}" if ours >= 100 else f"{ours:.2f}",
        beside=beside,
        ratio="" if ratio is None else f"{ratio:.2f}",
        wanted=wanted,
        met={True: "yes", False: "NO", None: "?"}[is_met],
    )


def _compared(bench: Bench, what: str, comparison: Comparison) -> None:
    ours, *theirs = comparison.sides
    wanted = f"{'>=' if comparison.better == 'higher' else '<='} {comparison.bar} x"
    if not theirs:
        _bar(bench, what, median(ours.values), "missing", None, wanted, None)
        return
    ratio = median(comparison.ratios(theirs[0]))
    beside = f"{median(theirs[0].values):,.0f} {theirs[0].name}"
    _bar(bench, what, median(ours.values), beside, ratio, wanted, comparison.is_met(theirs[0]))


# ---- single rows


def _single_rows(bench: Bench, nodes: int) -> None:
    why = nats_server.missing()
    with tempfile.TemporaryDirectory() as folder, bench_cluster(nodes) as cluster:
        at, to = cluster.node("n1").web, cluster.node(f"n{nodes}").web
        ours = [
            _Path(f"/live, {nodes} nodes", "live", at, to, pids(cluster)),
            _Path(f"/live early, {nodes} nodes", "live-early", at, to, pids(cluster)),
        ]
        if why is not None:
            _compare_rows(bench, nodes, ours, None, [Missing("JetStream R3", why)])
        else:
            with nats_server.running_servers(Path(folder), 3) as servers:
                processes = {server.name: server.pid for server in servers}
                first, last = servers[0].address, servers[-1].address
                theirs = _Path("JetStream R3", "jetstream", first, last, processes, replicas=3)
                _compare_rows(bench, nodes, ours, theirs, [])


def _compare_rows(bench: Bench, nodes: int, ours: list[_Path], theirs: _Path | None, missing: list[Missing]) -> None:
    paths = [*ours, *([] if theirs is None else [theirs])]
    for rate in RATES:
        sides = [Side(path.name, _p50(path, rate, bench.of(SECONDS, 2)), path.processes) for path in paths]
        title = f"single rows: p50 at {rate:,} rows/s, {nodes} nodes"
        bench.compare(title, "ms", *sides, *missing, better="lower", rounds=ROUNDS, warm_rounds=0)
        for path in ours:
            for name, bar in BARS[nodes, rate].items():
                own = [seen[name] for seen in path.seen]
                other = [] if theirs is None else [seen[name] for seen in theirs.seen]
                ratio = median(a / b for a, b in zip(own, other, strict=True)) if other else None
                _bar(
                    bench,
                    f"{path.name}, {rate:,} rows/s: {name}, ms",
                    median(own),
                    f"{median(other):.2f} JetStream R3" if other else "missing",
                    ratio,
                    f"<= {bar} x",
                    None if ratio is None else ratio <= bar,
                )
        for path in paths:
            path.seen.clear()


def _p50(path: _Path, rate: int, seconds: int) -> Callable[[Watch], float]:
    work = path.work(rate, seconds, WARM_S)

    def run(watch: Watch) -> float:
        work(watch)
        return path.seen[-1]["p50"]

    return run


def _fastest(bench: Bench) -> None:
    with bench_cluster(3) as cluster:
        path = _Path("/live, 3 nodes", "live", cluster.node("n1").web, cluster.node("n3").web, pids(cluster))
        side = Side(path.name, _p50(path, FASTEST, SECONDS), path.processes)
        title = f"single rows: p50 at {FASTEST:,} rows/s, 3 nodes"
        bench.compare(title, "ms", side, better="lower", rounds=ROUNDS, warm_rounds=0)
    p99 = median(seen["p99"] for seen in path.seen)
    what = f"{path.name}, {FASTEST:,} rows/s: keeps up, p99, ms"
    _bar(bench, what, p99, "JetStream does not", None, f"< {KEEPS_UP_MS}", p99 < KEEPS_UP_MS)


# ---- small batches


def _small_batches(bench: Bench, cluster: LocalCluster) -> None:
    web, processes = cluster.node("n1").web, pids(cluster)
    batches = bench.of(BATCHES, 40)
    rows = CLIENTS * batches * BATCH_ROWS

    def ours(watch: Watch) -> None:
        with watch:
            topic = f"batches-{uuid.uuid4().hex[:8]}"
            asyncio.run(_everybody(CLIENTS, lambda: _publish_live(web, topic, batches)))

    why = nats_server.missing()
    side = Side("m4cast /live", ours, processes)
    title = f"{CLIENTS * batches:,} batches of {BATCH_ROWS} rows, {CLIENTS} clients"
    if why is not None:
        gone = Missing("JetStream R1", why)
        _compared(bench, title, bench.compare(title, "rows/s", side, gone, amount=rows, bar=BATCHES_BAR, rounds=ROUNDS))
        return
    with tempfile.TemporaryDirectory() as folder, nats_server.running_servers(Path(folder), 3) as servers:

        def theirs(watch: Watch) -> None:
            topic = f"batches-{uuid.uuid4().hex[:8]}"
            asyncio.run(nats_server.make_stream(servers[0].address, topic, 1))
            with watch:
                asyncio.run(_everybody(CLIENTS, lambda: _publish_jetstream(servers[0].address, topic, batches)))

        other = Side("JetStream R1", theirs, {server.name: server.pid for server in servers})
        found = bench.compare(title, "rows/s", side, other, amount=rows, bar=BATCHES_BAR, rounds=ROUNDS)
        _compared(bench, f"{title}, rows/s", found)


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


# ---- small DoPuts


def _small_puts(bench: Bench, cluster: LocalCluster) -> None:
    """Small DoPuts, measured as `topics` does, where they were 0.25 of JetStream's before."""
    puts = bench.of(topics.BATCHES, topics.BATCHES // 8)
    side = Side("m4cast, a DoPut each", topics.by_clients(cluster.node("n1").door, 1, puts), pids(cluster))
    title = f"{puts:,} DoPuts of {BATCH_ROWS} rows, {CLIENTS} clients"
    why = nats_server.missing()
    with tempfile.TemporaryDirectory() as folder, nats_server.running_servers(Path(folder), 0 if why else 1) as servers:
        other = topics.by_nats(servers[0], 1, puts) if servers else Missing("JetStream R1", why or "")
        found = bench.compare(title, "puts/s", side, other, amount=puts, bar=PUTS_BAR, rounds=ROUNDS)
        _compared(bench, f"{title}, puts/s", found)


# ---- posts


def _posts(bench: Bench, cluster: LocalCluster) -> None:
    web, processes = cluster.node("n1").web, pids(cluster)
    posts = bench.of(POSTS, 256)

    def work(address: str) -> Callable[[Watch], None]:
        def run(watch: Watch) -> None:
            with watch:
                asyncio.run(_post_all(address, posts))

        return run

    with _bare_server() as (bare, pid):
        found = bench.compare(
            f"{posts:,} single-row POSTs, {CONNECTIONS} connections",
            "requests/s",
            Side("m4cast", work(web), processes),
            Side("bare aiohttp that discards", work(bare), {"bare": pid}),
            amount=posts,
            bar=POSTS_BAR,
            rounds=ROUNDS,
        )
        _compared(bench, f"{found.what}, requests/s", found)


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


# ---- the loop


def _loop(bench: Bench, cluster: LocalCluster) -> None:
    """One client posts Parquet again and again, and another reads filtered rows, for some seconds."""
    size = bench.of(PARQUET_BYTES, 4 << 20)
    held = asyncio.run(_held_up(cluster, size, bench.of(LOOP_S, 2)))
    what = f"while {size >> 20} MB of Parquet are posted and filtered reads run"
    posts = f"{held['posts']:.0f} posts, {held['reads']:.0f} reads"
    late_ms, loop_ms = held["healthz_ms"], held["loop_ms"]
    _bar(bench, f"{what}: /healthz at most, ms", late_ms, posts, None, f"< {HEALTH_MS}", late_ms < HEALTH_MS)
    on_time = loop_ms < HEARTBEAT_MS
    _bar(bench, f"{what}: the loop is late at most, ms", loop_ms, posts, None, f"< {HEARTBEAT_MS}", on_time)
    lost = held["lost"]
    _bar(bench, f"{what}: links lost", lost, posts, None, "0", not lost)


async def _held_up(cluster: LocalCluster, size: int, seconds: int) -> dict[str, float]:
    node = cluster.node("n1")
    done = {"posts": 0.0, "reads": 0.0}
    body = _parquet(size)
    until = time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def post() -> None:
            headers = {"Content-Type": "application/vnd.apache.parquet"}
            while time.monotonic() < until:
                async with session.post(f"http://{node.web}/topics/large", data=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    done["posts"] += 1

        async def read() -> None:
            query = {"where": "id < 100000 AND v LIKE 'a%'"}
            while time.monotonic() < until:
                async with session.get(f"http://{node.web}/topics/large/rows", params=query) as answer:
                    if answer.status != 404:  # nothing is there yet
                        assert answer.status == 200, await answer.text()
                        await answer.read()
                        done["reads"] += 1
                await asyncio.sleep(0.01)

        watching = subprocess.Popen(  # a process of its own: this one is busy
            [sys.executable, "-c", WATCHING, f"http://{node.http}", str(seconds)], stdout=subprocess.PIPE, text=True
        )
        await asyncio.gather(post(), read())
        seen, _ = await asyncio.to_thread(watching.communicate)
    return {**done, **json.loads(seen)}


WATCHING = """
import json, re, sys, time, urllib.request
url, seconds = sys.argv[1], float(sys.argv[2])
def get(path):
    began = time.perf_counter()
    with urllib.request.urlopen(url + path) as answer:
        text = answer.read().decode()
    return text, (time.perf_counter() - began) * 1000
def figure(text, name):
    return sum(float(each) for each in re.findall(rf"^{name}(?:{{[^}}]*}})? (.*)$", text, re.MULTILINE))
down = 'm4cast_happenings_total{name="neighbour-down"}'
before = figure(get("/metrics")[0], re.escape(down))
healthz, loop = [], []
until = time.monotonic() + seconds
while time.monotonic() < until:
    healthz.append(get("/healthz")[1])
    text, _ = get("/metrics")
    loop.append(figure(text, "m4cast_loop_delay_seconds") * 1000)
    time.sleep(0.02)
lost = figure(text, re.escape(down)) - before
print(json.dumps({"healthz_ms": max(healthz), "loop_ms": max(loop), "lost": lost}))
"""


def _parquet(size: int) -> bytes:
    rows = size // 112  # of 104 bytes: a little less than the limit
    texts = pa.array([os.urandom(46).hex() for _ in range(min(rows, 100_000))])
    table = pa.table(
        {"id": pa.arange(0, rows), "v": pa.concat_arrays([texts] * (rows // len(texts) + 1)).slice(0, rows)}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


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


def _idle_mb(bench: Bench) -> None:
    for tls in (False, True):
        with bench_cluster(1, tls=tls) as cluster:
            before_mb = anonymous_mb(pids(cluster)["n1"])
            held_mb = asyncio.run(_idle(cluster, bench.of(IDLE, 50)))
            what = f"{2 * bench.of(IDLE, 50):,} idle connections, {'TLS' if tls else 'plain'}: RssAnon, MB"
            _bar(bench, what, held_mb, f"{before_mb:.0f} before", None, f"<= {IDLE_MB[tls]}", held_mb <= IDLE_MB[tls])


def _at(nodes: int, part: Callable[[Bench, LocalCluster], None], bench: Bench) -> None:
    with bench_cluster(nodes) as cluster:
        part(bench, cluster)


PARTS: dict[str, Callable[[Bench], None]] = {
    "rows_3": partial(_single_rows, nodes=3),
    "rows_5": partial(_single_rows, nodes=5),
    "fastest": _fastest,
    "batches": partial(_at, 3, _small_batches),
    "puts": partial(_at, 1, _small_puts),
    "posts": partial(_at, 3, _posts),
    "loop": partial(_at, 2, _loop),
    "idle": _idle_mb,
}
"""Single rows at three and five nodes, 10,000 rows/s, batches of 100 rows over `/live` and by DoPut, POSTs, and what
the docstring says last. Each takes less than four minutes with three rounds."""
