"""What a store tells of the past: deliveries in the order of arrival, and who was on the channel from when to when."""

from collections.abc import Callable
from typing import NamedTuple

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.wire.batch import Delivery, SkipReason
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store import layout
from m4cast.overlay.store.layout import Identity, ReadTxn, RosterSpan, Tables, Txn, WriteTxn

INCARNATIONS_MAX = 64
"""Kept of each node; a node that restarts more often loses its oldest. Guess."""


class DeliveryRecord(NamedTuple):
    """A delivery with its place in the order of arrival at this node, and the node's incarnation then."""

    number: int
    incarnation: int
    delivery: Delivery
    reason: SkipReason | None
    """Of a skip; None: it is a batch, and these are facts of it."""
    origin_batch: int
    payload_bytes: int
    checksum: int


def read_deliveries(
    tables: Tables, txn: ReadTxn, after: int, limit: int, stream_of: Callable[[int], StreamId]
) -> tuple[DeliveryRecord, ...]:
    found: list[DeliveryRecord] = []
    with txn.cursor(tables.deliveries) as cursor:
        is_there = cursor.set_range(layout.sequence_key(after + 1))
        while is_there and len(found) < limit:
            fields = layout.delivery_of(cursor.value())
            found.append(
                DeliveryRecord(
                    layout.number_of(cursor.key()),
                    fields.incarnation,
                    fields.delivery(stream_of(fields.stream_number)),
                    fields.reason,
                    fields.origin_batch,
                    fields.payload_bytes,
                    fields.checksum,
                )
            )
            is_there = cursor.next()
    return tuple(found)


def delivery_range(tables: Tables, txn: Txn) -> tuple[int, int]:
    """The first number that is kept, and the next to be given."""
    value = txn.get(layout.COUNTERS, db=tables.meta)
    assert value is not None, "a store has counters from its first transaction on"
    next_number = layout.counters_of(value).delivery
    with txn.cursor(tables.deliveries) as cursor:
        return (layout.number_of(cursor.key()) if cursor.first() else next_number), next_number


def remember(entry: RosterEntry, at_ms: int, tables: Tables, txn: WriteTxn) -> None:
    """Take a node's word about itself into its history."""
    key = layout.membership_key(entry.node_id, entry.incarnation)
    earlier: list[bytes] = []
    with txn.cursor(tables.roster) as cursor:
        is_there = cursor.set_range(layout.membership_key(entry.node_id, 0))
        while is_there and cursor.key() < key:
            earlier.append(cursor.key())
            is_there = cursor.next()
    for before in earlier:
        membership = layout.membership_of(txn.get(before, db=tables.roster) or b"")
        if membership.to_ms is None:
            txn.put(before, membership._replace(to_ms=at_ms, reason="restarted").to_bytes(), db=tables.roster)
    for too_old in earlier[: -(INCARNATIONS_MAX - 1)]:
        txn.delete(too_old, db=tables.roster)
    present = txn.get(key, db=tables.roster)
    from_ms = at_ms if present is None else layout.membership_of(present).from_ms
    ended = (at_ms, "left") if entry.leaving else (None, None)
    txn.put(key, RosterSpan(entry, from_ms, *ended).to_bytes(), db=tables.roster)


def read_roster_spans(tables: Tables, txn: Txn) -> tuple[RosterSpan, ...]:
    """By node, then incarnation."""
    return tuple(layout.membership_of(value) for _, value in txn.cursor(tables.roster))


def others(tables: Tables, txn: Txn, identity: Identity) -> tuple[RosterEntry, ...]:
    """The last word of every node but this one, under any of its identities."""
    latest = {membership.entry.node_id: membership.entry for membership in read_roster_spans(tables, txn)}
    own = (identity.node_id, *identity.former_ids)
    return tuple(entry for node_id, entry in latest.items() if node_id not in own)
