"""The Avro definitions: those of `avro/`, read from files, and those of `records`, derived.

A file is a JSON list of named types; a type may use the types of files before it. Besides Avro's own attributes,
definitions have limits: `minBytes` and `maxBytes` of a string, `minimum` and `maximum` of a number (which is never
negative, even without them), `maxItems` of an array. `number` identifies a control message on the wire. Avro readers
ignore these; m4cast enforces them.
"""

import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from m4cast.schemas.records import Kind, RecordDefinition, RecordField

Definition = dict[str, Any]

CONTROL_FILES = ("control_values", "control_external", "control_internal")
ROUTED_FILES = ("control_values", "control_routed")
"""Messages that travel in routed frames only."""
GATEWAY_FILES = ("control_values", "gateway")
"""Messages between gatekeepers, on links of their own."""


def read_types(names: tuple[str, ...]) -> dict[str, Definition]:
    """The named types of these files, in the order of their definition."""
    types: dict[str, Definition] = {}
    for name in names:
        text = files("m4cast.schemas").joinpath("avro", f"{name}.avsc").read_text(encoding="utf-8")
        for definition in json.loads(text):
            assert definition["name"] not in types, f"{definition['name']} is defined twice"
            types[definition["name"]] = definition
    return types


def standalone(name: str, types: dict[str, Definition]) -> Definition:
    """The definition of `name`, with every type that it uses inlined where it is first used, as Avro requires."""
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


# ---- records

_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_HEADER = {
    "type": "record",
    "name": "DeadLetterHeader",
    "namespace": "m4cast",
    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"], "default": None}],
}
_AVRO_TYPES: dict[Kind, Any] = {
    "text": "string",
    "long": "long",
    "int": "int",
    "boolean": "boolean",
    "bytes": "bytes",
    "time": _MICROS,
    "texts": {"type": "array", "items": ["null", "string"]},
    "headers": {"type": "array", "items": _HEADER},
}


def avro_definition(record: RecordDefinition) -> Definition:
    """The Avro schema of a record, whole."""
    space = {} if record.namespace is None else {"namespace": record.namespace}
    fields = [_avro_field(field, has_default=record.null_defaults) for field in record.fields]
    return {"type": "record", "name": record.name, **space, "doc": record.about, "fields": fields}


def _avro_field(field: RecordField, *, has_default: bool) -> Definition:
    limits = {name: limit for name, limit in asdict(field.limits).items() if limit is not None}
    plain = _AVRO_TYPES[field.kind]
    if limits:
        plain = {**(plain if isinstance(plain, dict) else {"type": plain}), **limits}
    default = {"default": None} if field.nullable and has_default else {}
    return {"name": field.name, "type": ["null", plain] if field.nullable else plain, **default, "doc": field.about}
