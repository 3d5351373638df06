"""A publisher of single rows: they are packed on the way and acknowledged one by one.

    with channel.publisher("orders") as publisher:
        for order in orders:
            publisher.send({"id": order.id, "price": order.price})

One DoPut lasts as long as the publisher. A row goes at once when the batch before it went `linger_ms` ago and is
acknowledged. Else it waits for that, twice `linger_ms` at most, and travels in one record batch with those that came
meanwhile: a message for each row would cost its sender and every node more than all else that is done with it, and a
channel that has much to do answers later, so that it gets fewer and larger batches. (The node paces what comes too fast
as well, but rows that wait there wait in addition.) Acknowledgements are counted by row: of `sent` rows the first
`acked` are safe. It is at-least-once: after an error, rows beyond `acked` may be published or not; send them again with
another publisher. `flush` and `close` return when all are, and else fail; whatever ends its threads is its failure,
which each call tells from then on. Its node is the first of the channel's that answers when the first row goes, and
stays the same.

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
"""Rows of one record batch. Higher: later, for less work each. Guess."""
WINDOW_ROWS = 100_000
"""Rows that are sent and not acknowledged; beyond it `send` waits. Memory. Guess."""


class Publisher:
    """Made by `Channel.publisher`. One thread may send; any may look."""

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
        """Its access point; the first that answers, once it has been chosen."""
        self._is_over = False
        """The node has said its last word."""
        self._written = 0
        """Rows that went to the access point."""
        self._written_s = float("-inf")
        """When the last of them went, on the monotonic clock, which may have begun a moment ago."""
        self._hurry = 0
        """The first so many rows wait for nothing any more."""
        self.sent = 0
        """Rows that were given to it."""
        self.acked = 0
        """Of these, the first so many are on disk at the access point, and at as many more nodes as was asked for."""
        self._thread = threading.Thread(target=self._run, name="m4cast-publisher", daemon=True)
        self._thread.start()

    def send(self, row: Mapping[str, object]) -> int:
        """Its number, from 1: it is safe when `acked` is there. Waits while too many are under way."""
        with self._changed:
            if self.sent - self.acked >= WINDOW_ROWS:
                self._wait(lambda: self.sent - self.acked < WINDOW_ROWS, self._doors.timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise LocalProtocolError("this publisher is closed: make another one")
            self._rows.append(row)
            self.sent += 1
            if len(self._rows) in (1, BATCH_ROWS):
                self._changed.notify_all()
            return self.sent

    def flush(self, timeout_s: float | None = None) -> int:
        """Send what waits, and wait until all that was sent is acknowledged; how many rows that are."""
        with self._changed:
            wanted = self._hurry = self.sent
            self._changed.notify_all()
            self._wait(lambda: self.acked >= wanted, self._doors.timeout_s if timeout_s is None else timeout_s)
            return self.acked

    def close(self) -> None:
        """Send what is left and wait for its acknowledgement; an error since the last call is raised here.

        It waits as long as rows are acknowledged, and for the channel's time-out after the last of them, and a little
        longer for the node to say what is wrong. A call to a node that hangs cannot be ended from here: it is left to
        its threads."""
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
        detail = f"{self.sent - self.acked} rows are not acknowledged after {timeout_s:g} s; they may be yet"
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
        except Exception as error:  # of any kind: nobody else would hear of it
            self._fail(error)
        if writer is not None:
            self._end(writer)
        with self._changed:
            if self.acked != self.sent or not self._closing:
                self._fail(unacknowledged(self.acked, self.sent))

    def _end(self, writer: Any) -> None:
        """What was written stays, whatever came after it: the call ends in order, and says how."""
        assert self._acks is not None
        try:
            writer.done_writing()
            self._acks.join()  # before the close, which would wait for it and be waited for
            writer.close()
        except Exception as error:
            self._fail(error)

    def _take(self) -> list[Mapping[str, object]] | None:
        """What has gathered; None when no more will come."""
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
        """Until the rows that are there may go; more may come meanwhile."""

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
            self._fail(RemoteProtocolError(f"{self._node} sent an acknowledgement that makes no sense: {error!r}"))
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """The first one is told."""
        if isinstance(error, pa.ArrowException):
            error = as_client_error(self._node, error)
        elif not isinstance(error, M4castError):
            error = LocalProtocolError(f"a row cannot be published: {error!r}")
        error = nothing_published(error)
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
