"""Summaries at the door: which columns of a topic are summarised, and the summary of a single batch.

A summary lets filtered reads pass over a batch without opening it, and costs the publisher time, so it is made when
somebody wants it. A topic's setting `summarise` lists columns, or turns summaries off; by default (`auto`) the columns
are those that reads of the topic at this node have filtered by within the last hour, and those that registrations of
the topic name, at whichever node. Small batches have none.

Summaries are made in the thread of the call that publishes, never on the node's loop. A publish under a topic that
nobody filters costs three looks into dictionaries more, and no call.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.rows.payload import is_reserved
from m4cast.overlay.door.rows.table_rows import VERSION
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles import FilterError, UnknownLanguageError, columns_of, read
from m4cast.overlay.profiles.summary import COLUMNS_MAX, Summary, summarise
from m4cast.overlay.profiles.summary_bytes import decode, encode
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Extension
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, InterestItem, InterestKey

log = logging.getLogger("m4cast.door")

ColumnPath = tuple[str, ...]
"""A column by name, or a member of a struct by the names on the way to it."""

ROWS_MIN = 256
"""Smaller batches are not summarised: their rows are tested in about the time that a summary takes. Decided."""
UNUSED_S_MAX = 3_600.0
"""A column that no read has filtered by for so long is no longer summarised. Longer: publishers pay longer for readers
that have left; shorter: batches between two runs of a job have no summaries. Decided."""
FILTERS_MAX = 256
"""Registered filters of a topic whose columns are looked for. More: a publish takes longer. Guess."""
TOPICS_MAX = 1_000
"""Topics whose filtered columns are remembered; beyond it the one that was not filtered for longest is forgotten, which
only costs its readers time. Guess."""


class FilteredColumns:
    """The columns that reads of each topic filter by. Any thread may use it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self.topics: dict[str, dict[ColumnPath, float]] = {}
        """The time at which each column of a topic was last used. Only for checking whether a topic is in it: `of` has
        the columns."""

    def filtered(self, topic: str, columns: Iterable[ColumnPath]) -> None:
        """A read of this topic filters by these columns. A read that goes on for long reports them again and again.
        The channel's own columns (`_sequence` and others) are not in the payload, and are ignored."""
        now_s = self._now_s()
        with self._lock:
            used = self.topics.get(topic, {})
            for path in columns:
                if not is_reserved(path[0]):
                    used.pop(path, None)  # those used last are at the end
                    used[path] = now_s
            while len(used) > COLUMNS_MAX:
                del used[next(iter(used))]
            if used and topic not in self.topics:
                if len(self.topics) >= TOPICS_MAX:
                    del self.topics[min(self.topics, key=lambda each: max(self.topics[each].values()))]
                self.topics[topic] = used

    def of(self, topic: str) -> tuple[ColumnPath, ...]:
        """The columns that reads of the topic have filtered by of late."""
        oldest_s = self._now_s() - UNUSED_S_MAX
        with self._lock:
            used = self.topics.get(topic, {})
            for path in [path for path, used_s in used.items() if used_s <= oldest_s]:
                del used[path]
            if not used:
                self.topics.pop(topic, None)
            return tuple(used)


class RegisteredFilters:
    """The filters that nodes have registered, of the whole channel. Changed on the loop; any thread may read it."""

    def __init__(self) -> None:
        self.topics: dict[int, dict[tuple[NodeId, InterestKey], InterestItem]] = {}
        """Items by the hash of the topic, without those that have no condition."""

    def changed(self, node_id: NodeId, joined: Iterable[InterestItem], left: Iterable[InterestKey]) -> None:
        """Runs on the loop. What a node that departs wanted has left, and joins when it returns."""
        for key in left:
            known = self.topics.get(key.topic_hash, {})
            if known.pop((node_id, key), None) is not None and not known:
                del self.topics[key.topic_hash]
        for item in joined:
            if item.text and item.language != CLIENT_LANGUAGE:
                known = self.topics.setdefault(item.topic_hash, {})
                known[node_id, InterestKey(item.topic_hash, item.profile_hash)] = item

    def of(self, topic: str) -> tuple[ColumnPath, ...]:
        """The columns that registrations of the topic name."""
        known = self.topics.get(xxh3_64_intdigest(topic.encode()))
        if not known:
            return ()
        texts = dict.fromkeys((item.text, item.language, item.version) for item in list(known.values()))
        columns: dict[ColumnPath, None] = {}
        for at, named in enumerate(texts):
            if at >= FILTERS_MAX or len(columns) >= COLUMNS_MAX:
                break
            columns.update(dict.fromkeys(path for path in _columns_of(*named) if not is_reserved(path[0])))
        return tuple(columns)


@lru_cache(maxsize=4_096)
def _columns_of(text: str, language: str, version: int) -> tuple[ColumnPath, ...]:
    """The columns that a filter names as nodes announce it; none if it cannot be read here."""
    try:
        return tuple(columns_of(read(text, language, version).condition))
    except (FilterError, UnknownLanguageError):
        return ()


class Summaries:
    """Makes the summaries of what is published at this door. Any thread may use it."""

    def __init__(self, chosen: dict[str, tuple[ColumnPath, ...]], filtered: FilteredColumns) -> None:
        self.chosen = chosen
        """The topics whose setting is not `auto`, with their columns; none: `off`."""
        self.filtered = filtered
        self.registered = RegisteredFilters()
        self.selective: dict[str, tuple[ColumnPath, ...]] = {}
        """Selective topics, with the columns by which it is decided where their rows go: always summarised."""
        self.route_by: dict[str, tuple[str, ...]] = {}
        """Selective topics whose publishes are split by values of these columns."""

    def columns(self, topic: str) -> tuple[ColumnPath, ...]:
        """Those that are summarised now."""
        if self.selective.get(topic):
            return tuple(dict.fromkeys((*self.selective[topic], *self.chosen.get(topic, ()))))[:COLUMNS_MAX]
        chosen = self.chosen.get(topic)
        if chosen is not None:
            return chosen
        return tuple(dict.fromkeys((*self.filtered.of(topic), *self.registered.of(topic))))[:COLUMNS_MAX]

    def extensions(self, topic: str, rows: pa.RecordBatch) -> tuple[Extension, ...]:
        """Return the extensions that a batch of these rows carries: its summary, or nothing if none is wanted. Cost:
        see `summarise`.

        Batches of selective tables have none, so that they go to everybody who wants something of the table: a row that
        replaces or removes another one matters to whoever wanted that one."""
        columns = self.columns(topic)
        if not columns or (topic in self.selective and VERSION in rows.schema.names):
            return ()
        try:
            summary = encode(summarise(rows, columns))
        except Exception:  # Whatever a reader filters by, the publisher's rows are published.
            log.exception("no summary could be made of %d rows of topic %r", rows.num_rows, topic)
            return ()
        return (Extension(SUMMARY_EXTENSION, must_understand=False, value=summary),)


def known_summary(content: bytes | None, row_count: int) -> Summary | None:
    """Decode a batch's summary (`SummarisedBatch.summary`); None: nothing is known of its rows, so each may match.

    The bytes may be of a newer version, damaged, or anything that another node cares to write.
    """
    if content is None:
        return None
    try:
        summary = decode(content)
    except RemoteProtocolError:
        return None
    if summary is None or summary.rows != row_count:
        return None
    if any(is_reserved(path[0]) for path in summary.columns):
        return Summary(
            summary.rows, {path: column for path, column in summary.columns.items() if not is_reserved(path[0])}
        )
    return summary
