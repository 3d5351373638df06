"""Feeds: streaming queries, one per table, which run together until they end or are stopped.

Feeds may be added while others run. A feed whose topic gained columns is restarted, which plans it with them; its
checkpoint repeats the failed micro-batch. So is a feed for which Spark could not start a Python process in time, as
happens on a busy machine. If a feed fails for another reason, the others continue, and a feed without an end is retried
from time to time. Failures are raised at the end.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from m4cast.jobs.ingest import Ingest
    from m4cast.jobs.table_folder import TableFolder
    from m4cast.schemas.tables.table import Table

TEMPORARY = ("[M4CAST_NEW_COLUMNS]", "Python worker failed to connect back", "[M4CAST_TABLE_CHANGED]")
"""Parts of errors that a restart fixes."""
RESTARTS_MAX = 10
"""Consecutive restarts without a successful micro-batch: beyond it, no node reports the new columns, or Python does not
start at all."""
POLL_S = 0.2
RESTART_PAUSE_S = 0.5
AGAIN_S = 60.0
"""When a failed feed without an end is retried. Lower: it recovers sooner, with more attempts in vain."""
DISCOVER_S = 2.0
"""How often to look for new feeds. Lower: new topics are read sooner, with more requests to the nodes. Guess."""


OBSERVED_ROWS = "m4cast_rows"
"""The metric with which a query reports how many rows it read, if its source returns something else than rows."""


class FeedFailedError(M4castError):
    """Feeds failed: which, and why."""


@dataclass(frozen=True, slots=True)
class TableFeed:
    table: str
    """The name of the table that it fills, which is also its own name."""
    start: Callable[[], "StreamingQuery"]


@dataclass(slots=True)
class FeedRun:
    """A running feed and its state."""

    feed: TableFeed
    restarts: int = 0
    is_over: bool = False
    error: str | None = None
    ended_at: float = 0.0
    behind: int | None = None
    """Rows that the nodes had and the table did not, as of the last trigger."""
    _query: "StreamingQuery | None" = None
    _rows: dict[tuple[str, int], int] = field(default_factory=dict)
    _restarts_in_a_row: int = 0

    @property
    def rows(self) -> int:
        return sum(self._rows.values())

    @property
    def micro_batches(self) -> int:
        return len(self._rows)

    def start(self) -> None:
        self.is_over, self.error = False, None
        try:
            self._query = self.feed.start()
        except Exception as error:  # Py4J's errors have no common class, and the other feeds must continue
            self._query = None
            self._end(error)

    def stop(self) -> None:
        self.is_over = True
        if self._query is not None and self.error is None:
            self._query.stop()
            self.look()

    def look(self) -> None:
        """Count its new micro-batches and check whether it has ended. Spark keeps the last 100 micro-batches."""
        if self._query is None:
            return
        has_ended = not self._query.isActive
        for progress in self._query.recentProgress:
            batch = (str(progress.runId), int(progress.batchId))
            if progress.numInputRows and batch not in self._rows:
                self._rows[batch] = _rows_of(progress)
                self._restarts_in_a_row = 0
            if progress.sources:
                self.behind = _difference(progress.sources[0].endOffset, progress.sources[0].latestOffset)

        if has_ended and not self.is_over:
            self._end(self._query.exception())

    def _end(self, error: Exception | None) -> None:
        reason = "" if error is None else reason_of(error)
        if not any(part in reason for part in TEMPORARY) or self._restarts_in_a_row >= RESTARTS_MAX:
            self.is_over = True
            self.error = reason or None
            self.ended_at = time.monotonic()
            return
        if self._restarts_in_a_row:
            time.sleep(RESTART_PAUSE_S)  # the node that is asked has not received the new columns yet
        self.restarts += 1
        self._restarts_in_a_row += 1
        self.start()


def run_feeds(
    discover: Callable[[], Sequence[TableFeed]],
    *,
    have_end: bool,
    stop: threading.Event,
    on_progress: Callable[[Sequence[FeedRun]], None] = lambda runs: None,
) -> list[FeedRun]:
    """Run every feed that `discover` returns, until `stop` is set or, if they `have_end`, until all have ended.

    Calls `on_progress` with all feeds several times a second. Feeds without an end are given up when all have failed.
    """
    runs: dict[str, FeedRun] = {}
    discovered_at = -DISCOVER_S
    try:
        while not stop.is_set():
            if (not have_end or not runs) and time.monotonic() - discovered_at >= DISCOVER_S:
                discovered_at = time.monotonic()
                for feed in discover():
                    if feed.table not in runs:
                        runs[feed.table] = FeedRun(feed)
                        runs[feed.table].start()
            for run in runs.values():
                run.look()
            on_progress(list(runs.values()))
            if all(run.is_over for run in runs.values()) and (have_end or runs):
                break
            if not have_end:
                _start_again(runs.values())
            stop.wait(POLL_S)
    finally:
        for run in runs.values():
            run.stop()
        on_progress(list(runs.values()))
    errors = [f"{run.feed.table}: {run.error}" for run in runs.values() if run.error is not None]
    if errors:
        raise FeedFailedError("; ".join(errors))
    return list(runs.values())


def _start_again(runs: Iterable[FeedRun]) -> None:
    for run in runs:
        if run.is_over and time.monotonic() - run.ended_at >= AGAIN_S:
            run.start()


def reason_of(error: Exception) -> str:
    """The relevant line of a Spark error. An error of the connector is among the causes, in a traceback."""
    cause: Any = error
    while cause is not None:
        ours = re.search(r"\[M4CAST_[A-Z_]+\][^\n]*", f"{cause}\n{getattr(cause, '_stackTrace', '')}")
        if ours is not None:
            return ours[0]
        cause = getattr(cause, "_cause", None)
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(error if java is None else java).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _rows_of(progress: "StreamingQueryProgress") -> int:
    observed = progress.observedMetrics.get(OBSERVED_ROWS)
    return int(progress.numInputRows if observed is None else observed["rows"] or 0)


def _difference(end: Any, latest: Any) -> int | None:
    """By how much an offset lags another: the sum over their numbers. None if either is unknown."""
    if not end or not latest:
        return None
    ends = dict(_numbers(json.loads(end), ()))
    return sum(max(number - ends.get(path, 1), 0) for path, number in _numbers(json.loads(latest), ()))


def _numbers(offset: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(offset, dict):
        for name, inner in offset.items():
            yield from _numbers(inner, (*path, name))
    elif isinstance(offset, int):
        yield path, offset


def checked_start(tables: "TableFolder", table: "Table", ingest: "Ingest") -> Literal["earliest", "after"]:
    """Where a feed begins: at `earliest` or, if its checkpoint is lost, `after` the rows in its table."""
    checkpoint = ingest.checkpoint(table)
    has_table, has_checkpoint = tables.has(table), _exists(tables.spark, f"{checkpoint}/metadata")
    other = replace(ingest, raw=not ingest.raw).checkpoint(table)
    if other != checkpoint and _exists(tables.spark, f"{other}/metadata"):
        old, new = ("without --raw", "with --raw") if ingest.raw else ("with --raw", "without --raw")
        raise M4castError(
            f"{table.name} has a checkpoint of an ingest {old} (or of an earlier version): to continue {new} after the "
            f"rows in the table, remove {other}"
        )
    if has_checkpoint and not has_table:
        raise M4castError(
            f"{table.path(tables.folder)} is missing, but its checkpoint {checkpoint} exists: restore the table, or "
            "remove the checkpoint to ingest again everything that the nodes keep"
        )
    if has_table:
        tables.ensure(table)  # refuses a table that is not m4cast's, or has a later version
    return "after" if has_table and not has_checkpoint else "earliest"


def _exists(spark: "SparkSession", file: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        spark.read.text(file)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


def started(writer: "DataStreamWriter", ingest: "Ingest", table: "Table") -> "StreamingQuery":
    trigger: Any = {"processingTime": f"{ingest.interval_s} seconds"} if ingest.continuous else {"availableNow": True}
    named = writer.queryName(f"ingest {table.name}").option("checkpointLocation", ingest.checkpoint(table))
    return named.outputMode("append").trigger(**trigger).start()
