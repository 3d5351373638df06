"""Feeds: streaming queries, each for one table or for several, which run together until they end or are stopped.

Feeds may be added while others run. A feed whose topic gained columns is restarted, which plans it with them; its
checkpoint repeats the failed micro-batch. So is a feed for which Spark could not start a Python process in time, as
happens on a busy machine. If a feed fails for another reason, the others continue, and a feed without an end is retried
from time to time. Failures are raised at the end.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from m4cast.jobs.ingest import Ingest
    from m4cast.jobs.table_folder import TableFolder
    from m4cast.schemas.tables.table import Table

TEMPORARY = (
    "[M4CAST_NEW_COLUMNS]",
    "[M4CAST_TABLE_CHANGED]",
    "Python worker failed to connect back",
    "Python worker exited unexpectedly",
    "java.io.IOException: Stream closed",
)
"""Parts of errors that a restart fixes. A task whose Python worker was killed reports either of the last two."""
LOST_PLANNER = re.compile(r"java\.(io\.EOFException|net\.SocketException)[\s\S]*\bPythonStreamingSourceRunner\b")
RESTARTS_MAX = 10
"""Consecutive restarts without a successful micro-batch: beyond it, no node reports the new columns, or Python does not
start at all."""
POLL_S = 0.2
RESTART_PAUSE_S = 0.5
AGAIN_S = 60.0
"""The delay before a failed continuous feed is retried. Lower: it recovers sooner, with more attempts in vain."""
DISCOVER_S = 2.0
"""Interval between looks for new feeds. Lower: new topics are read sooner, with more requests to nodes. Guess."""


OBSERVED_ROWS = "m4cast_rows"
"""The metric with which a query reports how many rows it read, if its source returns something else than rows."""


class FeedFailedError(M4castError):
    """Feeds failed: the text names them and the reasons."""


@dataclass(frozen=True, slots=True)
class TableFeed:
    table: str
    """The name of the table that it fills, which is also its own name."""
    start: Callable[[], "StreamingQuery"]


@dataclass(frozen=True, slots=True)
class FeedState:
    """The progress of filling a table."""

    table: str
    rows: int = 0
    micro_batches: int = 0
    restarts: int = 0
    behind: int | None = None
    """Rows that the nodes had and the table did not, as of the last trigger."""
    is_over: bool = False
    error: str | None = None


class FeedRun:
    """A running feed."""

    def __init__(self, feed: TableFeed) -> None:
        self.feed = feed
        self.restarts = 0
        self.is_over = False
        self.error: str | None = None
        self.behind: int | None = None
        self._ended_at = 0.0
        self._query: StreamingQuery | None = None
        self._rows: dict[tuple[str, int], int] = {}
        self._restarts_in_a_row = 0

    def states(self) -> list[FeedState]:
        """The states of its tables."""
        return [
            FeedState(
                table=self.feed.table,
                rows=sum(self._rows.values()),
                micro_batches=len(self._rows),
                restarts=self.restarts,
                behind=self.behind,
                is_over=self.is_over,
                error=self.error,
            )
        ]

    def start(self) -> None:
        self.is_over, self.error = False, None
        try:
            self._query = self.feed.start()
        except Exception as error:  # Py4J's errors have no common class, and the other feeds must continue
            self._query = None
            self._end(error)

    def start_again(self) -> None:
        """Retry a feed without an end that failed a while ago."""
        if self.is_over and time.monotonic() - self._ended_at >= AGAIN_S:
            self.start()

    def stop(self) -> None:
        self.is_over = True
        if self._query is not None and self.error is None:
            self._query.stop()
            self.look()

    def look(self) -> None:
        """Count the query's new micro-batches and check whether it has ended."""
        if self._query is None:
            return
        has_ended = not self._query.isActive
        self._count(self._query)
        if has_ended and not self.is_over:
            self._end(self._query.exception())

    def _count(self, query: "StreamingQuery") -> None:
        """Spark keeps the last 100 micro-batches."""
        for progress in query.recentProgress:
            batch = (str(progress.runId), int(progress.batchId))
            if progress.numInputRows and batch not in self._rows:
                observed = progress.observedMetrics.get(OBSERVED_ROWS)
                self._rows[batch] = int(progress.numInputRows if observed is None else observed["rows"] or 0)
                self._restarts_in_a_row = 0
            for source in progress.sources[:1]:
                ends = (json.loads(each or "null") for each in (source.endOffset, source.latestOffset))
                self.behind = difference(*ends)

    def _end(self, error: Exception | None) -> None:
        reason = "" if error is None else reason_of(error)
        if not is_temporary(reason) or self._restarts_in_a_row >= RESTARTS_MAX:
            self.is_over = True
            self.error = reason or None
            self._ended_at = time.monotonic()
            return
        if self._restarts_in_a_row:
            time.sleep(RESTART_PAUSE_S)  # the node that is asked has not received the new columns yet
        self.restarts += 1
        self._restarts_in_a_row += 1
        self.start()


def is_temporary(reason: str) -> bool:
    return any(part in reason for part in TEMPORARY)


def run_feeds(
    discover: Callable[[], Sequence[FeedRun]],
    *,
    have_end: bool,
    stop: threading.Event,
    on_progress: Callable[[Sequence[FeedState]], None] = lambda states: None,
) -> list[FeedState]:
    """Run every feed that `discover` returns, until `stop` is set or, if they `have_end`, until all have ended. A feed
    with the name of one that runs already is ignored.

    Calls `on_progress` with the states of all tables several times a second. Feeds without an end are given up when all
    have failed.
    """
    runs: dict[str, FeedRun] = {}
    discovered_at = -DISCOVER_S

    def states() -> list[FeedState]:
        return [state for run in runs.values() for state in run.states()]

    try:
        while not stop.is_set():
            is_over = bool(runs) and all(run.is_over for run in runs.values())
            if is_over or time.monotonic() - discovered_at >= DISCOVER_S:
                discovered_at = time.monotonic()
                for found in discover():
                    if found.feed.table not in runs:
                        runs[found.feed.table] = found
                        found.start()
            for run in runs.values():
                run.look()
            on_progress(states())
            if all(run.is_over for run in runs.values()) and (have_end or runs):
                break
            if not have_end:
                for run in runs.values():
                    run.start_again()
            stop.wait(POLL_S)
    finally:
        for run in runs.values():
            run.stop()
        on_progress(states())
    errors = [f"{state.table}: {state.error}" for state in states() if state.error is not None]
    if errors:
        raise FeedFailedError("; ".join(errors))
    return states()


def reason_of(error: Exception) -> str:
    """The relevant line of a Spark error. An error of the connector is among the causes, in a traceback."""
    cause: Any = error
    while cause is not None:
        text = f"{cause}\n{getattr(cause, '_stackTrace', '')}"
        ours = re.search(r"\[M4CAST_[A-Z_]+\][^\n]*", text)
        if ours is not None:
            return ours[0]
        if LOST_PLANNER.search(text):  # Spark has no message for it
            return "Python worker exited unexpectedly: the one that plans micro-batches"
        cause = getattr(cause, "_cause", None)
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(error if java is None else java).splitlines() if line.strip()]
    if lines and "raised by the Python Proxy" in lines[0]:  # an error in foreachBatch: its traceback follows
        raised = [line.removeprefix(": ") for line in lines if re.match(r"(: )?[\w.]+(Error|Exception)\b", line)]
        lines = [line for line in raised if not line.startswith("py4j.")] or raised or lines  # the JVM's says more
    return lines[0] if lines else type(error).__name__


def difference(end: Any, latest: Any) -> int | None:
    """Return the lag of one offset behind another, both from JSON: the sum over their numbers. None if either is
    unknown."""
    if not end or not latest:
        return None
    ends = dict(_numbers(end, ()))
    return sum(max(number - ends.get(path, 1), 0) for path, number in _numbers(latest, ()))


def _numbers(offset: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(offset, dict):
        for name, inner in offset.items():
            yield from _numbers(inner, (*path, name))
    elif isinstance(offset, int):
        yield path, offset


def checked_start(tables: "TableFolder", table: "Table", ingest: "Ingest") -> Literal["earliest", "after"]:
    """Return where a query for this table alone begins: at `earliest` or, if it has no checkpoint, `after` the rows in
    its table. Spark ignores it if there is a checkpoint."""
    has_table, has_checkpoint = checked_table(tables, table, ingest)
    if has_table:
        tables.ensure(table)  # refuses a table that is not m4cast's, or has a later version
    return "after" if has_table and not has_checkpoint else "earliest"


def checked_table(tables: "TableFolder", table: "Table", ingest: "Ingest") -> tuple[bool, bool]:
    """Two facts: the table exists; a query for it alone has a checkpoint. Refuses a pair that does not go together."""
    from m4cast.jobs.direct.engine import place_of
    from m4cast.jobs.direct.joins import joins_in

    checkpoint = ingest.checkpoint(table)
    join = joins_in(Path(place_of(tables.spark, ingest.checkpoints)[1])).file(table.name)
    has_table, has_checkpoint = tables.has(table), tables.exists(f"{checkpoint}/metadata")
    other = replace(ingest, raw=not ingest.raw).checkpoint(table)
    has_other = other != checkpoint and tables.exists(f"{other}/metadata")
    if has_other or (ingest.raw and join.exists()):
        old, new = ("without --raw", "with --raw") if ingest.raw else ("with --raw", "without --raw")
        raise M4castError(
            f"{table.name} has a checkpoint of an ingest {old} (or of an earlier version): to continue {new} after the "
            f"rows in the table, remove {other if has_other else join}"
        )
    if not has_table and (has_checkpoint or join.exists()):
        raise M4castError(
            f"{table.path(tables.folder)} is missing, but its checkpoint {checkpoint if has_checkpoint else join} "
            "exists: restore the table, or remove the checkpoint to ingest again everything that the nodes keep"
        )
    return has_table, has_checkpoint


def started(writer: "DataStreamWriter", ingest: "Ingest", name: str, checkpoint: str) -> "StreamingQuery":
    trigger: Any = {"processingTime": f"{ingest.interval_s} seconds"} if ingest.continuous else {"availableNow": True}
    named = writer.queryName(f"ingest {name}").option("checkpointLocation", checkpoint)
    return named.outputMode("append").trigger(**trigger).start()
