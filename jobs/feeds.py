"""Feeds: streaming queries, one for each table that they fill, run together until they are done or told to stop.

Feeds may appear while others run. One whose topic gained columns is started again, which plans it with them; its
checkpoint makes the micro-batch that failed the next one. So is one for which Spark could not start a Python process in
time, as happens on a busy machine. When a feed fails for another reason, the others go on: to their end if they have
one, else until they are stopped, and the one that failed is tried again now and then. Failures are raised at the end.
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
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from m4cast.jobs.ingest import Ingest
    from m4cast.jobs.tables import Tables
    from m4cast.schemas.tables.table import Table

PASSING = ("[M4CAST_NEW_COLUMNS]", "Python worker failed to connect back")
"""Parts of errors that a restart mends."""
RESTARTS_MAX = 10
"""In a row, without a micro-batch that went well: then new columns are seen that no node tells of, or Python does not
start at all."""
POLL_S = 0.2
RESTART_PAUSE_S = 0.5
AGAIN_S = 60.0
"""How long after its failure a feed without an end is tried again. Lower: it is back sooner, for more work in vain."""
DISCOVER_S = 2.0
"""How often new feeds are looked for. Lower: new topics are read sooner, for more questions to the nodes. Guess."""


class FeedFailedError(M4castError):
    """Feeds that ended with an error: which, and why."""


@dataclass(frozen=True, slots=True)
class Feed:
    table: str
    """What it fills, as people know it; its name."""
    start: Callable[[], "StreamingQuery"]


@dataclass(slots=True)
class FeedRun:
    """A feed under way, and what became of it."""

    feed: Feed
    restarts: int = 0
    is_over: bool = False
    error: str | None = None
    ended_at: float = 0.0
    behind: int | None = None
    """Rows that the nodes have and the table not, when it was last asked."""
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
        except Exception as error:  # Py4J's are of no common class, and the other feeds are not to suffer from any
            self._query = None
            self._end(error)

    def stop(self) -> None:
        self.is_over = True
        if self._query is not None and self.error is None:
            self._query.stop()
            self.look()

    def look(self) -> None:
        """Count what it did since the last look; if it has ended, see why. Spark keeps the last 100 micro-batches."""
        if self._query is None:
            return
        has_ended = not self._query.isActive
        for progress in self._query.recentProgress:
            batch = (str(progress.runId), int(progress.batchId))
            if progress.numInputRows and batch not in self._rows:
                self._rows[batch] = int(progress.numInputRows)
                self._restarts_in_a_row = 0
            if progress.sources:
                self.behind = _difference(progress.sources[0].endOffset, progress.sources[0].latestOffset)

        if has_ended and not self.is_over:
            self._end(self._query.exception())

    def _end(self, error: Exception | None) -> None:
        told = "" if error is None else told_by(error)
        if not any(part in told for part in PASSING) or self._restarts_in_a_row >= RESTARTS_MAX:
            self.is_over = True
            self.error = told or None
            self.ended_at = time.monotonic()
            return
        if self._restarts_in_a_row:
            time.sleep(RESTART_PAUSE_S)  # the node that is asked for the columns has not heard of them yet
        self.restarts += 1
        self._restarts_in_a_row += 1
        self.start()


def run_feeds(
    discover: Callable[[], Sequence[Feed]],
    *,
    have_end: bool,
    stop: threading.Event,
    told: Callable[[Sequence[FeedRun]], None] = lambda runs: None,
) -> list[FeedRun]:
    """Run every feed that `discover` finds, until `stop` is set or, if they `have_end`, until all have ended.

    `told` is called with all of them, several times a second. Feeds without an end are given up when none is left.
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
            told(list(runs.values()))
            if all(run.is_over for run in runs.values()) and (have_end or runs):
                break
            if not have_end:
                _start_again(runs.values())
            stop.wait(POLL_S)
    finally:
        for run in runs.values():
            run.stop()
        told(list(runs.values()))
    errors = [f"{run.feed.table}: {run.error}" for run in runs.values() if run.error is not None]
    if errors:
        raise FeedFailedError("; ".join(errors))
    return list(runs.values())


def _start_again(runs: Iterable[FeedRun]) -> None:
    for run in runs:
        if run.is_over and time.monotonic() - run.ended_at >= AGAIN_S:
            run.start()


def told_by(error: Exception) -> str:
    """The line of Spark's error that says what is wrong. The connector's is among the causes, in a traceback."""
    cause: Any = error
    while cause is not None:
        ours = re.search(r"\[M4CAST_[A-Z_]+\][^\n]*", f"{cause}\n{getattr(cause, '_stackTrace', '')}")
        if ours is not None:
            return ours[0]
        cause = getattr(cause, "_cause", None)
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(error if java is None else java).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _difference(end: Any, latest: Any) -> int | None:
    """How far an offset is behind another: the sum over their numbers. None if one is not known."""
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


def checked_start(tables: "Tables", table: "Table", ingest: "Ingest") -> Literal["earliest", "behind"]:
    """Whether a feed begins anew or with its checkpoint, or, since that is lost, behind what its table has."""
    checkpoint = ingest.checkpoint(table)
    has_table, has_checkpoint = tables.has(table), _is_there(tables.spark, f"{checkpoint}/metadata")
    other = replace(ingest, raw=not ingest.raw).checkpoint(table)
    if other != checkpoint and _is_there(tables.spark, f"{other}/metadata"):
        ways = ("without --raw", "with --raw") if ingest.raw else ("with --raw", "without --raw")
        raise M4castError(
            f"{table.name} has a checkpoint of an ingest {ways[0]} (or of an earlier version): to go on {ways[1]}, "
            f"behind what the table has, remove {other}"
        )
    if has_checkpoint and not has_table:
        raise M4castError(
            f"{table.path(tables.folder)} is gone, and {checkpoint} says what is in it: restore the table, "
            "or remove the checkpoint to ingest again all that the nodes keep"
        )
    if has_table:
        tables.ensure(table)  # somebody else's is not read, nor is one of a later version
    return "behind" if has_table and not has_checkpoint else "earliest"


def _is_there(spark: "SparkSession", file: str) -> bool:
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
