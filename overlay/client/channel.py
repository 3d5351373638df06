"""A channel as its users hold it: blocking calls to the Flight doors of its nodes.

A `Channel` is its settings: it connects when it is first used, in the process that uses it, so it can be pickled, and
used in children of a process that has not used one yet. A child that is forked later is refused, since gRPC would
wait there for ever. Connections are kept per process and node.

Reads go to the first node that can answer; if it is away, or has not got the rows, the next one is asked, from the
same frontier: frontiers are valid on every node. Publishes stay with the first node, the access point: the keys that
make them exactly-once live there, and nothing is published elsewhere on a guess.

Errors: `RefusedError` (with the node's `code`), `UnreachableError` when no node could be asked, `LocalProtocolError`
for arguments that make no sense.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.client.tables import batches_of, table_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError

Frontier = dict[str, dict[str, int]]
"""Topic -> origin -> next sequence."""
Start = Frontier | Literal["earliest", "latest"] | int
T = TypeVar("T")

ASK_ANOTHER = frozenset({"behind", "busy", "internal", "missing", "not-ready", "stopping", "store", "unknown-topic"})
"""Refusals of a read that another node may not make."""
RETRY_S = 0.2
"""How long a tail waits when no node answers, before it tries them again; guess."""


@dataclass(frozen=True, slots=True)
class Range:
    """Rows `first .. next - 1` of a stream: what a publish wrote."""

    topic: str
    origin: str
    first: int
    next: int


class Channel:
    """A channel, through the doors at `nodes` (`host:port`). The first one is the access point for publishing.

    `timeout_s` limits every call but a tail. `batch_bytes`: tables are published in batches of about this size.

    `token`: what the nodes ask for, as it is or by reference (`env:NAME`, `file:PATH`). `ca`: the cluster's CA, a path;
    with it all connections are TLS. `cert` and `key`: paths of an own certificate, for nodes without tokens.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        timeout_s: float = 30,
        batch_bytes: int = 1 << 20,
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
    ) -> None:
        if isinstance(nodes, str) or not nodes or any(":" not in str(node) for node in nodes):
            raise LocalProtocolError(f"nodes must be a list of host:port, not {nodes!r}")
        if timeout_s <= 0 or batch_bytes <= 0:
            raise LocalProtocolError("timeout_s and batch_bytes must be more than 0")
        self.nodes = tuple(nodes)
        self.timeout_s = timeout_s
        self.batch_bytes = batch_bytes
        self.credentials = Credentials(token, str(ca), str(cert), str(key))

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
        acks: int = 0,
    ) -> list[Range]:
        """Publish rows (a pyarrow Table or RecordBatch, a pandas DataFrame, or dicts) and say where they are.

        With a `key` it is exactly-once: all rows are one commit that moves the key from position `expect` (None: it is
        new) to `next`. After an error repeat the same call: what is there already is not published again, and its
        ranges are returned. Without a key a repeat publishes again.

        Returns when the rows are on the disk of the access point and of `acks` more nodes.
        """
        table = table_of(rows)
        command: dict[str, object] = {"topic": topic, "acks": acks, "timeout_ms": int(self.timeout_s * 1000)}
        if key is not None:
            command.update(key=key, next=_position(next), expect=_position(expect))
        elif expect is not None or next is not None:
            raise LocalProtocolError("expect and next are positions of a key: give the key")
        if key is None and not table.num_rows:
            return []
        return self._at(self.nodes[0], lambda client: self._put(client, command, table))

    def _put(self, client: Any, command: dict[str, object], table: pa.Table) -> list[Range]:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        # The node gives up first and says why; the call's own limit is for a node that does not answer at all.
        writer, acks = client.do_put(descriptor, table.schema, flight.FlightCallOptions(timeout=self.timeout_s + 5))
        ranges: list[Range] = []
        try:
            for batch in batches_of(table, self.batch_bytes):
                writer.write_batch(batch)
            writer.done_writing()
            while (written := acks.read()) is not None:
                ack = json.loads(written.to_pybytes())
                if "error" in ack:
                    raise RefusedError(ack["error"]["code"], ack["error"]["detail"])
                _add(ranges, [Range(**rows) for rows in ack["ranges"]])
        except pa.ArrowException:
            writer.close()  # raises the node's own word, if it had the time to say one
            raise
        writer.close()
        return ranges

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

        `start`: a frontier, "earliest", "latest" or a time in milliseconds. The same two frontiers give the same rows
        in the same order, whichever node answers. Rows that are not kept any more are an error, or passed over.
        """
        ticket = _ticket(topics, start, end, on_missing, timeout_ms=int(self.timeout_s * 1000))
        options = flight.FlightCallOptions(timeout=self.timeout_s + 5)
        return self._anywhere(lambda client: client.do_get(ticket, options).read_all())

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
        """
        return Tail(self, topics, start, on_missing, idle_s)

    # ---- looking

    def frontier(self, topics: str | Sequence[str] | None = None, *, at_ms: int | None = None) -> Frontier:
        """The next sequence of every stream, as far as the answering node has it: an `end` to read to, a `start` to
        go on from. With `at_ms`, the first sequence that was published then or later."""
        said = self._ends(topics, at_ms)
        return {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in said.items()}

    def earliest(self, topics: str | Sequence[str] | None = None) -> Frontier:
        """The first sequence of every stream that the answering node keeps."""
        said = self._ends(topics, None)
        return {topic: {origin: ends[0] for origin, ends in origins.items()} for topic, origins in said.items()}

    def _ends(self, topics: str | Sequence[str] | None, at_ms: int | None) -> dict[str, dict[str, list[int]]]:
        question: dict[str, object] = {} if topics is None else {"topics": _topics(topics)}
        if at_ms is not None:
            question["at_ms"] = at_ms
        ends: dict[str, dict[str, list[int]]] = self._ask("frontier", question)
        return ends

    def topics(self) -> list[str]:
        """The topics that the answering node knows."""
        topics: list[str] = self._ask("topics", {})
        return topics

    def describe(self, topic: str) -> dict[str, Any]:
        """What the answering node has of a topic: columns, streams, rows, bytes, retention.

        >>> channel.describe("orders")["columns"]
        [{'name': 'id', 'type': 'int64'}, {'name': 'price', 'type': 'double'}]
        """
        described: dict[str, Any] = self._ask("topic", {"topic": topic})
        return described

    def set_retention(
        self, topic: str, *, max_bytes: int | None = None, max_age_ms: int | None = None
    ) -> dict[str, Any]:
        """How much of a topic the first node keeps, and only that one; None is its default. What is in force now.

        >>> channel.set_retention("orders", max_bytes=10 << 30)
        {'max_bytes': 10737418240, 'max_age_ms': 604800000, 'is_default': False}
        """
        wanted = {"topic": topic, "max_bytes": max_bytes, "max_age_ms": max_age_ms}
        in_force: dict[str, Any] = self._ask_first("topic-retention", wanted)
        return in_force

    def delete_topic(self, topic: str) -> dict[str, Any]:
        """Remove what the first node has of a topic, and only that one; its numbering goes on.

        >>> channel.delete_topic("orders")["bytes"]
        52428800
        """
        deleted: dict[str, Any] = self._ask_first("topic-delete", {"topic": topic})
        return deleted

    def schema(self, topic: str) -> pa.Schema:
        """The columns that a read of the topic has."""
        descriptor = flight.FlightDescriptor.for_path(topic)
        return self._anywhere(lambda client: client.get_flight_info(descriptor, self._options()).schema)

    def status(self) -> dict[str, Any]:
        """The answering node, its neighbours and what it knows of the channel."""
        status: dict[str, Any] = self._ask("status", {})
        return status

    def topology(self) -> dict[str, Any]:
        """The graph as the answering node knows it: its own links, and of others what their last beacons told."""
        topology: dict[str, Any] = self._ask("topology", {})
        return topology

    # ---- one node's life

    def drain(self, copies: int | None = None) -> int | None:
        """Let the first node leave the channel for good: it takes no more publishes, waits until `copies` other nodes
        (all its neighbours, if None) have all its rows on disk, then leaves and stops.

        Returns how many have them; None when it has no rows of its own. If the time-out comes first, the node stays
        and takes publishes again (`RefusedError` with the code `not-drained`).
        """
        question = {"timeout_ms": int(self.timeout_s * 1000), **({} if copies is None else {"copies": copies})}
        drained: dict[str, int | None] = self._ask_first("drain", question, patience_s=5)
        return drained["copies"]

    def shutdown(self) -> None:
        """Let the first node leave the channel in order and stop, as SIGTERM does. It may come back."""
        self._ask_first("shutdown", {})

    def _ask(self, action: str, question: object) -> Any:
        """The answer of the first node that has one."""
        return self._anywhere(lambda client: self._act(client, action, question))

    def _ask_first(self, action: str, question: object, patience_s: float = 0) -> Any:
        """The answer of the access point: what is asked for changes one node."""
        return self._at(self.nodes[0], lambda client: self._act(client, action, question, patience_s))

    def _act(self, client: Any, action: str, question: object, patience_s: float = 0) -> Any:
        asked = flight.Action(action, json.dumps(question).encode())
        options = flight.FlightCallOptions(timeout=self.timeout_s + patience_s)
        return json.loads(next(iter(client.do_action(asked, options))).body.to_pybytes())

    # ---- nodes

    def _options(self) -> Any:
        return flight.FlightCallOptions(timeout=self.timeout_s)

    def _anywhere(self, call: Callable[[Any], T]) -> T:
        """The answer of the first node that has one."""
        refused: RefusedError | None = None
        unreachable = []
        for node in self.nodes:
            try:
                return self._at(node, call)
            except UnreachableError as error:
                unreachable.append(str(error))
            except RefusedError as error:
                if error.code not in ASK_ANOTHER:
                    raise
                refused = refused or error
        raise refused or UnreachableError("; ".join(unreachable))

    def _at(self, node: str, call: Callable[[Any], T]) -> T:
        try:
            return call(_connection(node, self.credentials))
        except pa.ArrowException as error:
            raise _told(node, error) from None


class Tail(Iterator[pa.RecordBatch]):
    """Record batches as they come, see `Channel.tail`. Any thread may `close` it."""

    def __init__(
        self,
        channel: Channel,
        topics: str | Sequence[str],
        start: Start,
        on_missing: Literal["fail", "skip"],
        idle_s: float | None,
    ) -> None:
        self._channel = channel
        self._topics = _topics(topics)
        self._start = start
        self._on_missing: Literal["fail", "skip"] = on_missing
        self._idle_s = idle_s
        self._reader: Any = None
        self._node = 0
        self._failures = 0
        self._heard_at = time.monotonic()
        self._closed = threading.Event()
        self.frontier: Frontier | None = None
        """Where it is: what comes next of each stream. None before the first batch was asked for."""

    def __next__(self) -> pa.RecordBatch:
        while not self._closed.is_set() and self._idle_left_s() > 0:
            try:
                if self._reader is None:
                    self._open()
                chunk = self._reader.read_chunk()
            except StopIteration:
                self._reader = None  # rows of a wider schema follow, or it was idle
                continue
            except pa.ArrowException as error:
                self._reader = None
                if not self._closed.is_set():
                    self._look_elsewhere(_told(self._channel.nodes[self._node], error))
                continue
            self._failures = 0
            self._heard_at = time.monotonic()
            self._advance(json.loads(chunk.app_metadata.to_pybytes()))
            return chunk.data
        raise StopIteration

    def close(self) -> None:
        """End it; whoever waits in it gets StopIteration."""
        self._closed.set()
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def _idle_left_s(self) -> float:
        return float("inf") if self._idle_s is None else self._heard_at + self._idle_s - time.monotonic()

    def _advance(self, where: dict[str, Any]) -> None:
        assert self.frontier is not None
        self.frontier.setdefault(where["topic"], {})[where["origin"]] = where["next"]

    def _open(self) -> None:
        if self.frontier is None:
            self.frontier = self._first_frontier()
        idle_ms = None if self._idle_s is None else max(int(self._idle_left_s() * 1000), 1)
        ticket = _ticket(self._topics, self.frontier, None, self._on_missing, idle_ms=idle_ms)
        self._reader = _connection(self._channel.nodes[self._node], self._channel.credentials).do_get(ticket)

    def _first_frontier(self) -> Frontier:
        """The start as a frontier, so that it means the same at the next node and after a break."""
        if isinstance(self._start, dict):
            return {topic: dict(origins) for topic, origins in self._start.items()}
        if self._start == "earliest":
            return self._channel.earliest(self._topics)
        return self._channel.frontier(self._topics, at_ms=None if self._start == "latest" else self._start)

    def _look_elsewhere(self, error: M4castError) -> None:
        """Try the next node; when all have failed for the channel's time-out, give up with what the last one said."""
        if isinstance(error, RefusedError) and error.code not in ASK_ANOTHER:
            raise error
        if not self._failures:
            self._failing_since = time.monotonic()
        self._failures += 1
        self._node = (self._node + 1) % len(self._channel.nodes)
        if self._failures >= len(self._channel.nodes):
            if time.monotonic() - self._failing_since > self._channel.timeout_s:
                raise error
            self._closed.wait(RETRY_S)


# ---- connections


_connections: dict[tuple[str, Credentials], Any] = {}
_used_by: int | None = None
"""The process that made them."""


def _connection(node: str, credentials: Credentials) -> Any:
    global _used_by  # noqa: PLW0603 - it is a fact about the process
    if _used_by not in (None, os.getpid()):
        # gRPC's threads stay in the parent: any call here would wait for ever.
        raise LocalProtocolError(
            "this process was forked after its parent had used a channel: fork first, or start it by spawn"
        )
    _used_by = os.getpid()
    client = _connections.get((node, credentials))
    if client is None:
        client = _connections.setdefault((node, credentials), credentials.connect(node))
    return client


def _told(node: str, error: Exception) -> M4castError:
    """The error as a user should see it."""
    said = getattr(error, "extra_info", b"")
    if said:
        try:
            refusal = json.loads(said)
            return RefusedError(str(refusal["code"]), str(refusal["detail"]))
        except (ValueError, TypeError, KeyError):
            pass  # somebody else's extra info
    text = str(error).partition(" gRPC client debug context")[0]
    if isinstance(error, flight.FlightTimedOutError):
        return RefusedError("timeout", f"{node} did not answer in time; what was asked may be done yet: {text}")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError("unauthenticated", f"{node}: {text}")
    if isinstance(error, flight.FlightUnavailableError):
        for kept in [kept for kept in list(_connections) if kept[0] == node]:
            _connections.pop(kept, None)
        return UnreachableError(f"{node} cannot be reached: {text}")
    return RefusedError("flight", f"{node}: {text}")


# ---- what is said


def _ticket(
    topics: str | Sequence[str],
    start: Start,
    end: Frontier | Literal["latest"] | None,
    on_missing: Literal["fail", "skip"],
    **more: int | None,
) -> Any:
    ticket = {"topics": _topics(topics), "start": start, "end": end, "on_missing": on_missing, **more}
    return flight.Ticket(json.dumps(ticket).encode())


def _topics(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)


def _position(position: str | int | None) -> str | None:
    """Positions are text; a counter is written as its digits."""
    return None if position is None else str(position)


def _add(ranges: list[Range], more: list[Range]) -> None:
    for rows in more:
        last = ranges[-1] if ranges else None
        if last is not None and (last.topic, last.origin, last.next) == (rows.topic, rows.origin, rows.first):
            ranges[-1] = Range(last.topic, last.origin, last.first, rows.next)
        else:
            ranges.append(rows)
