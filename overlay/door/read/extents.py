"""The extents of streams at this node: for each of a topic's streams the first sequence retained and the next one."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.door.fields import NUMBER_MAX, Fields, Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import parse_filter
from m4cast.overlay.profiles import Profile
from m4cast.overlay.store.store import Store

WAIT_MS_MAX = 10_000

Extents = dict[str, dict[str, list[int]]]
"""Topic -> origin -> [low, next]."""


@dataclass(frozen=True, slots=True)
class FrontierQuestion:
    topics: tuple[str, ...] | None
    """None: all."""
    at_ms: int | None = None
    seen: Frontier | None = None
    """Only streams past this frontier are wanted. None: every stream."""
    wait_s: float = 0
    """The time to wait for a stream to get past `seen`."""
    profile: Profile | None = None
    """The rows whose coverage is asked for in selective topics; None: every row."""
    stored: bool = False
    """True to be told what is stored here of selective topics, whoever wanted it; then nothing is registered."""


def parse_question(fields: Fields) -> FrontierQuestion:
    seen = fields.frontier("seen")
    if seen is None and fields.has("wait_ms"):
        raise bad_request("wait_ms needs seen: set it to the frontier past which rows are wanted")
    if seen is not None and fields.has("at_ms"):
        raise bad_request("seen and at_ms are both set: set one of them")
    return FrontierQuestion(
        topics=fields.topics() if fields.names_topics() else None,
        at_ms=fields.whole("at_ms", 0, NUMBER_MAX),
        seen=seen,
        wait_s=(fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0) / 1000,
        profile=parse_filter(fields),
        stored=fields.flag("stored"),
    )


class StreamExtents:
    """Any thread may use it."""

    def __init__(self, store: Store, frontiers: Frontiers) -> None:
        self._store = store
        self._frontiers = frontiers

    def now(self, topics: tuple[str, ...], at_ms: int | None) -> Extents:
        """The extents of streams. With `at_ms`, `next` is the first sequence published then or later."""
        here = self._frontiers.positions(topics)
        if at_ms is not None:
            here = {stream: self._store.sequence_at(stream, at_ms) or until for stream, until in here.items()}
        return self._with_lows(here)

    def news(
        self, question: FrontierQuestion, topics: Callable[[], tuple[str, ...]], is_cancelled: Callable[[], bool]
    ) -> Extents:
        """The streams past what was seen, as soon as there are any; none when the wait is over. `topics` is looked up
        again and again: a topic may appear meanwhile."""
        seen = question.seen
        assert seen is not None
        deadline = time.monotonic() + question.wait_s
        while True:
            now = self._frontiers.wait_beyond(seen, topics(), deadline)
            news = {stream: until for stream, until in now.items() if until > seen.get(stream, 1)}
            if news or time.monotonic() >= deadline or self._frontiers.closed or is_cancelled():
                return self._with_lows(news)

    def _with_lows(self, here: Frontier) -> Extents:
        lows = self._store.lows(here)
        extents: Extents = {}
        for stream, until in here.items():
            extents.setdefault(stream.topic, {})[stream.origin.hex()] = [lows.get(stream, 1), until]
        return extents
