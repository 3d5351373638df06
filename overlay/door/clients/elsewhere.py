"""Clients that this channel does not know: gatekeepers are asked whether anybody else does (PROTOCOL.md 22.9)."""

import time
from collections.abc import Sequence

from m4cast.overlay.door.clients.client_table import rows_of
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.clients.elsewhere import (
    FOUND_HASH,
    SOUGHT_MAX,
    SOUGHT_PREFIX,
    SOUGHT_TOPIC,
    found_of,
    sought_text,
)
from m4cast.overlay.protocol.clients.unit_levels import UNITS_HASH, has_mail
from m4cast.overlay.protocol.effects import Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.node import Node

ANSWER_S = 3.0
"""The time that gatekeepers have to answer; who is not answered for by then is taken to be known. Guess."""
LOOK_S = 0.02


def unknown_of(node: NodeHandle, keys: Sequence[str], timeout_s: float) -> list[str]:
    """Those of these clients that nobody knows: no node here, and no other channel that mail goes to."""
    missing, leaves = node.look(lambda at: _missing(at, keys), timeout_s)
    if not missing or not leaves:
        return missing
    asked = missing[:SOUGHT_MAX]
    wishes = tuple(Wish(SOUGHT_PREFIX + key, SOUGHT_TOPIC, read(sought_text(key))) for key in asked)
    waited(node.request(lambda number: Subscribe(number, wishes)), timeout_s, lambda: False)
    try:
        deadline = time.monotonic() + ANSWER_S
        while True:
            answers = node.look(_answers, timeout_s)
            if all(key in answers for key in asked) or time.monotonic() >= deadline:
                return [key for key in asked if answers.get(key) is False]
            time.sleep(LOOK_S)
    finally:
        ids = tuple(wish.id for wish in wishes)
        waited(node.request(lambda number: Unsubscribe(number, ids)), timeout_s, lambda: False)


def _missing(node: Node, keys: Sequence[str]) -> tuple[list[str], bool]:
    """Runs on the loop: the clients that no node of this channel has, and whether mail leaves the channel."""
    missing = [each for each in keys if not rows_of(node, each)[1]]
    if not missing:
        return [], False
    items = (item for entry in node.interest.view.used() for item in entry.items.values())
    return missing, any(item.topic_hash == UNITS_HASH and has_mail(item.text) for item in items)


def _answers(node: Node) -> dict[str, bool]:
    """Runs on the loop: the answers of gatekeepers; one that knows a client takes precedence."""
    answers: dict[str, bool] = {}
    for entry in node.interest.view.used():
        for item in entry.items.values():
            found = found_of(item.text) if item.topic_hash == FOUND_HASH else None
            if found is not None:
                answers[found[0]] = answers.get(found[0], False) or found[1]
    return answers
