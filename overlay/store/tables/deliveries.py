"""A record of every delivery to this node, in the order of arrival."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Batch, BatchFacts, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.selective import SPREAD_EXTENSION
from m4cast.overlay.store.table import ReadTxn, StoreTable, Tables, Txn, number_of, sequence_key
from m4cast.overlay.store.tables.log import read_facts
from m4cast.overlay.store.tables.meta import COUNTERS, counters_of, read_fact

DELIVERIES = StoreTable("deliveries")

_DELIVERY = struct.Struct("<IQQQQBBQ?16sQIQB")
_SELECTIVE = 0x80
"""Added to `how` if the batch belongs to a selective stream."""
_STREAM_NUMBER = struct.Struct("<I")
_RECEIVED_AT = struct.Struct("<28xQ")


class DeliveryRecord(NamedTuple):
    """A delivery with its number in the order of arrival at this node, and the node's incarnation then."""

    number: int
    incarnation: int
    delivery: Delivery
    reason: SkipReason | None
    """Why rows were skipped; None for a batch, whose facts follow."""
    origin_batch: int
    payload_bytes: int
    checksum: int
    is_selective: bool = False
    """True if the batch belongs to a selective stream."""
    facts: BatchFacts | None = None
    """The other facts that the checksum covers, as long as the log has the batch."""


def delivery_value(delivery: Delivery, stream_number: int, incarnation: int, what: Batch | Skip | None) -> bytes:
    """`what` is the batch or skip that was delivered, if it is known."""
    facts = (0, 0, 0, 0)
    flags = 0
    if isinstance(what, Batch):
        facts = (what.origin_batch, len(what.payload), what.checksum, 0)
        for extension in what.extensions:
            if extension.type == SPREAD_EXTENSION:
                flags = _SELECTIVE
    elif what is not None:
        facts = (0, 0, 0, 1 + what.reason)
    _, first, last, published_at_ms, received_at_ms, hops, how, sender = delivery
    return _DELIVERY.pack(
        stream_number,
        first,
        last,
        published_at_ms,
        received_at_ms,
        hops,
        how | flags,
        incarnation,
        sender is not None,
        sender or b"",
        *facts,
    )


def record_of(number: int, value: bytes | memoryview, stream_of_number: Callable[[int], StreamId]) -> DeliveryRecord:
    (
        stream_number,
        first,
        last,
        published_at_ms,
        received_at_ms,
        hops,
        how,
        incarnation,
        has_sender,
        sender,
        origin_batch,
        payload_bytes,
        checksum,
        skipped,  # 0 for a batch, else the reason plus 1
    ) = _DELIVERY.unpack(value)
    return DeliveryRecord(
        number=number,
        incarnation=incarnation,
        delivery=Delivery(
            stream_of_number(stream_number),
            first,
            last,
            published_at_ms,
            received_at_ms,
            hops,
            How(how & ~_SELECTIVE),
            NodeId(sender) if has_sender else None,
        ),
        reason=SkipReason(skipped - 1) if skipped else None,
        origin_batch=origin_batch,
        payload_bytes=payload_bytes,
        checksum=checksum,
        is_selective=bool(how & _SELECTIVE),
    )


def received_at_of(value: bytes | memoryview) -> int:
    """Return the time at which the delivery was received, in milliseconds, without decoding the rest."""
    at_ms: int = _RECEIVED_AT.unpack_from(value)[0]
    return at_ms


def read_deliveries(
    after: int, limit: int, stream_of_number: Callable[[int], StreamId], tables: Tables, txn: ReadTxn
) -> tuple[DeliveryRecord, ...]:
    found: list[DeliveryRecord] = []
    with txn.cursor(tables[DELIVERIES]) as cursor:
        is_there = cursor.set_range(sequence_key(after + 1))
        while is_there and len(found) < limit:
            value = cursor.value()
            record = record_of(number_of(cursor.key()), value, stream_of_number)
            if record.reason is None:
                first = record.delivery.first_sequence
                facts = read_facts(_STREAM_NUMBER.unpack_from(value)[0], first, record.checksum, tables, txn)
                record = record._replace(facts=facts)
            found.append(record)
            is_there = cursor.next()
    return tuple(found)


def delivery_range(tables: Tables, txn: Txn) -> tuple[int, int]:
    """The first number that is kept, and the next one to be given."""
    next_number = counters_of(read_fact(COUNTERS, tables, txn)).delivery
    with txn.cursor(tables[DELIVERIES]) as cursor:
        return (number_of(cursor.key()) if cursor.first() else next_number), next_number
