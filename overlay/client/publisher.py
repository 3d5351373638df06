"""A publisher of single rows: they are batched in transit and acknowledged one by one.

    with channel.publisher("orders") as publisher:
        for order in orders:
            publisher.send({"id": order.id, "price": order.price})

One DoPut call lasts as long as the publisher. A row is sent at once if the previous record batch was sent `linger_ms`
ago and is acknowledged. Otherwise it waits for that, at most twice `linger_ms`, and is sent in one record batch with
the rows that arrive meanwhile. A message per row would cost its sender and every node more than everything else
together. A busy channel answers later, and so gets fewer and larger batches. (The node coalesces rows as well, but rows
that wait there wait in addition.)

Acknowledgements are counted by row: of `sent` rows the first `acked` are safe. Delivery is at-least-once: after an
error, rows beyond `acked` may be published or not; send them again with another publisher. `flush` and `close` return
when all rows are acknowledged, or fail. Whatever ends the publisher's threads is its failure, which every later call
raises. Its node is the first of the channel's that answers when the first row is sent, and stays the same.

The columns are those of `schema`, or of the rows that are sent first. A row that does not fit them ends the publisher.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import as_client_error, connection
from m4cast.overlay.client.doors import PATIENCE_S, Doors
from m4cast.overlay.client.put_call import nothing_published, unacknowledged
from m4cast.overlay.client.tables import batch_of, table_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, RemoteProtocolError

BATCH_ROWS = 1_000
"""Rows of one record batch. Higher: less work per row, but later. Guess."""
WINDOW_ROWS = 100_000
"""Rows that are sent and not acknowledged; beyond it `send` waits. Higher: more memory. Guess."""


class Publisher:
    """Made by `Channel.publisher`. One thread may send; any may read `sent` and `acked`."""

    def __init__(self, doors: Doors, topic: str, acks: int | None, linger_s: float, schema: pa.Schema | None) -> None:
        self._doors = doors
        self._command = json.dumps({"topic": topic, "acks": acks, "timeout_ms": int(doors.timeout_s * 1000)}).encode()
        self._linger_s = linger_s
        self._schema = schema
        self._changed = threading.Condition()
        self._rows: list[Mapping[str, object]] = []
        self._closing = False
        self._failure: M4castError | None = None
        self._acks: threading.Thread | None = None
        self._node = doors.nodes[0]
        """Its access point: the first node that answers, once it is chosen."""
        self._is_over = False
        """The node has ended the call."""
        self._written = 0
        """Rows that were sent to the access point."""
        self._written_s = float("-inf")
        """The time at which the last of them was sent, on the monotonic clock, which may have started a moment ago."""
        self._hurry = 0
        """This many rows, from the first on, are sent without waiting."""
        self.sent = 0
        """Rows that `send` has accepted."""
        self.acked = 0
        """Number of these, from the first on, that are on disk at the access point and at `acks` more nodes."""
        self._thread = threading.Thread(target=self._run, name="m4cast-publisher", daemon=True)
        self._thread.start()

    def send(self, row: Mapping[str, object]) -> int:
        """Returns the row's number, from 1: it is safe once `acked` reaches it. Waits while too many are in flight."""
        with self._changed:
            if self.sent - self.acked >= WINDOW_ROWS:
                self._wait(lambda: self.sent - self.acked < WINDOW_ROWS, self._doors.timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise LocalProtocolError("this publisher is closed: open another one")
            self._rows.append(row)
            self.sent += 1
            if len(self._rows) in (1, BATCH_ROWS):
                self._changed.notify_all()
            return self.sent

    def flush(self, timeout_s: float | None = None) -> int:
        """Send the rows that wait, and return once all rows are acknowledged, with their number."""
        with self._changed:
            wanted = self._hurry = self.sent
            self._changed.notify_all()
            self._wait(lambda: self.acked >= wanted, self._doors.timeout_s if timeout_s is None else timeout_s)
            return self.acked

    def close(self) -> None:
        """Send the remaining rows and wait for their acknowledgement. Raises an error since the last call.

        It waits while rows are being acknowledged, then for the channel's time-out, and a little longer for the node to
        report what is wrong. A call to a node that hangs cannot be ended from here: it is left to its threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        limit_s = self._doors.timeout_s + PATIENCE_S
        acked = -1
        while self._thread.is_alive() and self.acked > acked:
            acked = self.acked
            self._thread.join(limit_s)
        if self._thread.is_alive() and self.acked != self.sent:
            self._fail(self._late(limit_s))
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except M4castError:
            if error is None:
                raise

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        if not self._changed.wait_for(lambda: self._failure is not None or condition(), timeout_s):
            raise self._late(timeout_s)
        if self._failure is not None and not condition():
            raise self._failure

    def _late(self, timeout_s: float) -> RefusedError:
        detail = (
            f"{self.sent - self.acked} rows are not acknowledged after {timeout_s:g} s; they may still be published"
        )
        return RefusedError("timeout", detail)

    # ---- its threads

    def _run(self) -> None:
        writer: Any = None
        try:
            while (rows := self._take()) is not None:
                batch = self._batch(rows)
                if writer is None:
                    writer = self._open(batch.schema)
                writer.write_batch(batch)
        except Exception as error:  # of any kind: nobody else would report it
            self._fail(error)
        if writer is not None:
            self._end(writer)
        with self._changed:
            if self.acked != self.sent or not self._closing:
                self._fail(unacknowledged(self.acked, self.sent))

    def _end(self, writer: Any) -> None:
        """End the call in order, so that what was written stays and the node reports how the call ended."""
        assert self._acks is not None
        try:
            writer.done_writing()
            self._acks.join()  # before `close`, which would deadlock with it
            writer.close()
        except Exception as error:
            self._fail(error)

    def _take(self) -> list[Mapping[str, object]] | None:
        """The rows that have gathered; None if there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._closing or self._has_ended())
            if self._rows:
                self._wait_until_due()
            if self._has_ended() or not self._rows:
                return None
            rows, self._rows = self._rows[:BATCH_ROWS], self._rows[BATCH_ROWS:]
            self._written += len(rows)
            self._written_s = time.monotonic()
            return rows

    def _has_ended(self) -> bool:
        return self._is_over or self._failure is not None

    def _wait_until_due(self) -> None:
        """Wait until the gathered rows may be sent; more may arrive meanwhile."""

        def is_urgent() -> bool:
            hurries = self._written < self._hurry or self._closing
            return hurries or len(self._rows) >= BATCH_ROWS or self._has_ended()

        due_s = self._written_s + self._linger_s - time.monotonic()
        if due_s > 0:
            self._changed.wait_for(is_urgent, due_s)
        self._changed.wait_for(lambda: self.acked == self._written or is_urgent(), self._linger_s)

    def _batch(self, rows: list[Mapping[str, object]]) -> pa.RecordBatch:
        if self._schema is None:
            self._schema = table_of(rows).schema
        return batch_of(rows, self._schema)

    def _open(self, schema: pa.Schema) -> Any:
        self._node = self._doors.first_reached()
        client = connection(self._node, self._doors.credentials)
        writer, acks = client.do_put(flight.FlightDescriptor.for_command(self._command), schema, self._doors.endless())
        self._acks = threading.Thread(target=self._listen, args=(acks,), name="m4cast-acks", daemon=True)
        self._acks.start()
        return writer

    def _listen(self, acks: Any) -> None:
        try:
            while (written := acks.read()) is not None:
                ack = json.loads(written.to_pybytes())
                if "error" in ack:
                    self._fail(RefusedError(ack["error"]["code"], ack["error"]["detail"]))
                    return
                with self._changed:
                    self.acked = ack["rows"]
                    self._changed.notify_all()
        except pa.ArrowException as error:
            self._fail(error)
        except Exception as error:
            self._fail(RemoteProtocolError(f"{self._node} sent an invalid acknowledgement: {error!r}"))
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """Record the first failure."""
        if isinstance(error, pa.ArrowException):
            error = as_client_error(self._node, error)
        elif not isinstance(error, M4castError):
            error = LocalProtocolError(f"a row cannot be published: {error!r}")
        error = nothing_published(error)
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
