"""Selective topics between real nodes on loopback: bytes on links, by the nodes' own counters, beside broadcast topics
that are pulled; coverage of what is not wanted; time until a registration is active; routes after a kill.

Nodes are real (drivers, sockets, stores, doors), on one loop in this process, but for those that are killed. Bytes of
broadcast topics are those of payloads alone, those of selective ones all routed frames, statements and acknowledgements
included: the comparison favours broadcast.
"""

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import pyarrow as pa

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.routes.routing import Routing
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.selective import RoutedFrame
from tests.overlay.door.served import Served, serving
from tests.processes.clusters import up
from tests.processes.warm_nodes import WarmCluster

NODES = int(os.environ.get("M4CAST_NODES", "16"))
TOPICS = 100
WANTED_AT = 3
PAYLOAD_BYTES = 80_000
"""More than `push_bytes_max`: broadcast batches are pulled, one copy per node."""
KEYS = 100
"""Batches with a key each, of which content filters match a share."""
RATES = (1, 10, 50)
"""Shares in percent."""
PATIENCE_S = 60.0
ASKED_AT_ONCE = 8
"""Processes that are asked at the same time: one after the other, 62 of them take longer than what is measured."""
QUIET_S = 3.0
KILLED_OF = (12, 64)
"""Numbers of processes, two of which are killed."""
Row = dict[str, object]


def measure() -> list[Row]:
    rows = [_spread("broadcast, pulled", None)]
    broadcast = rows[0]["MB"]
    assert isinstance(broadcast, float)
    for name, keepers in (("selective, no keepers", 0), ("selective, 2 keepers", 2)):
        row = _spread(name, keepers)
        measured = row["MB"]
        assert isinstance(measured, float)
        rows.append({**row, "of broadcast": round(measured / broadcast, 2)})
    rows += [*map(_content, RATES), _bystanders(), *_active(), *(row for nodes in KILLED_OF for row in _killed(nodes))]
    return rows


# ---- bytes


@contextmanager
def _channel(nodes: int = NODES) -> Iterator[tuple[Served, list[Channel]]]:
    folder = Path(tempfile.mkdtemp(prefix="m4cast-selection-"))
    try:
        with serving(folder, nodes) as served:
            yield served, [Channel(address, timeout_s=PATIENCE_S) for address in served.addresses]
    finally:
        shutil.rmtree(folder)


def _until(condition: Callable[[], bool], what: str) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + PATIENCE_S, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def _sent_bytes(served: Served) -> int:
    total = 0
    for node in served.nodes:
        machine = node.driver.node
        spreading = machine.dissemination.spreading
        total += spreading.pushed.bytes + spreading.served.bytes
        total += sum(load.bytes for load in machine.selection.routing.loads.values())
    return total


def _rows(number: int, key: int = 0) -> pa.Table:
    return pa.table({"n": [number], "key": [key], "content": [os.urandom(PAYLOAD_BYTES)]})


def _publish(channel: Channel, topic: str, rows: pa.Table) -> None:
    def is_published() -> bool:
        try:
            channel.publish(topic, rows)
        except RefusedError as error:
            if error.code not in ("not-ready", "too-few-nodes"):
                raise
            return False
        return True

    _until(is_published, f"{topic} is published")


def _takers(number: int) -> list[int]:
    """Drawn, since neighbours in the order of joining are often neighbours in the graph."""
    others = [at for at in range(NODES) if at != number % NODES]
    return Random(number).sample(others, WANTED_AT)


def _held(served: Served, at: int, topic: str) -> int:
    return sum(held.batches for stream, held in served.nodes[at].store.held().items() if stream.topic == topic)


def _covered(served: Served) -> bool:
    """True if every registration is covered up to the end of each stream of its topic."""
    ends: dict[str, dict[NodeId, int]] = {}
    for node in served.nodes:
        for stream, spoken in node.driver.node.selection.selective.speaking.streams.items():
            ends.setdefault(stream.topic, {})[stream.origin] = spoken.next
    for node in served.nodes:
        selection = node.driver.node.selection
        for name, stored in selection.selective.wants.durable.items():
            if stored.want.keeps is None:
                covered = {stream.origin: end for stream, end in selection.coverage(name).items()}
                if any(covered.get(origin, 1) < end for origin, end in ends.get(stored.want.topic, {}).items()):
                    return False
    return True


def _spread(name: str, keepers: int | None) -> Row:
    with _channel() as (served, channels):
        topics = [f"t{number}" for number in range(TOPICS)]
        if keepers is not None:
            for number, topic in enumerate(topics):
                channels[number % NODES].create_topic(topic, keepers=keepers)
            for number, topic in enumerate(topics):
                for at in _takers(number):
                    channels[at].register(topic)
            last = channels[_takers(TOPICS - 1)[-1]]
            assert last.active(topics[-1], timeout_s=PATIENCE_S).is_active
        before, covered_s = 0, 0.0
        for turn in range(2):  # keepers are chosen with a node's first batch, and columns are learnt
            before = _sent_bytes(served)
            for number, topic in enumerate(topics):
                _publish(channels[number % NODES], topic, _rows(turn))
            wanted = range(NODES) if keepers is None else None

            def is_there(turn: int = turn, wanted: range | None = wanted) -> bool:
                return all(
                    _held(served, at, topic) > turn
                    for number, topic in enumerate(topics)
                    for at in (wanted or _takers(number))
                )

            _until(is_there, "every wanted row is there")
            covered_s = 0.0 if keepers is None else _until(lambda: _covered(served), "covered")
            _until(Quiet(served).is_quiet, "nothing is sent any longer")
        megabytes = (_sent_bytes(served) - before) / 1e6
        for number, topic in enumerate(topics if keepers is not None else ()):
            for at in _takers(number):
                found = channels[at].read(topic).column("n").to_pylist()
                assert found == [0, 1], f"{topic} at {at}: {found}"
    least = (NODES - 1) * TOPICS * PAYLOAD_BYTES / 1e6
    row: Row = {"what": name, "nodes": NODES, "MB": round(megabytes, 1), "of a copy per node": megabytes / least}
    return row if keepers is None else {**row, "covered after s": round(covered_s, 2)}


class Quiet:
    """Watches for payloads to have stopped; statements go on for a while. Who cannot tell whether it has everything
    asks after two seconds, and may get again what it has: that is part of the turn that caused it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._bytes, self._since_s = _sent_bytes(served), time.monotonic()

    def is_quiet(self) -> bool:
        now = _sent_bytes(self._served)
        if abs(now - self._bytes) > PAYLOAD_BYTES // 2:
            self._bytes, self._since_s = now, time.monotonic()
        return time.monotonic() - self._since_s > QUIET_S


def _link_bytes(served: Served) -> Counter[tuple[NodeId, NodeId]]:
    """The bytes of routed frames that were sent over each link, by sender and receiver."""
    loads = ((node.driver.node.me.node_id, node.driver.node.selection.routing.loads) for node in served.nodes)
    return Counter({(me, via): load.bytes for me, each in loads for via, load in each.items()})


def _content(percent: int) -> Row:
    """A topic in which each of three nodes wants so many of a hundred keys; each batch has one key."""
    with _channel() as (served, channels):
        channels[0].create_topic("t", keepers=0, route_by=["key"])
        firsts = [number * (KEYS - percent) // (WANTED_AT - 1) for number in range(WANTED_AT)]
        takers = {at: range(first, first + percent) for at, first in zip(_takers(0), firsts, strict=True)}
        wheres = {at: f"key >= {keys.start} AND key < {keys.stop}" for at, keys in takers.items()}
        for at, where in wheres.items():
            channels[at].register("t", where)
            assert channels[at].active("t", where, timeout_s=PATIENCE_S).is_active
        _publish(channels[0], "t", _rows(0, KEYS))
        before, links = _sent_bytes(served), _link_bytes(served)
        for key in range(KEYS):
            _publish(channels[0], "t", _rows(1 + key, key))
        covered_s = _until(lambda: _covered(served), "what was not wanted is covered")
        for at, keys in takers.items():
            found = channels[at].read("t", where=wheres[at]).column("n").to_pylist()
            assert found == [1 + key for key in keys] and _held(served, at, "t") == percent, f"node {at}: {found}"
        megabytes = (_sent_bytes(served) - before) / 1e6
        busiest = max((_link_bytes(served) - links).values())
    row: Row = {"what": f"content filters of {percent} % at 3 nodes", "nodes": NODES, "MB": round(megabytes, 2)}
    row["of a copy per node"] = megabytes / ((NODES - 1) * KEYS * PAYLOAD_BYTES / 1e6)
    row["busiest link, of all rows"] = round(busiest / (KEYS * PAYLOAD_BYTES), 3)
    return {**row, "covered after s": round(covered_s, 2)}


def _bystanders() -> Row:
    """One topic, wanted at one node: who neither wants nor relays it has no byte of it, on sockets or disk."""
    received: Counter[NodeId] = Counter()
    on_frame = Routing.on_frame

    def counted(self: Routing, sender: Neighbour, frame: RoutedFrame, now_ms: int) -> None:
        if isinstance(frame.content, Batch):
            received[self._me] += len(frame.content.payload)
        on_frame(self, sender, frame, now_ms)

    with patch.object(Routing, "on_frame", counted), _channel() as (served, channels):
        channels[0].create_topic("t", keepers=0)
        taker = channels[NODES // 2]
        taker.register("t")
        assert taker.active("t", timeout_s=PATIENCE_S).is_active
        for number in range(20):
            _publish(channels[0], "t", _rows(number))
        _until(lambda: _held(served, NODES // 2, "t") == 20, "all of it arrives")
        ids = [node.driver.node.me.node_id for node in served.nodes]
        machine = served.nodes[0].driver.node
        tree = machine.selection.routing.graph(served.nodes[0].driver.clock.now_ms()).tree(ids[0])
        way, on_way = ids[NODES // 2], set()
        while way != ids[0]:
            on_way.add(way)
            way = tree.parent[way]
        others = [at for at, node_id in enumerate(ids) if node_id not in on_way and at != 0]
        assert all(not received[ids[at]] and not _held(served, at, "t") for at in others), "a byte too many"
    return {"what": "nodes without a byte of a topic wanted at one", "nodes": NODES, "count": len(others)}


# ---- active


def _active() -> list[Row]:
    with _channel(9) as (served, channels):
        channels[0].register("first")  # from now on beacons state versions
        assert channels[0].active("first", timeout_s=PATIENCE_S).is_active
        took = _activations([channels[number % 9] for number in range(30)])
        machine = served.nodes[0].driver.node
        diameter = machine.selection.routing.graph(served.nodes[0].driver.clock.now_ms()).diameter()
    row: Row = {"what": "registered and active", "nodes": 9, "diameter": diameter}
    return [{**row, "ms, median": round(median(took)), "ms, longest": round(max(took))}]


def _activations(channels: list[Channel]) -> list[float]:
    """The time that each took from registering until every node had confirmed, in ms."""
    took = []
    for number, channel in enumerate(channels):
        began = time.perf_counter()
        channel.register(f"active-{number}")
        assert channel.active(f"active-{number}", timeout_s=PATIENCE_S).is_active
        took.append((time.perf_counter() - began) * 1000)
    return took


# ---- routes


def _killed(nodes: int) -> list[Row]:
    """A process is killed, and a second one while the graph is repaired. From when all survivors noticed, until all
    have the graph right, from which each computes its trees. Meanwhile rows of a selective topic are published at two
    survivors and wanted at three others: none may be lost. All cluster settings have their defaults."""
    folder = Path(tempfile.mkdtemp(prefix="m4cast-selection-"))
    try:
        with up(WarmCluster.make(folder / "cluster", nodes)) as cluster:
            cluster.channel("n2").register("t")  # while somebody wants something, changes are told at once
            names = cluster.names()
            survivors = [name for name in names if name not in ("n5", "n6")]
            channels = {name: cluster.channel(name) for name in survivors}
            ids = {name: cluster.channel(name).status()["node_id"] for name in names}
            gone = {ids["n5"], ids["n6"]}
            everybody = {name: cluster.channel(name) for name in names}
            _graph_is_right(everybody, ids)
            active_ms = _activations([channels[name] for name in survivors[:10]])
            takers = [channels[name] for name in ("n3", "n8", "n10")]
            with _under_way([channels["n2"], channels["n7"]], takers) as rows:
                near = [name for name, channel in channels.items() if ids["n5"] in _neighbours(channel)]
                cluster.kill("n5")
                _until(lambda: any(ids["n5"] not in _neighbours(channels[name]) for name in near), "noticed by one")
                cluster.kill("n6")
                noticed = _all_right(channels, lambda channel: not gone & set(_neighbours(channel)), "noticed")
                repaired = _all_right(channels, _is_full, "repaired")
                right = _graph_is_right(channels, ids)
    finally:
        shutil.rmtree(folder)
    active: Row = {"what": "registered and active, processes", "nodes": nodes, "ms, median": round(median(active_ms))}
    row: Row = {"what": "two killed: graphs right", "nodes": nodes, "noticed after s": round(noticed.seconds, 2)}
    row["rows meanwhile, none lost"] = len(rows)
    row |= {"repaired after s": round(repaired.seconds, 2), "then right after s": round(right.seconds, 2)}
    row["longest pass s"] = round(max(each.longest_s for each in (noticed, repaired, right)), 2)
    return [{**active, "ms, longest": round(max(active_ms))}, row]


@contextmanager
def _under_way(origins: list[Channel], takers: list[Channel]) -> Iterator[list[int]]:
    """Rows of a selective topic without keepers, one after the other, until the end; then each taker has every one that
    was published, once and in the order of its stream. Yields the rows that were published."""
    origins[0].create_topic("under-way", keepers=0)
    for taker in takers:
        taker.register("under-way")
        assert taker.active("under-way", timeout_s=PATIENCE_S).is_active
    published: list[int] = []
    ended = threading.Event()

    def publish() -> None:
        number = 0
        while not ended.wait(0.01):
            number += 1
            try:
                origins[number % len(origins)].publish("under-way", [{"n": number}])
            except RefusedError as error:
                if error.code != "not-ready":
                    raise
            else:
                published.append(number)

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        _until(lambda: len(published) > 20, "rows are under way")
        try:
            yield published
        finally:
            ended.set()
        publishing.result()
    for taker in takers:
        _until(lambda taker=taker: len(_numbers_at(taker)) >= len(published), "every row arrives")  # type: ignore[misc]
        assert sorted(_numbers_at(taker)) == published, "a row is lost or doubled"
        rows = taker.read("under-way")
        streams: dict[str, list[int]] = {}
        for origin, number in zip(rows["_origin"].to_pylist(), rows["n"].to_pylist(), strict=True):
            streams.setdefault(origin, []).append(number)
        assert all(numbers == sorted(numbers) for numbers in streams.values()), "out of order"


def _numbers_at(channel: Channel) -> list[int]:
    numbers: list[int] = channel.read("under-way")["n"].to_pylist()
    return numbers


class Pass(NamedTuple):
    """The time until all nodes were right, and the longest time that it took to ask those that were not."""

    seconds: float
    longest_s: float


def _all_right(channels: dict[str, Channel], is_right: Callable[[Channel], bool], what: str) -> Pass:
    """Ask the nodes that were not right yet, several at a time, until all are."""
    began, longest, wrong = time.monotonic(), 0.0, list(channels)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        while wrong:
            at = time.monotonic()
            assert at < began + PATIENCE_S, f"not within {PATIENCE_S:g} s: {what}"
            found = list(pool.map(lambda name: is_right(channels[name]), wrong))
            wrong = [name for name, right in zip(wrong, found, strict=True) if not right]
            longest = max(longest, time.monotonic() - at)
    return Pass(time.monotonic() - began, longest)


def _is_full(channel: Channel) -> bool:
    return bool(channel.status()["state"] == "full")


def _neighbours(channel: Channel) -> list[str]:
    return sorted(each["node_id"] for each in channel.status()["neighbours"])


def _graph_is_right(channels: dict[str, Channel], ids: dict[str, str]) -> Pass:
    """Ask all nodes for their neighbours, and then for the graph that they know, until the one is the other. The graph
    may still change when it seems to be repaired, so each pass asks for all of it."""
    began, longest = time.monotonic(), 0.0
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        while True:
            at = time.monotonic()
            assert at < began + PATIENCE_S, f"not within {PATIENCE_S:g} s: all have the graph"
            found = pool.map(_neighbours, channels.values())
            graph = {ids[name]: neighbours for name, neighbours in zip(channels, found, strict=True)}
            known = list(pool.map(partial(_known, nodes=graph), channels.values()))
            longest = max(longest, time.monotonic() - at)
            if all(each == graph for each in known):
                return Pass(time.monotonic() - began, longest)


def _known(channel: Channel, nodes: Collection[str]) -> dict[str, list[str]]:
    """The neighbours of these nodes, as a node knows them."""
    found = channel.topology()["nodes"]
    return {each["node_id"]: sorted(each["neighbours"]) for each in found if each["node_id"] in nodes}
