"""Payloads that wait for a commit, by stage id. Their bytes are in `payloads`."""

import struct
from typing import NamedTuple

from m4cast.overlay.protocol.effects import Staged
from m4cast.overlay.protocol.wire.batch import Batch, StoredPayload
from m4cast.overlay.protocol.wire.frame import payload_checksum
from m4cast.overlay.store.table import StoreTable, Tables, Txn

STAGE = StoreTable("stage")

_STAGED = struct.Struct("<IQIQQ")


class StageEntry(NamedTuple):
    """The entry of a staged payload, without the payload."""

    row_count: int
    schema_id: int
    payload_bytes: int
    payload_number: int
    payload_checksum: int
    topic: str

    def staged(self) -> Staged:
        payload = StoredPayload(self.payload_bytes, self.payload_checksum)
        return Staged(self.topic, self.row_count, self.schema_id, payload)

    def is_of(self, batch: Batch) -> bool:
        """The batch is this payload, numbered."""
        numbered = Staged(batch.stream.topic, batch.row_count, batch.schema_id, batch.payload)
        return numbered == self.staged()


def stage_value(staged: Staged, payload_number: int) -> bytes:
    checksum = payload_checksum(staged.payload, staged.checksum)
    fields = _STAGED.pack(staged.row_count, staged.schema_id, len(staged.payload), payload_number, checksum)
    return fields + staged.topic.encode()


def stage_of(value: bytes | memoryview) -> StageEntry:
    row_count, schema_id, payload_bytes, payload_number, checksum = _STAGED.unpack_from(value)
    return StageEntry(
        row_count=row_count,
        schema_id=schema_id,
        payload_bytes=payload_bytes,
        payload_number=payload_number,
        payload_checksum=checksum,
        topic=str(value[_STAGED.size :], "utf-8"),
    )


def read_stage(tables: Tables, txn: Txn) -> dict[str, StageEntry]:
    return {str(key, "utf-8"): stage_of(value) for key, value in txn.cursor(tables[STAGE])}
