"""The Avro definitions by themselves: valid Avro, with a limit on everything that could be large."""

from typing import Any

import pytest
from fastavro import parse_schema

from m4cast.overlay.ids import NODE_ID_BYTES, TOPIC_BYTES_MAX
from m4cast.overlay.protocol.wire.control import ENTRIES_MAX, NEIGHBOURS_MAX
from m4cast.schemas.avro_types import CONTROL_FILES, Definition, read_types, standalone

TYPES = read_types(CONTROL_FILES)
RECORDS = {name: definition for name, definition in TYPES.items() if definition["type"] == "record"}
FIELDS = [
    pytest.param(field["name"], field["type"], id=f"{name}.{field['name']}")
    for name, definition in RECORDS.items()
    for field in definition["fields"]
]


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_stands_alone(name: str) -> None:
    schema = standalone(name, TYPES)
    parsed: Any = parse_schema(schema, named_schemas={})
    assert parsed["name"] == name
    assert TYPES[name] == RECORDS[name], "writing out must not change the definitions"


def test_a_type_is_written_out_once() -> None:
    types: dict[str, Definition] = {
        "Id": {"type": "fixed", "name": "Id", "size": 2},
        "Pair": {
            "type": "record",
            "name": "Pair",
            "fields": [{"name": "a", "type": "Id"}, {"name": "b", "type": {"type": "array", "items": "Id"}}],
        },
    }
    first, second = standalone("Pair", types)["fields"]
    assert first == {"name": "a", "type": types["Id"]}
    assert second == {"name": "b", "type": {"type": "array", "items": "Id"}}


# A field's name means the same everywhere, so its limits are the same everywhere.
LIMITS: dict[str, Any] = {
    "topic": {"type": "string", "minBytes": 1, "maxBytes": TOPIC_BYTES_MAX},
    "address": {"type": "string", "maxBytes": 259},
    "hops": {"type": "int", "maximum": 255},
    "hops_max": {"type": "int", "maximum": 255},
    "diameter": {"type": "int", "maximum": 255},
    "first_sequence": {"type": "long", "minimum": 1},
    "sequence": {"type": "long", "minimum": 1},
}


LIST_LIMITS = {
    "settings": 64,
    "origins": 64,
    "given_up": 1,
    "joined": 256,
    **dict.fromkeys(("neighbours", "give_up", "keep", "others", "beyond", "taken"), NEIGHBOURS_MAX),
}


@pytest.mark.parametrize(("name", "schema"), FIELDS)
def test_every_field_has_its_limit(name: str, schema: Any) -> None:
    assert schema not in ("string", "bytes"), "needs maxBytes"
    assert schema == LIMITS.get(name, schema)
    if isinstance(schema, dict) and schema["type"] == "string":
        assert schema["maxBytes"] <= (4_096 if name == "text" else 4_000)  # a filter, by its own limit
    if isinstance(schema, dict) and schema["type"] == "array":
        assert schema["maxItems"] == LIST_LIMITS.get(name, ENTRIES_MAX)


def test_ids_and_digests_have_their_size() -> None:
    assert TYPES["NodeId"]["size"] == NODE_ID_BYTES
    assert TYPES["Digest64"]["size"] == 8


def test_numbers_are_given_once_and_to_messages_only() -> None:
    numbers = [definition["number"] for definition in TYPES.values() if "number" in definition]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number <= 0xFFFF for number in numbers)


def test_a_name_cannot_be_defined_twice() -> None:
    with pytest.raises(AssertionError, match="NodeId is defined twice"):
        read_types(("control_values", "control_values"))
