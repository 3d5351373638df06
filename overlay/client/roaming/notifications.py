"""A client's notifications: rows that match its profiles, from its position on, each handed out once.

First the fills, then the main line (`protocol/clients/memory`). A call reads one of them at the access point; when that
is lost, the client attaches itself elsewhere and the next call continues from what was handed out.

Rows that the access point does not retain are looked for at other nodes. What no node retains is dropped, and told. As
long as one of the nodes does not answer, nothing is dropped: it may be the one that held the rows back.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.asking.query import ASKED_AT_ONCE
from m4cast.overlay.client.connections import as_client_error, connection
from m4cast.overlay.client.roaming.wanted import ProfileRows
from m4cast.overlay.client.tail import RETRY_S
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.protocol.clients.memory import ClientRead, DropReason
from m4cast.overlay.protocol.clients.state import ClientState, Frontier
from m4cast.overlay.refusals import READ_ELSEWHERE

if TYPE_CHECKING:
    from m4cast.overlay.client.roaming.client import Client

log = logging.getLogger("m4cast.client")

SAVE_S = 1.0
"""The interval at which the position is saved at the access point. Lower: less is handed out again after a crash, more
writes."""


@dataclass(slots=True)
class OpenRead:
    """A call in progress."""

    read: ClientRead
    reader: Any
    node: str


class HandedRows(NamedTuple):
    """The last record batch, and the client's state before it was handed out."""

    before: ClientState
    read: ClientRead
    topic: str
    origin: str
    rows: pa.RecordBatch


class Notifications(Iterator[pa.RecordBatch]):
    """Made by `Client.notifications`. One at a time for each client. A `with` statement closes it at the end; after an
    error, what was not acknowledged is handed out again."""

    def __init__(self, client: "Client", idle_s: float | None, *, mail: bool = False) -> None:
        """`mail`: the client's mail, and nothing else, which is acknowledged by whoever reads it."""
        self._client = client
        self._mail = mail
        self._idle_s = idle_s
        self._open: OpenRead | None = None
        self._saved_at = time.monotonic()
        self._is_saved = True
        self._asked_at = time.monotonic()
        self._has_answer = False
        """This call has returned a record batch."""
        self._stopped = threading.Event()
        self._handed: HandedRows | None = None

    def __next__(self) -> pa.RecordBatch:
        self._acknowledge()
        self._asked_at = time.monotonic()
        while not self._stopped.is_set() and (self._idle_s is None or time.monotonic() - self._asked_at < self._idle_s):
            self._save_if_due()
            try:
                current = self._open = self._open or self._call()
                chunk = current.reader.read_chunk()
            except StopIteration:
                self._open = None  # the end of a fill, a pause, or wider rows follow
                continue
            except pa.ArrowException as error:
                self._open = None
                if self._stopped.is_set():
                    break
                self._recover(as_client_error(self._client.node or "the access point", error))
                continue
            self._has_answer = True
            where = json.loads(chunk.app_metadata.to_pybytes())
            before = self._client.memory.ahead
            self._client.memory.hand(current.read, where["topic"], where["origin"], where["next"])
            self._is_saved = False
            rows = self._without_own(where, chunk.data)
            if rows.num_rows:
                self._handed = HandedRows(before, current.read, where["topic"], where["origin"], rows)
                return rows
        self._acknowledge()  # it has nothing in hand that came since
        self.close()
        raise StopIteration

    def _acknowledge(self) -> None:
        """The application is done with what it has, since it asks for more."""
        if not self._client.is_manual and not self._mail:
            self._client._acknowledge_rows()

    def take(self, count: int) -> None:
        """Take only the first `count` rows, at least one, of the last record batch: the others are handed out again."""
        assert self._handed is not None and count > 0
        before, read, topic, origin, rows = self._handed
        if count < rows.num_rows:
            self._cancel()
            self._client.memory.ahead = before
            self._client.memory.hand(read, topic, origin, rows.column("_sequence")[count].as_py())

    def wait_for(self, idle_s: float | None) -> None:
        """Change, from another thread, how long it waits; a wait in progress may take some seconds longer."""
        self._asked_at, self._idle_s = time.monotonic(), idle_s

    def stop(self) -> None:
        """End it from another thread: whoever waits for the next rows gets StopIteration."""
        self._stopped.set()
        current = self._open
        if current is not None:
            current.reader.cancel()

    def close(self) -> None:
        """End the call, and save what was acknowledged."""
        self._cancel()
        if not self._is_saved and self._client.node is not None:
            self._save()

    def __enter__(self) -> "Notifications":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self._cancel()
            self._client.memory.rewind()

    def _cancel(self) -> None:
        current, self._open = self._open, None
        if current is not None:
            current.reader.cancel()

    # ---- calling

    def _call(self) -> OpenRead:
        client = self._client
        if client.node is None:
            raise LocalProtocolError(f"client {client.key!r} is not connected: call connect() first")
        read = client.memory.next_read(mail=self._mail)
        if read is None and client.follows:
            client.regroup()  # another member may have subscribed
            read = client.memory.next_read(mail=self._mail)
        if read is None:
            raise LocalProtocolError(f"client {client.key!r} has no profiles: subscribe to something first")
        return self._read_at(client.node, read, attached=True)

    def _read_at(self, node: str, read: ClientRead, *, attached: bool) -> OpenRead:
        client = self._client
        timeout_s = client.channel.timeout_s
        pause_s = min(SAVE_S * 5, timeout_s / 2, self._idle_left_s())
        if read.fill is None:
            wanted = ProfileRows.of(each for each in client.memory.ahead.profiles if each.topic in read.topics)
        else:
            wanted = ProfileRows.of_fill(read.fill)
        ticket: dict[str, Any] = {
            **wanted.fields(),
            "start": read.start,
            "end": read.end,
            "compression": client.channel.compression,
            "timeout_ms": max(int(timeout_s * 500), 1),
        }
        if read.end is None:
            ticket["idle_ms"] = max(int(pause_s * 1000), 1)
        if attached:
            ticket |= {"key": client.key, "connection": client.connection, "version": client.version}
        self._has_answer = False
        options = flight.FlightCallOptions(timeout=timeout_s if read.end is None else timeout_s * 4)
        asked = flight.Ticket(json.dumps(ticket).encode())
        return OpenRead(read, connection(node, client.channel.credentials).do_get(asked, options), node)

    def _idle_left_s(self) -> float:
        return float("inf") if self._idle_s is None else self._asked_at + self._idle_s - time.monotonic()

    def _without_own(self, where: Mapping[str, Any], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without what this client published."""
        client = self._client
        if not client.own or not rows.num_rows:
            return rows
        stream = where["topic"], where["origin"]
        sequences = rows.column("_sequence").to_numpy()
        is_own = np.zeros(rows.num_rows, dtype=bool)
        for each in client.own:
            if (each.topic, each.origin) == stream:
                is_own |= (sequences >= each.first) & (sequences < each.next)
        return rows.filter(pa.array(~is_own))

    # ---- saving

    def _save_if_due(self) -> None:
        if not self._is_saved and time.monotonic() - self._saved_at >= SAVE_S:
            self._acknowledge()
            self._save()

    def _save(self) -> None:
        before = self._client.connection, self._client.version
        self._client._save_acknowledged()
        self._saved_at = time.monotonic()
        self._is_saved = True
        if (self._client.connection, self._client.version) != before:
            # It moved, and the call was at the former access point; or its group shares the streams anew, and what the
            # call still has may be another member's by now.
            self._cancel()

    # ---- what goes wrong

    def _recover(self, error: M4castError) -> None:
        if isinstance(error, RefusedError):
            if error.code == "missing":
                self._detour()
                return
            if error.code == "timeout" and self._has_answer:
                return  # the call has used its time
            if error.code == "client-elsewhere" and self._client.follows:
                pass  # the group is elsewhere
            elif error.code not in ("not-connected", "regrouped", "timeout") and error.code not in READ_ELSEWHERE:
                raise error
            if error.code == "behind":
                time.sleep(RETRY_S)
                return
        self._client.reconnect(error)
        self._asked_at = time.monotonic()  # a lost node does not mean that there are no rows

    def _detour(self) -> None:
        """Rows are lacking at the access point: read them where they are, or pass over them."""
        client = self._client
        read = client.memory.next_read(mail=self._mail)
        assert read is not None and client.node is not None
        if read.fill is not None and read.fill.standing is not None:
            time.sleep(RETRY_S)  # the table was compacted meanwhile: what stands now is read anew
            return
        lows = _lows(client, client.node, read)
        lacking = {
            (topic, origin): (first, low)
            for topic, origins in lows.items()
            for origin, low in origins.items()
            if (first := read.start.get(topic, {}).get(origin, 1)) < low
            and (read.end is None or origin in read.end[topic])
        }
        everywhere, silent = self._lows_everywhere(read)
        for (topic, origin), (first, low) in lacking.items():
            for node, there in everywhere.items():
                if there.get(topic, {}).get(origin, low) <= first:
                    end = low if read.end is None else min(low, read.end[topic][origin])
                    part = ClientRead(read.fill, (topic,), {topic: {origin: first}}, {topic: {origin: end}})
                    self._open = self._read_at(node, part, attached=False)
                    return
        if silent:
            detail = (
                f"client {client.key!r}: {client.node} does not retain rows that it has not got, and these nodes do "
                f"not answer: {'; '.join(silent)}. Continue when they are back, or give the rows up with drop()"
            )
            raise UnreachableError(detail)
        self._drop(everywhere, "not-retained")

    def drop(self) -> None:
        """Pass over what no node that answers retains. The client is told how many rows that are, at most."""
        read = self._client.memory.next_read(mail=self._mail)
        if read is not None:
            everywhere, silent = self._lows_everywhere(read)
            self._drop(everywhere, "given-up" if silent else "not-retained")

    def _lows_everywhere(self, read: ClientRead) -> tuple[dict[str, Frontier], list[str]]:
        """Return the lowest retained positions by node, and the nodes that do not answer."""
        client = self._client
        found: dict[str, Frontier] = {}
        silent: list[str] = []
        known = client.channel.topology()["nodes"]  # with those that have failed: they may have held rows back
        doors = sorted(node["door"] for node in known if node["door"] and not node["leaving"])
        nodes = dict.fromkeys((*client.channel.nodes, *doors))
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            asked = {node: pool.submit(_lows, client, node, read) for node in nodes}
        for node, answer in asked.items():
            try:
                found[node] = answer.result()
            except (UnreachableError, RefusedError) as error:
                silent.append(f"{node} ({error})")
        return found, silent

    def _drop(self, everywhere: dict[str, Frontier], reason: DropReason) -> None:
        client = self._client
        least: Frontier = {}
        for lows in everywhere.values():
            for topic, origins in lows.items():
                known = least.setdefault(topic, {})
                for origin, low in origins.items():
                    known[origin] = min(low, known.get(origin, low))
        dropped = client.memory.drop(least, reason)
        if dropped:
            client.dropped.extend(dropped)
            rows = sum(each.rows_max for each in dropped)
            why = "no node retains them any longer" if reason == "not-retained" else "they were given up"
            log.warning("client %s: at most %d rows were dropped: %s", client.key, rows, why)
            self._is_saved = False
            if client.on_dropped is not None:
                client.on_dropped(dropped)


def _lows(client: "Client", node: str, read: ClientRead) -> Frontier:
    """The first rows that a node retains: of selective topics, too, whoever wanted it there."""
    found = client.channel.at(node).extents(list(read.topics), stored=True)
    return {topic: {origin: low for origin, (low, _) in origins.items()} for topic, origins in found.items()}
