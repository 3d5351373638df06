"""The channel: blocking calls to the Flight doors of its nodes.

A `Channel` holds settings only. It connects when it is first used, in the process that uses it, so it can be pickled,
and used in children of a process that has not used one yet. A child that is forked later is refused, since gRPC would
hang there. Connections are kept per process and node.

Reads go to the first node that answers. If it is unreachable or lacks the rows, the next one is asked, from the same
frontier: frontiers are valid on every node. Publishes with a key stay with the first node, the access point, which
stores the keys that make them exactly-once. Publishes without a key are at-least-once, and go to the next node when one
is unreachable.

Errors: `RefusedError` (with the node's `code`), `UnreachableError` when no node could be asked, `LocalProtocolError`
for invalid arguments.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.administration import Administration
from m4cast.overlay.client.asking.questions import Questions
from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.client.doors import PATIENCE_S, Compression, Doors, nodes_of
from m4cast.overlay.client.publisher import Publisher
from m4cast.overlay.client.put_call import RowRange, move, nothing_published, put
from m4cast.overlay.client.ranges import Form, RangeReader
from m4cast.overlay.client.state_watch import OnState, StateWatch
from m4cast.overlay.client.tables import table_of
from m4cast.overlay.client.tail import (
    Frontier,
    OnError,
    OnRows,
    Start,
    Subscription,
    Tail,
    filter_fields,
    filter_of,
    start_of,
    ticket_of,
    topics_of,
)
from m4cast.overlay.client.times import as_millis
from m4cast.overlay.errors import LocalProtocolError, UnreachableError

Extents = dict[str, dict[str, list[int]]]
"""Topic -> origin -> [low, next]."""


class Channel(Administration, Questions):
    """A channel, through the doors at `nodes`: a list of `host:port`, or text separated by commas. The first node is
    the access point, which stores publisher keys.

    `timeout_s` limits every call; a tail makes many. With several nodes, one that does not answer gets only its share
    of that time. Transferring the rows of a `read` may then take as long again.
    `batch_bytes`: tables are published in batches of about this size.

    `token`: the secret that the nodes require, literally or by reference (`env:NAME`, `file:PATH`). `ca`: path of the
    cluster's CA certificate; with it all connections use TLS. `cert` and `key`: paths of a client certificate and its
    key, for nodes without tokens.

    `compression`: how rows are compressed in transit, "lz4" or "zstd"; for slow networks.
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
            raise LocalProtocolError(
                f"timeout_s is {timeout_s} and batch_bytes is {batch_bytes}: both must be greater than 0"
            )
        self.batch_bytes = batch_bytes
        self._doors = Doors(nodes_of(nodes), timeout_s, Credentials(token, str(ca), str(cert), str(key)), compression)
        self._running: list[Subscription | StateWatch] = []
        self._inboxes: dict[tuple[str, ...], Subscription] = {}

    @classmethod
    def connect(cls, nodes: str | Sequence[str], *, on_state: OnState, **settings: Any) -> "Channel":
        """A channel that calls `on_state(state, status)` when its access point joins the channel (`"connected"`, with
        the node's status) and when it loses the channel or cannot be reached (`"lost"`, with None).

        The callback runs on its own thread, first as soon as the state is known, until the channel is closed.

        >>> channel = Channel.connect(["127.0.0.1:7500"], on_state=lambda state, status: print(state))
        connected
        """
        channel = cls(nodes, **settings)
        channel._running.append(StateWatch(channel.at(channel.nodes[0]).status, on_state).start())
        return channel

    def close(self) -> None:
        """Stop what runs in the background: callbacks, subscriptions, inboxes. The channel can be used again.

        >>> with Channel(["127.0.0.1:7500"]) as channel:
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
        """Its settings, without what runs in this process."""
        return {**self.__dict__, "_running": [], "_inboxes": {}}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The addresses of the client doors, in the order in which they are tried."""
        return self._doors.nodes

    @property
    def timeout_s(self) -> float:
        """The limit of every call, in seconds."""
        return self._doors.timeout_s

    @property
    def doors(self) -> Doors:
        """The connections to the client doors, for code that asks a door itself."""
        return self._doors

    @property
    def compression(self) -> Compression | None:
        """The codec of rows in transit; None: they are sent as they are."""
        return self._doors.compression

    @property
    def credentials(self) -> Credentials:
        """The token and the certificates that the channel shows to doors."""
        return self._doors.credentials

    def __repr__(self) -> str:
        return f"Channel({list(self.nodes)})"

    def at(self, node: str, *, timeout_s: float | None = None) -> "Channel":
        """The same channel, through this node alone."""
        return self.through([node], timeout_s=timeout_s)

    def through(self, nodes: Sequence[str], *, timeout_s: float | None = None) -> "Channel":
        """The same channel, through other nodes."""
        who = self.credentials
        return Channel(
            nodes,
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
        """Publish rows (a pyarrow Table or RecordBatch, a pandas DataFrame, or dicts). Returns their ranges.

        With a `key` the publish is exactly-once: all rows are one commit that moves the key from position `expect`
        (None: the key is new) to `next`. After an error, repeat the same call: what was published is not published
        again, and its ranges are returned. The call stays with the first node, even while that is unreachable.

        Without a key the publish is at-least-once: a repeat publishes again, and when a node is unreachable the next
        one receives the rows, including those in flight when a connection broke.

        Returns when the rows are on the disks of the node and of `acks` more nodes (None: the node's setting). The
        node's neighbours acknowledge; more `acks` than that are refused (`too-few-nodes`). An `UnreachableError` says
        so if it is certain that nothing was published, as when a connection was refused.

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
        """A publisher of single rows, without a key: rows are batched in transit, and each is acknowledged.

        They go to the first node that answers, at least once. A row is sent at once if the previous ones were sent
        `linger_ms` ago and are acknowledged. It waits at most twice as long.

        >>> with channel.publisher("orders") as publisher:
        ...     publisher.send({"id": 1, "price": 9.5})
        1
        """
        return Publisher(self._doors, topic, acks, linger_ms / 1000, schema)

    def stage(self, topic: str, rows: Any, stage: str | None = None) -> list[str]:
        """Stage rows at the access point without publishing them. Returns the ids to `commit`.

        `stage` is a prefix of the ids, unique for each attempt (None: a random one). The same prefix with the same rows
        is the same stage; with other rows it is refused. Stages that are not committed expire.

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
        """Publish what is staged under these ids, in this order, all or nothing; with a `key` exactly once, as
        `publish` does. `moves` moves several keys: dicts of `key`, `expect`, `next`. Unknown ids are refused by name.

        >>> channel.commit(ids, key="query-1", expect=6, next=7, acks=1)
        [RowRange(topic='orders', ...), RowRange(topic='returns', ...)]
        """
        question: dict[str, object] = {"stage_ids": list(stage_ids), "acks": acks, **move(key, expect, next)}
        if moves:
            question["moves"] = [dict(move) for move in moves]
        question["timeout_ms"] = int(self.timeout_s * 1000)
        try:
            answer = self._doors.ask_first("commit", question, PATIENCE_S)
        except UnreachableError as error:
            raise nothing_published(error) from None
        return [RowRange(**rows) for rows in answer["ranges"]]

    def abort(self, stage_ids: Sequence[str]) -> None:
        """Discard what is staged under these ids. What was committed stays.

        >>> channel.abort(ids)
        """
        self._doors.ask_first("abort", {"stage_ids": list(stage_ids)})

    def position(self, key: str) -> str | None:
        """The position of a publisher key on the access point's disk; None: the key is new.

        Each node has its own keys. To continue at another node, ask for the position there and pass it as `expect` of
        the first publish; `next` continues from what is published already (docs/OPERATIONS.md).

        >>> there = channel.at("127.0.0.1:7501")
        >>> there.publish("orders", rows, key="shop", expect=there.position("shop"), next=8)
        """
        position: str | None = self._doors.ask_first("position", {"key": key})["position"]
        return position

    def _put(self, command: dict[str, object], table: pa.Table, *, is_keyed: bool) -> tuple[list[RowRange], list[str]]:
        """`is_keyed`: with a key or staged, so that it belongs to the access point."""
        options = self._doors.options(self.timeout_s + PATIENCE_S)
        ask = self._doors.first if is_keyed or len(self._doors.nodes) == 1 else self._doors.somewhere
        try:
            ranges, stage_ids, _ = ask(lambda client, _: put(client, command, table, self.batch_bytes, options))
        except UnreachableError as error:
            raise nothing_published(error) from None
        return ranges, stage_ids

    # ---- reading

    def read(
        self,
        topics: str | Sequence[str],
        start: Start = "earliest",
        end: Frontier | Literal["latest"] = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
        where: str | None = None,
        language: str | None = None,
    ) -> pa.Table:
        """The rows of the topics from `start` to `end`, with `_topic`, `_origin`, `_sequence` and `_published_at`.

        `start`: a frontier, "earliest", "latest", or the time of publication from which on to read: a datetime with a
        zone, ISO 8601 text with one (`2026-01-31T12:00:00Z`), or milliseconds since 1970 UTC. Two frontiers give the
        same rows in the same order, whichever node answers. Rows that are no longer retained are an error, or are
        skipped.

        `where`: a condition on rows, as in docs/FILTERS.md. The nodes send only the rows that satisfy it. `language`:
        that of the condition, "sql" (None), "json" or "diet".

        >>> channel.read("orders", where="price > 100 AND country = 'PL'").num_rows
        3
        """
        since = start_of(start)
        row_filter = None if where is None and language is None else filter_of(where, language)

        def read(client: Any, limit_s: float) -> pa.Table:
            self._doors.greet(client, limit_s)
            timeout_ms = max(int(limit_s * 1000), 1)
            ticket = ticket_of(topics, since, end, on_missing, timeout_ms=timeout_ms, compression=self.compression)
            if row_filter is not None:
                ticket |= filter_fields(row_filter)
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
        where: str | None = None,
        language: str | None = None,
    ) -> RangeReader:
        """The same rows as an iterator of record batches, for ranges that are larger than memory. Columns may differ
        between batches. The iterator continues at another node when its node is lost or lags.

        With `where`, `RangeReader.frontier` also passes over rows that do not match, and `tested` counts them.

        `form`: "rows"; "batches" leaves the channel's columns out, and `RangeReader.where` has their values for the
        last record batch (with `where`, the columns `_sequence`, `_published_at`, `_delivered_at` and `_hops` stay);
        "raw" gives batches as they were published, one a row, unopened (with `where`, those that may match).

        >>> for batch in channel.read_batches("orders", {}, channel.frontier("orders")):
        ...     print(batch.num_rows)
        """
        return RangeReader(self, topics, start, end, on_missing, form, row_filter=filter_of(where, language))

    def tail(
        self,
        topics: str | Sequence[str],
        start: Start = "latest",
        *,
        on_missing: Literal["fail", "skip"] = "fail",
        idle_s: float | None = None,
        where: str | None = None,
        language: str | None = None,
    ) -> "Tail":
        """Follow the topics: an iterator of record batches that waits for new rows. It ends after `idle_s` without any.

        It continues at another node when its node is lost. `Tail.frontier` is its position. `where` and `language` are
        as in `read`; rows that do not match count as new rows for `idle_s`, and the position passes over them.

        >>> for batch in channel.tail("orders", "earliest", idle_s=1):
        ...     print(batch.num_rows)
        """
        return Tail(self, topics, start, on_missing, idle_s, filter_of(where, language))

    def subscribe(
        self,
        topics: str | Sequence[str],
        callback: OnRows | None = None,
        start: Start = "latest",
        *,
        on_error: OnError | None = None,
        on_missing: Literal["fail", "skip"] = "fail",
        where: str | None = None,
        language: str | None = None,
    ) -> Subscription:
        """Call `callback` with each record batch, on its own thread, from now on (or from `start` on), until the
        subscription is closed. Without a callback, get the next rows by `Subscription.acquire`. `where` and `language`
        are as in `read`.

        Rows of a selective topic are wanted at the node from then on: `Subscription.active` waits until all nodes know,
        `epoch` and `effective_from` say since when, and from which row on. That ends some time after the subscription.

        >>> with channel.subscribe("orders", lambda batch: print(batch.num_rows)):
        ...     channel.publish("orders", [{"id": 2}])
        """
        followed = Tail(self, topics, start, on_missing, None, filter_of(where, language))
        subscription = Subscription(followed, callback, on_error).start()
        self._running = [each for each in self._running if each.is_open]
        self._running.append(subscription)
        return subscription

    def acquire(
        self, topics: str | Sequence[str], timeout_s: float | None = None, start: Start = "latest"
    ) -> pa.RecordBatch | None:
        """The next rows of the topics; None if none arrive in time (`timeout_s` None: no limit; 0: do not wait).

        The first call begins at `start`. Later calls with the same topics continue from there.

        >>> channel.acquire("orders", timeout_s=1)
        """
        named = tuple(sorted(topics_of(topics)))
        inbox = self._inboxes.get(named)
        if inbox is None:
            inbox = self._inboxes[named] = self.subscribe(named, None, start)
        try:
            return inbox.acquire(timeout_s)
        except Exception:
            del self._inboxes[named]  # the next call starts again
            raise

    # ---- positions and topics

    def frontier(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        at: int | str | datetime | None = None,
        where: str = "",
        language: str = "sql",
    ) -> Frontier:
        """The next sequence of every stream at the answering node: an `end` to read to, a `start` to continue from.
        With `at`, a time as in `read`: the first sequence that was published then or later. Of selective topics: up to
        where the node has the rows that satisfy `where`; others do not depend on it."""
        found = self.extents(topics, at=at, where=where, language=language)
        return {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in found.items()}

    def earliest(
        self, topics: str | Sequence[str] | None = None, *, where: str = "", language: str = "sql"
    ) -> Frontier:
        """The first sequence of every stream that the answering node retains; `where` is as in `frontier`."""
        found = self.extents(topics, where=where, language=language)
        return {topic: {origin: ends[0] for origin, ends in origins.items()} for topic, origins in found.items()}

    def extents(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        at: int | str | datetime | None = None,
        where: str = "",
        language: str = "sql",
        stored: bool = False,
    ) -> Extents:
        """Both ends of every stream at the answering node, `[low, next]`; `at` and `where` are as in `frontier`.
        `stored`: of selective topics, what the node has for whomever; it does not begin to want rows by this call.

        >>> channel.extents("orders")
        {'orders': {'2f0c...': [1, 101]}}
        """
        question: dict[str, object] = {} if topics is None else {"topics": topics_of(topics)}
        question |= {} if at is None else {"at_ms": as_millis(at)}
        question |= {"where": where, "language": language} if where else {}
        question |= {"stored": True} if stored else {}
        extents: Extents = self._doors.ask("frontier", question)
        return extents

    def news(
        self,
        seen: Frontier,
        topics: str | Sequence[str] | None = None,
        *,
        wait_s: float = 0,
        where: str = "",
        language: str = "sql",
    ) -> Extents:
        """The streams past the frontier `seen`: at once if there are any, else after at most `wait_s` (up to 10).
        `where` is as in `frontier`.

        >>> channel.news(channel.frontier("orders"), "orders", wait_s=1)
        {}
        """
        question: dict[str, object] = {} if topics is None else {"topics": topics_of(topics)}
        question |= {"seen": seen, "wait_ms": int(wait_s * 1000)}
        if where:
            question |= {"where": where, "language": language}
        extents: Extents = self._doors.ask("frontier", question, wait_s)
        return extents

    def topics(self) -> list[str]:
        """The topics that the answering node knows."""
        topics: list[str] = self._doors.ask("topics", {})
        return topics

    def schema(self, topic: str) -> pa.Schema:
        """The columns that a read of the topic has."""
        descriptor = flight.FlightDescriptor.for_path(topic)
        return self._doors.anywhere(
            lambda client, limit_s: client.get_flight_info(descriptor, self._doors.options(limit_s)).schema
        )
