"""Transactions of kafka-out: records of some rows, committed together with how far the bridge then is.

A broker may refuse a record. kafka-python then fails the whole transaction, so the bridge starts over: it does not send
again the records that the broker named, and otherwise sends fewer rows until the refused one is alone.
"""

import logging
from typing import Any, NamedTuple

import pyarrow as pa
from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
)

from m4cast.overlay.bridge.codecs.codec import Codec, Problem, RowSource
from m4cast.overlay.bridge.errors import DataLossError
from m4cast.overlay.bridge.kafka_out.progress_topic import ProgressTopic
from m4cast.overlay.bridge.kafka_out.record_columns import RecordColumns, payload_names
from m4cast.overlay.bridge.kafka_out.row_letters import RowLetters
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import row_headers
from m4cast.overlay.bridge.settings import KafkaOutSettings
from m4cast.overlay.client import Frontier

log = logging.getLogger("m4cast.bridge")

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
REFUSED = (*TOO_LARGE, InvalidRecordError, InvalidTimestampError, PolicyViolationError)
"""A broker's errors about a record that it will never accept."""


class RowKey(NamedTuple):
    """One row of the channel."""

    topic: str
    origin: str
    sequence: int


class SendTotals(NamedTuple):
    """Totals of one `send`, counted when it is committed."""

    topic: str
    records: int
    bytes: int
    echoes: int


class Transactions:
    """One transaction at a time, of the producer that `use` names."""

    def __init__(
        self,
        settings: KafkaOutSettings,
        codec: Codec,
        letters: RowLetters,
        progress: ProgressTopic,
        metrics: BridgeMetrics,
    ) -> None:
        self._settings = settings
        self._routes = settings.routes
        self._codec = codec
        self._letters = letters
        self._progress = progress
        self._metrics = metrics
        self._producer: Any = None
        self._cluster = ""
        self._uncounted: list[SendTotals] = []
        self._pending: list[tuple[RowKey, Any]] = []
        """The rows of the open transaction, each with the future of its record."""
        self._refused: dict[RowKey, Problem] = {}
        """Rows that the broker refused in an earlier transaction."""
        self.rows_max = settings.transaction_rows
        """The most rows of the next transaction: fewer while a refused row is being isolated."""

    def use(self, producer: Any, cluster: str) -> None:
        """Send with this producer from now on; what another one has not committed is forgotten."""
        self._producer = producer
        self._cluster = cluster
        self._uncounted.clear()
        self._pending.clear()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self, frontier: Frontier) -> None:
        self._progress.send(self._producer, frontier)
        self._producer.commit_transaction()
        for sent in self._uncounted:
            self._metrics.records(topic=sent.topic).inc(sent.records)
            self._metrics.bytes(topic=sent.topic).inc(sent.bytes)
            self._metrics.echoes(topic=sent.topic).inc(sent.echoes)
        self._uncounted.clear()
        self._pending.clear()
        self.rows_max = min(2 * self.rows_max, self._settings.transaction_rows)
        if self._refused:
            self._refused = {row: why for row, why in self._refused.items() if not _is_carried(row, frontier)}
        self._metrics.commits().inc()
        self._metrics.committed_at().set_to_current_time()

    def send(self, rows: pa.RecordBatch, frontier: Frontier) -> None:
        """Send rows of one stream, as a subscription returns them, and advance the frontier.

        Cost: per row; tests/bench/bridge.py watches it."""
        topic, origin = rows["_topic"][0].as_py(), rows["_origin"][0].as_py()
        sequences = rows["_sequence"].to_pylist()
        self._check_gap(topic, origin, sequences[0], frontier)
        target = self._routes.target(topic)
        assert target is not None
        source = RowSource(topic, origin, sequences, rows["_published_at"])
        values, own_headers = self._codec.encode(rows.select(payload_names(rows.schema)), source, target)
        columns = RecordColumns.of(rows, self._cluster, target, by_source=self._settings.partition_by == "source")
        partitions = columns.partitions(sorted(self._producer.partitions_for(target)), origin)
        row_header = row_headers(origin, topic, sequences)
        problems: list[tuple[int, Problem]] = []
        sent = sent_bytes = 0
        for at, value in enumerate(values):
            if columns.is_echo[at]:
                continue
            row = RowKey(topic, origin, sequences[at])
            refused = value if isinstance(value, Problem) else self._refused.get(row)
            if refused is not None:
                problems.append((at, refused))
                continue
            if columns.is_tombstone[at]:
                value = None  # noqa: PLW2901 - what the codec made of nulls
            headers = [*(own_headers[at] if own_headers else ()), *columns.headers[at], row_header[at]]
            try:
                future = self._producer.send(
                    target, value, columns.keys[at], headers, partitions[at], columns.times_ms[at]
                )
            except MessageSizeTooLargeError as error:
                problems.append((at, Problem("too-large", str(error))))
                continue
            except (ValueError, TypeError, AssertionError) as error:  # neither key nor value; no such partition
                problems.append((at, Problem("not-a-record", str(error))))
                continue
            self._pending.append((row, future))
            sent += 1
            sent_bytes += len(value or b"")
        self._uncounted.append(SendTotals(topic=topic, records=sent, bytes=sent_bytes, echoes=sum(columns.is_echo)))
        if problems:
            self._letters.bury(rows, columns, target, problems)
        frontier.setdefault(topic, {})[origin] = sequences[-1] + 1

    def _check_gap(self, topic: str, origin: str, first: int, frontier: Frontier) -> None:
        expected = frontier.get(topic, {}).get(origin, 1)
        if first == expected:
            return
        self._metrics.losses(topic=topic).inc()
        loss = f"rows {expected} to {first - 1} of topic {topic!r}, origin {origin}, are no longer kept"
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{loss}; to continue anyway, set fail_on_data_loss = false")
        log.error("%s; continuing", loss)

    def note_refused(self) -> bool:
        """True if the transaction failed because of some of its records. Records that the broker named are not sent
        again.

        kafka-python creates one error for each record that is named. A refused record that was not named gets the error
        of the transaction, but so do all records that were not sent yet: then the rows before the first of these are
        sent, and it is sent alone."""
        failed = [(row, future.exception) for row, future in self._pending if isinstance(future.exception, REFUSED)]
        if not failed:
            return False
        of_all = None if len(self._pending) == 1 else self._producer._transaction_manager.last_error
        named = [(row, error) for row, error in failed if error is not of_all]
        for row, error in named:
            reason = "too-large" if isinstance(error, TOO_LARGE) else "kafka-refused"
            self._refused[row] = Problem(reason, f"Kafka refuses the record: {error}")
        if not named:
            first = next(at for at, (row, _) in enumerate(self._pending) if row == failed[0][0])
            self.rows_max = max(1, first)  # the rows before it were accepted
        return True


def _is_carried(row: RowKey, frontier: Frontier) -> bool:
    return row.sequence < frontier.get(row.topic, {}).get(row.origin, 1)
