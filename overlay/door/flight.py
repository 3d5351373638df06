"""The Flight server: takes calls on its own threads, has them answered, and tells errors by their code.

    door = FlightDoor(driver, store, "127.0.0.1:7401")     # on the driver's loop, when it has started
    ...
    await door.stop()                                      # before the store is closed

Calls that change something or look at the node go to its loop and wait for the answer; reads go to the store.
Whatever a client sends, the node is unharmed (guarantee 8): a mistake of ours behind the door is logged and told as
`internal`.
"""

import asyncio
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.door import deliveries, payload, requests
from m4cast.overlay.door.asking import Asking
from m4cast.overlay.door.catalogue import Catalogue, Span
from m4cast.overlay.door.deliveries import Deliveries
from m4cast.overlay.door.progress import Progress
from m4cast.overlay.door.publishing import Caller, Publishing
from m4cast.overlay.door.readers import Readers
from m4cast.overlay.door.reading import Reading
from m4cast.overlay.door.refusals import Refusal, bad_request, flight_error
from m4cast.overlay.door.room import Calls
from m4cast.overlay.door.status import status_of
from m4cast.overlay.door.topics import Topics
from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.store.store import Store

log = logging.getLogger("m4cast.door")
T = TypeVar("T")

STOP_S = 2.0
"""How long a door that closes waits for its calls to end; guess."""
ACTIONS = (
    ("abort", 'Forget staged payloads: {"stage_ids"}'),
    ("commit", 'Number staged payloads and move keys: {"stage_ids", "key", "expect", "next", "acks"} -> {"ranges"}'),
    ("delivery-range", "The first delivery record that is kept here, and the next to come -> [low, next]"),
    ("frontier", 'What is here of each stream: {"topics", "at_ms"} or nothing -> {topic: {origin: [low, next]}}'),
    ("lease", 'Keep rows for a reader: {"reader", "frontier", "topics", "ttl_ms"} -> {"expires_at_ms", "missing"}'),
    ("readers", "The readers that hold rows back here, and how far behind they are"),
    ("release", 'Forget a reader: {"reader"} -> {"released"}'),
    ("status", "This node and what it knows of the channel"),
    ("topic", 'What is here of a topic: {"topic"} -> columns, streams, rows, bytes, retention'),
    ("topic-delete", 'Remove what this node has of a topic: {"topic"} -> {"topic", "bytes", "streams"}'),
    ("topic-retention", 'How much of a topic this node keeps: {"topic", "max_bytes", "max_age_ms"}'),
    ("topics", "The topics that are known here -> [topic]"),
)


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Each number is a guess unless it says otherwise."""

    batch_bytes_max: int = 16 << 20
    """Payload of one batch; the channel's own limit must not be lower."""
    commit_bytes_max: int = 64 << 20
    """Payload of one keyed publish. It is in memory until it is on disk: that is what raising it costs."""
    queue_bytes_max: int = 64 << 20
    """Payload of all calls that is not answered yet; beyond it publishers wait. Memory."""
    chunk_bytes: int = 4 << 20
    """Read from the store at a time, for one reader. Memory per reader; lower: more transactions."""
    linger_ms: int = 2
    """How long few rows wait for company while others are under way; 0: they are not put together."""
    calls_max: int = 256
    """Publishes and reads of one client at a time, and as many actions. Each costs a thread, also an idle tail."""
    timeout_ms: int = 30_000
    """How long a call waits for an answer or for rows, unless it says otherwise."""


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Serves as soon as it is made. `address` is where."""

    def __init__(
        self, driver: Driver, store: Store, listen: str = "127.0.0.1:0", limits: DoorLimits | None = None
    ) -> None:
        limits = limits or DoorLimits()
        self._store = store
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
            timeout_s=self._timeout_s,
        )
        self._reading = Reading(
            store, self._catalogue, self._progress, chunk_bytes=limits.chunk_bytes, timeout_s=self._timeout_s
        )
        self._calls = Calls(limits.calls_max)
        self._actions = Calls(limits.calls_max)
        self._deliveries = Deliveries(store, self._asking, self._progress, self._timeout_s)
        self._topics = Topics(store, self._asking, self._catalogue, self._timeout_s)
        self._readers = Readers(store, self._asking, self._timeout_s)
        host, _, _ = listen.rpartition(":")
        super().__init__(f"grpc://{listen}")
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
        caller = Caller(client_of(context), context.is_cancelled)

        def put() -> None:
            with self._calls.admitted(caller.name):
                self._publishing.put(requests.parse_put(*_parts(descriptor)), reader, writer, caller)

        self._answer(put)

    def do_get(self, context: Any, ticket: Any) -> Any:
        client = client_of(context)
        get = self._answer(lambda: requests.parse_get(ticket.ticket))
        self._answer(lambda: self._calls.begin(client))
        try:
            seen, pieces = self._answer(lambda: self._read(get, context.is_cancelled))
            told = self._told(pieces)
            stream = flight.GeneratorStream(seen, told)
        except BaseException:
            self._calls.end(client)
            raise
        # The call is over when nobody holds its rows any more, also when none was ever taken.
        weakref.finalize(told, self._calls.end, client)
        return stream

    def _read(
        self, get: requests.Get | requests.GetDeliveries | requests.GetRoster, is_cancelled: Callable[[], bool]
    ) -> tuple[pa.Schema, Iterator[Any]]:
        match get:
            case requests.GetDeliveries():
                return deliveries.DELIVERIES, self._deliveries.read(get, is_cancelled)
            case requests.GetRoster():
                return deliveries.ROSTER, self._deliveries.roster()
            case _:
                return self._reading.read(get, is_cancelled)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        question = self._answer(lambda: requests.parse_question(criteria))
        for topic in self._progress.topics() if question.topics is None else question.topics:
            yield self._answer(lambda topic=topic: self._flight(topic))  # type: ignore[misc]

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        return self._answer(lambda: self._flight(requests.parse_put(*_parts(descriptor)).topic))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        client, body = client_of(context), action.body.to_pybytes() if action.body else b""

        def act() -> object:
            with self._actions.admitted(client):
                return self._act(action.type, body, context.is_cancelled)

        said = self._answer(act)
        yield flight.Result(json.dumps(said).encode())

    # ---- behind them

    def _act(self, name: str, body: bytes, is_cancelled: Callable[[], bool]) -> object:
        match name:
            case "frontier":
                return self._frontier(requests.parse_question(body))
            case "topics":
                return self._progress.topics()
            case "status":
                status = self._asking.look(status_of, self._timeout_s)
                return {**status, "topics": len(self._progress.topics()), "streams": len(self._store.streams())}
            case "commit":
                return self._publishing.commit(requests.parse_commit(body), is_cancelled)
            case "abort":
                return self._publishing.abort(requests.parse_abort(body))
            case "delivery-range":
                return list(self._store.delivery_range())
            case "topic":
                return self._topics.describe(requests.parse_topic(body))
            case "topic-retention":
                return self._topics.retain(requests.parse_retention(body))
            case "topic-delete":
                return self._topics.delete(requests.parse_topic(body))
            case "lease":
                return self._readers.lease(requests.parse_lease(body))
            case "release":
                return self._readers.release(requests.parse_release(body))
            case "readers":
                return self._readers.all()
        raise bad_request(f"no action {name[:100]!r}: there are {', '.join(known for known, _ in ACTIONS)}")

    def _frontier(self, question: requests.Question) -> dict[str, dict[str, list[int]]]:
        lows = self._store.streams()
        here = self._progress.positions(self._progress.topics() if question.topics is None else question.topics)
        if question.at_ms is not None:
            here = {stream: self._store.sequence_at(stream, question.at_ms) or until for stream, until in here.items()}
        frontier: dict[str, dict[str, list[int]]] = {}
        for stream, until in here.items():
            low = lows[stream][0] if stream in lows else 1
            frontier.setdefault(stream.topic, {})[stream.origin.hex()] = [low, until]
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
                piece = self._answer(lambda: next(pieces))
            except StopIteration:
                return
            yield piece

    def _answer(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except (StopIteration, flight.FlightError):
            raise
        except Refusal as refusal:
            raise flight_error(refusal) from None
        except StoreError as error:
            raise flight_error(Refusal("store", str(error))) from None
        except (
            pa.ArrowException
        ) as error:  # of the client's own stream: what the node keeps is refused where it is read
            raise flight_error(bad_request(f"not a readable Arrow stream: {error}")) from None
        except Exception as error:
            log.exception("a mistake behind the door")
            raise flight_error(Refusal("internal", f"{type(error).__name__}: see the node's log")) from None


def client_of(context: Any) -> str:
    """Whom limits count as one: the name that a client has shown to be its own, else the address it calls from."""
    name = context.peer_identity()
    if name:
        return str(name, "utf-8", "replace")
    address: str = context.peer()
    return address.rpartition(":")[0]


def _parts(descriptor: Any) -> tuple[list[bytes] | None, bytes | None]:
    return descriptor.path, descriptor.command
