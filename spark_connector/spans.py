"""Spans: pieces of streams, read in the tasks.

What a node says is missing is looked for at the others; what none of them keeps is data loss. Small batches are put
together for Spark, which has a price for each record batch.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.types import StructType

from m4cast.overlay import heap
from m4cast.overlay.errors import M4castError, RefusedError
from m4cast.spark_connector import offsets, planner
from m4cast.spark_connector.access import channel_of, told
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Stream
from m4cast.spark_connector.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel

log = logging.getLogger("m4cast.spark")

TOGETHER_ROWS = 16_384
"""Record batches are put together up to this; lower: more of them, higher: more is copied. Guess."""


class SpanReader:
    def __init__(self, options: ReadOptions, schema: StructType, *, drop_others: bool) -> None:
        self._options = options
        self._schema = schema
        self._drop_others = drop_others or options.ignore_new_columns or options.read == "raw"

    def read(self, span: planner.Span) -> Iterator["pa.RecordBatch"]:
        try:
            yield from self._read(span)
        except ConnectorError as error:
            # Spark shows the traceback first: what to do should not be found behind the connector's inner frames.
            raise error.with_traceback(None) from None

    def _read(self, span: planner.Span) -> Iterator["pa.RecordBatch"]:
        from m4cast.spark_connector.columns import arrow_schema, projected

        heap.recycle()
        wanted = arrow_schema(self._schema)
        rows = (projected(rows, wanted, where, drop_others=self._drop_others) for rows, where in self._rows(span))
        return rows if self._options.read == "raw" else _together(rows)

    def _rows(self, span: planner.Span) -> Iterator[tuple["pa.RecordBatch", Mapping[str, Any]]]:
        channel = channel_of(self._options.access)
        first = span.first
        end = {span.topic: {span.origin: span.next}}
        form: Literal["raw", "batches"] = "raw" if self._options.read == "raw" else "batches"
        skips = False
        while first < span.next:
            start = {span.topic: {span.origin: first}}
            on_missing: Literal["fail", "skip"] = "skip" if skips else "fail"
            reading = channel.read_batches(span.topic, start, end, on_missing=on_missing, form=form)
            try:
                for rows in reading:
                    yield rows, reading.where
                return
            except RefusedError as error:
                if error.code != "missing" or self._options.fail_on_data_loss:
                    raise told(error, channel.timeout_s) from error
                log.warning("passed over: %s", error.detail)
            except M4castError as error:
                raise told(error, channel.timeout_s) from error
            finally:
                reading.close()
            first = reading.frontier[span.topic][span.origin]
            kept = self._first_kept(channel, span, first)
            skips = kept is None
            first = first if kept is None else kept

    def _first_kept(self, channel: "Channel", span: planner.Span, first: int) -> int | None:
        """From where on a node has the stream, if what is missing lies before; the earliest of all nodes."""
        lows = []
        for node in channel.nodes:
            try:
                lows.append(offsets.position(channel.at(node).earliest(span.topic), Stream(span.topic, span.origin)))
            except M4castError:
                continue  # it was asked for the rows before, and is away now
        later = [low for low in lows if low > first]
        return min(later) if later and len(later) == len(lows) else None


def _together(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """The same rows; small record batches become larger ones, those that are large already are not copied."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for rows in batches:
        if waiting and sum(each.num_rows for each in waiting) + rows.num_rows > TOGETHER_ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting = []
        waiting.append(rows)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
