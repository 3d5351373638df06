"""The client table, as this node's interest view has it."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from m4cast.overlay.door.clients.client_requests import ClientQuestion
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.access_point import SeenRow, is_superseded, seen_row
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, InterestItem


def rows_of(node: Node, key: str) -> tuple[NodeId, list[SeenRow]]:
    """Runs on the loop: this node, and the rows of a key."""
    interest = node.interest
    at = interest.clients.key(key)
    rows = []
    for entry in interest.view.used():
        item = entry.items.get(at)
        found = None if item is None else seen_row(entry.node_id, item)
        if found is not None and found[0] == key:
            rows.append(found[1])
    return node.me.node_id, rows


class SeenEntry(NamedTuple):
    """The announcements of a node, as they were at this moment."""

    node_id: NodeId
    name: str
    door: str
    items: list[InterestItem]


def entries_of(node: Node, key: str | None) -> list[SeenEntry]:
    """Runs on the loop: the items of a key, or all, which are looked at elsewhere."""
    at = None if key is None else node.interest.clients.key(key)
    seen = []
    for entry in node.interest.view.used():
        known = node.roster.own if entry.node_id == node.me.node_id else node.roster.get(entry.node_id)
        name, door = ("", "") if known is None else (known.name, known.door)
        items = list(entry.items.values()) if at is None else [entry.items[at]] if at in entry.items else []
        seen.append(SeenEntry(entry.node_id, name, door, items))
    return seen


def table_of(
    entries: list[SeenEntry], question: ClientQuestion, may_see: Callable[[str], bool], most: int
) -> list[dict[str, object]]:
    """The greatest row of each key that is asked for, sorted; at most so many. Not on the loop: there may be many."""
    named = [
        (key, entry, item)
        for entry in entries
        for item in entry.items
        if item.language == CLIENT_LANGUAGE and item.version == 1
        if _is_asked_for(key := item.text.rpartition(" ")[0], question)
    ]
    page = set(heapq.nsmallest(most, {key for key, _, _ in named if may_see(key)}))
    found: dict[str, tuple[SeenRow, SeenEntry]] = {}
    for key, entry, item in named:
        if key not in page or (seen := seen_row(entry.node_id, item)) is None:
            continue
        if key not in found or is_superseded(found[key][0], seen[1]):
            found[key] = seen[1], entry
    return [
        {
            "key": key,
            "node_id": row.node_id.hex(),
            "node": entry.name,
            "door": entry.door,
            "session": row.row.session,
            "covered": row.row.covered,
            "since_ms": row.row.since_ms,
        }
        for key, (row, entry) in sorted(found.items(), key=lambda each: each[0])
    ]


def _is_asked_for(key: str, question: ClientQuestion) -> bool:
    return key > question.after if question.key is None else key == question.key
