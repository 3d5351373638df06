"""Every value of JSON and Avro into every type of column, in random batches: what arrives is what was written, and
exactly the records that their column cannot hold are dead letters.

A batch goes the whole way without a broker: codec, fitting, the door's bytes, and back to Arrow. What a column can hold
is decided here a second time, by Python's decimals alone.
"""

import datetime
import io
import json
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pytest
from pyarrow import types

from m4cast.overlay.bridge.codecs.avro_codec import AvroCodec, fingerprint_of
from m4cast.overlay.bridge.codecs.codec import Codec
from m4cast.overlay.bridge.codecs.json_codec import JsonCodec
from m4cast.overlay.bridge.kafka_in.fitting import fit
from m4cast.overlay.bridge.records import with_record_columns
from m4cast.overlay.door.rows import payload
from tests.overlay.bridge.test_records import KafkaRecord

BATCH = 20
UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1)
UNFIT = object()
"""What a column makes of a value that it cannot hold."""


class Value(NamedTuple):
    """A member of a record: how it is written, what kind of thing it is, and what it says."""

    written: Any
    kind: str
    said: Any


# ---- what a column can hold


def floating(said: Decimal, of: str) -> Any:
    """Binary fractions, by as many digits as were written."""
    value = float(said)
    digits = len(str(abs(said).normalize().scaleb(0)).replace(".", "").split("E")[0].strip("0")) or 1
    if said.as_tuple().exponent == 0 and abs(said) < 1 << 63 and said != Decimal(value):
        return UNFIT
    if math.isinf(value) or Decimal(f"{value:.{digits - 1}e}") != said:
        return UNFIT
    if of == "<f":
        try:
            return value if struct.unpack(of, struct.pack(of, value))[0] == value else UNFIT
        except OverflowError:
            return UNFIT
    return value


def number(said: Decimal, type_: pa.DataType) -> Any:
    if types.is_integer(type_):
        low = 0 if types.is_unsigned_integer(type_) else -(1 << (type_.bit_width - 1))
        high = low + (1 << type_.bit_width) - 1
        return int(said) if said == said.to_integral_value() and low <= said <= high else UNFIT
    if types.is_decimal(type_):
        scaled = said.scaleb(type_.scale)
        fits = scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** type_.precision
        return said if fits else UNFIT
    if types.is_floating(type_):
        return floating(said, "<f" if types.is_float32(type_) else "<d")
    return UNFIT


def json_held(written: str, said: Decimal, type_: pa.DataType) -> Any:
    """Numbers in JSON are whole ones of 64 bits, or doubles, which say one decimal: the shortest."""
    if written.lstrip("-").isdigit() and number(said, pa.int64()) is not UNFIT:
        return number(said, type_)
    double = float(said)
    if not types.is_floating(type_) and (
        Decimal(repr(double)) != said or (abs(double) > 1 << 53 and Decimal(double) != said)
    ):
        return UNFIT
    return number(said, type_)


def held(value: Value, type_: pa.DataType) -> Any:
    """The value under this type, or UNFIT."""
    kind, said = value.kind, value.said
    if kind == "null":
        return None
    if kind == "number":
        return number(said, type_)
    if kind == "json number":
        return json_held(value.written, said, type_)
    if kind == "list":
        if not types.is_list(type_):
            return UNFIT
        elements = [held(each, type_.value_type) for each in said]
        return UNFIT if UNFIT in elements else elements
    if kind in ("map", "struct"):
        if not (types.is_map(type_) if kind == "map" else types.is_struct(type_)):
            return UNFIT
        wanted = dict.fromkeys(said, type_.item_type) if kind == "map" else {each.name: each.type for each in type_}
        if any(name not in wanted and not is_void(each) for name, each in said.items()):
            return UNFIT
        members = {name: held(said[name], each) if name in said else None for name, each in wanted.items()}
        return UNFIT if UNFIT in members.values() else members
    plain = {"text": pa.string(), "truth": pa.bool_(), "bytes": pa.binary(), "fixed": pa.binary(4)}
    times = {"date": pa.date32(), "ms": pa.time32("ms"), "us": pa.time64("us")}
    moments = {"moment": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}
    return said if {**plain, **times, **moments}[kind].equals(type_) else UNFIT


COLUMNS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(20, 0)),
    *(pa.string(), pa.bool_(), pa.binary(), pa.binary(4)),
    *(pa.date32(), pa.time32("ms"), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.list_(pa.field("element", each)) for each in (pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 2))),
    *(pa.list_(pa.field("element", pa.string())), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.float32())),
    pa.struct([("y", pa.int32()), ("z", pa.string())]),
    pa.struct([("y", pa.decimal128(10, 2))]),
]


# ---- JSON

NUMBERS: list[Callable[[random.Random], str]] = [
    lambda chance: str(chance.randint(-300, 300)),
    lambda chance: str(chance.choice((-1, 1)) * (2 ** chance.randint(7, 70) + chance.randint(-2, 2))),
    lambda chance: repr(chance.uniform(-1000, 1000)),
    lambda chance: f"{chance.randint(-9999, 9999) / 100:.2f}",
    lambda chance: repr(chance.randint(-64, 64) / 8),
    lambda chance: f"{chance.uniform(-1, 1):.{chance.randint(1, 25)}e}",
    lambda chance: f"{chance.uniform(-1, 1):.17g}",
    lambda chance: f"{chance.randint(1, 99)}E{chance.choice(('', '+', '-'))}{chance.randint(0, 400)}",
    lambda chance: f"{chance.randint(0, 10**25)}.{chance.randint(0, 10**9)}",
    lambda _: "-0.0",
]
TEXTS = ["", "x", "Zoë", "12", "1e3", "2024-01-01", "2024-01-01T00:00:00Z", "9" * 30, 'q"\\', "NaN", "0e999", "\u2028"]


def json_number(chance: random.Random) -> Value:
    written = chance.choice(NUMBERS)(chance)
    return Value(written, "json number", Decimal(written))


def json_value(chance: random.Random, depth: int = 2) -> Value:
    match chance.randrange(9 if depth else 7):
        case 0 | 1 | 2 | 3:
            return json_number(chance)
        case 4:
            text = chance.choice(TEXTS)
            return Value(json.dumps(text, ensure_ascii=chance.random() < 0.5), "text", text)
        case 5:
            truth = chance.random() < 0.5
            return Value(str(truth).lower(), "truth", truth)
        case 6:
            return Value("null", "null", None)
        case 7:
            kind = chance.randrange(1 << 30)  # all the same: a list of several kinds is not read
            elements = [json_value(random.Random(kind), 0) for _ in range(chance.randrange(3))]
            elements = elements[: 1 if elements and elements[0].kind == "null" else 2]  # Arrow fails with more nulls
            return Value(f"[{','.join(each.written for each in elements)}]", "list", elements)
        case _:
            members = {name: json_value(chance, depth - 1) for name in ("y", "z", "w")[: chance.randrange(4)]}
            said = ",".join(f'"{name}":{each.written}' for name, each in members.items())
            return Value(f"{{{said}}}", "struct", members)


def is_number_kept(said: Decimal) -> bool:
    """JSON's numbers are whole ones of 64 bits, or doubles."""
    return number(said, pa.int64()) is not UNFIT or number(said, pa.float64()) is not UNFIT


def is_read(value: Value) -> bool:
    match value.kind:
        case "json number":
            return is_number_kept(value.said)
        case "list":
            numbers = [each.said for each in value.said if each.kind == "json number"]
            kept = [all(number(each, type_) is not UNFIT for each in numbers) for type_ in (pa.int64(), pa.float64())]
            return any(kept) and all(map(is_read, value.said))
        case "struct":
            return all(map(is_read, value.said.values()))
        case _:
            return True


def json_batch(chance: random.Random) -> tuple[Codec, list[KafkaRecord], list[Value | None]]:
    """The codec, records, and what each says; None for one that is not JSON."""
    values: list[Value | None] = []
    records = []
    favourite = chance.choice((json_number, json_value))
    for at in range(BATCH):
        value = favourite(chance) if chance.random() < 0.8 else json_value(chance)
        text = f'{{"n":{at},"x":{value.written}}}'.encode()
        is_poison = chance.random() < 0.05
        values.append(None if is_poison or not is_read(value) else value)
        records.append(KafkaRecord(text[:-1] if is_poison else text, offset=at))
    return JsonCodec(pa.schema([])), records, values


# ---- Avro


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def shortest(value: float, type_: pa.DataType) -> Decimal:
    return Decimal(pa.array([value], type_).cast(pa.string())[0].as_py())


def whole(chance: random.Random, bits: int) -> int:
    return chance.choice((chance.randint(-130, 130), chance.randint(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)))


def avro_value(schema: Any, chance: random.Random) -> Value:
    """The value as fastavro writes it under the plain schema, without logical types."""
    name = schema if isinstance(schema, str) else schema.get("logicalType", schema["type"])
    match name:
        case "null":
            return Value(None, "null", None)
        case "boolean":
            truth = chance.random() < 0.5
            return Value(truth, "truth", truth)
        case "int" | "long":
            count = whole(chance, 32 if name == "int" else 64)
            return Value(count, "number", Decimal(count))
        case "float" | "double":
            value = chance.choice(
                (chance.uniform(-99, 99), chance.randint(-99, 99) / 4, 10.0 ** chance.randint(-9, 30))
            )
            value = float32(value) if name == "float" else value
            return Value(value, "float" if name == "float" else "double", value)
        case "bytes" | "fixed":
            content = chance.randbytes(4 if name == "fixed" else chance.randrange(6))
            return Value(content, name, content)
        case "string" | "enum":
            text = chance.choice(TEXTS) if name == "string" else chance.choice(schema["symbols"])
            return Value(text, "text", text)
        case "decimal":
            unscaled = chance.randint(-(10**6), 10**6)
            return Value(unscaled.to_bytes(4, "big", signed=True), "number", Decimal(unscaled).scaleb(-schema["scale"]))
        case "array":
            elements = [avro_value(schema["items"], chance) for _ in range(chance.randrange(3))]
            return Value([each.written for each in elements], "list", elements)
        case "map" | "record":
            parts = {each["name"]: each["type"] for each in schema.get("fields", ())}
            parts = parts or dict.fromkeys(("k", "l")[: chance.randrange(3)], schema["values"])
            members = {key: avro_value(each, chance) for key, each in parts.items()}
            kind = "map" if name == "map" else "struct"
            return Value({key: each.written for key, each in members.items()}, kind, members)
        case _:
            return avro_time(name, chance)


def avro_time(name: str, chance: random.Random) -> Value:
    unit = 1_000 if name.endswith("millis") else 1_000_000
    match name:
        case "date":
            days = chance.randint(-100_000, 100_000)
            return Value(days, "date", datetime.date(1970, 1, 1) + datetime.timedelta(days))
        case "time-millis" | "time-micros":
            count = chance.randrange(86_400 * unit)
            moment = EPOCH + datetime.timedelta(microseconds=count * (1_000_000 // unit))
            return Value(count, "ms" if unit == 1_000 else "us", moment.time())
        case _:
            count = chance.randint(-(10**9) * unit, 10**10 * unit)
            moment = EPOCH + datetime.timedelta(microseconds=count * (1_000_000 // unit))
            is_local = name.startswith("local")
            return Value(count, "local" if is_local else "moment", moment if is_local else moment.replace(tzinfo=UTC))


def plain_schema(schema: Any) -> Any:
    """The same bytes, without what a type means."""
    if isinstance(schema, dict):
        return {name: plain_schema(each) for name, each in schema.items() if name != "logicalType"}
    return [plain_schema(each) for each in schema] if isinstance(schema, list) else schema


AVRO: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]},
    {"type": "fixed", "name": "F", "size": 4},
    logical("bytes", "decimal", precision=10, scale=2),
    logical("bytes", "decimal", precision=20, scale=0),
    logical("int", "date"),
    logical("int", "time-millis"),
    *(logical("long", each) for each in ("time-micros", "timestamp-millis", "timestamp-micros")),
    *(logical("long", f"local-timestamp-{each}") for each in ("millis", "micros")),
    *({"type": "array", "items": each} for each in ("long", "double", "string")),
    *({"type": "map", "values": each} for each in ("int", "double")),
    {
        "type": "record",
        "name": "S",
        "fields": [{"name": "y", "type": "int"}, {"name": "z", "type": ["null", "string"]}],
    },
]


def avro_batch(chance: random.Random) -> tuple[Codec, list[KafkaRecord], list[Value | None]]:
    chosen = [chance.choice(AVRO) for _ in range(3)]
    schemas = [
        {
            "type": "record",
            "name": f"R{at}",
            "fields": [{"name": "n", "type": "long"}, {"name": "x", "type": each}],
        }
        for at, each in enumerate(chosen)
    ]
    records, values = [], []
    for at in range(BATCH):
        which = chance.randrange(3)
        value = avro_value(without_unions(chosen[which]), chance)
        body = io.BytesIO()
        body.write(b"\xc3\x01" + fingerprint_of(schemas[which]))
        plain = fastavro.parse_schema(plain_schema(schemas[which]))
        fastavro.schemaless_writer(body, plain, {"n": at, "x": value.written})
        is_poison = chance.random() < 0.05
        values.append(None if is_poison else value)
        records.append(KafkaRecord(b"\xc3\x01poison" if is_poison else body.getvalue(), offset=at))
    return AvroCodec(None, schemas), records, values


def without_unions(schema: Any) -> Any:
    if isinstance(schema, dict) and "fields" in schema:
        return {**schema, "fields": [{**each, "type": without_unions(each["type"])} for each in schema["fields"]]}
    return schema[-1] if isinstance(schema, list) else schema


# ---- there and back


def through_the_door(rows: pa.Table) -> pa.Table:
    """The rows as a node keeps them, read again."""
    schema = payload.canonical_schema(rows.schema)
    batch = payload.canonical_rows(rows.combine_chunks().to_batches()[0], schema)
    kept = payload.encode(payload.schema_bytes(schema), batch)
    with pa.ipc.open_stream(pa.py_buffer(bytes(kept))) as stream:
        return stream.read_all()


def carried(codec: Codec, records: list[KafkaRecord], known: pa.Schema) -> tuple[dict[int, Any], pa.Schema, set[int]]:
    """Values of `x` by offset as they are read from the channel, its columns, and the offsets of dead letters."""
    decoded = codec.decode(records)
    good, table = fit(decoded, known)
    assert sorted([*good, *decoded.problems]) == list(range(len(records))), "each is one row or one dead letter"
    assert good == sorted(good), "in order"
    if not good:
        return {}, known, set(decoded.problems)
    rows = through_the_door(with_record_columns(table, [records[at] for at in good], "c", ()))
    assert rows["n"].to_pylist() == good
    found = rows["x"].to_pylist(maps_as_pydicts="strict") if "x" in rows.column_names else [None] * len(good)
    return dict(zip(good, found, strict=True)), rows.schema, set(decoded.problems)


def expected(value: Value, type_: pa.DataType) -> Any:
    """`held`, with what Avro's own binary fractions are: equal ones, or their shortest digits."""
    if value.kind in ("float", "double"):
        own = pa.float32() if value.kind == "float" else pa.float64()
        if types.is_floating(type_):
            is_kept = type_.bit_width >= own.bit_width or (abs(value.said) < 3e38 and float32(value.said) == value.said)
            return value.said if is_kept else UNFIT
        is_large = abs(value.said) > (1 << 24 if value.kind == "float" else 1 << 53)
        digits = shortest(value.said, own if types.is_decimal(type_) else pa.float64())
        return UNFIT if is_large and digits != Decimal(value.said) else number(digits, type_)
    if value.kind == "list":
        elements = [expected(each, type_.value_type) for each in value.said] if types.is_list(type_) else [UNFIT]
        return UNFIT if UNFIT in elements else elements
    if value.kind == "map" and types.is_map(type_):
        members = {key: expected(each, type_.item_type) for key, each in value.said.items()}
        return UNFIT if UNFIT in members.values() else members
    return held(value, type_)


def is_void(value: Value) -> bool:
    """Lists and objects that say nothing have no type: a column of the same shape may drop them."""
    nested = value.said.values() if value.kind in ("struct", "map") else value.said if value.kind == "list" else ()
    return value.kind == "null" or (value.kind in ("struct", "list") and all(map(is_void, nested)))


def check(seed: int) -> None:
    chance = random.Random(seed)
    codec, records, values = chance.choice((json_batch, avro_batch))(chance)
    type_ = chance.choice([*COLUMNS, None])
    known = pa.schema([("n", pa.int64())] if type_ is None else [("n", pa.int64()), ("x", type_)])
    rows, columns, dead = carried(codec, records, known)
    at = columns.get_field_index("x")
    of_x = type_ if type_ is not None else columns.field(at).type if at >= 0 else pa.null()
    for offset, value in enumerate(values):
        said = f"seed {seed}, record {offset}: {value} in {of_x}: {rows.get(offset, 'a dead letter')}"
        if value is None:
            assert offset in dead, said
            continue
        if types.is_null(of_x):
            assert is_void(value), said
            continue
        there = expected(value, of_x)
        if offset in dead:
            assert there is UNFIT or (type_ is None and not is_alike(values)), said
        elif there is UNFIT:
            assert rows[offset] is None and is_void(value), said
        else:
            assert rows[offset] == there or (is_void(value) and not rows[offset]), said


def is_alike(values: list[Value | None]) -> bool:
    """True if one type holds all of them: then a batch without a known column has no dead letter but its poison."""
    kinds = {each.kind for each in values if each is not None} - {"null"}
    if kinds == {"json number"}:
        numbers = [each.said for each in values if each is not None and each.kind == "json number"]
        return any(all(number(each, type_) is not UNFIT for each in numbers) for type_ in (pa.int64(), pa.float64()))
    return len(kinds) <= 1 and kinds <= {"text", "truth"}


def test_what_arrives_is_what_was_written_in_four_thousand_cases() -> None:
    for seed in range(200):
        check(seed)


@pytest.mark.soak
def test_what_arrives_is_what_was_written_in_a_hundred_thousand_cases() -> None:
    for seed in range(1_000, 6_000):
        check(seed)
