"""A Delta table as code: its columns with their meaning, the layout of its files, and its version.

A table is upgraded in place: a later version may only add nullable columns, each marked with the version that adds it.
The statements for that are built here; `m4cast.jobs.table_folder` runs them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from m4cast.schemas.records import Kind, RecordDefinition

VERSION_PROPERTY = "m4cast.table.version"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: DataType
    comment: str
    nullable: bool = True
    since: int = 1
    """The version of the table that adds it. Later columns are nullable: older rows have no value."""


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SPARK_TYPES: dict[Kind, DataType] = {
    "text": StringType(),
    "long": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "bytes": BinaryType(),
    "time": TimestampType(),
    "texts": ArrayType(StringType(), True),
    "headers": ArrayType(_HEADER),
}


def columns_of(record: RecordDefinition) -> tuple[Column, ...]:
    return tuple(
        Column(field.name, SPARK_TYPES[field.kind], field.about, nullable=field.nullable, since=field.since)
        for field in record.fields
    )


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    """Also its path in the folder of tables."""
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns that identify a row. Writers ensure it; Delta does not check it."""
    time: str
    """The column by which old rows are distinguished from new ones."""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 1

    def __post_init__(self) -> None:
        assert not (self.partition_by and self.cluster_by), "Delta allows one of them"
        for column in self.columns:
            assert column.since <= self.version and (column.since == 1 or column.nullable), column.name

    @property
    def schema(self) -> StructType:
        return StructType([StructField(each.name, each.type, each.nullable) for each in self.columns])

    @property
    def selected(self) -> list[str]:
        """Its columns, quoted for `select`."""
        return [sql_name(each.name) for each in self.columns]

    @property
    def all_properties(self) -> dict[str, str]:
        """Its properties, and its version among them."""
        return {**self.properties, VERSION_PROPERTY: str(self.version)}

    def path(self, folder: str) -> str:
        return f"{folder.rstrip('/')}/{self.name}"

    def create_statement(self, folder: str) -> str:
        columns = ",\n  ".join(self._columns_sql(self.columns))
        layout = ""
        if self.partition_by:
            layout = f"PARTITIONED BY ({', '.join(map(sql_name, self.partition_by))})\n"
        if self.cluster_by:
            layout = f"CLUSTER BY ({', '.join(map(sql_name, self.cluster_by))})\n"
        listed = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in self.all_properties.items())
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted(folder)} (\n  {columns}\n) USING DELTA\n"
            f"{layout}COMMENT {_text(self.comment)}\nTBLPROPERTIES ({listed})"
        )

    def upgrade_statements(self, folder: str, found: int) -> list[str]:
        """Upgrade a table of version `found` to this one. The version is set last: an interrupted upgrade is
        repeated."""
        if found == self.version:
            return []
        statements = []
        new = [column for column in self.columns if column.since > found]
        if new:
            statements.append(f"ALTER TABLE {self.quoted(folder)} ADD COLUMNS ({', '.join(self._columns_sql(new))})")
        properties = f"{_text(VERSION_PROPERTY)} = {_text(str(self.version))}"
        return [*statements, f"ALTER TABLE {self.quoted(folder)} SET TBLPROPERTIES ({properties})"]

    def _columns_sql(self, columns: tuple[Column, ...] | list[Column]) -> Iterator[str]:
        for column in columns:
            required = "" if column.nullable else " NOT NULL"
            yield f"{sql_name(column.name)} {_sql_type(column.type)}{required} COMMENT {_text(column.comment)}"

    def quoted(self, folder: str) -> str:
        """Its name in a Spark SQL statement: by path, which needs no catalog."""
        return f"delta.{sql_name(self.path(folder))}"


def sql_name(name: str) -> str:
    """A name quoted for a statement or a column expression of Spark SQL, even if it has dots."""
    return "`" + name.replace("`", "``") + "`"


def _sql_type(type_: DataType) -> str:
    """A type in a statement of Spark SQL: as `simpleString`, with fields quoted whose names are not identifiers."""
    match type_:
        case StructType():
            return f"struct<{','.join(f'{_field_name(each.name)}:{_sql_type(each.dataType)}' for each in type_)}>"
        case ArrayType():
            return f"array<{_sql_type(type_.elementType)}>"
        case MapType():
            return f"map<{_sql_type(type_.keyType)},{_sql_type(type_.valueType)}>"
    return type_.simpleString()


def _field_name(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else sql_name(name)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
