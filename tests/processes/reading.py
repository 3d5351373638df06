"""Contents of the nodes of a cluster: all rows by topic and place, read by Flight; and what their stores recorded."""

from typing import Any

import numpy as np

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Frontier
from m4cast.overlay.config.files import load_cluster
from m4cast.overlay.store.folder import ChannelName
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.writer import Callbacks
from tests.processes.load import KeyedPublisher, Publisher

READ_TIMEOUT_S = 120
READ_ROWS = 200_000
RECORDS_MAX = 10_000_000
Rows = dict[str, "np.ndarray[Any, Any]"]
"""Origin -> the publishers' numbers of its rows, in the order of their sequences."""


def common_frontier(cluster: LocalCluster, topics: list[str]) -> Frontier:
    """The furthest that any running node has of each stream."""
    furthest: Frontier = {}
    for name in cluster.running():
        for topic, origins in cluster.channel(name).frontier(topics).items():
            for origin, next_sequence in origins.items():
                known = furthest.setdefault(topic, {})
                known[origin] = max(known.get(origin, 1), next_sequence)
    return furthest


def rows_at(cluster: LocalCluster, name: str, topic: str, end: Frontier) -> Rows:
    """All rows of the topic at a node, which is waited for; of each stream from 1 on, without a hole, in order."""
    channel = cluster.channel(name, timeout_s=READ_TIMEOUT_S)
    rows: Rows = {}
    for origin, until in end[topic].items():
        pieces: list[np.ndarray[Any, Any]] = []
        for first in range(1, until, READ_ROWS):
            next_sequence = min(first + READ_ROWS, until)
            table = channel.read(topic, {topic: {origin: first}}, {topic: {origin: next_sequence}})
            wanted = np.arange(first, next_sequence)
            assert np.array_equal(table["_sequence"], wanted), f"{name}: {topic} of {origin}: {first} to {until}"
            assert table["_origin"].unique().to_pylist() == [origin]
            pieces.append(table["number"].to_numpy())
        if pieces:
            rows[origin] = np.concatenate(pieces)
    return rows


def assert_delivered(cluster: LocalCluster, *publishers: Publisher) -> None:
    """Every running node has every acknowledged row at its place, and all nodes have the same rows; what was published
    under a key is there once."""
    end = common_frontier(cluster, [publisher.topic for publisher in publishers])
    for publisher in publishers:
        first: Rows = {}
        for name in cluster.running():
            rows = rows_at(cluster, name, publisher.topic, end)
            assert_acknowledged(rows, publisher, name)
            first = first or rows
            assert rows.keys() == first.keys() and all(np.array_equal(rows[origin], first[origin]) for origin in rows)
            if isinstance(publisher, KeyedPublisher):
                numbers = np.sort(np.concatenate(list(rows.values())))
                assert np.array_equal(numbers, np.arange(publisher.rows)), f"{name}: {publisher.topic}: not once"


def assert_acknowledged(rows: Rows, publisher: Publisher, name: str) -> None:
    for said in publisher.acknowledged:
        there = rows[said.origin][said.first - 1 : said.next - 1]
        wanted = np.arange(said.number, said.number + said.next - said.first)
        assert np.array_equal(there, wanted), f"{name}: {publisher.topic}: {said} was acknowledged, {there} is there"


def assert_recorded_once(cluster: LocalCluster, name: str) -> None:
    """The delivery records of a node that does not run: every stream from 1 to its end, each row once, in order."""
    store = open_store(cluster, name)
    try:
        at: dict[object, int] = {}
        for record in store.read_deliveries(0, RECORDS_MAX):
            delivery = record.delivery
            assert delivery.first_sequence == at.get(delivery.stream, 1), f"{name}: {delivery} is not the next one"
            at[delivery.stream] = delivery.last_sequence + 1
        assert at == {stream: until for stream, (_, until) in store.streams().items()}
    finally:
        store.close()


def open_store(cluster: LocalCluster, name: str) -> Store:
    """The records of a stopped node."""
    conf = load_cluster(cluster.folder / name / "node.toml")
    channel = ChannelName(conf.channel_type, conf.channel_instance)
    return Store.open(cluster.store(name), channel, Callbacks(lambda _: None, lambda *_: None, lambda _: None))
