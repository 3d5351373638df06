"""The roster on disk: when each node was on the channel, one span for each incarnation of a node."""

from typing import NamedTuple

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, of_json, sequence_key, to_json
from m4cast.overlay.store.tables.meta import Identity

ROSTER = StoreTable("roster")

INCARNATIONS_MAX = 64
"""Spans kept of each node; a node that restarts more often loses its oldest. Guess."""


class RosterSpan(NamedTuple):
    """One incarnation of a node, as this node knew of it. The times are this node's; `to_ms` is None while it lasts."""

    entry: RosterEntry
    from_ms: int
    to_ms: int | None = None
    reason: str | None = None
    """Why it ended: left, restarted."""

    def to_bytes(self) -> bytes:
        fields = self.entry._asdict()
        fields["node_id"] = self.entry.node_id.hex()
        fields["neighbours"] = [neighbour.hex() for neighbour in self.entry.neighbours]
        return to_json({"entry": fields, "from_ms": self.from_ms, "to_ms": self.to_ms, "reason": self.reason})


def span_of(value: bytes | memoryview) -> RosterSpan:
    written = of_json(value)
    fields = written.pop("entry")
    fields["node_id"] = NodeId(bytes.fromhex(fields["node_id"]))
    fields["neighbours"] = tuple(NodeId(bytes.fromhex(neighbour)) for neighbour in fields["neighbours"])
    return RosterSpan(RosterEntry(**fields), **written)


def span_key(node_id: NodeId, incarnation: int) -> bytes:
    return node_id + sequence_key(incarnation)


def write_roster_entry(entry: RosterEntry, at_ms: int, tables: Tables, txn: WriteTxn) -> None:
    """Take a node's roster entry into its history: it ends the spans of the node's earlier incarnations."""
    key = span_key(entry.node_id, entry.incarnation)
    roster = tables[ROSTER]
    earlier: list[bytes] = []
    with txn.cursor(roster) as cursor:
        is_there = cursor.set_range(span_key(entry.node_id, 0))
        while is_there and cursor.key() < key:
            earlier.append(cursor.key())
            is_there = cursor.next()
    for before in earlier:
        span = span_of(txn.get(before, db=roster) or b"")
        if span.to_ms is None:
            txn.put(before, span._replace(to_ms=at_ms, reason="restarted").to_bytes(), db=roster)
    for too_old in earlier[: -(INCARNATIONS_MAX - 1)]:
        txn.delete(too_old, db=roster)
    present = txn.get(key, db=roster)
    from_ms = at_ms if present is None else span_of(present).from_ms
    ended = (at_ms, "left") if entry.leaving else (None, None)
    txn.put(key, RosterSpan(entry, from_ms, *ended).to_bytes(), db=roster)


def read_roster_spans(tables: Tables, txn: Txn) -> tuple[RosterSpan, ...]:
    """All spans, ordered by node, then incarnation."""
    return tuple(span_of(value) for _, value in txn.cursor(tables[ROSTER]))


def read_others(identity: Identity, tables: Tables, txn: Txn) -> tuple[RosterEntry, ...]:
    """The last entry of every node but this one, under any of its identities."""
    latest = {span.entry.node_id: span.entry for span in read_roster_spans(tables, txn)}
    own = (identity.node_id, *identity.former_ids)
    return tuple(entry for node_id, entry in latest.items() if node_id not in own)
