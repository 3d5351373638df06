"""The state that must survive a crash: rows of the store, written before anything that depends on them leaves.

    place                  the node's place in the hierarchy
    link/ADDRESS           gatekeepers that this one links to
    want/NAME, client/NAME what is wanted, and clients that roam
    event/ID, body/ID      a batch with something left to do for it, and the batch itself
    export/STREAM          how far an own stream was handed to the federation
    import/STREAM/FIRST    a batch that was delivered here and is not in the log yet
    final/STREAM           a stream that must not be passed on, and the channel that said so

A batch has a row only while it is needed, and is written once, however often what is left to do for it changes.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.federation.contract import KeepValue, KeptClient, KeptEvent, KeptKey, KeptPlace, KeptValue
from m4cast.overlay.federation.messages import EventId, UnitWant
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.wire.frames import (
    batch_bytes,
    batch_in,
    body_in,
    client_in,
    event_in,
    place_in,
    stored_body,
    stored_client,
    stored_event,
    stored_place,
    stored_want,
    want_in,
)
from m4cast.overlay.net.gateways.wire.messages import StreamHead
from m4cast.overlay.protocol.wire.batch import Batch

PLACE, LINK, WANT, EVENT, BODY = b"place", b"link/", b"want/", b"event/", b"body/"
EXPORT, IMPORT, CLIENT, FINAL = b"export/", b"import/", b"client/", b"final/"
_ID = struct.Struct(">QQQ")
_NUMBER = struct.Struct(">Q")
CACHED_BYTES_MAX = 32 << 20
"""Batches on their way that are also in memory. Raising it costs memory; lowering it reads them from the disk."""

Rows = dict[bytes, bytes | None]


class RowStore(Protocol):
    def put(self, rows: Mapping[bytes, bytes | None]) -> Any: ...
    def get(self, key: bytes) -> bytes | None: ...
    def all(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]: ...


def _event_key(event: EventId) -> bytes:
    return event.publisher + _ID.pack(event.incarnation, event.time_ms, event.sequence)


def stream_row(stream: StreamId) -> bytes:
    return stream.origin + stream.topic.encode()


def stream_of_row(key: bytes) -> StreamId:
    return StreamId(NodeId(key[:16]), key[16:].decode())


class KeptRows:
    """`write` collects rows for the next commit; `bodies` are batches by event."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self.rows: Rows = {}
        """Rows that are to be written."""
        self._bodies: dict[EventId, tuple[Batch | StreamHead, int]] = {}
        self._on_disk: dict[EventId, None] = {}
        self._cached_bytes = 0
        self._came: list[EventId] = []
        self._finals: dict[StreamId, str] = {}

    # ---- at the start

    def recovered(self) -> dict[KeptKey, KeptValue]:
        kept: dict[KeptKey, KeptValue] = {}
        place = self._store.get(PLACE)
        if place is not None:
            kept["place", None] = place_in(place)
        for key, content in self._store.all(WANT):
            kept["want", key[len(WANT) :].decode()] = want_in(content)
        for key, content in self._store.all(CLIENT):
            kept["client", key[len(CLIENT) :].decode()] = client_in(content)
        for key, content in self._store.all(FINAL):
            self._finals[stream_of_row(key[len(FINAL) :])] = content.decode()
        for _, content in self._store.all(EVENT):
            event, value = event_in(content)
            kept["event", event] = value
            if value.event is not None:
                self._on_disk[event] = None
        return kept

    def links(self) -> list[str]:
        return [key[len(LINK) :].decode() for key, _ in self._store.all(LINK)]

    def exported(self) -> dict[StreamId, int]:
        return {
            stream_of_row(key[len(EXPORT) :]): _NUMBER.unpack(content)[0] for key, content in self._store.all(EXPORT)
        }

    def imported(self) -> Iterator[Batch]:
        """Batches that were delivered here, by stream and place."""
        return (batch_in(content) for _, content in self._store.all(IMPORT))

    # ---- rows to write

    def keep(self, output: KeepValue) -> None:
        kind, name = output.key
        value: Any = output.value
        match kind:
            case "place":
                assert isinstance(value, KeptPlace)
                self.rows[PLACE] = stored_place(value)
            case "want":
                assert value is None or isinstance(value, UnitWant)
                self.rows[WANT + str(name).encode()] = None if value is None else stored_want(value)
            case "client":
                assert value is None or isinstance(value, KeptClient)
                self.rows[CLIENT + str(name).encode()] = None if value is None else stored_client(value)
            case _:
                assert isinstance(name, EventId)
                self._keep_event(name, value)

    def _keep_event(self, event: EventId, kept: KeptEvent | None) -> None:
        key = _event_key(event)
        self.rows[EVENT + key] = None if kept is None else stored_event(event, kept)
        is_open = kept is not None and kept.event is not None
        if is_open and event not in self._on_disk and event in self._bodies:
            self._on_disk[event] = None
            self.rows[BODY + key] = stored_body(self._bodies[event][0])
        elif not is_open and event in self._on_disk:
            del self._on_disk[event]
            self.rows[BODY + key] = None
            self._came.append(event)  # its batch may be forgotten when the outputs that wait are performed

    def keep_link(self, address: str, *, is_wanted: bool) -> None:
        self.rows[LINK + address.encode()] = b"" if is_wanted else None

    def keep_export(self, stream: StreamId, next_sequence: int) -> None:
        self.rows[EXPORT + stream_row(stream)] = _NUMBER.pack(next_sequence)

    def keep_import(self, batch: Batch) -> None:
        self.rows[_import_key(batch.stream, batch.first_sequence)] = batch_bytes(batch)

    def drop_import(self, stream: StreamId, first: int) -> None:
        self.rows[_import_key(stream, first)] = None

    def note_final(self, stream: StreamId, channel: str, *, is_final: bool) -> None:
        """A channel sent something of a stream, and said whether it may be passed on. It alone takes its ban back."""
        if is_final and self._finals.get(stream) != channel:
            self._finals[stream] = channel
            self.rows[FINAL + stream_row(stream)] = channel.encode()
        elif not is_final and self._finals.get(stream) == channel:
            del self._finals[stream]
            self.rows[FINAL + stream_row(stream)] = None

    def is_final(self, stream: StreamId) -> bool:
        """True if the stream must not be passed on to other channels."""
        return stream in self._finals

    def put(self, rows: Rows) -> Any:
        """Write rows in one transaction; the answer is a future."""
        return self._store.put(rows)

    def take(self) -> Rows:
        rows, self.rows = self.rows, {}
        return rows

    # ---- batches

    def add_body(self, event: EventId, body: Batch | StreamHead, hops: int) -> None:
        if event not in self._bodies:
            self._bodies[event] = (body, hops)
            self._cached_bytes += _size(body)
        self._came.append(event)

    def body(self, event: EventId) -> tuple[Batch | StreamHead, int] | None:
        """The batch of an event that is under way, and how many gateways it has crossed."""
        found = self._bodies.get(event)
        if found is not None:
            return found
        content = self.rows.get(BODY + _event_key(event)) or self._store.get(BODY + _event_key(event))
        if content is None:
            return None
        try:
            return body_in(content), 1
        except RemoteProtocolError:  # damaged on disk: whoever misses it finds it elsewhere
            return None

    def performed(self) -> list[EventId]:
        """The events whose batches came since the last call: their outputs are about to be performed."""
        came, self._came = self._came, []
        return came

    def let_go(self, performed: list[EventId]) -> None:
        """Forget batches of which nothing is left to do, and those that are on disk beyond what memory may have."""
        for event in performed:
            if event not in self._on_disk and event in self._bodies:
                self._drop(event)
        for event in [event for event in self._bodies if event in self._on_disk]:
            if self._cached_bytes <= CACHED_BYTES_MAX:
                break
            self._drop(event)

    def _drop(self, event: EventId) -> None:
        body, _ = self._bodies.pop(event)
        self._cached_bytes -= _size(body)


def _import_key(stream: StreamId, first: int) -> bytes:
    return IMPORT + stream_row(stream) + b"/" + _NUMBER.pack(first)


def _size(body: Batch | StreamHead) -> int:
    return 64 if isinstance(body, StreamHead) else len(body.content)
