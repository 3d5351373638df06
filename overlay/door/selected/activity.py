"""Activity of a registration: which nodes have confirmed it, where it begins in each stream, and how far the federation
knows of it."""

import time
from collections.abc import Callable

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.clients.unit_levels import UNITS_HASH, WantLevels, levels_of, quiet_text
from m4cast.overlay.protocol.effects import Active, WaitActive
from m4cast.overlay.protocol.node import Node

LOOK_S = 0.05
"""The interval at which the level of a registration is looked at. Guess."""


def activity(
    node: NodeHandle, registration: str, wait_ms: int, timeout_s: float, caller: Caller, *, system: bool = False
) -> dict[str, object] | None:
    """Wait until all nodes that are present have confirmed the registration, and with `system`, until the whole
    federation has, at most `wait_ms`. None: it does not exist at this node."""
    deadline = time.monotonic() + wait_ms / 1000
    span = node.look(lambda at: at.interest.history.lasting(registration), timeout_s)
    if span is None:
        return None
    request = node.request(lambda number: WaitActive(number, span.incarnation, span.ts, wait_ms))
    answer = waited(request, timeout_s + wait_ms / 1000, caller.is_cancelled)
    assert isinstance(answer, Active)
    ids = (*answer.confirmed, *answer.missing)

    def look(at: Node) -> tuple[dict[NodeId, str], dict[str, int]]:
        begins = at.selection.begins(registration)
        if (row := at.interest.registrations.rows.get(registration)) is not None:
            begins |= dict.fromkeys(at.publishing.broadcast(row.topic), 1)
        names = {node_id: name_of(at, node_id) for node_id in ids}
        return names, {stream.origin.hex(): begin for stream, begin in begins.items()}

    levels = _awaited_levels(node, lambda at: _levels(at, registration), deadline if system else 0, timeout_s, caller)
    names, begins = node.look(look, timeout_s)

    def listed(nodes: tuple[NodeId, ...]) -> list[dict[str, str]]:
        return [{"node_id": node_id.hex(), "node": names[node_id]} for node_id in nodes]

    return {
        "epoch": span.epoch,
        "is_active": not answer.missing,
        "confirmed": listed(answer.confirmed),
        "missing": listed(answer.missing),
        "effective_from": begins,
        "levels": None if levels is None else levels._asdict(),
    }


def broadcast_levels(
    node: NodeHandle, topic: str, wait_ms: int, timeout_s: float, caller: Caller
) -> dict[str, int] | None:
    """The levels of the federation that know that every row of a topic is wanted here; waits as `activity` does."""
    deadline = time.monotonic() + wait_ms / 1000
    found = _awaited_levels(node, lambda at: levels_here(at, topic, (b"",)), deadline, timeout_s, caller)
    return None if found is None else found._asdict()


def _awaited_levels(
    node: NodeHandle, look: Callable[[Node], WantLevels | None], deadline: float, timeout_s: float, caller: Caller
) -> WantLevels | None:
    """Wait until it is confirmed everywhere, or until the deadline."""
    while True:
        levels = node.look(look, timeout_s)
        is_over = levels is not None and levels.confirmed >= levels.system
        if is_over or time.monotonic() >= deadline or caller.is_cancelled():
            return levels
        time.sleep(LOOK_S)


def _levels(node: Node, registration: str) -> WantLevels | None:
    """Runs on the loop."""
    rows = node.interest.registrations.rows
    row = rows.get(registration)
    if row is None:
        return None
    row = rows.get(row.under, row) if row.under else row  # what is announced covers it
    want = read(row.canonical).id if row.canonical else b""
    return levels_here(node, row.topic, (want, b""))


def levels_here(node: Node, topic: str, wants: tuple[bytes, ...]) -> WantLevels | None:
    """Runs on the loop: how far the federation knows one of these wants; None if no gatekeeper of the channel lets rows
    of the topic in. In a channel without gatekeepers, the channel is the whole system."""
    best: WantLevels | None = None
    is_alone = True
    for entry in node.interest.view.used():
        for item in entry.items.values():
            if item.topic_hash != UNITS_HASH:
                continue
            is_alone = False
            found = levels_of(item.text)
            if found is not None and found[0] == topic and found[1] in wants:
                best = found[2] if best is None else max(best, found[2])
    return WantLevels(1, 1, 1) if is_alone else best


def is_quiet(node: Node, topic: str) -> bool:
    """Runs on the loop: whether a gatekeeper reports that no other channel wants anything of a topic (PROTOCOL.md
    22.8)."""
    text = quiet_text(topic)
    items = (item for entry in node.interest.view.used() for item in entry.items.values())
    return any(item.topic_hash == UNITS_HASH and item.text == text for item in items)


def name_of(node: Node, node_id: NodeId) -> str:
    known = node.roster.own if node_id == node.me.node_id else node.roster.get(node_id)
    return known.name if known is not None else ""
