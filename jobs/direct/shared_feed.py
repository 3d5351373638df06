"""The feed of all events tables that the direct engine fills: one query, whatever the number of topics.

A micro-batch is committed in this order: tasks write files, the driver commits them table by table, each to its
table's log together with (query id, micro-batch number), Spark records the micro-batch in its checkpoint. Killed after
the first step, the files stay unused and the micro-batch is written again; killed later, the repeated micro-batch is
refused by the logs that have it. A topic that cannot take part in the repeated one is read on after the rows that its
table has. Another writer can replace a version of a log on a local disk (`quick_commit`), so
each commit is confirmed: at the end of its micro-batch, a moment later, before the table's next one, and at the end of
the run.

Topics join one by one, also while the query runs (`joins`). A topic that cannot be read, or whose table cannot be
written, is set aside: it is named, and it joins again at the beginning of the micro-batch that failed. With gained
columns that is at once, since a new layout solves it; otherwise after a while. The other topics are committed
meanwhile.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.engine import check_visible, layout_of, place_of
from m4cast.jobs.direct.joins import PlanFile, PlannedTopic, Start, TopicJoin, joins_in, new_number
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.shared_source import PLAN_OPTION, TASKS_OPTION, SharedSource
from m4cast.jobs.direct.table_log import TABLE_CHANGED, TableLog
from m4cast.jobs.feeds import feed
from m4cast.jobs.feeds.feed import FeedRun, FeedState, TableFeed, difference, is_temporary, reason_of, started
from m4cast.jobs.feeds.table_locks import TableLocks
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Table
from m4cast.spark_connector import offsets

if TYPE_CHECKING:
    from m4cast.jobs.ingest import Ingest

NAME = "events"
Preparation = Callable[[str, TableLog], Table | None]
"""Creates or updates the table of a topic, whose log it gets. None: another feed fills it."""
WORKERS = 4
"""Tables that are prepared, or committed to, at the same time. Higher: more threads of the JVM. Guess."""
FILE_FIELDS = tuple(DataFile.__dataclass_fields__)


@dataclass(slots=True)
class FedTopic:
    """A topic of the query."""

    table: str
    join: TopicJoin | None = None
    layout: FileLayout | None = None
    """None while it is set aside, or not prepared yet."""
    log: TableLog | None = None
    committed_from: Start | None = None
    """The position at which its last commit began."""
    rows: int = 0
    micro_batches: int = 0
    restarts: int = 0
    behind: int | None = None
    error: str | None = None
    again_at: float = 0.0
    """The time to prepare it again, if it is set aside; infinite: not in this run."""
    failures_in_a_row: int = 0

    @property
    def is_given_up(self) -> bool:
        return self.error is not None and self.layout is None and self.again_at - time.monotonic() > 1.0


class SharedFeed(FeedRun):
    def __init__(
        self,
        tables: TableFolder,
        ingest: "Ingest",
        options: Mapping[str, str],
        prepare: "Preparation",
        locks: TableLocks,
    ) -> None:
        super().__init__(TableFeed(NAME, self._start_query))
        self._tables = tables
        self._ingest = ingest
        self._options = {**options, TASKS_OPTION: str(tables.spark.sparkContext.defaultParallelism)}
        self._prepare = prepare
        self._locks = locks
        self._topics: dict[str, FedTopic] = {}
        self._lock = threading.RLock()
        """Micro-batches are committed on a thread of Spark's."""
        self._checkpoints = Path(place_of(tables.spark, ingest.checkpoints)[1])
        self._plan = PlanFile(Path(f"{place_of(tables.spark, ingest.shared_checkpoint)[1]}.plan"))
        self._is_plan_old = True
        self._joins = joins_in(self._checkpoints)
        self._has_checkpoint = tables.exists(f"{ingest.shared_checkpoint}/metadata")
        self._has_news = False
        """Topics have joined since the query was started."""
        self._uncounted: int | None = None
        """The micro-batch that was committed last, if Spark has not reported about it yet."""
        self._to_confirm: list[FedTopic] = []
        """Those of the last micro-batch; when the feed stops, all."""
        self._may_be_repeated = True
        """The next micro-batch: Spark repeats what had no end when the query ended, but tables may have it."""
        self._is_stopped = False
        self._joining = ThreadPoolExecutor(WORKERS, "ingest-joins")
        self._committing = ThreadPoolExecutor(WORKERS, "ingest-commits")
        """Apart: joins wait for the lock, which is held while a micro-batch is committed."""
        self._loading: Future[DataFrame] | None = None

    def topics(self) -> list[str]:
        return list(self._topics)

    def states(self) -> list[FeedState]:
        own = [FeedState(NAME, restarts=self.restarts, is_over=True, error=self.error)] if self.error else []
        is_over = self.is_over
        return own + [
            FeedState(
                table=f"events/{name}",
                rows=topic.rows,
                micro_batches=topic.micro_batches,
                restarts=topic.restarts + self.restarts,
                behind=topic.behind,
                is_over=is_over or topic.error is not None,
                error=topic.error,
            )
            for name, topic in sorted(self._topics.items())
        ]

    # ---- topics

    def add(self, names: Iterable[str], until: float = float("inf")) -> None:
        """Let topics join, several at a time, until this moment. If one fails, it is retried later.

        Micro-batches are committed meanwhile. One of an earlier run may have a topic that is just being prepared; it
        gets a new join then, and is prepared again.
        """

        def prepare(name: str) -> None:
            if time.monotonic() > until:
                return
            topic = FedTopic(events_table(name, StructType()).name)
            is_ours = self._ready(name, topic)
            with self._lock:
                if topic.join is not None and self._joins.read(topic.table) != topic.join:
                    topic.join = None
                    is_ours = self._ready(name, topic)
                if is_ours:
                    self._topics[name] = topic
                self._has_news = self._is_plan_old = True

        self._locks.take_query(self._ingest.selection)
        if self._loading is None and self._query is None:
            self._loading = self._joining.submit(self._load)
        list(self._joining.map(prepare, names))

    def forget(self, name: str) -> None:
        """A query for this topic alone reads it from now on, after what its table has."""
        table = events_table(name, StructType()).name
        if self._joins.read(table) is not None:
            shutil.rmtree(self._checkpoints / table, ignore_errors=True)  # stale, and left over
            self._joins.remove(table)

    def _ready(self, name: str, topic: FedTopic) -> bool:
        """Prepare the topic's table, so that it is read from now on. False if another feed fills it."""
        try:
            self._locks.take_table(topic.table)
            topic.join = topic.join or self._known_join(topic.table)
            log = TableLog(self._tables.spark, f"{self._tables.folder}/{topic.table}")
            table = self._prepare(name, log)
            if table is None:
                return False
            topic.join = topic.join or self._new_join(name, table, log)
            if not topic.join.is_sure:
                topic.join = topic.join.again(self._after_rows(topic.join.start, table))
                self._joins.write(topic.table, topic.join)
            topic.layout, topic.log = layout_of(self._tables, table, log), log
            topic.error = None
        except Exception as error:  # as in `FeedRun.start`
            self._set_aside(topic, reason_of(error))
        return True

    def _known_join(self, table: str) -> TopicJoin | None:
        """The topic's join of an earlier run, which means something only with the checkpoint of this query."""
        known = self._joins.read(table)
        return known if known and known.query == self._ingest.selection and self._has_checkpoint else None

    def _new_join(self, name: str, table: Table, log: TableLog) -> TopicJoin:
        """After what its table has. A query for this topic alone (of another engine or an earlier version) ends."""
        join = TopicJoin(self._ingest.selection, new_number(), self._start_of(name, table, log))
        self._joins.write(table.name, join)
        shutil.rmtree(self._checkpoints / table.name, ignore_errors=True)
        return join

    def _start_of(self, name: str, table: Table, log: TableLog) -> Start:
        """Return the position from which to read a topic that this query has not read yet."""
        committed, is_clean = committed_offset(self._checkpoints / table.name)
        start: Start = dict(offsets.without_skips(committed).get(name, {}))
        if not (committed and is_clean) and not log.is_new():
            start = self._after_rows(start, table)
        return start or self._earliest(name)

    def _after_rows(self, start: Start, table: Table) -> Start:
        """The start, or after the rows that the table has, where that is later."""
        ends = self._tables.read(table).groupBy("_origin").agg(F.max("_sequence").alias("last")).collect()
        return start | {row["_origin"]: max(row["last"] + 1, start.get(row["_origin"], 0)) for row in ends}

    def _earliest(self, name: str) -> Start:
        from m4cast.spark_connector.options import parse, read_options
        from m4cast.spark_connector.source.topics import SourceTopics

        chosen = read_options(parse({**self._ingest.access, "topic": name}), streaming=True)
        return dict(SourceTopics(chosen).frontier("earliest").get(name, {}))

    def _set_aside(self, topic: FedTopic, reason: str) -> None:
        is_worth_it = is_temporary(reason) and topic.failures_in_a_row < feed.RESTARTS_MAX
        topic.layout = topic.log = None
        if is_worth_it:
            pause_s = feed.RESTART_PAUSE_S if topic.failures_in_a_row else 0.0
            topic.restarts += 1
        else:
            pause_s = feed.AGAIN_S if self._ingest.continuous else float("inf")
            topic.error = reason
        topic.failures_in_a_row += 1
        topic.again_at = time.monotonic() + pause_s

    def _write_plan(self) -> None:
        if not self._is_plan_old:
            return
        self._is_plan_old = False
        self._plan.write(
            {
                name: PlannedTopic(
                    topic.join.number,
                    topic.join.start,
                    None if topic.layout is None else topic.layout.to_json(),
                    self._ingest.where.get(name),
                )
                for name, topic in self._topics.items()
                if topic.join is not None
            }
        )

    # ---- the query

    def start(self) -> None:
        with self._lock:
            is_ready = any(topic.layout is not None for topic in self._topics.values())
            self._write_plan()
        if is_ready:
            self._has_news = False
            super().start()
        else:
            self.is_over = not self._ingest.continuous

    def _load(self) -> DataFrame:
        """The source of the query. Spark starts a Python process for it, while the first tables are prepared."""
        spark = self._tables.spark
        spark.dataSource.register(SharedSource)
        options = {**self._options, PLAN_OPTION: str(self._plan.path)}
        return spark.readStream.format(SharedSource.name()).options(**options).load()

    def _start_query(self) -> StreamingQuery:
        loading, self._loading = self._loading, None
        files = self._load() if loading is None else loading.result()
        self._may_be_repeated = True
        writer = files.writeStream.foreachBatch(self._commit)
        return started(writer, self._ingest, NAME, self._ingest.shared_checkpoint)

    def look(self) -> None:
        super().look()
        if self.error is not None or self._is_stopped:
            return
        self._mend()
        with self._lock:
            self._confirm_last()
            topics = list(self._topics.values())
        if (self._query is None or self.is_over) and self._has_news:
            self.start()
        elif self._ingest.continuous and (self._query is None or self._query.isActive):
            self.is_over = all(topic.is_given_up for topic in topics)
        elif self.is_over:  # not yet, if a topic is about to join again
            self.is_over = all(topic.layout is not None or topic.error is not None for topic in topics)

    def start_again(self) -> None:
        if self.error is not None:
            super().start_again()

    def stop(self) -> None:
        self._is_stopped = True
        super().stop()
        with self._lock:
            self._to_confirm = list(self._topics.values())  # nobody will look later
            self._confirm_last()
        for pool in (self._joining, self._committing):
            pool.shutdown(wait=False)

    def _mend(self) -> None:
        """Let topics join again that were set aside and are due."""
        now = time.monotonic()
        with self._lock:
            due = [(name, each) for name, each in self._topics.items() if each.layout is None and each.again_at <= now]
            for name, topic in due:
                self._has_news = self._is_plan_old = True
                if not self._ready(name, topic):
                    del self._topics[name]
            self._write_plan()

    def _count(self, query: StreamingQuery) -> None:
        """Rows are counted when they are committed. Reports are long with many topics, so only new ones are read."""
        with self._lock:
            committed = self._uncounted
        if committed is None:
            return
        progress = query.lastProgress
        if progress is None or progress.batchId < committed:
            return  # Spark reports about a micro-batch a moment after its commit
        if progress.sources:
            self._note_backlog(progress.sources[0].endOffset, progress.sources[0].latestOffset)
        with self._lock:
            self._uncounted = None if self._uncounted == committed else self._uncounted

    def _note_backlog(self, *offsets_known: str | None) -> None:
        """Note the backlog, from the end of a micro-batch and the latest offset; a repeated micro-batch has none."""
        ends, latests = (json.loads(each or "null") or {} for each in offsets_known)
        with self._lock:
            for name, topic in self._topics.items():
                topic.behind = difference(ends.get(name), latests.get(name))

    # ---- micro-batches

    def _commit(self, reports: DataFrame, micro_batch: int) -> None:
        query = reports.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query, "Spark sets it while a micro-batch is written"
        by_topic: dict[str, list[Any]] = {}
        for row in reports.collect():
            by_topic.setdefault(row["topic"], []).append(row)
        with self._lock:
            done = self._committing.map(
                lambda name: self._commit_topic(name, by_topic[name], query, micro_batch), sorted(by_topic)
            )
            are_done = list(done)
            self._confirm_last()
            self._to_confirm = [self._topics[name] for name in by_topic if name in self._topics]
            self._is_plan_old |= not all([*are_done, *map(self._confirm, self._to_confirm)])
            self._write_plan()
            self._restarts_in_a_row = 0
            self._uncounted = micro_batch
            self._may_be_repeated = False

    def _commit_topic(self, name: str, reports: Sequence[Any], query: str, micro_batch: int) -> bool:
        """Commit what the tasks wrote for a topic. False: the topic is set aside."""
        start = None if reports[0]["start"] is None else json.loads(reports[0]["start"])
        topic = self._topics.get(name)
        if topic is None:  # it was there when the micro-batch was planned, in an earlier run
            table = events_table(name, StructType()).name
            is_sure = not self._may_have(table, query, micro_batch)
            self._leave(table, reports[0]["join"], start, is_sure=is_sure)
            return True
        if topic.join is None or topic.join.number != reports[0]["join"]:
            return True  # it has joined again since this was planned, and is read again
        if not self._confirm(topic):
            return False
        problem = next((report["error"] for report in reports if report["error"] is not None), None)
        files = [DataFile(**{field: row[field] for field in FILE_FIELDS}) for row in reports if row["name"] is not None]
        is_certain = True
        if problem is None:
            problem, is_certain = self._append(topic, files, query, micro_batch)
        if problem is None:
            topic.committed_from = start
            return True
        is_sure = is_certain and not self._may_have(topic.table, query, micro_batch)
        self._join_again(topic, start, problem, is_sure=is_sure)
        return False

    def _may_have(self, table: str, query: str, micro_batch: int) -> bool:
        """True if the table may have got the micro-batch before the query was started."""
        if not self._may_be_repeated:
            return False
        try:
            return TableLog(self._tables.spark, f"{self._tables.folder}/{table}").has(query, micro_batch)
        except Exception:  # as in `_append`
            return True

    def _confirm_last(self) -> None:
        """Look once more at the commits of the last micro-batch."""
        last, self._to_confirm = self._to_confirm, []
        are_there = list(map(self._confirm, last))
        self._is_plan_old |= not all(are_there)

    def _confirm(self, topic: FedTopic) -> bool:
        """Make sure of the topic's last commit. False: it is lost, and the topic is set aside."""
        if topic.log is None:
            return True
        try:
            topic.log.confirm()
        except Exception as error:  # as in `_append`
            self._join_again(topic, topic.committed_from, reason_of(error), is_sure=False)
            return False
        return True

    def _join_again(self, topic: FedTopic, start: Start | None, problem: str, *, is_sure: bool) -> None:
        """Set the topic aside: it is read from here on, when it is ready again."""
        assert topic.join is not None
        topic.join = topic.join.again(start, is_sure=is_sure)
        self._joins.write(topic.table, topic.join)
        self._set_aside(topic, topic.error or problem)  # what it was set aside for before says more

    def _leave(self, table: str, number: int, start: Start | None, *, is_sure: bool) -> None:
        """A topic of this query that does not take part now is read from here on, when it does."""
        known = self._known_join(table)
        if known is not None and known.number == number:
            self._joins.write(table, known.again(start, is_sure=is_sure))

    def _append(
        self, topic: FedTopic, files: Sequence[DataFile], query: str, micro_batch: int
    ) -> tuple[str | None, bool]:
        """Return the error, if any, and whether it is certain that nothing is committed here in that case."""
        assert topic.log is not None and topic.layout is not None
        try:
            for file in files:
                check_visible(topic.layout, file)
            is_new = topic.log.append(files, topic.layout, query, micro_batch)
        except Exception as error:  # any error of one table's storage; the others must continue
            reason = reason_of(error)
            return reason, TABLE_CHANGED in reason
        if is_new:
            topic.rows += sum(file.rows for file in files)
            topic.micro_batches += 1
            topic.failures_in_a_row = 0
        return None, True


def committed_offset(checkpoint: Path) -> tuple[dict[str, Any], bool]:
    """The end of the last micro-batch that a query has committed, and whether none was under way when it ended."""
    done, planned = _numbers_in(checkpoint / "commits"), _numbers_in(checkpoint / "offsets")
    if not done:
        return {}, not planned
    lines = (checkpoint / "offsets" / str(done[-1])).read_text().splitlines()
    return json.loads(lines[-1]), planned[-1] == done[-1]


def _numbers_in(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
