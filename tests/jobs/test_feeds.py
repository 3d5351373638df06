"""A feed whose query ends is started again where that helps, and given up where it does not."""

import io
import threading
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from m4cast.jobs.feeds import feed as feeds
from m4cast.jobs.feeds.display import feed_table
from m4cast.jobs.feeds.feed import FeedFailedError, FeedRun, FeedState, TableFeed, is_temporary, reason_of, run_feeds

BUSY = PySparkRuntimeError("Python worker failed to connect back.")
CRASHED = PySparkRuntimeError(
    "Lost task 0.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
)
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


def feed_of(*ends: PySparkException | None, fails_to_start: bool = False) -> TableFeed:
    """One that ends like this, start after start."""
    left = list(ends)

    def start() -> StreamingQuery:
        end = left.pop(0)
        if fails_to_start and end is not None:
            raise end
        return cast(StreamingQuery, Ended(end))

    return TableFeed("events/orders", start)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RESTART_PAUSE_S", 0)


@pytest.mark.parametrize("fails_to_start", [False, True])
@pytest.mark.parametrize("passing", [BUSY, COLUMNS, CRASHED])
def test_what_passes_is_tried_again(passing: PySparkException, fails_to_start: bool) -> None:
    feed = feed_of(passing, passing, None, fails_to_start=fails_to_start)
    (run,) = run_feeds(lambda: [FeedRun(feed)], have_end=True, stop=threading.Event())
    assert (run.restarts, run.error) == (2, None)


@pytest.mark.parametrize(
    ("ends", "said"), [([BUSY, OTHER], "the disk is full"), ([BUSY] * (feeds.RESTARTS_MAX + 1), "connect back")]
)
def test_what_does_not_pass_is_told(ends: list[PySparkException], said: str) -> None:
    with pytest.raises(FeedFailedError, match=f"events/orders: .*{said}"):
        run_feeds(lambda: [FeedRun(feed_of(*ends))], have_end=True, stop=threading.Event())


class Running(Ended):
    """A query that goes on until it is stopped."""

    isActive = True

    def stop(self) -> None:
        self.isActive = False


def broken() -> StreamingQuery:
    raise OSError("File name too long")  # as Py4J's errors, it is none of Spark's


@pytest.mark.parametrize("have_end", [True, False])
def test_the_trouble_of_a_feed_is_its_own(have_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, and the one that failed is tried again if there is time; at the end it is named."""
    monkeypatch.setattr(feeds, "AGAIN_S", 0)
    stop, starts = threading.Event(), []

    def start() -> StreamingQuery:
        starts.append(1)
        if len(starts) == 3:
            stop.set()
        return broken()

    healthy = Running(None)
    good = feed_of(None) if have_end else TableFeed("events/good", lambda: cast(StreamingQuery, healthy))
    with pytest.raises(FeedFailedError, match=r"^events/bad: File name too long$"):
        run_feeds(lambda: [FeedRun(TableFeed("events/bad", start)), FeedRun(good)], have_end=have_end, stop=stop)
    assert len(starts) == (1 if have_end else 3)


def test_feeds_of_which_none_is_left_are_given_up() -> None:
    with pytest.raises(FeedFailedError, match="events/bad"):
        run_feeds(lambda: [FeedRun(TableFeed("events/bad", broken))], have_end=False, stop=threading.Event())


def test_names_of_topics_are_shown_as_they_are() -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(feed_table([FeedState("events/[/x] [red]a")], 1.0))
    assert "events/[/x] [red]a" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_reason_of_an_error_in_a_callback_is_its_last_line() -> None:
    said = "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n  File x\n"
    assert reason_of(PySparkRuntimeError(f"{said}OSError: the disk is full\n")) == "OSError: the disk is full"
    lost = "org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed). Consider"
    call = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collectToPython."
    assert reason_of(PySparkRuntimeError(f"{said}{call}\n: {lost}\n\tat java.lang\n")) == lost


def test_a_planner_that_is_gone_is_started_again() -> None:
    """Spark says only that a stream has ended, in a cause."""
    error = PySparkRuntimeError("[STREAM_FAILED] Query terminated with exception: ")
    where = "\tat o.a.s.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(Python"
    error._cause = PySparkRuntimeError(f"java.io.EOFException\n\tat java.io.DataInputStream.readInt\n{where}")  # type: ignore[attr-defined]  # as captured errors have
    assert is_temporary(reason_of(error))
