"""Schema agreement: publishes that run at the same time keep the columns of a topic to their types."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.table_rows import KEYS, VERSION, is_table


class SchemaAgreement:
    """A schema is compared with all schemas of the topic that this node knows, and with those being published at the
    same time. (Another node may publish a conflicting one meanwhile: that shows when both are read.)"""

    def __init__(self, catalogue: Catalogue, frontiers: Frontiers) -> None:
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._lock = threading.Lock()
        self._agreed: dict[str, dict[int, pa.Schema]] = {}
        self._pending: dict[str, Counter[int]] = {}

    @contextmanager
    def admitted(self, topic: str, schema_id: int, schema: pa.Schema) -> Iterator[None]:
        """While rows of this schema are being published. Refuses a conflicting schema."""
        with self._lock:
            agreed = self._agreed.setdefault(topic, {})
            pending = self._pending.setdefault(topic, Counter())
            if schema_id not in agreed:
                spans = [StreamSpan(stream, 1, until) for stream, until in self._frontiers.positions((topic,)).items()]
                try:
                    known = self._catalogue.merged(spans)
                except Refusal:  # origins that conflict already: to refuse more would not help
                    known = pa.schema([])
                together = payload.merged(
                    [
                        ("in this topic", known),
                        *(("in a publish in progress", other) for other in agreed.values()),
                        ("here", schema),
                    ]
                )
                for other in (known, *agreed.values()):
                    if other.names and (VERSION in other.names) != (VERSION in schema.names):
                        raise _mixed(topic, schema)
                if len(together) > len(known):
                    payload.refuse_wide(together, "a topic, with the columns of all its batches,")
                agreed[schema_id] = schema
            pending[schema_id] += 1
        try:
            yield
        finally:
            with self._lock:
                pending[schema_id] -= 1
                if not pending[schema_id]:
                    # From now on the catalogue has what was published; what was refused must not stay.
                    del pending[schema_id]
                    del agreed[schema_id]
                    if not pending:
                        del self._agreed[topic], self._pending[topic]


def _mixed(topic: str, schema: pa.Schema) -> Refusal:
    columns = ", ".join(KEYS)
    if is_table(schema):
        detail = f"topic {topic!r} has rows that are not those of a table: publish rows with {columns} under another"
    else:
        detail = (
            f"topic {topic!r} is a table: its rows need {columns}, and these have none: add them, or publish elsewhere"
        )
    return Refusal("schema-conflict", detail)
