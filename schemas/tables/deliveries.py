"""`deliveries`: what was handed over at which node, in the order of arrival. One row for each batch and each skip.

Partitioned by `kind`: every audit asks for all skips, which are few and have no time of publication, and for the
batches that were published in some minutes. Those are found by the files' statistics: ingest writes records as they
come, so a file spans little time. The change feed gives audits what is new; for rows that are only ever appended it
stores nothing of its own.
"""

from m4cast.schemas.records import DELIVERY_RECORD
from m4cast.schemas.tables.table import Table, columns_of

DELIVERIES = Table(
    name="deliveries",
    comment="What was handed over at which node, in the order of arrival: one row per batch or skip",
    columns=columns_of(DELIVERY_RECORD),
    key=("node_id", "delivery"),
    time="delivered_at",
    partition_by=("kind",),
    version=DELIVERY_RECORD.version,
    # Statistics of the columns of version 1. Audits filter by none of the later ones.
    properties={"delta.enableChangeDataFeed": "true", "delta.dataSkippingNumIndexedCols": "19"},
)
