"""Following topics: a `Tail` is iterated; a `Subscription` calls back, or returns the next rows on request.

Both continue at another node from where they are when their node is lost.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import answering_first, as_client_error, connection, note_silence
from m4cast.overlay.client.interest import ActiveLevel, Activity, read_activity, together
from m4cast.overlay.client.times import as_millis
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.refusals import READ_ELSEWHERE

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

log = logging.getLogger("m4cast.client")

Frontier = dict[str, dict[str, int]]
"""Topic -> origin -> next sequence."""
Start = Frontier | int | str | datetime
"""A frontier, "earliest", "latest", or a time as in `times.as_millis`."""
RowFilter = tuple[str, str | None]
"""A condition on rows, and the language that it is written in; None: sql."""
OnRows = Callable[[pa.RecordBatch], object]
OnError = Callable[[Exception], object]

RETRY_S = 0.2
"""The pause before the nodes are tried again when none answers; guess."""
CALLS_LONGER_MAX = 16
"""A call without rows within its time limit is followed by one with twice the limit, up to this many times the first:
rows may be large and the network slow. Guess."""
INBOX_BATCHES = 16
"""Record batches that wait to be acquired; beyond it nothing is read from the node. Higher: more memory. Guess."""
LOOK_S = 0.2
"""The interval at which a full inbox checks whether it was closed."""


class Tail(Iterator[pa.RecordBatch]):
    """Record batches as they arrive; see `Channel.tail`. Any thread may `close` it.

    A connection may look open although its host is gone. So no call lasts longer than the channel's time-out: the node
    ends it after half that time without rows, and the next call continues from the tail's position. The time that its
    user takes between two batches does not count against any time-out.
    """

    def __init__(
        self,
        channel: "Channel",
        topics: str | Sequence[str],
        start: Start,
        on_missing: Literal["fail", "skip"],
        idle_s: float | None,
        row_filter: RowFilter | None = None,
    ) -> None:
        self._channel = channel
        self._topics = topics_of(topics)
        self._start = start_of(start)
        self._on_missing: Literal["fail", "skip"] = on_missing
        self._idle_s = idle_s
        self._filter = row_filter
        self._reader: Any = None
        self._nodes = channel.nodes
        self._node = 0
        self._failures = 0
        self._mistaken: set[str] = set()
        """Nodes that answered `internal` since the last rows arrived."""
        self._call_s = channel.timeout_s
        self._has_rows = False
        """This call has returned a record batch."""
        self._asked_at = time.monotonic()
        self._closed = threading.Event()
        self._has_more = False
        """Topics were added, and the call was cancelled for that."""
        self.frontier: Frontier | None = None
        """Its position: the next sequence of each stream. None before the first batch is requested."""
        self.tested = 0
        """Rows that nodes have tested for this tail; 0 without a filter."""

    def __next__(self) -> pa.RecordBatch:
        self._asked_at = time.monotonic()
        self._failures = 0
        while not self._closed.is_set() and self._idle_left_s() > 0:
            try:
                chunk = (self._reader or self._open()).read_chunk()
            except StopIteration:
                self._reader = None  # rows of a wider schema follow, or it was idle
                self._failures = 0
                continue
            except pa.ArrowException as error:
                self._reader = None
                if self._has_more:
                    self._has_more = False
                    continue
                if not self._closed.is_set():
                    self._broken(as_client_error(self._nodes[self._node], error))
                self._asked_at = time.monotonic()  # an error does not mean that there are no rows
                continue
            self._has_rows = True
            self._failures = 0
            self._mistaken.clear()
            self._call_s = self._channel.timeout_s
            where = json.loads(chunk.app_metadata.to_pybytes())
            self._advance(where)
            if is_certificate(chunk.data, where):
                self._asked_at = time.monotonic()
                continue
            return chunk.data
        raise StopIteration

    def begin(self) -> None:
        """Resolve the start, unless that is done: "latest" then means now."""
        if self.frontier is None:
            self.frontier = self._first_frontier()
            self._nodes = answering_first(self._channel.nodes)

    def follow(self, topics: Sequence[str]) -> None:
        """Follow these topics as well, from their earliest rows on. Any thread may call it after `begin`."""
        assert self.frontier is not None
        more = [topic for topic in topics if topic not in self._topics]
        if not more:
            return
        self.frontier |= self._channel.earliest(more, **self._where)
        self._topics = [*self._topics, *more]
        reader = self._reader
        if reader is not None:
            self._has_more = True
            reader.cancel()  # the next call requests all of them

    def close(self) -> None:
        """End it: whoever waits for its next batch gets StopIteration."""
        self._closed.set()
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def _idle_left_s(self) -> float:
        return float("inf") if self._idle_s is None else self._asked_at + self._idle_s - time.monotonic()

    def _advance(self, where: dict[str, Any]) -> None:
        assert self.frontier is not None
        self.frontier.setdefault(where["topic"], {})[where["origin"]] = where["next"]
        self.tested += where.get("tested", 0)

    def _open(self) -> Any:
        self.begin()
        assert self.frontier is not None
        self._has_rows = False
        idle_ms = max(int(min(self._idle_left_s(), self._call_s / 2) * 1000), 1)
        ticket = ticket_of(self._topics, self.frontier, None, self._on_missing, idle_ms=idle_ms)
        ticket |= {"compression": self._channel.compression, **filter_fields(self._filter)}
        asked = flight.Ticket(json.dumps(ticket).encode())
        client = connection(self._nodes[self._node], self._channel.credentials)
        reader = self._reader = client.do_get(asked, flight.FlightCallOptions(timeout=self._call_s))
        if self._closed.is_set():  # meanwhile: `close` did not see this reader
            reader.cancel()
        return reader

    def _first_frontier(self) -> Frontier:
        """The start as a frontier, so that it means the same at another node and after a failure."""
        if isinstance(self._start, dict):
            return {topic: dict(origins) for topic, origins in self._start.items()}
        where = self._where
        if self._start == "earliest":
            return self._channel.earliest(self._topics, **where)
        return self._channel.frontier(self._topics, at=None if self._start == "latest" else self._start, **where)

    @property
    def _where(self) -> dict[str, str]:
        """The filter, as fields of a request: of selective topics, a node fetches only the rows that are followed."""
        return {} if self._filter is None else {"where": self._filter[0], "language": self._filter[1] or "sql"}

    def registration(self, timeout_s: float, level: ActiveLevel = "channel") -> dict[str, Activity]:
        """Return the registration of each topic at the node that this tail follows, waiting at most `timeout_s`."""
        self.begin()
        doors = self._channel.at(self._nodes[self._node]).doors
        start = start_of(self._start)
        fields = filter_fields(self._filter)
        return {topic: read_activity(doors, topic, fields, start, timeout_s, level) for topic in self._topics}

    def _broken(self, error: M4castError) -> None:
        if not (isinstance(error, RefusedError) and error.code == "timeout"):
            self._look_elsewhere(error)
        elif not self._has_rows:
            self._call_s = min(2 * self._call_s, CALLS_LONGER_MAX * self._channel.timeout_s)
            note_silence(self._nodes[self._node])
            self._look_elsewhere(UnreachableError(f"{self._nodes[self._node]} does not answer"))

    def _look_elsewhere(self, error: M4castError) -> None:
        """Try the next node. Raise the last error once all nodes have failed for the channel's time-out."""
        if isinstance(error, RefusedError):
            if error.code == "internal":
                self._mistaken.add(self._nodes[self._node])
            if error.code not in READ_ELSEWHERE or self._mistaken.issuperset(self._nodes):
                raise error  # a repeat would get the same answer
        if not self._failures:
            self._failing_since = time.monotonic()
        self._failures += 1
        self._node = (self._node + 1) % len(self._nodes)
        if self._failures >= len(self._nodes):
            if time.monotonic() - self._failing_since > self._channel.timeout_s:
                raise error
            self._closed.wait(RETRY_S)


class Subscription:
    """Rows of topics as they arrive, on its own thread; made by `Channel.subscribe`.

    A callback gets the record batches one at a time and in order. Without a callback, a few of them wait for `acquire`.
    The first error, of the channel or of the callback, ends the subscription: it is passed to `on_error`, or else
    logged, and `acquire` raises it.
    """

    def __init__(self, tail: Tail, callback: OnRows | None, on_error: OnError | None) -> None:
        self._tail = tail
        self._callback = callback or self._keep
        self._on_error = on_error
        self._inbox: queue.Queue[pa.RecordBatch | None] = queue.Queue(INBOX_BATCHES)
        self._closed = threading.Event()
        self.error: Exception | None = None
        """The error that ended it."""
        self._thread = threading.Thread(target=self._run, name="m4cast-subscription", daemon=True)

    def start(self) -> "Subscription":
        self._tail.begin()  # here, so that "latest" means now
        self._thread.start()
        return self

    @property
    def frontier(self) -> Frontier:
        """Its position, to start the next one from. Rows that wait to be acquired count as read."""
        return {topic: dict(origins) for topic, origins in (self._tail.frontier or {}).items()}

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    @property
    def epoch(self) -> int | None:
        """The epoch of its registration at the node that it follows; of several topics, the latest. None: the topics
        are broadcast, and rows come without one."""
        return together([*self._tail.registration(0).values()]).epoch

    def active(self, timeout_s: float = 30, level: ActiveLevel = "channel") -> Activity:
        """Wait until every node that is present has confirmed that it knows of the subscription: of these, no matching
        row that is published from now on is missed. After `timeout_s` the answer says who has not. `level="system"`:
        until the whole federation has.

        `effective_from` is empty if there are several topics: see `Subscription.effective_from`."""
        found = self._tail.registration(timeout_s, level)
        return together([*found.values()]) if len(found) > 1 else next(iter(found.values()))

    @property
    def effective_from(self) -> Frontier:
        """The first wanted row of each stream of a selective topic, by topic and origin, as far as it is known. From
        there on every matching row is fetched, whenever it was published."""
        found = self._tail.registration(0)
        return {topic: each.effective_from for topic, each in found.items() if each.epoch is not None}

    def acquire(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next rows; None if none arrive in time (None: no limit; 0: do not wait), or if it was closed."""
        if self._callback != self._keep:
            raise M4castError(
                "this subscription has a callback, which gets all rows: to acquire rows, subscribe without one"
            )
        try:
            rows = self._inbox.get(timeout_s != 0, timeout_s or None)
        except queue.Empty:
            return None
        if rows is None:
            self._inbox.put(None)  # for other waiting threads
            if self.error is not None:
                raise self.error
        return rows

    def close(self) -> None:
        """End it, and wait until the callback no longer runs (unless the callback itself closes it)."""
        self._closed.set()
        self._tail.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, rows: pa.RecordBatch | None) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._inbox.put(rows, timeout=LOOK_S)
                return

    def _run(self) -> None:
        try:
            for rows in self._tail:
                if self._closed.is_set():
                    break
                self._callback(rows)
        except Exception as error:
            self.error = error
            self._report(error)
        finally:
            self._keep(None)
            if self._closed.is_set():
                self._wake_all()

    def _report(self, error: Exception) -> None:
        if self._on_error is None:
            log.error("a subscription ended: %s", error, exc_info=not isinstance(error, M4castError))
            return
        try:
            self._on_error(error)
        except Exception:
            log.exception("on_error of a subscription failed")

    def _wake_all(self) -> None:
        """End every wait. Rows that were not acquired before the close are dropped."""
        while True:
            with suppress(queue.Full):
                self._inbox.put_nowait(None)
                return
            with suppress(queue.Empty):
                self._inbox.get_nowait()


# ---- requests


def ticket_of(
    topics: str | Sequence[str],
    start: Frontier | int | str,
    end: Frontier | Literal["latest"] | None,
    on_missing: Literal["fail", "skip"],
    **more: int | str | None,
) -> dict[str, object]:
    return {"topics": topics_of(topics), "start": start, "end": end, "on_missing": on_missing, **more}


def filter_of(where: str | None, language: str | None) -> RowFilter | None:
    if where is None and language is not None:
        raise LocalProtocolError(f"language is {language!r} without where: set where to a filter, or remove language")
    return None if where is None else (where, language)


def filter_fields(row_filter: RowFilter | None) -> dict[str, object]:
    """The fields of a ticket."""
    return {} if row_filter is None else {"where": row_filter[0], "language": row_filter[1]}


def is_certificate(rows: pa.RecordBatch, where: Mapping[str, object]) -> bool:
    """True if a record batch only certifies that nothing matches up to its `next`."""
    return not rows.num_rows and "profile" in where


def start_of(start: Start) -> Frontier | int | str:
    """The start as a node accepts it: a time in milliseconds."""
    if isinstance(start, dict) or (isinstance(start, str) and start in ("earliest", "latest")):
        return start
    try:
        return as_millis(start)
    except LocalProtocolError as error:
        detail = str(error).replace("is not a time", "is neither earliest, latest nor a time")
        raise LocalProtocolError(detail) from None


def topics_of(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)
