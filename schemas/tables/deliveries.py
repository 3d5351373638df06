"""`deliveries`: what each node delivered, in the order of arrival. One row for each batch and each skip.

Partitioned by `kind`: every audit reads all skips, which are few and have no time of publication, and the batches that
were published in some minutes. Those are found by file statistics: ingest writes records as they arrive, so a file
covers little time. The change feed gives audits the new rows; for a table that is only appended to it takes no space.
"""

from m4cast.schemas.records import DELIVERY_RECORD
from m4cast.schemas.tables.table import Table, columns_of

DELIVERIES = Table(
    name="deliveries",
    comment="What each node delivered, in the order of arrival: one row per batch or skip",
    columns=columns_of(DELIVERY_RECORD),
    key=("node_id", "delivery"),
    time="delivered_at",
    partition_by=("kind",),
    version=DELIVERY_RECORD.version,
    # Statistics of the columns of version 1. Audits filter by none of the later ones.
    properties={"delta.enableChangeDataFeed": "true", "delta.dataSkippingNumIndexedCols": "19"},
)
