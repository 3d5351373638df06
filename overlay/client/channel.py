"""A channel as its users hold it: blocking calls to the Flight doors of its nodes.

A `Channel` is its settings: it connects when it is first used, in the process that uses it, so it can be pickled, and
used in children of a process that has not used one yet. A child that is forked later is refused, since gRPC would
wait there for ever. Connections are kept per process and node.

Reads go to the first node that can answer; if it is away, or has not got the rows, the next one is asked, from the
same frontier: frontiers are valid on every node. Publishes with a key stay with the first node, the access point: the
keys that make them exactly-once live there. Without a key they are at-least-once, and go to the next node when one is
away.

Errors: `RefusedError` (with the node's `code`), `UnreachableError` when no node could be asked, `LocalProtocolError`
for arguments that make no sense.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import as_client_error
from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.client.doors import PATIENCE_S, Compression, Doors, nodes_of
from m4cast.overlay.client.presence import OnState, Presence
from m4cast.overlay.client.publisher import Publisher
from m4cast.overlay.client.put_call import RowRange, move, nothing_published, put
from m4cast.overlay.client.ranges import Form, RangeReader
from m4cast.overlay.client.tables import table_of
from m4cast.overlay.client.tail import (
    Frontier,
    OnError,
    OnRows,
    Start,
    Subscription,
    Tail,
    start_of,
    ticket_of,
    topics_of,
)
from m4cast.overlay.client.times import as_millis
from m4cast.overlay.errors import LocalProtocolError, UnreachableError


@dataclass(frozen=True, slots=True)
class Lease:
    """Where a reader's rows are kept for it."""

    reader: str
    expires_at_ms: dict[str, int]
    """By node, for those that were reached; by each node's clock."""
    missing: Frontier
    """Streams whose next rows none of these nodes keeps (any more), with the first sequence that one does."""


Extents = dict[str, dict[str, list[int]]]
"""Topic -> origin -> [low, next]."""


class DeliveryRange(NamedTuple):
    """Of a node's delivery records: the number of the first that is kept, and of the next to come."""

    node_id: str
    low: int
    next: int


class Channel:
    """A channel, through the doors at `nodes`: a list of `host:port`, or text with commas between them. The first one
    is the access point, where keys are kept.

    `timeout_s` limits every call; a tail is made of many. While there are other nodes that may be asked, one that does
    not answer is waited for only for its share of that time; rows of a `read` may then take as long once more.
    `batch_bytes`: tables are published in batches of about this size.

    `token`: what the nodes ask for, as it is or by reference (`env:NAME`, `file:PATH`). `ca`: the cluster's CA, a path;
    with it all connections are TLS. `cert` and `key`: paths of an own certificate, for nodes without tokens.

    `compression`: of rows on their way to a node and from it, "lz4" or "zstd"; for slow networks.
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        timeout_s: float = 30,
        batch_bytes: int = 1 << 20,
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
        compression: Compression | None = None,
    ) -> None:
        if timeout_s <= 0 or batch_bytes <= 0:
            raise LocalProtocolError("timeout_s and batch_bytes must be more than 0")
        self.batch_bytes = batch_bytes
        self._doors = Doors(nodes_of(nodes), timeout_s, Credentials(token, str(ca), str(cert), str(key)), compression)
        self._running: list[Subscription | Presence] = []
        self._inboxes: dict[tuple[str, ...], Subscription] = {}

    @classmethod
    def connect(cls, nodes: str | Sequence[str], *, on_state: OnState, **settings: Any) -> "Channel":
        """A channel that calls `on_state(state, status)` when its access point gets on the channel (`"connected"`, with
        what the node says about itself) and when it is off it, or cannot be reached (`"lost"`, with None).

        It is called on a thread of its own, at first as soon as the state is known, until the channel is closed.

        >>> channel = Channel.connect(["127.0.0.1:7401"], on_state=lambda state, status: print(state))
        connected
        """
        channel = cls(nodes, **settings)
        channel._running.append(Presence(channel.at(channel.nodes[0]).status, on_state).start())
        return channel

    def close(self) -> None:
        """End what runs in the background: callbacks, subscriptions, inboxes. The channel can be used again.

        >>> with Channel(["127.0.0.1:7401"]) as channel:
        ...     channel.topics()
        ['orders']
        """
        running, self._running = self._running, []
        self._inboxes.clear()
        for each in running:
            each.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Its settings, without what runs here."""
        return {**self.__dict__, "_running": [], "_inboxes": {}}

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._doors.nodes

    @property
    def timeout_s(self) -> float:
        return self._doors.timeout_s

    @property
    def compression(self) -> Compression | None:
        return self._doors.compression

    @property
    def credentials(self) -> Credentials:
        return self._doors.credentials

    def __repr__(self) -> str:
        return f"Channel({list(self.nodes)})"

    def at(self, node: str, *, timeout_s: float | None = None) -> "Channel":
        """The same channel, through this node alone."""
        who = self.credentials
        return Channel(
            [node],
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            batch_bytes=self.batch_bytes,
            token=who.token,
            ca=who.ca,
            cert=who.cert,
            key=who.key,
            compression=self.compression,
        )

    # ---- publishing

    def publish(
        self,
        topic: str,
        rows: Any,
        *,
        key: str | None = None,
        expect: str | int | None = None,
        next: str | int | None = None,
        acks: int | None = None,
    ) -> list[RowRange]:
        """Publish rows (a pyarrow Table or RecordBatch, a pandas DataFrame, or dicts) and say where they are.

        With a `key` it is exactly-once: all rows are one commit that moves the key from position `expect` (None: it is
        new) to `next`. After an error repeat the same call: what is there already is not published again, and its
        ranges are returned. It stays with the first node, also when that is away.

        Without a key it is at-least-once: a repeat publishes again, and when a node is away the next one is given the
        rows, also those that were under way when a connection broke.

        Returns when the rows are on the disk of the node and of `acks` more (None: of as many as the node is configured
        to ask for). More than can acknowledge, which are the node's neighbours, are refused (`too-few-nodes`).
        `UnreachableError` says so where it is certain that nothing was published, as when a connection was refused.

        >>> channel.publish("orders", [{"id": 1, "price": 9.5}], key="shop", next=1)
        [RowRange(topic='orders', origin='2f0c...', first=1, next=2)]
        """
        table = table_of(rows)
        command: dict[str, object] = {"topic": topic, "acks": acks, "timeout_ms": int(self.timeout_s * 1000)}
        command.update(move(key, expect, next))
        if key is not None:
            command["rows"] = table.num_rows
        elif not table.num_rows:
            return []
        return self._put(command, table, is_keyed=key is not None)[0]

    def publisher(
        self, topic: str, *, acks: int | None = None, linger_ms: int = 5, schema: pa.Schema | None = None
    ) -> Publisher:
        """For single rows as they come, without a key: they are packed on the way, and each is acknowledged.

        They go to the first node that answers; it is at-least-once. A row goes at once if the last ones went
        `linger_ms` ago and are acknowledged, and waits twice as long at most.

        >>> with channel.publisher("orders") as publisher:
        ...     publisher.send({"id": 1, "price": 9.5})
        1
        """
        return Publisher(self._doors, topic, acks, linger_ms / 1000, schema)

    def stage(self, topic: str, rows: Any, stage: str | None = None) -> list[str]:
        """Keep rows at the access point, not published yet; the ids to `commit`.

        `stage` is a prefix of the ids, of its own for each attempt (a random one, if None): the same prefix with the
        same rows is the same stage, with others it is refused. What is not committed expires.

        >>> ids = channel.stage("orders", [{"id": 1}]) + channel.stage("returns", [{"id": 7}])
        """
        command = {"topic": topic, "stage": stage or uuid.uuid4().hex, "timeout_ms": int(self.timeout_s * 1000)}
        table = table_of(rows)
        return self._put(command, table, is_keyed=True)[1] if table.num_rows else []

    def commit(
        self,
        stage_ids: Sequence[str],
        *,
        key: str | None = None,
        expect: str | int | None = None,
        next: str | int | None = None,
        moves: Sequence[Mapping[str, str | None]] = (),
        acks: int | None = None,
    ) -> list[RowRange]:
        """Publish what was staged, in this order, whole or not at all; with a `key` once, as `publish` does. `moves`
        moves several keys: dicts of `key`, `expect`, `next`. Ids that are not staged (any more) are refused by name.

        >>> channel.commit(ids, key="query-1", expect=6, next=7, acks=1)
        [RowRange(topic='orders', ...), RowRange(topic='returns', ...)]
        """
        question: dict[str, object] = {"stage_ids": list(stage_ids), "acks": acks, **move(key, expect, next)}
        if moves:
            question["moves"] = [dict(move) for move in moves]
        question["timeout_ms"] = int(self.timeout_s * 1000)
        try:
            said = self._doors.ask_first("commit", question, PATIENCE_S)
        except UnreachableError as error:
            raise nothing_published(error) from None
        return [RowRange(**rows) for rows in said["ranges"]]

    def abort(self, stage_ids: Sequence[str]) -> None:
        """Forget what was staged under these ids; what was committed stays.

        >>> channel.abort(ids)
        """
        self._doors.ask_first("abort", {"stage_ids": list(stage_ids)})

    def position(self, key: str) -> str | None:
        """Where a publisher key stands at the access point, on its disk; None for a new one.

        Each node has keys of its own. To go on with one at another node, ask for its position there, and expect that in
        the first publish; `next` goes on from what is published already (docs/OPERATIONS.md).

        >>> there = channel.at("127.0.0.1:7402")
        >>> there.publish("orders", rows, key="shop", expect=there.position("shop"), next=8)
        """
        position: str | None = self._doors.ask_first("position", {"key": key})["position"]
        return position

    def publishers(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The publisher keys at the access point that begin with `prefix`, in order: dicts of `key`, `position`,
        `owner` (the client that created it, None if that is not known) and `unused_ms` (for how long the node was up
        since the key was last used; None: not known). With a token: those that it created, unless it is an
        administrator's."""
        after: str | None = None
        while True:
            page = self._doors.ask_first("publishers", {"prefix": prefix, "after": after})
            yield from page["publishers"]
            after = page["next"]
            if after is None:
                return

    def remove_publisher(self, key: str) -> str | None:
        """Forget a publisher key at the access point; where it stood, None if there was no such key. What it has
        published stays. A repeat of what it published last would be published again."""
        position: str | None = self._doors.ask_first("publisher-remove", {"key": key})["position"]
        return position

    def _put(self, command: dict[str, object], table: pa.Table, *, is_keyed: bool) -> tuple[list[RowRange], list[str]]:
        """`is_keyed`, or staged: it belongs to the access point."""
        options = self._doors.options(self.timeout_s + PATIENCE_S)
        ask = self._doors.first if is_keyed or len(self._doors.nodes) == 1 else self._doors.somewhere
        try:
            return ask(lambda client, _: put(client, command, table, self.batch_bytes, options))
        except UnreachableError as error:
            raise nothing_published(error) from None

    # ---- reading

    def read(
        self,
        topics: str | Sequence[str],
        start: Start = "earliest",
        end: Frontier | Literal["latest"] = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
    ) -> pa.Table:
        """The rows of the topics from `start` to `end`, with `_topic`, `_origin`, `_sequence` and `_published_at`.

        `start`: a frontier, "earliest", "latest", or a time from which on rows were published: a datetime with a zone,
        ISO 8601 text with one (`2026-01-31T12:00:00Z`), or milliseconds since 1970 UTC. The same two frontiers give the
        same rows in the same order, whichever node answers. Rows that are not kept any more are an error, or passed
        over.
        """
        since = start_of(start)

        def read(client: Any, limit_s: float) -> pa.Table:
            self._doors.greet(client, limit_s)
            timeout_ms = max(int(limit_s * 1000), 1)
            ticket = ticket_of(topics, since, end, on_missing, timeout_ms=timeout_ms, compression=self.compression)
            return self._doors.read(client, self.timeout_s + PATIENCE_S, ticket)

        return self._doors.anywhere(read)

    def read_batches(
        self,
        topics: str | Sequence[str],
        start: Frontier,
        end: Frontier,
        *,
        on_missing: Literal["fail", "skip"] = "fail",
        form: Form = "rows",
    ) -> RangeReader:
        """The same rows as an iterator of record batches, for ranges that are larger than memory. Columns may differ
        from batch to batch. It goes on at another node when its node goes away or is behind.

        `form`: "rows"; "batches" leaves the channel's columns out, and `RangeReader.where` has their values for the
        last record batch; "raw" gives batches as they were published, one a row, unopened.

        >>> for batch in channel.read_batches("orders", {}, channel.frontier("orders")):
        ...     print(batch.num_rows)
        """
        return RangeReader(self, topics, start, end, on_missing, form)

    def tail(
        self,
        topics: str | Sequence[str],
        start: Start = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
        idle_s: float | None = None,
    ) -> "Tail":
        """Follow the topics: an iterator of record batches, that waits for more; it ends after `idle_s` without any.

        It goes on at another node when its node goes away. `Tail.frontier` is where it is.

        >>> for batch in channel.tail("orders", "earliest", idle_s=1):
        ...     print(batch.num_rows)
        """
        return Tail(self, topics, start, on_missing, idle_s)

    def subscribe(
        self,
        topics: str | Sequence[str],
        callback: OnRows | None = None,
        start: Start = "latest",
        *,
        on_error: OnError | None = None,
        on_missing: Literal["fail", "skip"] = "fail",
    ) -> Subscription:
        """Call back with each record batch, on a thread of its own, from now on (or from `start` on), until it is
        closed. Without a callback ask it for the next rows by `Subscription.acquire`.

        >>> with channel.subscribe("orders", lambda batch: print(batch.num_rows)):
        ...     channel.publish("orders", [{"id": 2}])
        """
        subscription = Subscription(Tail(self, topics, start, on_missing, None), callback, on_error).start()
        self._running = [each for each in self._running if each.is_open]
        self._running.append(subscription)
        return subscription

    def acquire(
        self, topics: str | Sequence[str], timeout_s: float | None = None, start: Start = "latest"
    ) -> pa.RecordBatch | None:
        """The next rows of the topics; None when none came in time (`timeout_s` None: wait for ever; 0: do not wait).

        The first call begins at `start`; the following ones, with the same topics, go on where it was.

        >>> channel.acquire("orders", timeout_s=1)
        """
        named = tuple(sorted(topics_of(topics)))
        inbox = self._inboxes.get(named)
        if inbox is None:
            inbox = self._inboxes[named] = self.subscribe(named, None, start)
        try:
            return inbox.acquire(timeout_s)
        except Exception:
            del self._inboxes[named]  # the next call begins anew
            raise

    # ---- looking

    def frontier(
        self, topics: str | Sequence[str] | None = None, *, at: int | str | datetime | None = None
    ) -> Frontier:
        """The next sequence of every stream, as far as the answering node has it: an `end` to read to, a `start` to
        go on from. With `at`, a time as `read` takes it, the first sequence that was published then or later."""
        said = self.extents(topics, at=at)
        return {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in said.items()}

    def earliest(self, topics: str | Sequence[str] | None = None) -> Frontier:
        """The first sequence of every stream that the answering node keeps."""
        said = self.extents(topics)
        return {topic: {origin: ends[0] for origin, ends in origins.items()} for topic, origins in said.items()}

    def extents(self, topics: str | Sequence[str] | None = None, *, at: int | str | datetime | None = None) -> Extents:
        """Both ends of every stream, `[low, next]`, as one node has them; with `at`, `next` as `frontier` has it.

        >>> channel.extents("orders")
        {'orders': {'2f0c...': [1, 101]}}
        """
        question: dict[str, object] = {} if topics is None else {"topics": topics_of(topics)}
        if at is not None:
            question["at_ms"] = as_millis(at)
        extents: Extents = self._doors.ask("frontier", question)
        return extents

    def news(self, seen: Frontier, topics: str | Sequence[str] | None = None, *, wait_s: float = 0) -> Extents:
        """The streams that are past what was seen, at once if there are any, else after at most `wait_s` (10 s).

        >>> channel.news(channel.frontier("orders"), "orders", wait_s=1)
        {}
        """
        question: dict[str, object] = {} if topics is None else {"topics": topics_of(topics)}
        question |= {"seen": seen, "wait_ms": int(wait_s * 1000)}
        extents: Extents = self._doors.ask("frontier", question, wait_s)
        return extents

    def topics(self) -> list[str]:
        """The topics that the answering node knows."""
        topics: list[str] = self._doors.ask("topics", {})
        return topics

    def describe(self, topic: str) -> dict[str, Any]:
        """What the answering node has of a topic: columns, streams, rows, bytes, retention.

        >>> channel.describe("orders")["columns"]
        [{'name': 'id', 'type': 'int64'}, {'name': 'price', 'type': 'double'}]
        """
        described: dict[str, Any] = self._doors.ask("topic", {"topic": topic})
        return described

    def set_retention(
        self, topic: str, *, max_bytes: int | None = None, max_age_ms: int | None = None
    ) -> dict[str, Any]:
        """How much of a topic the first node keeps, and only that one; None is its default. What is in force now.

        >>> channel.set_retention("orders", max_bytes=10 << 30)
        {'max_bytes': 10737418240, 'max_age_ms': 604800000, 'is_default': False}
        """
        wanted = {"topic": topic, "max_bytes": max_bytes, "max_age_ms": max_age_ms}
        in_force: dict[str, Any] = self._doors.ask_first("topic-retention", wanted)
        return in_force

    def delete_topic(self, topic: str) -> dict[str, Any]:
        """Remove what the first node has of a topic, and only that one; its numbering goes on.

        >>> channel.delete_topic("orders")["bytes"]
        52428800
        """
        deleted: dict[str, Any] = self._doors.ask_first("topic-delete", {"topic": topic})
        return deleted

    def schema(self, topic: str) -> pa.Schema:
        """The columns that a read of the topic has."""
        descriptor = flight.FlightDescriptor.for_path(topic)
        return self._doors.anywhere(
            lambda client, limit_s: client.get_flight_info(descriptor, self._doors.options(limit_s)).schema
        )

    def status(self) -> dict[str, Any]:
        """The answering node, its neighbours and what it knows of the channel."""
        status: dict[str, Any] = self._doors.ask("status", {})
        return status

    def topology(self) -> dict[str, Any]:
        """The graph as the answering node knows it: its own links, and of others what their last beacons told."""
        topology: dict[str, Any] = self._doors.ask("topology", {})
        return topology

    # ---- one node's life

    def drain(self, copies: int | None = None) -> int | None:
        """Let the first node leave the channel for good: it takes no more publishes, waits until `copies` other nodes
        (all its neighbours, if None) have all its rows on disk, then leaves and stops.

        Returns how many have them; None when it has no rows of its own. If the time-out comes first, the node stays
        and takes publishes again (`RefusedError` with the code `not-drained`).
        """
        question = {"timeout_ms": int(self.timeout_s * 1000), **({} if copies is None else {"copies": copies})}
        drained: dict[str, int | None] = self._doors.ask_first("drain", question, PATIENCE_S)
        return drained["copies"]

    def shutdown(self) -> None:
        """Let the first node leave the channel in order and stop, as SIGTERM does. It may come back."""
        self._doors.ask_first("shutdown", {})

    def shutdown_channel(self, channel: str) -> None:
        """Shut the whole channel down, through the first node: every node on it stops, and keeps its store. `channel`
        is its name, "type/instance": whoever ends it for everybody must know it."""
        self._doors.ask_first("shutdown-channel", {"channel": channel})

    # ---- readers

    def lease(
        self,
        reader: str,
        frontier: Frontier | None = None,
        *,
        topics: str | Sequence[str] | None = None,
        ttl_s: float = 600,
    ) -> Lease:
        """Have rows kept for a reader, from its frontier on, and all rows of the `topics` that it does not name; renew
        it from time to time with the frontier that was reached. It is asked of all nodes; one has to answer.

        `RefusedError` with the code `reader-cut`: a node removed rows that it held, and has not renewed the lease.

        >>> channel.lease("report", channel.frontier("orders")).missing
        {}
        """
        question: dict[str, object] = {"reader": reader, "frontier": frontier or {}, "ttl_ms": int(ttl_s * 1000)}
        if topics is not None:
            question["topics"] = topics_of(topics)
        said = self._doors.ask_all("lease", question)
        missing: Frontier = {}
        for topic, origins in next(iter(said.values()))["missing"].items():
            for origin in origins:
                lows = [each["missing"].get(topic, {}).get(origin) for each in said.values()]
                if None not in lows:
                    missing.setdefault(topic, {})[origin] = min(lows)
        return Lease(reader, {node: each["expires_at_ms"] for node, each in said.items()}, missing)

    def release(self, reader: str) -> bool:
        """Let go of what was kept for the reader, at all nodes that can be reached; whether one knew it.

        >>> channel.release("report")
        True
        """
        return any(each["released"] for each in self._doors.ask_all("release", {"reader": reader}).values())

    def readers(self) -> list[dict[str, Any]]:
        """Who holds rows back at the answering node, and how far behind they are.

        >>> [(each["reader"], each["rows_behind"]) for each in channel.readers()]
        [('report', 120)]
        """
        readers: list[dict[str, Any]] = self._doors.ask("readers", {})
        return readers

    # ---- what an audit needs

    def delivery_range(self) -> DeliveryRange:
        """The first delivery record that the first node keeps, and the next to come.

        >>> channel.delivery_range()
        DeliveryRange(node_id='2f0c...', low=1, next=2031)
        """
        return DeliveryRange(**self._doors.ask_first("delivery-range", {}))

    def deliveries(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        end: int | Literal["latest"] = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
    ) -> pa.Table:
        """What was delivered at the first node, and when, in the order of arrival: batches, and skips with their
        reasons. Numbers are that node's own.

        >>> channel.deliveries(1, 100).to_pandas()[["topic", "first_sequence", "last_sequence", "kind"]]
        """
        ticket = self._deliveries_ticket(start, end, on_missing)
        return self._doors.first(lambda client, limit_s: self._doors.read(client, limit_s + PATIENCE_S, ticket))

    def delivery_batches(
        self, start: int, end: int, *, on_missing: Literal["fail", "skip"] = "fail"
    ) -> Iterator[pa.RecordBatch]:
        """The same as an iterator of record batches, for ranges that are larger than memory.

        >>> for batch in channel.delivery_batches(1, 100):
        ...     print(batch.num_rows)
        """

        def open_at(first: int) -> Any:
            ticket = self._deliveries_ticket(first, end, on_missing)
            return self._doors.first(lambda client, limit_s: self._doors.open(client, limit_s + PATIENCE_S, ticket))

        first = start
        while True:
            came = False
            try:
                for chunk in open_at(first):
                    came = True
                    first = json.loads(chunk.app_metadata.to_pybytes())["next"]
                    yield chunk.data
                return
            except pa.ArrowException as error:
                # A call's time may be over while its user is busy with what came: the next one goes on from there.
                if not (came and isinstance(error, flight.FlightTimedOutError)):
                    raise as_client_error(self.nodes[0], error) from None

    def _deliveries_ticket(
        self, start: int | str, end: int | str, on_missing: Literal["fail", "skip"]
    ) -> dict[str, object]:
        ticket = {"read": "deliveries", "start": start, "end": end, "on_missing": on_missing}
        return {**ticket, "timeout_ms": int(self.timeout_s * 1000)}

    def roster(self) -> pa.Table:
        """Who is and was on the channel, by incarnation, as far as the answering node has heard.

        >>> channel.roster().to_pandas()[["name", "incarnation", "from_at", "to_at", "reason"]]
        """
        return self._doors.anywhere(lambda client, limit_s: self._doors.read(client, limit_s, {"read": "roster"}))
