"""The golden vector of a summary: its bytes in a batch mean what the vector says, and are written for it."""

import json
import struct
from pathlib import Path
from typing import Any

from m4cast.overlay.profiles.condition import Kind
from m4cast.overlay.profiles.literals import Value, float_value, number_of
from m4cast.overlay.profiles.summary import ColumnSummary, Summary
from m4cast.overlay.profiles.summary_bytes import decode, encode

VECTOR = Path(__file__).parents[2] / "vectors" / "batch" / "summary.json"


def value_of(kind: Kind, written: str) -> Value:
    match kind:
        case Kind.TEXT:
            return written
        case Kind.BYTES:
            return bytes.fromhex(written)
        case Kind.BOOLEAN:
            return written == "01"
        case Kind.FLOAT:
            return float_value(*struct.unpack(">d", bytes.fromhex(written)))
        case _:
            number = number_of(written)
            assert number is not None
            return number


def column_of(described: dict[str, Any]) -> ColumnSummary:
    fields = {**described, "null_count": described["nulls"]}
    del fields["path"], fields["nulls"]
    if fields["kind"] is None:
        return ColumnSummary(**fields)
    kind = fields["kind"] = Kind(fields["kind"])
    for name in ("least", "greatest"):
        if name in fields:
            fields[name] = value_of(kind, fields[name])
    if "values" in fields:
        fields["values"] = frozenset(value_of(kind, each) for each in fields["values"])
    return ColumnSummary(**fields)


def summary_of(described: dict[str, Any]) -> Summary:
    return Summary(described["rows"], {tuple(each["path"]): column_of(each) for each in described["columns"]})


def test_the_vector_is_read_and_written_as_it_stands() -> None:
    vector = json.loads(VECTOR.read_text(encoding="utf-8"))
    (extension,) = vector["batch"]["extensions"]
    meant = summary_of(vector["summary"])
    assert {column.kind for column in meant.columns.values()} == {None, *Kind}
    assert decode(bytes.fromhex(extension["value"])) == meant
    assert encode(meant).hex() == extension["value"]
