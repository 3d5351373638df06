"""The layout of a table's files: which columns they have, under which names, and which of them have statistics.

A Delta table with column mapping names the columns of its files differently from those of the table: each has a
physical name and an id that never change, so that any column can have any name and be renamed. A task gets the layout
from the driver, which reads it from the table.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Self

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from m4cast.spark_connector.columns import arrow_schema

PHYSICAL_NAME = "delta.columnMapping.physicalName"
COLUMN_ID = "delta.columnMapping.id"
PARQUET_ID = b"PARQUET:field_id"
DEFAULT, LENGTH = "CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING"
"""Keys of metadata that Delta gives to a column with a default, and to text whose length is limited."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    folder: str
    """The folder of the files."""
    columns: StructType
    """Named as the topic's columns, with the table's types; Delta's names for them are in their metadata."""
    statistics: tuple[tuple[str, ...], ...]
    """Physical paths of the columns whose least and greatest values Delta stores to skip files."""
    codec: str
    """Spark's name for it, such as `snappy`."""
    partition: str | None = None
    """The column that the table is partitioned by, if it is. It is text, and not in the files."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "columns": self.columns.jsonValue()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        value = json.loads(text)
        return cls(
            folder=value["folder"],
            columns=StructType.fromJson(value["columns"]),
            statistics=tuple(tuple(path) for path in value["statistics"]),
            codec=value["codec"],
            partition=value["partition"],
        )

    def physical(self) -> pa.Schema:
        """The schema of its files. Its types have the same layout in memory as `arrow_schema(self.columns)`."""
        columns = StructType([column for column in self.columns if column.name != self.partition])
        arrow = arrow_schema(columns)
        return pa.schema([_physical(column, field) for column, field in zip(columns, arrow, strict=True)])

    def is_part_of(self, table: StructType) -> bool:
        """Compare with the table as it is now: files of this layout fit if it still has all their columns."""
        return set(_places(self.columns)) <= set(_places(table))

    def names_in(self, table: StructType) -> list[str]:
        """The columns of its files, as the table names them now."""
        mine = set(map(_name, self.columns))
        return [column.name for column in table if _name(column) in mine]


def columns_in(table: StructType, wanted: StructType) -> StructType:
    """The columns of the table that are wanted, in its order, under the names that they have in `wanted`."""
    names = {field.name.lower(): field.name for field in wanted}
    return StructType(
        [
            StructField(names[field.name.lower()], field.dataType, field.nullable, field.metadata)
            for field in table
            if field.name.lower() in names
        ]
    )


def has_columns(table: StructType, wanted: StructType) -> bool:
    """Check that the table has all wanted columns with the same types. Whether they may be null is ignored."""
    known = {field.name.lower(): field.dataType.simpleString() for field in table}
    return all(known.get(field.name.lower()) == field.dataType.simpleString() for field in wanted)


def unmet(table: StructType, written: Collection[str]) -> str | None:
    """A demand of the table on rows, beyond their types, that is not met here; None if it has none. `written`: names of
    the columns that rows have, in lower case."""
    for column in table:
        metadata = column.metadata or {}
        if LENGTH in metadata:
            return f"the length of column {column.name!r} is limited"
        if column.name.lower() not in written and (DEFAULT in metadata or not column.nullable):
            why = "has a default" if DEFAULT in metadata else "is NOT NULL"
            return f"rows lack column {column.name!r}, which {why}"
    return None


def _physical(column: StructField, field: pa.Field) -> pa.Field:
    number = (column.metadata or {}).get(COLUMN_ID)
    metadata = None if number is None else {PARQUET_ID: str(number).encode()}
    return pa.field(_name(column), _renamed(column.dataType, field.type), field.nullable, metadata)


def _renamed(type_: DataType, arrow: pa.DataType) -> pa.DataType:
    match type_:
        case StructType():
            return pa.struct([_physical(column, field) for column, field in zip(type_, arrow, strict=True)])
        case ArrayType():
            element = arrow.value_field
            return pa.list_(element.with_type(_renamed(type_.elementType, element.type)))
        case MapType():
            key, item = arrow.key_field, arrow.item_field
            renamed = (key.with_type(_renamed(type_.keyType, key.type)), _renamed(type_.valueType, item.type))
            return pa.map_(renamed[0], item.with_type(renamed[1]))
    return arrow


def _name(column: StructField) -> str:
    return str((column.metadata or {}).get(PHYSICAL_NAME, column.name))


def _places(type_: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every column in it that has a value of its own: its physical path, and its type."""
    match type_:
        case StructType():
            for column in type_:
                yield from _places(column.dataType, (*path, _name(column)))
        case ArrayType():
            yield from _places(type_.elementType, (*path, "element"))
        case MapType():
            yield from _places(type_.keyType, (*path, "key"))
            yield from _places(type_.valueType, (*path, "value"))
        case _:
            yield path, type_.simpleString()
