"""Clients: the hierarchy of their profiles, many that are absent, how late notifications are, tables and queries.

Nodes are separate processes. `M4CAST_CLIENTS` says how many absent clients there are (99,999), `M4CAST_TABLE_ROWS` how
many rows the tables have (1,000,000). Parts: `python -m tests.bench clients.query clients.late`; see `PARTS`.
"""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel, Client
from m4cast.overlay.config import NodeConfig
from m4cast.overlay.profiles import BatchTerms, parse
from m4cast.overlay.protocol.clients.state import ClientProfile, ClientState
from m4cast.overlay.protocol.effects import Wish
from m4cast.overlay.protocol.interest import registrations
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch, anonymous_mb
from tests.overlay.client.roaming.waiting import until_ready
from tests.overlay.door.served import serving
from tests.overlay.protocol.interest.mesh import Member
from tests.processes.clusters import process_of, running_cluster

CLIENTS = int(os.environ.get("M4CAST_CLIENTS", "99999"))
TABLE_ROWS = int(os.environ.get("M4CAST_TABLE_ROWS", "1000000"))
FEW_CLIENTS = 1_000
PROFILES = 10_000
KINDS = 400
SECRET = "a secret of this benchmark"
HOUR_S = 3_600.0
"""No limit to what is measured, only an end to what hangs."""


# ---- the hierarchy of profiles (A1-A5)


def zipf_profiles(count: int, seed: int = 1) -> list[str]:
    """Conditions as many clients have them: few kinds of things are wanted by most, some only above a price."""
    random, numpy_random = Random(seed), np.random.default_rng(seed)
    kinds = np.minimum(numpy_random.zipf(1.3, count), KINDS)
    texts = []
    for kind in kinds:
        texts.append(f"kind = {kind}")
        if random.random() < 0.6:
            texts[-1] += f" AND price > {random.choice((5, 10, 20, 50, 75, 90))}"
    return texts


def _hierarchy(bench: Bench) -> None:
    """Registrations at one node for all its clients: how many are announced, and which rows and batches cross to it."""
    texts = zipf_profiles(bench.of(PROFILES, 1_000))
    numpy_random = np.random.default_rng(2)
    rows = pa.record_batch(
        {"kind": numpy_random.integers(1, 2 * KINDS, 20_000), "price": numpy_random.integers(0, 100, 20_000)}
    )
    wanted = _mask(rows, set(texts))
    for name in ("with", "without"):
        with (
            patch.object(registrations, "ANNOUNCED_MAX", 10**9),
            patch.object(registrations, "ANNOUNCED_BYTES_MAX", 10**9),
        ):
            member = Member(1, NodeConfig(registrations_max=100_000, interest_hierarchy=name == "with"))
            began = time.process_time()
            for number, text in enumerate(texts):
                member.subscribe(Wish(str(number), "t", parse(text), earliest=False))
                member.out()
            registering_s = time.process_time() - began
        (entry,) = member.interest.view.used()
        announced = {item.text for item in entry.items.values()}
        began = time.process_time()
        crossing = _mask(rows, announced)
        matching_s = time.process_time() - began
        batches = crossing.reshape(-1, 100).any(axis=1).sum()
        assert (crossing == wanted).all(), "what crosses is what is wanted, with and without"
        bench.fact(
            what=f"{len(texts):,} clients, {name} hierarchy",
            distinct_profiles=len(set(texts)),
            announced=len(announced),
            announced_bytes=sum(len(item.text) for item in entry.items.values()),
            rows_crossing=int(crossing.sum()),
            false_rows=int((crossing & ~wanted).sum()),
            batches_crossing=int(batches),
            registering_cpu_s=round(registering_s, 2),
            matching_cpu_ms=round(matching_s * 1_000, 1),
        )


def _crossings(bench: Bench) -> None:
    """The same clients at a real node, of a selective topic that another one publishes: what crosses, what it costs,
    and what each gets. Nodes share this process, so that limits can be lifted for the side without the hierarchy.

    Deliveries: what a client gets is what a read of its condition gives at its node. Clients with equal conditions get
    the same rows, so each distinct condition is read once, and counted for every client that has it."""
    clients, batches = bench.of(PROFILES, 1_000), bench.of(2 * KINDS, 100)
    texts = zipf_profiles(clients)
    rng = np.random.default_rng(3)
    rows = pa.table({"kind": np.repeat(np.arange(1, batches + 1), 25), "price": rng.integers(0, 100, 25 * batches)})
    (whole,) = rows.combine_chunks().to_batches()
    wanted = {text: int(_mask(whole, {text}).sum()) for text in set(texts)}
    crossing = int(_mask(whole, set(texts)).reshape(-1, 25).any(axis=1).sum())
    for name in ("with", "without"):
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(registrations, "ANNOUNCED_MAX", 10**9),
            patch.object(registrations, "ANNOUNCED_BYTES_MAX", 10**9),
            serving(Path(folder), 2, settings=lambda node: {"interest_hierarchy": name == "with"}) as served,  # noqa: B023
        ):
            origin, there = (Channel([address], timeout_s=HOUR_S) for address in served.addresses)
            origin.create_topic("zipf", keepers=0, route_by=["kind"])
            until_ready(lambda: origin.publish("zipf", rows.slice(0, 0), acks=0))  # noqa: B023
            wishes = [
                {"key": f"c{number}", "credential": SECRET, "topic": "zipf", "where": text}
                for number, text in enumerate(texts)
            ]
            began = time.process_time()
            for first in range(0, clients, 500):
                there.subscribe_all(wishes[first : first + 500], start="earliest")
            subscribing_s = time.process_time() - began
            publisher, reader = (each.driver.node for each in served.nodes)
            version = reader.interest.version
            deadline = time.monotonic() + HOUR_S
            while publisher.selection.selective.demand.versions.get(reader.me.node_id) != version:
                assert time.monotonic() < deadline, "the publisher does not hear what is wanted"
                time.sleep(0.05)
                version = reader.interest.version
            announced = reader.interest.registrations.items()
            began = time.process_time()
            for first in range(0, rows.num_rows, 25):
                origin.publish("zipf", rows.slice(first, 25), acks=0)
            ends = origin.frontier("zipf")
            got = {text: there.read("zipf", {}, ends, where=text).num_rows for text in [*wanted][:1]}
            publishing_s = time.process_time() - began
            began = time.process_time()
            got |= {text: there.read("zipf", {}, ends, where=text).num_rows for text in wanted}
            reading_s = time.process_time() - began
            sent = publisher.selection.copies.sent
            assert got == wanted, "every client gets the rows that it wants, and no others"
            assert sent.batches == crossing, (sent.batches, crossing)
            bench.fact(
                what=f"{clients:,} clients of a selective topic, {name} hierarchy",
                distinct_profiles=len(wanted),
                registrations=len(reader.interest.registrations.rows),
                announced=len(announced),
                announced_bytes=sum(len(item.text) for item in announced),
                batches=batches,
                batches_crossing=sent.batches,
                false_batches=sent.batches - crossing,
                bytes_crossing=sent.bytes,
                deliveries=sum(got[text] for text in texts),
                false_deliveries=sum(got[text] - wanted[text] for text in texts),
                subscribing_cpu_s=round(subscribing_s, 1),
                publishing_cpu_s=round(publishing_s, 2),
                reading_cpu_s=round(reading_s, 1),
            )


def _mask(rows: pa.RecordBatch, texts: set[str]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    terms, found = BatchTerms(rows), np.zeros(rows.num_rows, bool)
    for text in sorted(texts):
        found |= np.asarray(terms.mask(parse(text).condition), bool)
    return found


def _shipped(bench: Bench) -> None:
    """The bytes that a client takes along when it changes its access point, besides the rows that it lacks."""
    import json

    from m4cast.overlay.protocol.clients.packed_state import packed_of

    for streams in (4, 16, 64):
        here = {Random(number).randbytes(16).hex(): 1_000_000 + number for number in range(streams)}
        state = ClientState().subscribed(ClientProfile("default", "orders", "price > 100", None, here), here)
        shipped = len(json.dumps(packed_of(state)))
        bench.fact(what=f"state of a client, {streams} streams", bytes=shipped)


# ---- real nodes


def _notified(bench: Bench) -> None:
    """The time from the call that publishes at one node until the row is handed out at another: to a client, and to a
    plain tail. Rows of a profile or a filter that come within 10 ms of others are joined with them (`EARLY_S`)."""
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), 3) as cluster:
        publisher = cluster.channel("n1")
        publisher.publish("late", [{"n": -1}], acks=2)
        client = Client(cluster.node("n2").door, key="late", credential=SECRET)
        client.connect(create=True)
        client.subscribe("late", "n >= 0")

        def late(rows: int, pause_s: float, watch: Watch, batches: Iterator[pa.RecordBatch]) -> float:
            times: list[float] = []
            sent: dict[int, float] = {}
            arrived = threading.Semaphore(0)

            def follow() -> None:
                for batch in batches:
                    now = time.perf_counter()
                    for number in batch.column("n").to_pylist():
                        if number in sent:
                            times.append(now - sent[number])
                            arrived.release()
                    if len(times) >= rows:
                        return

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            time.sleep(0.5)  # until it follows
            with watch:
                for number in range(rows):
                    sent[number] = time.perf_counter()
                    publisher.publish("late", [{"n": number}])
                    arrived.acquire(timeout=10)
                    time.sleep(pause_s)
            thread.join(10)
            return statistics.median(times) * 1_000

        def compare(name: str, rows: int, pause_s: float) -> None:
            def by_client(watch: Watch) -> float:
                return late(rows, pause_s, watch, client.notifications())

            def by_tail(watch: Watch) -> float:
                return late(rows, pause_s, watch, cluster.channel("n2").tail("late", "latest"))

            bench.compare(
                f"publish to notification at another node, {name}, median",
                "ms",
                Side("client", by_client),
                Side("plain tail", by_tail),
                better="lower",
                bar=2.0,
                rounds=3,
                warm_rounds=1,
            )

        compare("ten rows a second", bench.of(60, 6), 0.1)
        compare("each row when the one before has come", bench.of(300, 30), 0.0)


@contextmanager
def _one_node() -> Iterator[tuple[LocalCluster, Channel]]:
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), 1) as cluster:
        yield cluster, cluster.channel("n1")


def _subscribed(channel: Channel, first: int, until: int, start: str = "latest") -> float:
    """Clients that are created and never connect. Returns the seconds that it took."""
    began = time.perf_counter()
    rows = (
        {"key": f"c{number}", "credential": SECRET, "topic": "absent", "where": f"n = {number}"}
        for number in range(first, until)
    )
    channel.subscribe_all(rows, start="earliest" if start == "earliest" else "latest")
    return time.perf_counter() - began


def _absent(bench: Bench) -> None:
    """Memory, start and the cost of a publish with many clients that are not there."""
    clients = bench.of(CLIENTS, 2_000)
    few = min(FEW_CLIENTS, clients // 2)
    with _one_node() as (cluster, channel):
        channel.publish("absent", [{"n": 1}])
        cluster.kill("n1")
        cluster.start("n1")
        empty_mb = anonymous_mb(process_of(cluster, "n1").pid)
        seconds = _subscribed(channel, 0, few)
        few_us = _publish_us(cluster, channel)
        seconds += _subscribed(channel, few, clients)
        many_us = _publish_us(cluster, channel)
        cluster.kill("n1")
        began = time.perf_counter()
        cluster.start("n1")
        started_s = time.perf_counter() - began
        full_mb = anonymous_mb(process_of(cluster, "n1").pid)
        bench.fact(
            what=f"{clients:,} absent clients",
            subscribed_s=round(seconds, 1),
            start_s=round(started_s, 1),
            mb_above_empty=round(full_mb - empty_mb),
            publish_cpu_us=round(many_us),
            publish_cpu_us_with_1000=round(few_us),
            ratio=round(many_us / few_us, 2),
        )


def _absent_selective(bench: Bench) -> None:
    """The same on a selective topic, with conditions as many clients have them; and memory at another node, which has
    a row of the client table for each of them."""
    clients = bench.of(CLIENTS, 2_000)
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), 2) as cluster:
        there = cluster.channel("n1")
        there.create_topic("chosen", keepers=0, route_by=["kind"])
        texts = zipf_profiles(clients)
        rows = (
            {"key": f"c{number}", "credential": SECRET, "topic": "chosen", "where": text}
            for number, text in enumerate(texts)
        )
        empty_mb = {name: anonymous_mb(process_of(cluster, name).pid) for name in ("n1", "n2")}
        began = time.perf_counter()
        there.at(there.nodes[0], timeout_s=HOUR_S).subscribe_all(rows, start="earliest")
        seconds = time.perf_counter() - began
        other = cluster.channel("n2")
        deadline = time.monotonic() + HOUR_S
        while (known := sum(1 for _ in other.clients())) < clients:
            assert time.monotonic() < deadline, f"the other node knows {known} clients"
            time.sleep(1.0)
        full_mb = {name: anonymous_mb(process_of(cluster, name).pid) for name in ("n1", "n2")}
        bench.fact(
            what=f"{clients:,} absent clients of a selective topic",
            distinct_profiles=len(set(texts)),
            subscribed_s=round(seconds, 1),
            mb_above_empty=round(full_mb["n1"] - empty_mb["n1"]),
            mb_at_another_node=round(full_mb["n2"] - empty_mb["n2"]),
        )


def _publish_us(cluster: LocalCluster, channel: Channel, rows: int = 300) -> float:
    """CPU time of the node for a publish of one row."""
    pid = process_of(cluster, "n1").pid
    before = cpu_s(pid)
    for number in range(rows):
        channel.publish("absent", [{"n": number}])
    return (cpu_s(pid) - before) / rows * 1e6


def cpu_s(pid: int) -> float:
    """CPU time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _waiting(bench: Bench) -> None:
    """The growth of a store when rows wait for absent clients: two nodes with the same rows, the clients at one."""
    rows = bench.of(1_000_000, 20_000)
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), 2) as cluster:
        first = cluster.channel("n1")
        first.publish("absent", [{"n": 1}], acks=1)
        _subscribed(first, 0, FEW_CLIENTS, "earliest")
        table = pa.table({"n": pa.array(np.arange(10_000)), "text": pa.array(["x" * 50] * 10_000)})
        for _ in range(rows // 10_000):
            first.publish("absent", table, acks=1)
        sizes = {name: store_bytes(Path(folder), name) for name in ("n1", "n2")}
        bench.fact(
            what=f"{rows:,} rows wait for {FEW_CLIENTS:,} absent clients",
            store_with_clients_mb=round(sizes["n1"] / 1e6, 1),
            store_without_mb=round(sizes["n2"] / 1e6, 1),
            more_kb_per_client=round((sizes["n1"] - sizes["n2"]) / FEW_CLIENTS / 1e3, 2),
        )


def store_bytes(folder: Path, name: str) -> int:
    """Bytes that the files of a node's store take on the disk."""
    return sum(
        path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and name in path.parts[-3:-1]
    )


def _query(bench: Bench) -> None:
    """A table written at all nodes, asked of the channel, with all nodes and with one that was killed."""
    nodes = bench.of(16, 4)
    share = bench.of(TABLE_ROWS, 20_000) // nodes
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), nodes) as cluster:
        names = [f"n{number + 1}" for number in range(nodes)]
        channels = [cluster.channel(name) for name in names]
        for number, channel in enumerate(channels):
            table = _table_rows(number, 1, np.random.default_rng(number).random(share))
            for first in range(0, share, 10_000):
                channel.publish("table", table.slice(first, 10_000), acks=1)
        for number, channel in enumerate(channels):  # a tenth is replaced, at another node
            owner = (number + 1) % nodes
            replaced = np.random.default_rng(1_000 + owner).random(share // 10)
            channel.publish("table", _table_rows(owner, 2, replaced), acks=1)
        by_hand = sum(int((_standing_prices(number, share) < 0.01).sum()) for number in range(nodes))
        channel = Channel([cluster.node(name).door for name in names])
        ends = _all_ends([cluster.node(name).door for name in names])
        for each in channels:  # until all have everything
            each.read("table", {}, ends, where="price < 0")
        _asked(bench, "a query of the whole channel, cold", by_hand, lambda: _query_all(channel))
        for each in channels:  # until all have folded
            assert each.table("table", "price < 0").num_rows == 0
        for _ in range(3):
            _asked(bench, "a query of the whole channel, folded", by_hand, lambda: _query_all(channel))
        _asked(bench, "the table at one node, folded", by_hand, lambda: _table(channel))
        cluster.kill(names[1])
        query = channel.query("table", "price < 0.01", scope="channel")
        found = sum(batch.num_rows for batch in query)
        assert found == by_hand, (found, by_hand)
        assert len(query.unanswered) == 1, query.unanswered
        bench.fact(what="a node that was killed is named", rows=found, unanswered=", ".join(query.unanswered))


def _table_rows(owner: int, session: int, prices: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> pa.Table:
    count = len(prices)
    numbers = [np.full(count, session, np.int64), np.arange(count, dtype=np.int64)]
    return pa.table(
        {
            "_owner": pa.array([f"owner-{owner}"] * count),
            "_name": pa.array([f"name-{each}" for each in range(count)]),
            "_version": pa.StructArray.from_arrays(numbers, names=["session", "counter"]),
            "price": pa.array(prices),
        }
    )


def _standing_prices(owner: int, share: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    prices = np.random.default_rng(owner).random(share)
    prices[: share // 10] = np.random.default_rng(1_000 + owner).random(share // 10)
    return prices


def _table(channel: Channel) -> Iterator[pa.RecordBatch]:
    return iter(channel.table("table", "price < 0.01").to_batches())


def _query_all(channel: Channel) -> Iterator[pa.RecordBatch]:
    return channel.query("table", "price < 0.01", scope="channel")


def _asked(bench: Bench, what: str, by_hand: int, ask: Callable[[], Iterator[pa.RecordBatch]]) -> None:
    began = time.perf_counter()
    first_s, count = 0.0, 0
    for batch in ask():
        first_s = first_s or time.perf_counter() - began
        count += batch.num_rows
    seconds = time.perf_counter() - began
    assert count == by_hand, (what, count, by_hand)
    bench.fact(what=what, rows=count, first_ms=round(first_s * 1e3), all_ms=round(seconds * 1e3))


def _all_ends(addresses: list[str]) -> dict[str, dict[str, int]]:
    """The ends of the table's streams, each at the node that knows most of it."""
    ends: dict[str, int] = {}
    for address in addresses:
        for origin, until in Channel([address]).frontier("table")["table"].items():
            ends[origin] = max(until, ends.get(origin, 1))
    return {"table": ends}


PARTS: dict[str, Callable[[Bench], None]] = {
    "hierarchy": _hierarchy,
    "crossings": _crossings,
    "shipped": _shipped,
    "late": _notified,
    "absent": _absent,
    "absent-selective": _absent_selective,
    "waiting": _waiting,
    "query": _query,
}


def measure(bench: Bench) -> None:
    for part in PARTS.values():
        part(bench)
