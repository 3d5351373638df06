"""The raw codec: a value is bytes, in the column `value`."""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.bridge.codecs.codec import VALUE, Decoded, Encoded, Piece, Problem, Record, RowSource


class RawCodec:
    consumed_headers: tuple[str, ...] = ()

    def decode(self, records: Sequence[Record]) -> Decoded:
        values = pa.array([record.value for record in records], pa.binary())
        return Decoded([Piece(range(len(records)), pa.table({VALUE: values}), {})])

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        at = rows.schema.get_field_index(VALUE)
        if at < 0 or not (types.is_binary(rows.schema.field(at).type) or types.is_string(rows.schema.field(at).type)):
            problem = Problem("no-value-column", f"the raw codec needs a column {VALUE!r} of bytes or text")
            return Encoded([problem] * rows.num_rows)
        return Encoded(rows.column(at).cast(pa.binary()).to_pylist())
