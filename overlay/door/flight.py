"""The Flight server: takes calls on its own threads, has them answered, and tells errors by their code.

    door = FlightDoor(driver, store, "127.0.0.1:7401")     # on the driver's loop, when it has started
    ...
    await door.stop()                                      # before the store is closed

Calls that change something or look at the node go to its loop and wait for the answer; reads go to the store.
Whatever a client sends, the node is unharmed (guarantee 8): a mistake of ours behind the door is logged and told as
`internal`.

The door uses the node's certificates, if it has any. With tokens, every call shows one, and its rights are checked
(`tokens`); without, TLS clients show a certificate of the cluster and may do everything.
"""

import asyncio
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.door import deliveries, payload, requests
from m4cast.overlay.door.asking import Asking
from m4cast.overlay.door.calls import CallCounts
from m4cast.overlay.door.catalogue import Catalogue, Span
from m4cast.overlay.door.deliveries import Deliveries
from m4cast.overlay.door.keys import PublisherKeys
from m4cast.overlay.door.leaving import Leaving
from m4cast.overlay.door.progress import Progress
from m4cast.overlay.door.publishing import Caller, Publishing
from m4cast.overlay.door.readers import Readers
from m4cast.overlay.door.reading import Reading
from m4cast.overlay.door.refusals import Refusal, SchemaError, bad_request, flight_error, internal
from m4cast.overlay.door.room import Calls, Chunks
from m4cast.overlay.door.status import position_of, status_of, topology_of
from m4cast.overlay.door.tokens import EVERYTHING, Right, Rights, TokenCheck, Tokens
from m4cast.overlay.door.topics import Topics
from m4cast.overlay.errors import ConfigError, StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.store.store import Store

log = logging.getLogger("m4cast.door")
T = TypeVar("T")

STOP_S = 2.0
"""How long a door that closes waits for its calls to end; guess."""
CALLER = "caller"
"""Under this name a call's token goes with it."""
ACTIONS = (
    ("abort", 'Forget staged payloads: {"stage_ids"}'),
    ("commit", 'Number staged payloads and move keys: {"stage_ids", "key", "expect", "next", "acks"} -> {"ranges"}'),
    (
        "delivery-range",
        'Whose delivery records these are, the first that is kept, the next to come -> {"node_id", "low", "next"}',
    ),
    (
        "drain",
        'Leave when other nodes have all rows of this one: {"copies", "timeout_ms"} or nothing -> {"copies", '
        '"delivery_records"}: as many records go with it, unless they were read before',
    ),
    (
        "frontier",
        'What is here of each stream: {"topics", "at_ms", "seen", "wait_ms"} -> {topic: {origin: [low, next]}}',
    ),
    ("lease", 'Keep rows for a reader: {"reader", "frontier", "topics", "ttl_ms"} -> {"expires_at_ms", "missing"}'),
    ("position", 'Where a publisher key stands: {"key"} -> {"position", "ranges"}; position null: it is new'),
    (
        "publisher-remove",
        'Forget a publisher key: {"key"} -> {"key", "removed", "position"}, where it stood; its rows stay',
    ),
    (
        "publishers",
        'Publisher keys, a page at a time: {"prefix", "after", "limit"} -> {"publishers", "next"}; next null: no more',
    ),
    ("readers", "The readers that hold rows back here, and how far behind they are"),
    ("release", 'Forget a reader: {"reader"} -> {"released"}'),
    ("shutdown", "Leave the channel in order, and stop"),
    ("shutdown-channel", 'Shut the whole channel down: {"channel"}, its name; every node on it stops'),
    ("status", "This node and what it knows of the channel"),
    ("topic", 'What is here of a topic: {"topic"} -> columns, streams, rows, bytes, retention'),
    ("topic-delete", 'Remove what this node has of a topic: {"topic"} -> {"topic", "bytes", "streams"}'),
    ("topic-retention", 'How much of a topic this node keeps: {"topic", "max_bytes", "max_age_ms"}'),
    ("topics", "The topics that are known here -> [topic]"),
    ("topology", "The graph as this node knows it: nodes, and the neighbours of each"),
)
ACTION_RIGHTS: dict[str, Right] = {
    "abort": "publish",
    "commit": "publish",
    "delivery-range": "read",
    "frontier": "read",
    "lease": "read",
    "position": "publish",
    "publisher-remove": "any",
    "publishers": "any",
    "readers": "read",
    "release": "read",
    "status": "any",
    "topic": "read",
    "topics": "read",
    "topology": "any",
}
"""What a token needs for an action at all; on which topics is looked at where the action is done. An action that is
not here is for administrators. (PROTOCOL.md has all of it in one table, which `tests/overlay/door/test_rights.py`
tries out.)"""
WITHOUT_FIELDS = frozenset({"delivery-range", "readers", "shutdown", "status", "topics", "topology"})
"""Actions that are asked with nothing, or an empty object."""


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Each number is a guess unless it says otherwise."""

    batch_bytes_max: int = 16 << 20
    """Payload of one batch; the channel's own limit must not be lower."""
    commit_bytes_max: int = 32 << 20
    """Payload of one keyed publish. It is in memory until it is on disk, of one call at a time beside what
    `queue_bytes_max` allows: that is what raising it costs."""
    queue_bytes_max: int = 32 << 20
    """Payload of all calls that is not answered yet; beyond it publishers wait. Keyed ones have half as much of their
    own, since they wait for their clients. Memory, with what the heap keeps of it
    about twice: at 64 MiB a node that staged as fast as it could had 267 MB, at 32 MiB 132 MB. Measured."""
    chunk_bytes: int = 1 << 20
    """Read from the store at a time, for one reader. Memory per reader; lower: more transactions. With 40 readers that
    had stopped to take 1 MB batches a publishing node had 376 MB at 4 MiB, 256 MB at this. Measured."""
    read_bytes_max: int = 32 << 20
    """Read from the store and not taken by its reader yet, of all readers: of many, each reads less at a time, down to
    one batch. Memory; lower: more transactions when there are many readers."""
    linger_ms: int = 5
    """How long few rows wait for company while others are under way; 0: they are not put together."""
    acks: int = 0
    """Of publishes that do not say how many they want."""
    calls_max: int = 256
    """Publishes and reads of one client at a time, and as many actions. Each costs a thread, also an idle tail."""
    timeout_ms: int = 30_000
    """How long a call waits for an answer or for rows, unless it says otherwise. So long a keyed publish may take while
    others wait for its room."""


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Serves as soon as it is made. `address` is where."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        listen: str = "127.0.0.1:0",
        limits: DoorLimits | None = None,
        tokens: str = "",
    ) -> None:
        limits = limits or DoorLimits()
        self.calls = CallCounts()
        self._store = store
        self._channel = driver.channel_name
        self._timeout_s = limits.timeout_ms / 1000
        self._asking = Asking(driver, asyncio.get_running_loop())
        self._progress = Progress()
        driver.watchers.append(self._progress.watch)
        self._progress.advance({stream: until for stream, (_, until) in store.streams().items()})
        self._catalogue = Catalogue(store)
        self._publishing = Publishing(
            self._asking,
            self._catalogue,
            self._progress,
            batch_bytes_max=limits.batch_bytes_max,
            commit_bytes_max=limits.commit_bytes_max,
            queue_bytes_max=limits.queue_bytes_max,
            linger_s=limits.linger_ms / 1000,
            acks=limits.acks,
            timeout_s=self._timeout_s,
        )
        self._reading = Reading(
            store,
            self._catalogue,
            self._progress,
            Chunks(limits.chunk_bytes, limits.read_bytes_max),
            timeout_s=self._timeout_s,
        )
        self._open_calls = Calls(limits.calls_max)
        self._open_actions = Calls(limits.calls_max)
        self._deliveries = Deliveries(store, self._asking, self._progress, self._timeout_s)
        self._topics = Topics(store, self._asking, self._catalogue, self._timeout_s)
        self._keys = PublisherKeys(store, self._asking, self._timeout_s)
        self._readers = Readers(store, self._asking, self._timeout_s)
        self._leaving = Leaving(self._asking, self._timeout_s, self._store.delivery_range)
        host, _, _ = listen.rpartition(":")
        protection: dict[str, Any] = _tls_of(driver, verify_clients=not tokens) if driver.tls else {}
        self._has_tokens = bool(tokens)
        if tokens:
            protection["middleware"] = {CALLER: TokenCheck(Tokens(tokens), self._asking.count_refusal)}
        super().__init__(f"{'grpc+tls' if driver.tls else 'grpc'}://{listen}", **protection)
        self.address = f"{host}:{self.port}"
        log.info("clients are answered at %s", self.address)

    async def stop(self) -> None:
        """Take no more calls and end those that there are. Flight cannot end one that waits for its client's next
        batch: after `STOP_S` it is left behind, to end with its client."""
        self._progress.close()
        self._publishing.close()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def shut_down() -> None:
            self.shutdown()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any longer
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=shut_down, name="door-shutdown", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), STOP_S)

    # ---- the calls of Flight

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        client = self._client(context)

        def put() -> None:
            asked = requests.parse_put(*_parts(descriptor))
            self._rights(context).require_topics("publish", (asked.topic,))
            with self._open_calls.admitted(client):
                self._publishing.put(asked, reader, writer, Caller(client, context.is_cancelled))

        self._answer("put", put)
        self.calls.ended("put", "ok")

    def do_get(self, context: Any, ticket: Any) -> Any:
        client = self._client(context)

        def read() -> tuple[pa.Schema, Iterator[Any], Any]:
            get = requests.parse_get(ticket.ticket)
            compression = get.compression if isinstance(get, requests.Get) else None
            self._open_calls.begin(client)
            try:
                seen, pieces = self._read(get, self._rights(context), context.is_cancelled)
                return seen, pieces, pa.ipc.IpcWriteOptions(compression=compression)
            except BaseException:
                self._open_calls.end(client)
                raise

        seen, pieces, options = self._answer("get", read)
        told = self._told(pieces)
        # The call is over when nobody holds its rows any more, also when none was ever taken.
        weakref.finalize(told, self._open_calls.end, client)
        return flight.GeneratorStream(seen, told, options)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        question = self._answer("list", lambda: requests.parse_question(criteria))
        for topic in self._answer("list", lambda: self._readable(question.topics, self._rights(context))):
            yield self._answer("list", lambda topic=topic: self._flight(topic))  # type: ignore[misc]
        self.calls.ended("list", "ok")

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        info = self._answer("info", lambda: self._described(context, descriptor))
        self.calls.ended("info", "ok")
        return info

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns that GetFlightInfo tells."""
        try:
            info = self._answer("schema", lambda: self._described(context, descriptor))
        except flight.FlightError as error:
            raise SchemaError(str(error)) from None
        self.calls.ended("schema", "ok")
        return flight.SchemaResult(info.schema)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        def refuse() -> None:
            detail = "the door has no DoExchange: publish with DoPut, read with DoGet"
            raise Refusal("not-implemented", detail)

        self._answer("exchange", refuse)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        client = self._client(context)

        def act() -> object:
            rights = self._rights(context)
            rights.require(ACTION_RIGHTS.get(action.type, "admin"))
            body = action.body.to_pybytes() if action.body else b""
            with self._open_actions.admitted(client):
                return self._act(action.type, body, rights, Caller(client, context.is_cancelled))

        call = action.type if action.type in dict(ACTIONS) else "unknown"
        said = self._answer(call, act)
        self.calls.ended(call, "ok")
        yield flight.Result(json.dumps(said).encode())

    # ---- behind them

    def _described(self, context: Any, descriptor: Any) -> Any:
        topic = requests.parse_flight(*_parts(descriptor))
        self._rights(context).require_topics("read", (topic,))
        return self._flight(topic)

    def _rights(self, context: Any) -> Rights:
        if not self._has_tokens:
            return EVERYTHING
        rights: Rights = context.get_middleware(CALLER).rights
        return rights

    def _client(self, context: Any) -> str:
        """Whom limits count as one: the name of a token, else the address that is called from."""
        address: str = context.peer()
        return self._rights(context).name if self._has_tokens else address.rpartition(":")[0]

    def _readable(self, topics: tuple[str, ...] | None, rights: Rights) -> tuple[str, ...]:
        """Those that were asked for, or all that there are, as far as the caller may read them."""
        if topics is None:
            return tuple(topic for topic in self._progress.topics() if rights.may("read", topic))
        rights.require_topics("read", topics)
        return topics

    def _require_staged(self, stage_ids: tuple[str, ...], rights: Rights) -> None:
        if not rights.may_all("publish"):
            staged = self._asking.look(lambda node: node.publishing.commits.staged_topics(stage_ids), self._timeout_s)
            rights.require_topics("publish", staged)

    def _read(
        self,
        get: requests.Get | requests.GetDeliveries | requests.GetRoster,
        rights: Rights,
        is_cancelled: Callable[[], bool],
    ) -> tuple[pa.Schema, Iterator[Any]]:
        match get:
            case requests.GetDeliveries():
                rights.require_all("read")
                return deliveries.DELIVERIES, self._deliveries.read(get, is_cancelled)
            case requests.GetRoster():
                return deliveries.ROSTER, self._deliveries.roster()
            case requests.Get():
                rights.require_topics("read", get.topics)
                whose = {} if get.form == "rows" else self._whose()
                return self._reading.read(get, is_cancelled, whose)

    def _whose(self) -> dict[str, str]:
        """Which node answers, on which channel."""
        node_id = self._asking.look(lambda node: node.me.node_id, self._timeout_s)
        return {"node_id": node_id.hex(), "channel": self._channel}

    def _act(self, name: str, body: bytes, rights: Rights, caller: Caller) -> object:
        is_cancelled = caller.is_cancelled
        if name in WITHOUT_FIELDS:
            requests.parse_nothing(body, name)
        match name:
            case "frontier":
                question = requests.parse_question(body)
                if question.seen is not None:
                    return self._news(question, rights, is_cancelled)
                return self._frontier(self._readable(question.topics, rights), question.at_ms)
            case "topics":
                return list(self._readable(None, rights))
            case "status":
                status = self._asking.look(status_of, self._timeout_s)
                return {**status, "topics": len(self._progress.topics()), "streams": self._store.stream_count()}
            case "topology":
                return self._asking.look(topology_of, self._timeout_s)
            case "drain":
                return self._leaving.drain(requests.parse_drain(body), is_cancelled)
            case "shutdown":
                return self._leaving.shutdown()
            case "shutdown-channel":
                return self._leaving.shutdown_channel(requests.parse_channel(body), self._channel)
            case "commit":
                commit = requests.parse_commit(body)
                self._require_staged(commit.stage_ids, rights)
                return self._publishing.commit(commit, caller)
            case "abort":
                stage_ids = requests.parse_abort(body)
                self._require_staged(stage_ids, rights)
                return self._publishing.abort(stage_ids)
            case "position":
                key = requests.parse_position(body)
                return self._asking.look(lambda node: position_of(node, key), self._timeout_s)
            case "publishers":
                return self._keys.page(requests.parse_publishers(body), None if rights.admin else caller.name)
            case "publisher-remove":
                key = requests.parse_publisher_remove(body)
                return self._keys.remove(key, None if rights.admin else caller.name, is_cancelled)
            case "delivery-range":
                rights.require_all("read")
                low, until = self._store.delivery_range()
                return {"node_id": self._whose()["node_id"], "low": low, "next": until}
            case "topic":
                return self._topics.describe(*self._readable((requests.parse_topic(body),), rights))
            case "topic-retention":
                return self._topics.retain(requests.parse_retention(body))
            case "topic-delete":
                return self._topics.delete(requests.parse_topic(body))
            case "lease":
                lease = requests.parse_lease(body)
                rights.require_topics("read", (*lease.all_topics(), *self._readers.topics_of(lease.reader)))
                return self._readers.lease(lease)
            case "release":
                reader = requests.parse_release(body)
                rights.require_topics("read", self._readers.topics_of(reader))
                return self._readers.release(reader)
            case "readers":
                return self._readers.all(lambda topic: rights.may("read", topic))
        raise bad_request(f"no action {name[:100]!r}: there are {', '.join(known for known, _ in ACTIONS)}")

    def _news(
        self, question: requests.Question, rights: Rights, is_cancelled: Callable[[], bool]
    ) -> dict[str, dict[str, list[int]]]:
        """What is past what was seen, as soon as there is something, or nothing when the time is over."""
        assert question.seen is not None
        deadline = time.monotonic() + question.wait_s
        while True:
            topics = self._readable(question.topics, rights)
            now = self._progress.wait_beyond(question.seen, topics, deadline)
            news = {stream: until for stream, until in now.items() if until > question.seen.get(stream, 1)}
            if news or time.monotonic() >= deadline or self._progress.closed or is_cancelled():
                return self._extents(news)

    def _frontier(self, topics: tuple[str, ...], at_ms: int | None) -> dict[str, dict[str, list[int]]]:
        here = self._progress.positions(topics)
        if at_ms is not None:
            here = {stream: self._store.sequence_at(stream, at_ms) or until for stream, until in here.items()}
        return self._extents(here)

    def _extents(self, here: requests.Frontier) -> dict[str, dict[str, list[int]]]:
        lows = self._store.lows(here)
        frontier: dict[str, dict[str, list[int]]] = {}
        for stream, until in here.items():
            frontier.setdefault(stream.topic, {})[stream.origin.hex()] = [lows.get(stream, 1), until]
        return frontier

    def _flight(self, topic: str) -> Any:
        get = requests.Get((topic,), "earliest", "latest")
        spans = self._reading.plan(get)
        everything: dict[StreamId, int] = self._progress.positions((topic,))
        seen = payload.seen_schema(
            self._catalogue.merged(spans or [Span(stream, 1, until) for stream, until in everything.items()])
        )
        ticket = {
            "topic": topic,
            "start": requests.frontier_json({span.stream: span.first for span in spans}),
            "end": requests.frontier_json({span.stream: span.next for span in spans}),
        }
        endpoint = flight.FlightEndpoint(json.dumps(ticket).encode(), [])
        rows = sum(span.next - span.first for span in spans)
        return flight.FlightInfo(seen, flight.FlightDescriptor.for_path(topic), [endpoint], rows, -1)

    def _told(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """The same, with errors as Flight tells them."""
        while True:
            try:
                piece = self._answer("get", lambda: next(pieces))
            except StopIteration:
                self.calls.ended("get", "ok")
                return
            try:
                yield piece
            except GeneratorExit:
                self.calls.ended("get", "cancelled")
                raise

    def _answer(self, call: str, function: Callable[[], T]) -> T:
        """What the function answers. An error ends the call, and is counted; so is, by the caller, a good end."""
        try:
            return function()
        except StopIteration:
            raise
        except flight.FlightError:  # of the connection: the client went away
            self.calls.ended(call, "cancelled")
            raise
        except Refusal as error:
            refusal = error
            if refusal.code == "forbidden":
                self._asking.count_refusal(refusal)
        except StoreError as error:
            refusal = Refusal("store", str(error))
        except MemoryError as error:  # Arrow's own among them
            refusal = internal(error)
        except (
            pa.ArrowException
        ) as error:  # of the client's own stream: what the node keeps is refused where it is read
            refusal = bad_request(f"not a readable Arrow stream: {error}")
        except Exception as error:
            refusal = internal(error)
        self.calls.ended(call, refusal.code)
        raise flight_error(refusal)


def _tls_of(driver: Driver, *, verify_clients: bool) -> dict[str, Any]:
    """As Flight takes it. (It reads certificates once: a door takes new ones when its node starts again.)"""
    assert driver.tls is not None
    try:
        ca, cert, key = (path.read_bytes() for path in (driver.tls.ca, driver.tls.cert, driver.tls.key))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from error
    verifying = {"verify_client": True, "root_certificates": ca} if verify_clients else {}
    return {"tls_certificates": [(cert, key)], **verifying}


def _parts(descriptor: Any) -> tuple[list[bytes] | None, bytes | None]:
    return descriptor.path, descriptor.command
