"""Dead letters of rows: published to the channel before the transaction of their rows, at least once."""

import datetime
import logging
from typing import Any

import pyarrow as pa

from m4cast.overlay.bridge.codecs.codec import Problem, row_as_json
from m4cast.overlay.bridge.kafka_out.record_columns import RecordColumns, payload_names
from m4cast.overlay.bridge.metrics import BridgeMetrics
from m4cast.overlay.bridge.records import LETTER_BYTES_MAX, letter_content, times
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from m4cast.schemas.arrow_types import DEAD_LETTER

log = logging.getLogger("m4cast.bridge")

NO_CONTENT = letter_content(None, None, (), 0)


class RowLetters:
    """`failed_by` names the bridge in its letters, `topic` is where they go."""

    def __init__(self, channel: Channel, topic: str, failed_by: str, metrics: BridgeMetrics) -> None:
        self._channel = channel
        self._topic = topic
        self._failed_by = failed_by
        self._metrics = metrics

    def bury(
        self, rows: pa.RecordBatch, columns: RecordColumns, target: str, problems: list[tuple[int, Problem]]
    ) -> None:
        """Publish a dead letter for each problem, which names its row by index."""
        now = datetime.datetime.now(datetime.UTC)
        topic, origin = rows["_topic"][0].as_py(), rows["_origin"][0].as_py()
        payload = rows.select(payload_names(rows.schema))
        letters = [
            {
                "failed_at": now,
                "failed_by": self._failed_by,
                "reason": problem.reason,
                "detail": problem.detail[:1_000],
                "source": "channel",
                "source_topic": topic,
                "source_stream": origin,
                "source_position": rows["_sequence"][at].as_py(),
                "target_topic": target,
                "timestamp": times([columns.times_ms[at]])[0],
                **letter_content(
                    columns.keys[at], row_as_json(payload.slice(at, 1)), columns.headers[at], LETTER_BYTES_MAX
                ),
            }
            for at, problem in problems
        ]
        self._publish(letters)
        first = problems[0][1]
        for _, problem in problems:
            self._metrics.dead_letters(reason=problem.reason).inc()
        log.warning(
            "%d of %d rows of %s became dead letters in %s; the first: sequence %d, %s: %s",
            len(problems),
            rows.num_rows,
            topic,
            self._topic,
            letters[0]["source_position"],
            first.reason,
            first.detail[:300],
        )

    def _publish(self, letters: list[dict[str, Any]]) -> None:
        """Publish letters, in halves if they are too large together. A letter that is too large alone, for a channel
        with a small batch limit, is published without its content."""
        try:
            self._channel.publish(self._topic, pa.Table.from_pylist(letters, schema=DEAD_LETTER))
        except RefusedError as error:
            if error.code != "too-large" or letters == [{**letters[0], **NO_CONTENT}]:
                raise
            half = len(letters) // 2
            for some in (letters[:half], letters[half:]) if half else ([{**letters[0], **NO_CONTENT}],):
                self._publish(some)
