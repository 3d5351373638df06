"""What becomes of a feed whose query ends: started again where that helps, and given up where it does not."""

import threading
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.jobs import feeds
from m4cast.jobs.feeds import Feed, FeedFailedError, run_feeds

BUSY = PySparkRuntimeError("Python worker failed to connect back.")
COLUMNS = PySparkRuntimeError("Job aborted\n[M4CAST_NEW_COLUMNS] the topic has columns that it had not: restart")
OTHER = PySparkRuntimeError("the disk is full")


class Ended:
    """A query that has ended like this."""

    isActive = False
    recentProgress: tuple[Any, ...] = ()

    def __init__(self, error: PySparkException | None) -> None:
        self._error = error

    def exception(self) -> PySparkException | None:
        return self._error

    def stop(self) -> None: ...


def feed_of(*ends: PySparkException | None, fails_to_start: bool = False) -> Feed:
    """One that ends like this, start after start."""
    left = list(ends)

    def start() -> StreamingQuery:
        end = left.pop(0)
        if fails_to_start and end is not None:
            raise end
        return cast(StreamingQuery, Ended(end))

    return Feed("events/orders", start)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RESTART_PAUSE_S", 0)


@pytest.mark.parametrize("fails_to_start", [False, True])
@pytest.mark.parametrize("passing", [BUSY, COLUMNS])
def test_what_passes_is_tried_again(passing: PySparkException, fails_to_start: bool) -> None:
    feed = feed_of(passing, passing, None, fails_to_start=fails_to_start)
    (run,) = run_feeds(lambda: [feed], have_end=True, stop=threading.Event())
    assert (run.restarts, run.error) == (2, None)


@pytest.mark.parametrize(
    ("ends", "said"), [([BUSY, OTHER], "the disk is full"), ([BUSY] * (feeds.RESTARTS_MAX + 1), "connect back")]
)
def test_what_does_not_pass_is_told(ends: list[PySparkException], said: str) -> None:
    with pytest.raises(FeedFailedError, match=f"events/orders: .*{said}"):
        run_feeds(lambda: [feed_of(*ends)], have_end=True, stop=threading.Event())
