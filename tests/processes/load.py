"""Publishers that remember what was acknowledged, on threads of their own, through crashes of their node.

Every row has the publisher's number for it, from 0 on, in the order of publishing. `acknowledged` says which rows were
told to be where.
"""

import json
import random
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client import Channel, RowRange
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

AGAIN_S = 0.05
GIVE_UP_S = 60.0
"""A publisher whose node does not take anything for so long has failed."""
BATCH_ROWS = (1, 20, 1_000)
"""Batches are of these sizes: many are pushed, the largest are announced and pulled."""
ROW_BYTES = 100
PACE_S = 0.02
"""Between two batches of one publisher: five nodes and all clients share a few cores."""


SELECTED_TOPIC = "selected"
COUNTRIES = ("PL", "DE", "CZ")


class Acknowledged(NamedTuple):
    """Rows `number`, `number + 1`, ... of a publisher are at `first .. next - 1` of the stream."""

    number: int
    origin: str
    first: int
    next: int


def rows_of(first: int, count: int, row_bytes: int = ROW_BYTES) -> pa.Table:
    text = "x" * row_bytes
    return pa.table({"number": pa.array(range(first, first + count), pa.int64()), "text": [text] * count})


class Publisher(threading.Thread):
    """Publishes under its own topic at one node until it has `enough`."""

    give_up_s = GIVE_UP_S

    def __init__(self, topic: str, channel: Channel, seed: int = 0, pace_s: float = PACE_S) -> None:
        super().__init__(name=f"publish-{topic}", daemon=True)
        self.topic = topic
        self.acknowledged: list[Acknowledged] = []
        self.rows = 0
        """Acknowledged ones."""
        self.repeats = 0
        self.enough = threading.Event()
        self.error: BaseException | None = None
        self._channel = channel
        self._pace_s = pace_s
        self._random = random.Random(seed)
        self._came = threading.Condition()

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:
            self.error = error
            with self._came:
                self._came.notify_all()

    @abstractmethod
    def _publish(self) -> None: ...

    def wait_for(self, rows: int, timeout_s: float = GIVE_UP_S) -> None:
        """Wait until so many rows are acknowledged."""
        with self._came:
            done = self._came.wait_for(lambda: self.rows >= rows or self.error is not None, timeout_s)
        if self.error is not None:
            raise self.error
        assert done, f"{self.topic}: {self.rows} rows were acknowledged, not {rows}"

    def wait_for_more(self, rows: int) -> None:
        self.wait_for(self.rows + rows)

    def _note(self, ranges: list[RowRange], number: int) -> None:
        """These places were acknowledged for the rows from `number` on."""
        with self._came:
            for rows in ranges:
                self.acknowledged.append(Acknowledged(number, rows.origin, rows.first, rows.next))
                number += rows.next - rows.first
                self.rows += rows.next - rows.first
            self._came.notify_all()

    def _until_taken(self, call: Callable[[], list[RowRange]]) -> list[RowRange]:
        """Repeat a call as long as its node is away or not ready."""
        deadline = time.monotonic() + self.give_up_s
        while True:
            try:
                return call()
            except M4castError as error:
                if not _may_repeat(error) or time.monotonic() > deadline:
                    raise
                self.repeats += 1
                time.sleep(AGAIN_S)


class KeyedPublisher(Publisher):
    """One commit at a time, repeated until it is acknowledged: exactly once."""

    def __init__(self, topic: str, channel: Channel, seed: int = 0, acks: int = 0, pace_s: float = PACE_S) -> None:
        super().__init__(topic, channel, seed, pace_s)
        self.position: int | None = None
        self.positions: list[int] = []
        """Of all commits that were acknowledged."""
        self._last: tuple[int | None, int, int] = (None, 0, 0)
        self._acks = acks

    def _publish(self) -> None:
        while not self.enough.is_set():
            self.publish_one(self._random.choice(BATCH_ROWS))
            self.enough.wait(self._pace_s)

    def publish_one(self, count: int) -> list[RowRange]:
        expect, first = self.position, self.position or 0
        ranges = self._commit(expect, first, count)
        assert sum(rows.next - rows.first for rows in ranges) == count
        self._note(ranges, first)
        self.position, self._last = first + count, (expect, first, count)
        self.positions.append(self.position)
        return ranges

    def repeat_last(self) -> list[RowRange]:
        """The same commit once more, as a publisher does that did not hear the answer."""
        return self._commit(*self._last)

    def _commit(self, expect: int | None, first: int, count: int) -> list[RowRange]:
        table = self._rows(first, count)
        return self._until_taken(
            lambda: self._channel.publish(
                self.topic, table, key=self.topic, expect=expect, next=first + count, acks=self._acks
            )
        )

    def _rows(self, first: int, count: int) -> pa.Table:
        return rows_of(first, count)


class SelectedPublisher(KeyedPublisher):
    """Rows of a selective topic, acknowledged by a keeper; all rows of a commit have one country."""

    def __init__(self, channel: Channel, seed: int = 0, pace_s: float = PACE_S) -> None:
        super().__init__(SELECTED_TOPIC, channel, seed, acks=1, pace_s=pace_s)

    def _rows(self, first: int, count: int) -> pa.Table:
        return rows_of(first, count).append_column("country", pa.array([country_of(first)] * count))

    def wanted(self, country: str) -> list[int]:
        """The numbers of all acknowledged rows with this country, in the order of publishing."""
        said = [each for each in self.acknowledged if country_of(each.number) == country]
        return [each.number + row for each in said for row in range(each.next - each.first)]


def country_of(first: int) -> str:
    """The country of the commit that begins with this row."""
    return COUNTRIES[(first // 7) % len(COUNTRIES)]


class UnkeyedPublisher(Publisher):
    """Writes ahead and hears cumulative acknowledgements, as any Flight client may; after a break it goes on behind the
    last of them. So every acknowledged row was acknowledged once, and some rows may be there twice."""

    def _publish(self) -> None:
        first, broke_at = 0, time.monotonic()
        while not self.enough.is_set():
            call = _Call(self._channel.nodes[0], self.topic, first, self._note, self._random, self._pace_s)
            first = call.run(self.enough)
            if call.broken is not None:
                if call.acknowledged:
                    broke_at = time.monotonic()
                if time.monotonic() > broke_at + self.give_up_s:
                    raise call.broken
                self.repeats += 1
                time.sleep(AGAIN_S)


class _Call:
    """One DoPut: a thread writes, another one listens."""

    ahead_max = 20
    """Batches that are written before the first of them is acknowledged."""

    def __init__(
        self,
        node: str,
        topic: str,
        first: int,
        note: Callable[[list[RowRange], int], None],
        rng: random.Random,
        pace_s: float,
    ) -> None:
        self.acknowledged = 0
        self.broken: BaseException | None = None
        self._first = first
        self._note = note
        self._random = rng
        self._pace_s = pace_s
        self._client = flight.FlightClient(f"grpc://{node}")
        self._descriptor = flight.FlightDescriptor.for_path(topic)
        self._came = threading.Condition()

    def run(self, enough: threading.Event) -> int:
        """Publish until there is enough or it breaks; returns the first row that was not acknowledged."""
        written: deque[int] = deque([0])
        listener: threading.Thread | None = None
        with self._client:
            try:
                writer, acks = self._client.do_put(self._descriptor, rows_of(0, 1).schema)
                with writer:
                    listener = threading.Thread(target=self._listen, args=(acks,), daemon=True)
                    listener.start()
                    while not enough.is_set() and self.broken is None:
                        count = self._random.choice(BATCH_ROWS)
                        writer.write_table(rows_of(self._first + written[-1], count))
                        written.append(written[-1] + count)
                        with self._came:
                            self._came.wait_for(lambda: self._is_near(written), GIVE_UP_S)
                        enough.wait(self._pace_s)
                    writer.done_writing()
                    listener.join(GIVE_UP_S)
            except (pa.ArrowException, OSError) as error:
                self.broken = error
            if listener is not None:
                listener.join(GIVE_UP_S)
        return self._first + self.acknowledged

    def _is_near(self, written: deque[int]) -> bool:
        while written[0] < self.acknowledged:
            written.popleft()
        return len(written) <= self.ahead_max or self.broken is not None

    def _listen(self, acks: Any) -> None:
        try:
            while (said := acks.read()) is not None:
                ack = json.loads(said.to_pybytes())
                if "error" in ack:
                    raise pa.ArrowException(str(ack["error"]))
                self._note([RowRange(**rows) for rows in ack["ranges"]], self._first + self.acknowledged)
                with self._came:
                    self.acknowledged = ack["rows"]
                    self._came.notify_all()
        except BaseException as error:
            with self._came:
                self.broken = error
                self._came.notify_all()


def _may_repeat(error: M4castError) -> bool:
    if isinstance(error, RefusedError):
        return error.code in ("not-ready", "busy", "stopping", "leaving", "store", "timeout", "flight")
    return isinstance(error, UnreachableError)


@contextmanager
def publishing(*publishers: Publisher) -> Iterator[None]:
    """While they publish. They end by themselves afterwards, and have not failed."""
    for publisher in publishers:
        publisher.start()
    try:
        yield
    finally:
        for publisher in publishers:
            publisher.enough.set()
        for publisher in publishers:
            publisher.join(2 * GIVE_UP_S)
    for publisher in publishers:
        assert not publisher.is_alive(), f"{publisher.topic} does not end"
        if publisher.error is not None:
            raise publisher.error
