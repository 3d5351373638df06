"""Following who wants what, and whether a registration is known everywhere.

The first answer is everything that is wanted; then come changes. A node that does not remember what its follower has
missed, or another node, answers with everything again: the iterator compares that with what it has given, so that each
change is given once, in order for each node of the channel.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from m4cast.overlay.client.doors import Doors

WAIT_S = 5.0
"""The time for which one call waits for a change."""

ChangeKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a registration: it is active once every node that is present knows of it."""

    epoch: int | None
    """None: of a broadcast topic, whose rows come without a registration."""
    is_active: bool
    confirmed: tuple[str, ...]
    """Names of the nodes that have confirmed it, besides the one that it was made at."""
    missing: tuple[str, ...]
    """Names of the others that are present."""
    effective_from: dict[str, int]
    """For a selective topic: the first row of each stream, by origin, that it wants, as far as that is known."""


def activity(doors: Doors, topic: str, row_filter: dict[str, str], timeout_s: float) -> Activity:
    """Wait until it is active, or for so long."""
    question: dict[str, Any] = {"topic": topic, **row_filter}
    return _awaited(lambda wait: doors.ask_first("subscription-active", question | wait, WAIT_S), timeout_s)


def read_activity(doors: Doors, topic: str, row_filter: dict[str, object], start: str, timeout_s: float) -> Activity:
    """The same for reads of a topic at the first node."""
    question: dict[str, Any] = {"topic": topic, **row_filter, "start": start}
    return _awaited(lambda wait: doors.ask_first("read-registration", question | wait, WAIT_S), timeout_s)


def together(activities: Sequence[Activity]) -> Activity:
    """Combine several registrations: active if all are, confirmed by the nodes that confirmed all; the latest epoch."""
    missing = sorted({name for each in activities for name in each.missing})
    confirmed = {name for each in activities for name in each.confirmed} - set(missing)
    epochs = [each.epoch for each in activities if each.epoch is not None]
    is_active = all(each.is_active for each in activities)
    return Activity(max(epochs, default=None), is_active, tuple(sorted(confirmed)), tuple(missing), {})


def _awaited(ask: Callable[[dict[str, Any]], dict[str, Any]], timeout_s: float) -> Activity:
    deadline = time.monotonic() + timeout_s
    while True:
        wait_s = max(min(WAIT_S, deadline - time.monotonic()), 0)
        answer = ask({"wait_ms": int(wait_s * 1000)})
        if answer["is_active"] or time.monotonic() >= deadline:
            confirmed, missing = (tuple(each["node"] for each in answer[name]) for name in ("confirmed", "missing"))
            return Activity(answer["epoch"], answer["is_active"], confirmed, missing, answer["effective_from"])


class InterestTail:
    """Made by `Channel.interest_changes`."""

    def __init__(self, doors: Doors, topic: str | None, idle_s: float | None) -> None:
        self._doors = doors
        self._topic = topic
        self._idle_s = idle_s
        self._cursor = ""
        self._known: dict[ChangeKey, dict[str, Any]] = {}
        self._waiting: deque[dict[str, Any]] = deque()

    def __iter__(self) -> "InterestTail":
        return self

    def __next__(self) -> dict[str, Any]:
        asked_at = time.monotonic()
        while not self._waiting:
            left_s = WAIT_S if self._idle_s is None else asked_at + self._idle_s - time.monotonic()
            self._waiting.extend(self._changes(max(min(WAIT_S, left_s), 0)))
            if not self._waiting and self._idle_s is not None and left_s <= 0:
                raise StopIteration
        return self._waiting.popleft()

    def _changes(self, wait_s: float) -> Iterator[dict[str, Any]]:
        question = {"topic": self._topic, "after": self._cursor, "wait_ms": int(wait_s * 1000)}
        answer = self._doors.ask("subscription-changes", question, wait_s)
        self._cursor = answer["cursor"]
        if answer["is_whole"]:
            fresh = {_key(each) for each in answer["changes"]}
            for key in [key for key in self._known if key not in fresh]:
                yield {**self._known.pop(key), "kind": "left"}
        for change in answer["changes"]:
            yield from self._taken(change)

    def _taken(self, change: dict[str, Any]) -> Iterator[dict[str, Any]]:
        key = _key(change)
        known = self._known.get(key)
        if change["kind"] == "left":
            if known is not None:
                yield {**self._known.pop(key), "kind": "left"}
            return
        if known is None:
            self._known[key] = change
            yield {**change, "kind": "joined"}
        elif known["epoch"] < change["epoch"]:  # a lower one: this node lags behind the one asked before
            self._known[key] = change
            yield {**change, "kind": "rejoined"}


def _key(change: dict[str, Any]) -> ChangeKey:
    return change["node_id"], change["topic_hash"], change["profile_hash"]
