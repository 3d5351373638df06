"""The json codec: a value is a JSON object, its members are the columns."""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.bridge.codecs.codec import Decoded, Encoded, Record, RowSource, add_rows, encode_rows
from m4cast.overlay.bridge.codecs.json_values import pylist, read_json_objects, write_json_object
from m4cast.schemas.casts import exact_cast, kindred_cast
from m4cast.schemas.json_types import Rounded


class JsonCodec:
    """`columns` declares the types of some columns; the types of the others are inferred."""

    consumed_headers: tuple[str, ...] = ()

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        # Arrow reads these types from the digits. Into other types it would round, or read numbers as times.
        exact = (each for each in columns if types.is_decimal(each.type) or types.is_uint64(each.type))
        self._explicit = pa.schema(list(exact))

    def decode(self, records: Sequence[Record]) -> Decoded:
        values = [b"{}" if record.value is None else record.value for record in records]
        decoded = Decoded()
        add_rows(decoded, range(len(values)), values, self._rows, "not-json")
        return decoded

    def _rows(self, values: list[bytes]) -> tuple[pa.Table, Rounded]:
        rows, rounded = read_json_objects(values, self._explicit)
        for declared in self._columns:
            at = rows.schema.get_field_index(declared.name)
            if at < 0:
                rows = rows.append_column(declared, pa.nulls(len(values), declared.type))
            elif rows.schema.field(at).type != declared.type:
                rows = rows.set_column(at, declared, _as_declared(rows.column(at).combine_chunks(), declared))
        return rows, rounded

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return encode_rows(self._encode, rows, source, target)

    def _encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return Encoded([write_json_object(row) for row in pylist(rows)])


def _as_declared(column: pa.Array, declared: pa.Field) -> pa.Array:
    """The column cast to its declared type. Text may stand for a time or for bytes only where that is declared."""
    is_text = types.is_string(column.type) and (types.is_temporal(declared.type) or types.is_binary(declared.type))
    try:
        return exact_cast(column, declared.type) if is_text else kindred_cast(column, declared.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {declared.name!r} is declared as {declared.type}: {error}") from None
