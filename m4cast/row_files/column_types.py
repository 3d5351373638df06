"""The types of columns of an input, as far as they are known."""

import pyarrow as pa
from pyarrow import types


class ColumnTypes:
    """The types of columns that are known so far."""

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType] = {}

    def learn(self, schema: pa.Schema) -> None:
        """Use these types from now on."""
        self._known.update({field.name: field.type for field in schema if not types.is_null(field.type)})

    def of(self, name: str) -> pa.DataType | None:
        return self._known.get(name)

    def schema(self) -> pa.Schema:
        return pa.schema(list(self._known.items()))
