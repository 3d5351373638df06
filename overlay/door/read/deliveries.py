"""The data that an audit reads: this node's delivery records, the roster, and what was wanted here, as Arrow
(`schemas/records.py`).

Delivery records are read from the store a few thousand at a time, in the thread of the call. They are numbered without
gaps, so a range of numbers gives the same records each time, as long as they are retained.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import GetDeliveries, GetInterest
from m4cast.overlay.door.rows.payload import checksum_text
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import InterestSpan
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import BatchFacts
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store.store import DeliveryRecord, RosterSpan, Store
from m4cast.schemas.arrow_types import DELIVERIES, INTEREST, ROSTER

Piece = tuple[pa.RecordBatch, bytes]

CHUNK_RECORDS = 4_096
CHUNK_BYTES = 3 << 20
"""Delivery records per message, of the 4 MiB that any client accepts; one record more than it may be."""
RECORD_BYTES = 700
"""A record at most, with the longest names, besides what is covered by a batch's checksum."""
ROSTER_RECORDS = 1_000
"""Roster records per message, where a node has up to 64 neighbours."""

INTEREST_RECORDS = 500
"""Interest records per message: a condition has up to 4 KiB."""


class Deliveries:
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, frontiers: Frontiers, timeout_s: float) -> None:
        self._store = store
        self._node = node
        self._frontiers = frontiers
        self._timeout_s = timeout_s

    def read(self, get: GetDeliveries, is_cancelled: Callable[[], bool]) -> Iterator[Piece]:
        """A request is refused at once. Records are read when they are taken."""
        low, until = self._store.delivery_range()
        start = low if get.start == "earliest" else until if get.start == "latest" else get.start
        end = until if get.end == "latest" else get.end
        if end is not None and not self._wait_for(end, get.timeout_s or self._timeout_s, is_cancelled):
            detail = f"deliveries below {end} were requested, but this node has those below {until}: repeat it later"
            raise Refusal("behind", detail)
        if start < low and not get.skip_missing and (end is None or start < end):
            raise _missing(start, low)
        own = self._node.look(lambda node: node.roster.own, self._timeout_s)
        return self._records(get, start, end, own, is_cancelled)

    def _wait_for(self, end: int, timeout_s: float, is_cancelled: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self._frontiers.news
            if self._store.delivery_range()[1] >= end:
                return True
            if time.monotonic() >= deadline:
                return False
            self._frontiers.wait_for_news(seen, deadline)
            self._frontiers.refuse_ended(is_cancelled)

    def _records(
        self, get: GetDeliveries, at: int, end: int | None, own: RosterEntry, is_cancelled: Callable[[], bool]
    ) -> Iterator[Piece]:
        heard_at = time.monotonic()
        while end is None or at < end:
            seen = self._frontiers.news
            wanted = CHUNK_RECORDS if end is None else min(CHUNK_RECORDS, end - at)
            found = self._store.read_deliveries(at - 1, wanted)
            records = _fitting([record for record in found if end is None or record.number < end])
            if records:
                if records[0].number > at and not get.skip_missing:
                    raise _missing(at, records[0].number)
                at = records[-1].number + 1
                yield _deliveries(records, own), json.dumps({"next": at}).encode()
                heard_at = time.monotonic()
            elif end is not None:  # the rest of the range is no longer retained
                if not get.skip_missing:
                    raise _missing(at, end)
                return
            else:
                deadline = float("inf") if get.idle_s is None else heard_at + get.idle_s
                if time.monotonic() >= deadline:
                    return
                self._frontiers.wait_for_news(seen, deadline)
            self._frontiers.refuse_ended(is_cancelled)

    def roster(self) -> Iterator[Piece]:
        spans = self._store.roster_spans()
        now_ms = self._node.now_ms()

        def look(node: Node) -> tuple[RosterEntry, dict[NodeId, tuple[RosterEntry, int]], set[NodeId]]:
            offset_ms = node.clocks.offset_ms  # the roster uses the node's monotonic time
            words = {
                node_id: (entry, heard_ms + offset_ms)
                for node_id, (entry, heard_ms) in node.roster.last_words().items()
            }
            own = node.roster.own._replace(neighbours=tuple(node.membership.table.neighbours))
            return own, words, {node_id for node_id in words if not node.roster.hears(node_id, now_ms)}

        own, words, silent = self._node.look(look, self._timeout_s)
        rows = [_membership(each, own, words, silent) for each in spans]
        for at in range(0, len(rows), ROSTER_RECORDS):
            yield pa.RecordBatch.from_pylist(rows[at : at + ROSTER_RECORDS], schema=ROSTER), b"{}"

    def interest(self, get: GetInterest, may_see: Callable[[str], bool]) -> Iterator[Piece]:
        """Read what was wanted here, for the topics that the caller may see."""

        def look(node: Node) -> tuple[RosterEntry, list[tuple[int, InterestSpan]]]:
            return node.roster.own, node.interest.history.changed(get.start)

        own, spans = self._node.look(look, self._timeout_s)
        rows = [_interest(number, span, own) for number, span in spans if may_see(span.topic)]
        for at in range(0, len(rows), INTEREST_RECORDS):
            yield pa.RecordBatch.from_pylist(rows[at : at + INTEREST_RECORDS], schema=INTEREST), b"{}"


def _fitting(records: list[DeliveryRecord]) -> list[DeliveryRecord]:
    """The first of these records, as many as one message takes, but at least one."""
    size = 0
    for at, record in enumerate(records):
        facts = record.facts
        size += RECORD_BYTES
        size += 0 if facts is None else 4 * (len(facts.publisher) + len(facts.position)) + len(facts.extensions)
        if size > CHUNK_BYTES and at:
            return records[:at]
    return records


def _deliveries(records: Sequence[DeliveryRecord], own: RosterEntry) -> pa.RecordBatch:
    node_id, count = own.node_id.hex(), len(records)
    each = [record.delivery for record in records]
    is_batch = [record.reason is None for record in records]

    def of_batches(values: Iterator[Any]) -> list[Any]:
        return [value if there else None for value, there in zip(values, is_batch, strict=True)]

    columns = {
        "delivery": [record.number for record in records],
        "node_id": [node_id] * count,
        "node": [own.name] * count,
        "incarnation": [record.incarnation for record in records],
        "origin": [delivery.stream.origin.hex() for delivery in each],
        "topic": [delivery.stream.topic for delivery in each],
        "first_sequence": [delivery.first_sequence for delivery in each],
        "last_sequence": [delivery.last_sequence for delivery in each],
        "kind": ["batch" if there else "skip" for there in is_batch],
        "reason": [None if record.reason is None else _word(record.reason.name) for record in records],
        "published_at": of_batches(delivery.published_at_ms * 1000 for delivery in each),
        "delivered_at": [delivery.received_at_ms * 1000 for delivery in each],
        "hops": of_batches(delivery.hops for delivery in each),
        "from_node": [None if delivery.sender is None else delivery.sender.hex() for delivery in each],
        "how": of_batches(_word(delivery.how.name) for delivery in each),
        "origin_batch": of_batches(record.origin_batch for record in records),
        "row_count": [delivery.last_sequence - delivery.first_sequence + 1 for delivery in each],
        "payload_bytes": of_batches(record.payload_bytes for record in records),
        "checksum": of_batches(checksum_text(record.checksum) for record in records),
        "spread": ["selective" if record.is_selective else None for record in records],
        **_covered([record.facts for record in records]),
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in DELIVERIES], schema=DELIVERIES)


def _covered(facts: Sequence[BatchFacts | None]) -> dict[str, list[object]]:
    """Return the columns of what the checksums of batches cover besides their places and rows."""
    columns: dict[str, Callable[[BatchFacts], object]] = {
        "origin_incarnation": lambda each: each.incarnation,
        "schema_id": lambda each: checksum_text(each.schema_id),
        "publisher": lambda each: each.publisher,
        "position": lambda each: each.position,
        "part": lambda each: each.part,
        "parts": lambda each: each.parts,
        "previous_checksum": lambda each: checksum_text(each.previous_checksum),
        "extensions": lambda each: each.extensions,
    }
    return {name: [None if each is None else get(each) for each in facts] for name, get in columns.items()}


def _membership(
    span: RosterSpan,
    own: RosterEntry,
    words: Mapping[NodeId, tuple[RosterEntry, int]],
    silent: set[NodeId],
) -> dict[str, object]:
    """A roster record: as stored, updated with what was heard since."""
    entry = span.entry
    heard: tuple[RosterEntry, int] | None = words.get(entry.node_id)
    if entry.node_id == own.node_id and entry.incarnation == own.incarnation:
        entry = own
    elif heard is not None and heard[0].incarnation == entry.incarnation:
        entry = heard[0]
    is_waited_for = heard is not None and heard[0] is entry and span.to_ms is None
    return {
        "node_id": entry.node_id.hex(),
        "name": entry.name,
        "site": entry.site,
        "address": entry.address,
        "door": entry.door,
        "incarnation": entry.incarnation,
        "from_at": span.from_ms * 1000,
        "to_at": None if span.to_ms is None else span.to_ms * 1000,
        "reason": span.reason,
        # The store stamps a membership a moment after its beacon was heard.
        "last_heard_at": max(heard[1], span.from_ms) * 1000 if heard is not None and is_waited_for else None,
        "silent": is_waited_for and entry.node_id in silent,
        "neighbours": [neighbour.hex() for neighbour in entry.neighbours],
        "heard_by": own.node_id.hex(),
    }


def _interest(number: int, span: InterestSpan, own: RosterEntry) -> dict[str, object]:
    has_ended = span.until_ms is not None
    return {
        "number": number,
        "node_id": own.node_id.hex(),
        "node": own.name,
        "registration": span.id,
        "owner": span.owner,
        "topic": span.topic,
        "condition": span.text or None,
        "language": span.language or None,
        "start": "earliest" if span.earliest else "latest",
        "epoch": span.epoch,
        "incarnation": span.incarnation,
        "ts": span.ts,
        "from_at": span.from_ms * 1000,
        "until_at": None if span.until_ms is None else span.until_ms * 1000,
        "until_incarnation": span.until_incarnation if has_ended else None,
        "until_ts": span.until_ts if has_ended else None,
        "revision": span.revision,
    }


def _word(name: str) -> str:
    return name.lower().replace("_", "-")


def _missing(first: int, begins: int) -> Refusal:
    detail = (
        f'deliveries {first} to {begins - 1} are no longer retained here: start at {begins} or "earliest", or skip '
        'them with on_missing = "skip"'
    )
    return Refusal("missing", detail)
