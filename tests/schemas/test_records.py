"""The records: Arrow, Avro and Delta are derived from one definition, and equal what was released.

`released_records.json` holds the formats of version 1, from when each was written by hand: the bytes of the Arrow
schema, the Avro schema without its texts, and the statement that creates the Delta table without its comments. It is
never regenerated: nodes, registries and tables have these formats.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema

from m4cast.schemas.arrow_types import arrow_schema
from m4cast.schemas.avro_types import avro_definition
from m4cast.schemas.records import (
    DEAD_LETTER,
    DELIVERY_RECORD,
    INTEREST_RECORD,
    RECORDS,
    ROSTER_RECORD,
    RecordDefinition,
    RecordField,
)
from m4cast.schemas.tables.dead_letters import DEAD_LETTERS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER
from m4cast.schemas.tables.table import Table, columns_of

RELEASED = json.loads(Path(__file__).with_name("released_records.json").read_text(encoding="utf-8"))
TABLES = {
    DELIVERY_RECORD.name: DELIVERIES,
    ROSTER_RECORD.name: ROSTER,
    INTEREST_RECORD.name: INTEREST,
    DEAD_LETTER.name: DEAD_LETTERS,
}
OF_INGEST = ("read_at", "first_read_at", "replayed_at")
NEW = RecordField(name="new", kind="text", about="a column of version 2", nullable=True, since=2)


def first_version(record: RecordDefinition) -> RecordDefinition:
    return replace(record, fields=tuple(field for field in record.fields if field.since == 1))


def without_texts(avro: Any) -> Any:
    if isinstance(avro, list):
        return [without_texts(each) for each in avro]
    if isinstance(avro, dict):
        return {name: without_texts(value) for name, value in avro.items() if name != "doc"}
    return avro


def statement_of(table: Table) -> str:
    """The schemas of version 1, without comments."""
    first = replace(table, columns=tuple(column for column in table.columns if column.since == 1), version=1)
    return re.sub(r"\s?COMMENT '(?:[^'\\]|\\.)*'", "", first.create_statement("/lake"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_the_released_formats_stay(record: RecordDefinition) -> None:
    released = RELEASED[record.name]
    first = first_version(record)
    assert arrow_schema(first).serialize().to_pybytes().hex() == released["arrow"]
    avro = without_texts(avro_definition(first))
    assert json.dumps(avro) == json.dumps(released["avro"]), "also the order of names stays"
    assert statement_of(TABLES[record.name]) == released["delta"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_definition_is_valid_in_all_formats(record: RecordDefinition) -> None:
    names = [field.name for field in record.fields]
    assert len(set(names)) == len(names)
    parsed: Any = parse_schema(avro_definition(record), named_schemas={})
    assert parsed["name"].endswith(record.name)
    assert [field.name for field in arrow_schema(record)] == names
    own = [column.name for column in TABLES[record.name].columns if column.name not in OF_INGEST]
    assert own == names
    for field in record.fields:
        assert field.since == 1 or field.nullable, f"{field.name}: older records have no value"
        assert field.about and not field.about.endswith("."), field.name


def test_a_new_column_is_in_all_formats_and_old_tables_gain_it() -> None:
    wider = replace(DELIVERY_RECORD, fields=(*first_version(DELIVERY_RECORD).fields, NEW))
    assert arrow_schema(wider).names[-1] == "new"
    assert avro_definition(wider)["fields"][-1]["type"] == ["null", "string"]
    table = replace(DELIVERIES, columns=columns_of(wider), version=wider.version)
    add, set_version = table.upgrade_statements("/lake", 1)
    assert add == "ALTER TABLE delta.`/lake/deliveries` ADD COLUMNS (`new` string COMMENT 'a column of version 2')"
    assert "'m4cast.table.version' = '2'" in set_version
