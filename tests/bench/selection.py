"""Selective topics between real nodes on loopback: bytes on links, by the nodes' own counters, beside broadcast topics
that are pulled; coverage of what is not wanted; time until a registration is active; routes after a kill.

Nodes are real (drivers, sockets, stores, doors), on one loop in this process, but for those that are killed. Bytes of
broadcast topics are those of payloads alone, those of selective ones all routed frames, statements and acknowledgements
included: the comparison favours broadcast.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.routes.routing import Routing
from m4cast.overlay.protocol.routes.trees import RouteGraph
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
"""Of content filters, each of which matches one batch in so many."""
PATIENCE_S = 60.0
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
    rows += [_content(), _bystanders(), *_active(), *(row for nodes in KILLED_OF for row in _killed(nodes))]
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
            _until(lambda: _is_quiet(served), "nothing is sent any longer")
        megabytes = (_sent_bytes(served) - before) / 1e6
        for number, topic in enumerate(topics if keepers is not None else ()):
            for at in _takers(number):
                found = channels[at].read(topic).column("n").to_pylist()
                assert found == [0, 1], f"{topic} at {at}: {found}"
    least = (NODES - 1) * TOPICS * PAYLOAD_BYTES / 1e6
    row: Row = {"what": name, "nodes": NODES, "MB": round(megabytes, 1), "of a copy per node": megabytes / least}
    return row if keepers is None else {**row, "covered after s": round(covered_s, 2)}


def _is_quiet(served: Served, seen: list[int] = [0, 0]) -> bool:  # noqa: B006  # remembers the last look
    """True if payloads have stopped for half a second; statements go on for a while."""
    now = _sent_bytes(served)
    if abs(now - seen[0]) > PAYLOAD_BYTES // 2:
        seen[:] = [now, time.monotonic_ns()]
    return time.monotonic_ns() - seen[1] > 500_000_000


def _content() -> Row:
    """A topic in which each of three nodes wants one key of a hundred; each batch has one key."""
    with _channel() as (served, channels):
        channels[0].create_topic("t", keepers=0, route_by=["key"])
        takers = {_takers(0)[key]: key for key in range(WANTED_AT)}
        for at, key in takers.items():
            channels[at].register("t", f"key = {key}")
            assert channels[at].active("t", f"key = {key}", timeout_s=PATIENCE_S).is_active
        _publish(channels[0], "t", _rows(0, KEYS))
        before = _sent_bytes(served)
        for key in range(KEYS):
            _publish(channels[0], "t", _rows(1 + key, key))
        covered_s = _until(lambda: _covered(served), "what was not wanted is covered")
        for at, key in takers.items():
            found = channels[at].read("t", where=f"key = {key}").column("n").to_pylist()
            assert found == [1 + key] and _held(served, at, "t") == 1, f"node {at}: {found}"
        megabytes = (_sent_bytes(served) - before) / 1e6
    row: Row = {"what": "content filters of 1 % at 3 nodes", "nodes": NODES, "MB": round(megabytes, 2)}
    row["of a copy per node"] = megabytes / ((NODES - 1) * KEYS * PAYLOAD_BYTES / 1e6)
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
    """How long each took from registering until every node had confirmed, in ms."""
    took = []
    for number, channel in enumerate(channels):
        began = time.perf_counter()
        channel.register(f"active-{number}")
        assert channel.active(f"active-{number}", timeout_s=PATIENCE_S).is_active
        took.append((time.perf_counter() - began) * 1000)
    return took


# ---- routes


def _killed(nodes: int) -> list[Row]:
    """Two processes are killed at the same moment. From when all survivors have noticed, until all have the tree of one
    root right; no rows are published meanwhile. All cluster settings have their defaults."""
    folder = Path(tempfile.mkdtemp(prefix="m4cast-selection-"))
    try:
        with up(WarmCluster.make(folder / "cluster", nodes)) as cluster:
            cluster.channel("n2").register("t")  # while somebody wants something, changes are told at once
            names = cluster.names()
            survivors = [name for name in names if name not in ("n5", "n6")]
            channels = {name: cluster.channel(name) for name in survivors}
            ids = {name: cluster.channel(name).status()["node_id"] for name in names}
            gone = {ids["n5"], ids["n6"]}
            _until(lambda: not _wrong(channels, set()), "all have the graph")
            active_ms = _activations([channels[name] for name in survivors[:10]])
            cluster.kill("n5")
            cluster.kill("n6")
            noticed_s = _until(lambda: not _noticed(channels, gone), "noticed")
            settled_s = _until(lambda: all(_is_full(channel) for channel in channels.values()), "repaired")
            right_s = _until(lambda: not _wrong(channels, gone), "right again")
    finally:
        shutil.rmtree(folder)
    active: Row = {"what": "registered and active, processes", "nodes": nodes, "ms, median": round(median(active_ms))}
    row: Row = {"what": "two killed: trees right", "nodes": nodes, "noticed after s": round(noticed_s, 2)}
    row = {**row, "repaired after s": round(settled_s, 2), "then right after s": round(right_s, 2)}
    return [{**active, "ms, longest": round(max(active_ms))}, row]


def _is_full(channel: Channel) -> bool:
    return bool(channel.status()["state"] == "full")


def _noticed(channels: dict[str, Channel], gone: set[str]) -> list[str]:
    """Survivors that still have a neighbour which is gone."""
    return [
        name
        for name, channel in channels.items()
        if any(each["node_id"] in gone for each in channel.status()["neighbours"])
    ]


def _wrong(channels: dict[str, Channel], gone: set[str]) -> list[str]:
    """Survivors whose tree of the first of them is not that of the graph as it is."""
    truth: dict[NodeId, tuple[NodeId, ...]] = {}
    for channel in channels.values():
        status: dict[str, Any] = channel.status()
        neighbours = tuple(NodeId(bytes.fromhex(each["node_id"])) for each in status["neighbours"])
        truth[NodeId(bytes.fromhex(status["node_id"]))] = neighbours
    root = next(iter(truth))
    wanted = {child.hex(): parent.hex() for child, parent in RouteGraph(truth).tree(root).parent.items()}
    if not gone:  # all nodes are up, and some of them are not asked here
        wanted = next(iter(channels.values())).topology(root.hex())["tree"]
    return [name for name, channel in channels.items() if channel.topology(root.hex())["tree"] != wanted]
