"""Reads spans (pieces of streams) in the tasks.

Rows that one node is missing are looked for at the others; rows that no node keeps are data loss. Small batches are
combined for Spark, where each record batch has a cost.

With a filter, an answer has holes: rows that do not match. Its node certifies up to which row everything that matches
was sent, and by which filter. A task that is not certified up to the end of its span fails.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.types import StructType

from m4cast.overlay import heap
from m4cast.overlay.errors import M4castError, RefusedError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import as_connector_error, channel_of
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import StreamName
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source import planner
from m4cast.spark_connector.source.client_rows import NotifiedRows
from m4cast.spark_connector.source_filter import SourceFilter

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel, RangeReader

log = logging.getLogger("m4cast.spark")

RowChoice = SourceFilter | NotifiedRows | None
"""The rows of a span that are read; None: all."""
COMBINED_ROWS = 16_384
"""Record batches are combined up to this size. Lower: more of them; higher: more copying. Guess."""


class SpanReader:
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._schema = schema
        self._drop_others = drop_others or options.ignore_new_columns or options.read == "raw"

    def read(self, span: planner.SequenceSpan, row_filter: RowChoice) -> Iterator["pa.RecordBatch"]:
        try:
            yield from self._read(span, row_filter)
        except ConnectorError as error:
            # Spark prints the traceback first: the fix must not be hidden after the connector's inner frames.
            raise error.with_traceback(None) from None

    def _read(self, span: planner.SequenceSpan, row_filter: RowChoice) -> Iterator["pa.RecordBatch"]:
        from m4cast.spark_connector.columns import arrow_schema, projected

        heap.recycle()
        wanted = arrow_schema(self._schema)
        found = self._rows(span, row_filter)
        rows = (projected(rows, wanted, where, drop_others=self._drop_others) for rows, where in found)
        return rows if self._options.read == "raw" else _combined(rows)

    def _rows(
        self, span: planner.SequenceSpan, row_filter: RowChoice
    ) -> Iterator[tuple["pa.RecordBatch", Mapping[str, Any]]]:
        channel = channel_of(self._options.access)
        first = span.first
        end = {span.topic: {span.origin: span.next}}
        form: Literal["raw", "batches"] = "raw" if self._options.read == "raw" else "batches"
        skips = False
        while first < span.next:
            start = {span.topic: {span.origin: first}}
            on_missing: Literal["fail", "skip"] = "skip" if skips else "fail"
            if isinstance(row_filter, NotifiedRows):
                reading = row_filter.read(channel, span.topic, start, end, skips=skips)
            else:
                reading = channel.read_batches(
                    span.topic,
                    start,
                    end,
                    on_missing=on_missing,
                    form=form,
                    where=None if row_filter is None else row_filter.text,
                    language=None if row_filter is None else row_filter.language,
                )
            try:
                for rows in reading:
                    yield rows, reading.where
                if row_filter is not None:
                    self._demand_certificate(reading, span, row_filter)
                return
            except ConnectorError:
                raise
            except RefusedError as error:
                if error.code != "missing" or self._options.fail_on_data_loss:
                    raise as_connector_error(error, channel.timeout_s) from error
                log.warning("skipping rows: %s", error.detail)
            except M4castError as error:
                raise as_connector_error(error, channel.timeout_s) from error
            finally:
                reading.close()
            first = reading.frontier[span.topic][span.origin]
            kept = self._first_kept(channel, span, first)
            skips = kept is None
            first = first if kept is None else kept

    def _demand_certificate(
        self, reading: "RangeReader", span: planner.SequenceSpan, row_filter: SourceFilter | NotifiedRows
    ) -> None:
        """Refuse an answer that ended before the span did, or that was selected by another filter. (Of a caller with a
        token a node may narrow the filter, by one that the caller does not know.)"""
        until, profile = reading.frontier[span.topic][span.origin], reading.where.get("profile")
        expected = row_filter.profile().id.hex()
        may_be_narrowed = bool(self._options.access.token)
        if until >= span.next and (profile == expected or (may_be_narrowed and profile is not None)):
            return
        problem = (
            f"topic {span.topic!r}, origin {span.origin}: the answer is certified up to row {until - 1} for filter "
            f"{profile}, but rows {span.first} to {span.next - 1} were requested with filter {expected}"
        )
        fix = "restart the query, which reads these rows again; if it fails again, run one version of m4cast everywhere"
        raise ConnectorError("M4CAST_NOT_CERTIFIED", problem, fix)

    def _first_kept(self, channel: "Channel", span: planner.SequenceSpan, first: int) -> int | None:
        """The first sequence after `first` that a node keeps, if all nodes lack the rows before it."""
        lows = []
        for node in channel.nodes:
            try:
                lows.append(
                    offsets.position(channel.at(node).earliest(span.topic), StreamName(span.topic, span.origin))
                )
            except M4castError:
                continue  # it answered before and is unreachable now
        later = [low for low in lows if low > first]
        return min(later) if later and len(later) == len(lows) else None


def _combined(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """The same rows in larger record batches; those that are already large are not copied."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for rows in batches:
        if waiting and sum(each.num_rows for each in waiting) + rows.num_rows > COMBINED_ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting = []
        waiting.append(rows)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
