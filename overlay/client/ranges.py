"""Reading a range in pieces: a `RangeReader` is iterated and never holds more than one record batch.

When its node is lost or lacks rows, it continues at another node from where it is, until all rows are read. Rows that
have not arrived yet are waited for; rows that no node retains are refused (`missing`) at once. The time that its user
takes between two batches does not count against any time-out.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import answering_first, as_client_error, connection, greet, note_silence
from m4cast.overlay.client.doors import PATIENCE_S
from m4cast.overlay.client.roaming.wanted import ProfileRows
from m4cast.overlay.client.tail import Frontier, RowFilter, filter_fields, is_certificate, ticket_of
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.overlay.refusals import READ_ELSEWHERE

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

RETRY_S = 0.2
"""The pause before the nodes are asked again when none has the rows; guess."""
TURN_MS = 2_000
"""The time to wait for a lagging node while there are others to ask; guess."""
CALL_S = 120.0
"""The time for which one call transfers rows; the next one continues from there. It limits the wait for a node that
hangs during a transfer. Guess."""


Form = Literal["rows", "batches", "raw"]
_FORMS: dict[Form, dict[str, str]] = {"rows": {}, "batches": {"metadata": "batches"}, "raw": {"read": "raw"}}


class RangeReader(Iterator[pa.RecordBatch]):
    """Record batches of a range; see `Channel.read_batches`."""

    def __init__(
        self,
        channel: "Channel",
        topics: str | Sequence[str],
        start: Frontier,
        end: Frontier,
        on_missing: Literal["fail", "skip"],
        form: Form = "rows",
        *,
        row_filter: RowFilter | ProfileRows | None = None,
    ) -> None:
        self._channel = channel
        self._topics = topics
        self._end = end
        self._on_missing: Literal["fail", "skip"] = on_missing
        self._form = form
        self._filter = row_filter
        self._reader: Any = None
        self._nodes = answering_first(channel.nodes)
        self._node = 0
        self._refusals: dict[str, M4castError] = {}
        self._has_rows = False
        """This call has returned a record batch."""
        self._asked_at = time.monotonic()
        self.frontier: Frontier = {topic: dict(origins) for topic, origins in start.items()}
        """Its position: the next sequence of each stream."""
        self.tested = 0
        """Rows that nodes have tested for this reader; 0 without a filter."""
        self.where: Mapping[str, Any] = {}
        """The metadata that its node reported with the last record batch: `topic origin next`, and, unless rows have
        these as columns, `published_at_ms delivered_at_ms hops node_id channel`; with a filter `profile tested`,
        too."""

    def __next__(self) -> pa.RecordBatch:
        self._asked_at = time.monotonic()
        while True:
            try:
                chunk = (self._reader or self._open()).read_chunk()
            except StopIteration:
                self._reader = None
                raise
            except pa.ArrowException as error:
                self._reader = None
                self._look_elsewhere(as_client_error(self._nodes[self._node], error))
                continue
            self._has_rows = True
            self._refusals.clear()
            where = self.where = json.loads(chunk.app_metadata.to_pybytes())
            self.frontier.setdefault(where["topic"], {})[where["origin"]] = where["next"]
            self.tested += where.get("tested", 0)
            if is_certificate(chunk.data, where):
                self._asked_at = time.monotonic()
                continue
            return chunk.data

    def close(self) -> None:
        """Cancel the call."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()

    def _open(self) -> Any:
        wait_ms = int(self._channel.timeout_s * 1000)
        if len(self._nodes) > 1:
            wait_ms = min(wait_ms, TURN_MS)
        ticket = ticket_of(self._topics, self.frontier, self._end, self._on_missing, timeout_ms=wait_ms)
        ticket |= {"compression": self._channel.compression, **_FORMS[self._form]}
        if isinstance(self._filter, ProfileRows):
            del ticket["topics"]  # its profiles name them
            ticket |= self._filter.fields()
        else:
            ticket |= filter_fields(self._filter)
        options = flight.FlightCallOptions(timeout=wait_ms / 1000 + PATIENCE_S + CALL_S)
        asked = flight.Ticket(json.dumps(ticket).encode())
        node = connection(self._nodes[self._node], self._channel.credentials)
        self._has_rows = False
        greet(node, self._channel.timeout_s / len(self._nodes))
        reader = self._reader = node.do_get(asked, options)
        return reader

    def _look_elsewhere(self, error: M4castError) -> None:
        """Try the next node. Give up when no node retains the rows, or when the time is over."""
        nodes = self._nodes
        if isinstance(error, RefusedError) and error.code == "timeout":
            if self._has_rows:
                return  # the call has used its CALL_S, and its node is well: the next one continues
            note_silence(nodes[self._node])
        elif isinstance(error, RefusedError) and error.code not in READ_ELSEWHERE:
            raise error
        self._refusals[nodes[self._node]] = error
        self._node = (self._node + 1) % len(nodes)
        if len(self._refusals) < len(nodes):
            return
        refusals = list(self._refusals.values())
        missing = [each for each in refusals if isinstance(each, RefusedError) and each.code == "missing"]
        if len(missing) == len(nodes):
            raise missing[0]
        if time.monotonic() - self._asked_at > self._channel.timeout_s:
            waiting = [each for each in refusals if isinstance(each, RefusedError) and each.code != "missing"]
            if waiting:
                raise waiting[0]
            raise UnreachableError("; ".join(str(each) for each in refusals))
        time.sleep(RETRY_S)
