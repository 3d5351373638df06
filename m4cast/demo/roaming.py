"""Readers in the demo: a client that leaves, misses rows, and returns at another node, where it gets each of them once;
and a subscriber that stays, with a filter of its own.
"""

from typing import Any

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Client

KEY = "shop-7"
CREDENTIAL = "a credential for the demo"
IDLE_S = 0.5


class RoamingShop:
    """A client that wants some rows of a topic, attached to the node `at`."""

    def __init__(self, cluster: LocalCluster, at: str, topic: str, where: str) -> None:
        self._cluster = cluster
        self._topic, self._where = topic, where
        doors = [cluster.node(at).door, *(cluster.node(name).door for name in cluster.names() if name != at)]
        self._client = Client(doors, key=KEY, credential=CREDENTIAL)
        self._client.connect(create=True)
        self._client.subscribe(topic, where)
        self._places: list[tuple[str, int]] = []

    def leave(self) -> int:
        """Receive the rows that are available, and disconnect. Returns how many rows the client has."""
        self._take()
        self._client.disconnect()
        return len(self._places)

    def come_back(self, at: str) -> int:
        """Connect elsewhere. Returns how many rows the client had missed."""
        before = len(self._places)
        self._client.connect(at=self._cluster.node(at).door)
        self._take()
        self._client.disconnect()
        return len(self._places) - before

    def has_each_once(self) -> bool:
        """True if the client got every row that the node has of the range up to the client's position, each once."""
        state = self._client.memory.state
        channel = self._client.channel
        begin = {self._topic: state.profiles[0].begin}
        rows = channel.read(self._topic, begin, state.frontier, where=self._where)
        places = zip(rows["_origin"].to_pylist(), rows["_sequence"].to_pylist(), strict=True)
        return sorted(self._places) == sorted(places)

    def _take(self) -> None:
        """Receive the rows that are available now; more are published meanwhile."""
        assert self._client.node is not None
        there = self._client.channel.at(self._client.node).frontier(self._topic).get(self._topic, {})
        for rows in self._client.notifications(idle_s=IDLE_S):
            self._places += zip(rows["_origin"].to_pylist(), rows["_sequence"].to_pylist(), strict=True)
            passed = self._client.memory.ahead.position
            if all(passed(self._topic, origin) >= until for origin, until in there.items()):
                break


class FilteredSubscriber:
    """Follows the rows of a topic that satisfy a filter, at one node, from now on."""

    def __init__(self, cluster: LocalCluster, at: str, topic: str, where: str) -> None:
        self._channel = cluster.channel(at)
        self._topic, self._where = topic, where
        self._begin = self._channel.frontier(topic)
        self.rows = 0
        self._following = self._channel.subscribe(topic, self._count, self._begin, where=where)

    def _count(self, rows: Any) -> None:
        self.rows += rows.num_rows

    def left(self) -> int:
        """The rows that it has not been given yet."""
        return int(self._channel.read(self._topic, self._begin, where=self._where).num_rows) - self.rows

    def close(self) -> None:
        self._following.close()
