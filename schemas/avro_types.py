"""Reads the Avro definitions in `avro/`.

A file there is a JSON list of named types, so that what belongs together can be read together; a type may use the
types of files before it. Besides the names that Avro knows, definitions carry their limits: `minBytes` and `maxBytes`
of a string, `minimum` and `maximum` of a number (which is never negative, even without them), `maxItems` of an array,
and `number`, by which a control message is known on the wire. Avro readers ignore these; m4cast enforces them.
"""

import json
from importlib.resources import files
from typing import Any

Definition = dict[str, Any]

CONTROL_FILES = ("control_values", "control_external", "control_internal")
RECORD_FILES = ("records", "dead_letter")
"""What tables keep: delivery records, the roster, dead letters."""


def read_types(names: tuple[str, ...]) -> dict[str, Definition]:
    """The named types of these files, in the order in which they are written."""
    types: dict[str, Definition] = {}
    for name in names:
        text = files("m4cast.schemas").joinpath("avro", f"{name}.avsc").read_text(encoding="utf-8")
        for definition in json.loads(text):
            assert definition["name"] not in types, f"{definition['name']} is defined twice"
            types[definition["name"]] = definition
    return types


def standalone(name: str, types: dict[str, Definition]) -> Definition:
    """The definition of `name` with every type it uses written out where it is first used, as Avro wants a schema."""
    written: set[str] = set()

    def write_out(schema: Any) -> Any:
        if isinstance(schema, str):
            if schema not in types or schema in written:
                return schema
            written.add(schema)
            return write_out(types[schema])
        if isinstance(schema, list):  # a union
            return [write_out(each) for each in schema]
        full = dict(schema)
        if "items" in full:
            full["items"] = write_out(full["items"])
        if "fields" in full:
            full["fields"] = [{**field, "type": write_out(field["type"])} for field in full["fields"]]
        return full

    definition: Definition = write_out(name)
    return definition
