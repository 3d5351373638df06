"""Receipts: what each commit of a Spark sink has published, stored by the sink outside of the channel.

Nodes report what they have. If the only node that has some rows loses its disk, nothing on the channel records that
they were acknowledged. Receipts do: comparing them with what was delivered finds such rows.

A receipt is one JSON object in one line of one file, for each commit. `RECEIPT_DDL` is the same for Spark
(`spark.read.schema(RECEIPT_DDL).json(folder)`); a test compares the two. Fields may be added, never changed.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

RECEIPT_VERSION = 1
RECEIPT_DDL = (
    "version INT, sink_id STRING, query_id STRING, batch_id BIGINT, position STRING, committed_at TIMESTAMP, "
    "streams ARRAY<STRUCT<topic: STRING, origin: STRING, first_sequence: BIGINT, last_sequence: BIGINT, "
    "row_count: BIGINT, payload_bytes: BIGINT>>"
)
NAME_TEXT_MAX = 120


@dataclass(frozen=True, slots=True)
class ReceiptStream:
    """Rows `first_sequence .. last_sequence` of the stream (topic, origin)."""

    topic: str
    origin: str
    """32 hex digits, as in delivery records."""
    first_sequence: int
    last_sequence: int
    row_count: int
    payload_bytes: int
    """Size of the rows in Arrow, before the node has encoded them: about the sum of the delivery records."""


@dataclass(frozen=True, slots=True)
class Receipt:
    sink_id: str
    query_id: str | None
    """Id of the streaming query; None for a batch write outside of one."""
    batch_id: int | None
    """Number of the micro-batch, or the option `batchId`; None for a batch write without it."""
    position: str
    """The position that the commit moved the key `sink_id` to; in the frame of every batch that it published."""
    committed_at: datetime
    """The time at which the sink got the answer, by the driver's clock. A replayed micro-batch has a new time."""
    streams: tuple[ReceiptStream, ...]

    @property
    def file_name(self) -> str:
        """The same for every repeat of a commit. It begins with a letter: Spark ignores `_...` and `.` files."""
        text = re.sub(r"[^A-Za-z0-9._-]", "_", f"{self.sink_id}-{self.position}")[:NAME_TEXT_MAX]
        unique = hashlib.sha256(json.dumps([self.sink_id, self.position]).encode()).hexdigest()[:16]
        return f"receipt-{text}-{unique}.json"

    def to_json(self) -> str:
        written = {"version": RECEIPT_VERSION, **asdict(self), "committed_at": self.committed_at.isoformat()}
        return json.dumps(written) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """`ValueError` if it is not a receipt, or has an unknown version."""
        said: Any = json.loads(text)
        if not isinstance(said, dict) or said.get("version") != RECEIPT_VERSION:
            raise ValueError(f"not a receipt of version {RECEIPT_VERSION}: {text[:100]!r}")
        try:
            streams = tuple(ReceiptStream(**stream) for stream in said["streams"])
            committed_at = datetime.fromisoformat(said["committed_at"]).astimezone(UTC)
            return cls(said["sink_id"], said["query_id"], said["batch_id"], said["position"], committed_at, streams)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a receipt: {error!r} in {text[:100]!r}") from error
