"""One thing, several definitions: the door's Arrow, Avro and the Delta tables say the same of it."""

from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from fastavro import parse_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from m4cast.overlay.door import deliveries as door
from m4cast.overlay.ids import TOPIC_BYTES_MAX
from m4cast.schemas.avro_types import RECORD_FILES, read_types, standalone
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS
from m4cast.schemas.tables.query_progress import QUERY_PROGRESS
from m4cast.schemas.tables.roster import ROSTER
from m4cast.schemas.tables.table import Table

RECORDS = read_types(RECORD_FILES)
EVENTS = events_table("orders/eu", StructType([StructField("price", LongType())]))
TABLES = (EVENTS, DELIVERIES, ROSTER, ORDERING_GAPS, DELIVERY_AUDIT, AUDIT_RUNS, DEAD_LETTERS, QUERY_PROGRESS)
NOT_OF_THE_RECORD = {"read_at", "replayed_at"}
"""What only a table can tell: when ingest read the roster, when a dead letter was carried on."""
SPARK_OF_AVRO = {"long": LongType(), "int": IntegerType(), "boolean": BooleanType(), "bytes": BinaryType()}
SPARK_OF_ARROW = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.list_(pa.field("element", pa.string())): ArrayType(StringType()),
}


def spark_type(avro: Any) -> DataType:
    if isinstance(avro, str):
        return spark_type(RECORDS[avro]) if avro in RECORDS else SPARK_OF_AVRO.get(avro, StringType())
    if avro["type"] == "record":
        return StructType([StructField(name, kind) for name, kind, _ in map(column, avro["fields"])])
    if avro.get("logicalType") == "timestamp-micros":
        return TimestampType()
    if avro["type"] == "array":
        items = avro["items"]
        return ArrayType(spark_type(items[1] if isinstance(items, list) else items))
    return spark_type(avro["type"])


def column(field: dict[str, Any]) -> tuple[str, DataType, bool]:
    """Name, type and nullability of an Avro field as a column of Spark."""
    declared = field["type"]
    is_nullable = isinstance(declared, list)
    return field["name"], spark_type(declared[1] if is_nullable else declared), is_nullable


@pytest.mark.parametrize(
    ("record", "table"), [("DeliveryRecord", DELIVERIES), ("RosterRecord", ROSTER), ("DeadLetter", DEAD_LETTERS)]
)
def test_avro_and_the_table_agree(record: str, table: Table) -> None:
    fields = [column(field) for field in RECORDS[record]["fields"]]
    columns = [(each.name, each.type, each.nullable) for each in table.columns if each.name not in NOT_OF_THE_RECORD]
    assert fields == columns
    parsed: Any = parse_schema(standalone(record, RECORDS), named_schemas={})
    assert parsed["name"].endswith(record)


@pytest.mark.parametrize(("arrow", "table"), [(door.DELIVERIES, DELIVERIES), (door.ROSTER, ROSTER)])
def test_the_door_and_the_table_agree(arrow: pa.Schema, table: Table) -> None:
    columns = [(each.name, each.type) for each in table.columns if each.name not in NOT_OF_THE_RECORD]
    assert [(field.name, SPARK_OF_ARROW[field.type]) for field in arrow] == columns


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_definition_is_whole(table: Table) -> None:
    names = [each.name for each in table.columns]
    assert len(set(names)) == len(names)
    named = {*table.key, table.time, *table.partition_by, *table.cluster_by}
    assert named <= set(names)
    assert table.comment


def topics(random: Random, count: int) -> set[str]:
    """Names that the door takes: printable text of up to 200 bytes."""
    letters = "ab .,/'\"%~`${}[]\\éß語😀"
    found = {"".join(random.choices(letters, k=random.randint(1, 200))) for _ in range(count)}
    return {name for name in found if len(name.encode()) <= TOPIC_BYTES_MAX}


def test_every_legal_topic_has_a_place_of_its_own() -> None:
    names = topics(Random("names"), 2_000)
    longest = "語" * (TOPIC_BYTES_MAX // 3)
    assert {longest, longest[:-1] + "言"}.isdisjoint(names)
    names |= {longest, longest[:-1] + "言", "a", "a ", " a", "a,b", ".", "..", "/", "%"}
    places = {name: events_table(name, StructType()).name.removeprefix("events/") for name in names}
    # A topic that is named as the place of another is not there, too.
    places |= {place: events_table(place, StructType()).name.removeprefix("events/") for place in places.values()}
    assert len(set(places.values())) == len(places)
    assert all(len(place.encode()) <= 255 and "/" not in place and place[0] != "." for place in places.values())
    assert any(len(quote(name, safe="")) > 255 for name in names)


def test_a_topic_keeps_the_place_that_it_had() -> None:
    assert EVENTS.path("/lake/") == "/lake/events/orders%2Feu"
    assert events_table("orders%2Feu", StructType()).path("/lake") == "/lake/events/orders%252Feu"
    with pytest.raises(AssertionError, match="takes no batch"):
        events_table("t", StructType([StructField("_origin", StringType())]))
