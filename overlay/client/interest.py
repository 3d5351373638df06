"""Following who wants what, and whether a registration is known everywhere.

The first answer is everything that is wanted; then come changes. A node that does not remember what its follower has
missed, or another node, answers with everything again: the iterator compares that with what it has given, so that each
change is given once, in order for each node of the channel.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from m4cast.overlay.client.doors import Doors
from m4cast.overlay.errors import LocalProtocolError

WAIT_S = 5.0
"""The time for which one call waits for a change."""

ChangeKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class UnitLevels:
    """Levels of a federation up to which a registration is known: 0 the node, 1 its channel, and so on."""

    seen: int
    """Rows have come from there, which proves that one way is open."""
    confirmed: int
    """Every gatekeeper concerned knows of it: no matching row that is published there is missed."""
    system: int
    """The level that is everywhere."""


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
    """The first row of each stream that it wants, by origin, as far as that is known (selective topics only)."""
    levels: UnitLevels | None = None
    """None: the channel has gatekeepers, and none of them brings rows of the topic from other channels."""

    @property
    def is_system_active(self) -> bool:
        """Active in the channel, and confirmed in the whole federation."""
        return self.is_active and self.levels is not None and self.levels.confirmed >= self.levels.system

    def is_reached(self, level: "ActiveLevel") -> bool:
        return self.is_system_active if level == "system" else self.is_active


ActiveLevel = Literal["channel", "system"]


def activity(
    doors: Doors, topic: str, row_filter: dict[str, str], timeout_s: float, level: ActiveLevel = "channel"
) -> Activity:
    """Wait until it is active on this level, or for so long."""
    question: dict[str, Any] = {"topic": topic, **row_filter, **_level_field(level)}
    return _awaited(lambda wait: doors.ask_first("subscription-active", question | wait, WAIT_S), timeout_s, level)


def read_activity(
    doors: Doors,
    topic: str,
    row_filter: dict[str, object],
    start: Mapping[str, Mapping[str, int]] | int | str,
    timeout_s: float,
    level: ActiveLevel = "channel",
) -> Activity:
    """The same for reads of a topic at the first node."""
    question: dict[str, Any] = {"topic": topic, **row_filter, "start": start, **_level_field(level)}
    return _awaited(lambda wait: doors.ask_first("read-registration", question | wait, WAIT_S), timeout_s, level)


def _level_field(level: ActiveLevel) -> dict[str, Any]:
    if level not in get_args(ActiveLevel):
        raise LocalProtocolError(f"level is {level!r}: must be channel or system")
    return {"system": True} if level == "system" else {}


def together(activities: Sequence[Activity]) -> Activity:
    """Combine several registrations: active if all are, confirmed by the nodes that confirmed all; the latest epoch."""
    missing = sorted({name for each in activities for name in each.missing})
    confirmed = {name for each in activities for name in each.confirmed} - set(missing)
    epochs = [each.epoch for each in activities if each.epoch is not None]
    is_active = all(each.is_active for each in activities)
    known = [each.levels for each in activities if each.levels is not None]
    levels = min(known, key=lambda each: each.confirmed) if known and len(known) == len(activities) else None
    return Activity(max(epochs, default=None), is_active, tuple(sorted(confirmed)), tuple(missing), {}, levels)


def _awaited(ask: Callable[[dict[str, Any]], dict[str, Any]], timeout_s: float, level: ActiveLevel) -> Activity:
    deadline = time.monotonic() + timeout_s
    while True:
        wait_s = max(min(WAIT_S, deadline - time.monotonic()), 0)
        found = _activity_of(ask({"wait_ms": int(wait_s * 1000)}))
        if found.is_reached(level) or time.monotonic() >= deadline:
            return found


def _activity_of(answer: dict[str, Any]) -> Activity:
    confirmed, missing = (tuple(each["node"] for each in answer[name]) for name in ("confirmed", "missing"))
    told = answer.get("levels")  # older nodes do not tell
    levels = None if told is None else UnitLevels(told["seen"], told["confirmed"], told["system"])
    return Activity(answer["epoch"], answer["is_active"], confirmed, missing, answer["effective_from"], levels)


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
