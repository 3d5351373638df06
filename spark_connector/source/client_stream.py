"""A client's notifications as a stream: the rows that its profiles want, from its position on, each once.

The offset of a query is the client's position: a frontier, and in the place that no topic has (`offsets`) the rest of
the client's state. So the checkpoint has all that is needed to go on: a replay reads the rows that were planned, and a
query continues without the access point that it had. What the query has finished is saved at the access point, which
lets the rows go; the checkpoint's position counts, the saved one only begins a new query.

Other processes may change the profiles while the query does not run. Then it adopts them when it starts, in a
micro-batch without rows: new profiles begin where they were subscribed.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from m4cast.overlay.errors import RefusedError, UnreachableError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import as_connector_error, client_of, patiently, saved_by_client
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source import planner
from m4cast.spark_connector.source.client_rows import NotifiedRows
from m4cast.spark_connector.source.rows import WAIT_S, SpanPartition
from m4cast.spark_connector.source.spans import SpanReader
from m4cast.spark_connector.source.topics import SourceTopics
from m4cast.spark_connector.source_filter import SourceFilter

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Client
    from m4cast.overlay.client.roaming.planned import ClientPosition

log = logging.getLogger("m4cast.spark")

SAVE_S = 1.0
"""The interval at which the position is saved at the access point while it moves. Lower: rows are let go sooner, more
writes."""
SHOWN_S = 10.0
"""The interval at which it is saved while it does not move, so that the client counts as connected."""


class ClientStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._spans = SpanReader(options, schema, drop_others=drop_others)
        self._client: Client | None = None
        self._topics: dict[str, SourceTopics] = {}
        self._target: Frontier | None = None
        self._ends_at_target = False
        self._latest: Frontier = {}
        self._saved: ClientPosition | None = None
        self._saved_at = 0.0

    # ---- what Spark calls in its process for offsets

    def initialOffset(self) -> dict[str, Any]:
        """The position that was saved last. The access point has to be reachable."""
        return offset_of(self._options.client, self._begin(None))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_rows_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_at_target = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = position_of(self._options.client, start)
        if self._client is None:
            begun = self._begin(at)
            if not begun.has_profiles_of(at):
                log.info("client %s has other profiles than before: they apply from now on", self._options.client)
                return offset_of(self._options.client, begun)
        self._save(at)
        self._latest = self._newest(at)
        ahead = at.ahead(self._latest)
        rows = offsets.rows_between(ahead.start, ahead.end)
        if not rows:
            return start
        if self._options.max_rows_per_trigger is not None and not isinstance(limit, ReadAllAvailable):
            rows = planner.fair_share(rows, self._options.max_rows_per_trigger)
        ends = {stream: offsets.position(ahead.start, stream) + count for stream, count in rows.items()}
        after = at.after(replace(ahead, end=offsets.frontier_of(ends)))
        assert self._client is not None
        return offset_of(self._options.client, replace(after, session=self._client.memory.session))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        key = self._options.client
        found = position_of(key, start).between(position_of(key, end))
        planned = planner.spans(
            found.start,
            found.end,
            min_partitions=self._options.min_partitions,
            max_rows=self._options.max_rows_per_partition,
        )
        return [SpanPartition(span, NotifiedRows(found.wanted[span.topic])) for span in planned]

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` saves what is finished, and Spark calls it afterwards."""

    # ---- in tasks

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._spans.read(*partition.value)

    # ---- the client

    def _begin(self, at: "ClientPosition | None") -> "ClientPosition":
        """Connect the client. `at`: where the checkpoint is; None: there is none yet."""
        client, timeout_s = client_of(self._options), self._options.access.timeout_s
        if at is None:
            position = saved_by_client(client, self._options)
        else:
            try:
                position = at.with_profiles_of(client.saved())
            except (UnreachableError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code != "unknown-client":
                    raise as_connector_error(error, timeout_s) from None
                log.warning("client %s: its profiles are those of the checkpoint: %s", client.key, error)
                position = at
        if not position.topics:
            problem = f"client {client.key!r} has no profiles"
            raise ConnectorError("M4CAST_CLIENT", problem, "subscribe it to something first: m4cast client subscribe")
        patiently(lambda: client.continue_from(position), timeout_s)
        self._client = client
        self._saved, self._saved_at = position, time.monotonic()
        return replace(position, session=client.memory.session)

    def _save(self, at: "ClientPosition") -> None:
        """Rows before `at` are finished, and not replayed. A client that another process has taken ends the query."""
        assert self._client is not None and self._saved is not None
        is_same = at.state == self._saved.state
        if time.monotonic() < self._saved_at + (SHOWN_S if is_same else SAVE_S):
            return
        try:
            self._client.continue_from(at)
        except UnreachableError as error:
            log.warning("client %s: its position is not saved: %s", self._client.key, error)
        except RefusedError as error:
            raise as_connector_error(error, self._options.access.timeout_s) from None
        self._saved, self._saved_at = at, time.monotonic()

    # ---- the topics

    def _newest(self, at: "ClientPosition") -> Frontier:
        if self._target is not None:
            return self._target
        wait_s = WAIT_S / len(at.topics) if self._latest and not _has_more(at, self._latest) else 0
        found: Frontier = {}
        for topic in at.topics:
            row_filter = wider(at.conditions(topic))
            known = self._topics.get(topic)
            if known is None:
                options = replace(self._options, topics=(topic,), row_filter=row_filter)
                known = self._topics[topic] = SourceTopics(options)
            found |= known.frontier() if self._ends_at_target else known.newest(wait_s)
        if self._ends_at_target:
            self._target = found
        return found


def _has_more(at: "ClientPosition", latest: Frontier) -> bool:
    ahead = at.ahead(latest)
    return bool(offsets.rows_between(ahead.start, ahead.end))


def wider(conditions: list[tuple[str | None, str | None]]) -> SourceFilter | None:
    """One filter for all conditions; None: every row. Of selective topics, nodes fetch what it matches."""
    distinct = list(dict.fromkeys(conditions))
    if any(where is None for where, _ in distinct) or any(language not in (None, "sql") for _, language in distinct):
        return None
    found = SourceFilter(" OR ".join(f"({where})" for where, _ in distinct))
    try:
        found.profile()
    except ConnectorError:  # too long, or too many terms
        return None
    return found


# ---- offsets


def offset_of(key: str, position: "ClientPosition") -> dict[str, Any]:
    written = position.json()
    frontier = offsets.frontier_of(dict(offsets.streams_of(written["state"].pop("frontier"))))
    return offsets.with_client(frontier, {"key": key, **written})


def position_of(key: str, offset: dict[str, Any]) -> "ClientPosition":
    from m4cast.overlay.client.roaming.planned import ClientPosition

    written = offsets.client_of(offset)
    if written is None or written["key"] != key:
        whose = "rows of topics" if written is None else f"client {written['key']!r}"
        problem = f"the checkpoint is of {whose}, not of client {key!r}"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use another checkpointLocation, or correct client")
    frontier = offsets.without_skips(offset)
    return ClientPosition.of({"session": written["session"], "state": {**written["state"], "frontier": frontier}})
