"""Codecs without a broker: values to columns and back, and what becomes of values that are not what they should be."""

import datetime
import decimal
import io
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pytest

from m4cast.overlay.bridge.codecs.avro_codec import AvroCodec, fingerprint_of
from m4cast.overlay.bridge.codecs.avro_values import DEPTH_MAX, UnsupportedError, arrow_schema, avro_schema
from m4cast.overlay.bridge.codecs.cloud_events import CloudEventsCodec
from m4cast.overlay.bridge.codecs.codec import Codec, Decoded, Problem, RowSource, row_as_json
from m4cast.overlay.bridge.codecs.json_codec import JsonCodec
from m4cast.overlay.bridge.codecs.raw_codec import RawCodec
from m4cast.overlay.bridge.codecs.registry import Registry, RegistryError
from m4cast.overlay.bridge.kafka_in.fitting import fit
from m4cast.overlay.door.rows import payload
from m4cast.schemas import records
from m4cast.schemas.arrow_types import DEAD_LETTER, EVENT
from m4cast.schemas.avro_types import Definition, avro_definition, read_types, standalone
from tests.overlay.bridge.kafka_side import SmallRegistry

NO_COLUMNS = pa.schema([])
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "name", "type": "string"}]}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    ],
}
AN_ORDER = {
    "id": 1 << 40,
    "price": decimal.Decimal("9.50"),
    "at": datetime.datetime(2024, 5, 6, 7, 8, 9, 123_000, datetime.UTC),
    "day": datetime.date(2024, 5, 6),
    "state": "PAID",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "who": {"name": "Zoë"},
    "uuid": "12345678-1234-5678-1234-567812345678",
    "hash": b"\x00\x01\x02\x03",
}
NULL_ORDER = {**AN_ORDER, "day": None, "tags": [], "counts": {}}


class Given(NamedTuple):
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def given(*values: bytes | None) -> list[Given]:
    return [Given(value) for value in values]


def decoded_rows(codec: Codec, records: Sequence[Given]) -> list[dict[str, Any]]:
    decoded = codec.decode(records)
    assert not decoded.problems
    listed: list[dict[str, Any]] = fit(decoded, NO_COLUMNS)[1].to_pylist(maps_as_pydicts="strict")
    return listed


def problems(decoded: Decoded) -> dict[int, str]:
    return {at: problem.reason for at, problem in decoded.problems.items()}


def source(count: int) -> RowSource:
    times = pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * count, pa.timestamp("us", "UTC"))
    return RowSource("orders", "ab" * 16, list(range(1, count + 1)), times)


def round_trip(codec: Codec, records: Sequence[Given]) -> list[Given]:
    """Through rows as the channel has them."""
    good, table = fit(codec.decode(records), NO_COLUMNS)
    assert list(good) == list(range(len(records)))
    batch = table.combine_chunks().to_batches()[0]
    values, headers = codec.encode(batch, source(len(records)), "out")
    assert not [value for value in values if isinstance(value, Problem)], values
    return [
        Given(value if not isinstance(value, Problem) else None, headers[at] if headers else ())
        for at, value in enumerate(values)
    ]


def written(schema: Any, value: Any, prefix: bytes) -> bytes:
    body = io.BytesIO()
    body.write(prefix)
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


def with_registry(number: int) -> bytes:
    return b"\x00" + number.to_bytes(4, "big")


# ---- raw and JSON


def test_raw_bytes_come_back_as_they_were() -> None:
    records = given(b"\x00\xff", b"", None)
    assert [each.value for each in round_trip(RawCodec(), records)] == [b"\x00\xff", b"", None]


def test_json_objects_come_back_equal() -> None:
    objects = [
        {"id": 1, "name": "Zoë", "price": 9.5, "deep": {"list": [1, 2], "at": "2024-01-01T00:00:00Z"}},
        {"id": 2, "day": "2024-05-06", "ok": True},
    ]
    records = given(*(json.dumps(each).encode() for each in objects))
    assert [json.loads(each.value or b"") for each in round_trip(JsonCodec(NO_COLUMNS), records)] == objects


def test_what_is_not_a_json_object_is_a_problem_of_its_own() -> None:
    values = [
        b'{"a":1}',
        b"{",
        b'{"a":2}{"a":3}',
        b"[1]",
        b'{"a":4}',
        b"",
        b'{"a":"\xff"}',
        b'{"a":1,"a":2}',
        b'{"a":5}',
    ]
    decoded = JsonCodec(NO_COLUMNS).decode(given(*values))
    assert problems(decoded) == dict.fromkeys([1, 2, 3, 5, 6, 7], "not-json")
    good, rows = fit(decoded, NO_COLUMNS)
    assert (good, rows["a"].to_pylist()) == ([0, 4, 8], [1, 4, 5])


def test_two_halves_of_objects_are_not_taken_for_two_objects() -> None:
    decoded = JsonCodec(NO_COLUMNS).decode(given(b'{"a":1} {"b":', b"2}"))
    assert problems(decoded) == {0: "not-json", 1: "not-json"}


def test_a_json_value_that_contradicts_its_column_is_a_problem_and_the_rest_is_kept() -> None:
    decoded = JsonCodec(NO_COLUMNS).decode(given(b'{"a":1}', b'{"a":"x"}', b'{"a":1.5}', b'{"a":2.0}'))
    good, rows = fit(decoded, pa.schema([("a", pa.int64())]))
    assert (good, rows["a"].to_pylist()) == ([0, 3], [1, 2])
    assert problems(decoded) == {1: "schema-conflict", 2: "schema-conflict"}


BIG = [9007199254740993, 9007199254740995, -9223372036854775808, 9223372036854775807]
"""Whole numbers that a double cannot hold."""


def json_rows(values: Sequence[bytes], known: pa.Schema, columns: pa.Schema = NO_COLUMNS) -> tuple[dict[int, Any], Any]:
    """The rows by the number of their record, and the problems."""
    decoded = JsonCodec(columns).decode(given(*values))
    good, rows = fit(decoded, known)
    return dict(zip(good, rows.to_pylist(), strict=True)), problems(decoded)


def test_an_odd_number_changes_none_of_its_neighbours() -> None:
    written = [b'{"id":%d}' % each for each in BIG]
    values = [written[0], b'{"id":0.5}', *written[1:], b'{"id":18446744073709551615}', b'{"id":1e400}']
    rows, odd = json_rows(values, pa.schema([("id", pa.int64())]))
    assert [row["id"] for row in rows.values()] == BIG
    assert odd == {1: "schema-conflict", 5: "not-json", 6: "not-json"}


def test_a_number_that_no_column_holds_as_written_is_a_dead_letter() -> None:
    odd = [
        b"18446744073709551615",
        b"0.12345678901234567891",
        b"1e-400",
        b"NaN",
        b"-Infinity",
        b"[9007199254740993,0.5]",
    ]
    good = [b"0.1", b"0.30000000000000004", b"0.10000000000000001", b"1.50000000000000000000", b"1e22", b"-0.0"]
    values = [b'{"x":%b}' % each for pair in zip(odd, good, strict=True) for each in pair]
    rows, found = json_rows(values, NO_COLUMNS)
    assert [row["x"] for row in rows.values()] == [0.1, 0.30000000000000004, 0.1, 1.5, 1e22, 0.0]
    assert found == dict.fromkeys(range(0, 12, 2), "not-json")


@pytest.mark.parametrize(
    ("type_", "good", "odd"),
    [
        (pa.decimal128(10, 2), {"1.23": decimal.Decimal("1.23"), "5": 5, "1e2": 100}, ["1.239", "1e9", "0.001"]),
        (pa.decimal128(38, 20), {"0.1": decimal.Decimal("0.1")}, ["1e30"]),
        (pa.float32(), {"0.5": 0.5, "16777216": 16777216.0}, ["0.1", "16777217", "1e300"]),
        (pa.float64(), {"0.1": 0.1, "9007199254740992": 2.0**53}, ["9007199254740993"]),
        (pa.int8(), {"127": 127, "1.0": 1, "-1e2": -100}, ["128", "0.5"]),
        (pa.list_(pa.field("element", pa.float32())), {"[0.5]": [0.5], "[]": []}, ["[0.5,0.1]"]),
        (pa.struct([("y", pa.decimal128(4, 1))]), {'{"y":1.5}': {"y": decimal.Decimal("1.5")}}, ['{"y":1.55}']),
    ],
    ids=str,
)
def test_a_number_that_its_column_would_change_is_a_dead_letter(
    type_: pa.DataType, good: dict[str, Any], odd: list[str]
) -> None:
    values = [b'{"x":%b}' % each.encode() for each in (*good, *odd)]
    for known, columns in ((pa.schema([("x", type_)]), NO_COLUMNS), (NO_COLUMNS, pa.schema([("x", type_)]))):
        for batch in (values, *([each] for each in values)):  # together and alone
            rows, found = json_rows(batch, known, columns)
            assert len(rows) + len(found) == len(batch)
            for at, value in enumerate(batch):
                text = value[5:-1].decode()
                assert (at in found) == (text in odd), value
                assert at in found or rows[at]["x"] == good[text]


def test_an_odd_record_does_not_take_columns_or_types_from_its_neighbours() -> None:
    """They are read by halves then; what the halves have is put together again."""
    values = [b'{"a":{"x":1},"n":1}', b"poison", b'{"a":{"x":2,"y":3},"n":0.5}', b'{"a":{"x":4,"y":null},"l":[{}]}']
    rows, odd = json_rows(values, NO_COLUMNS)
    assert odd == {1: "not-json"}
    assert [row["a"] for row in rows.values()] == [{"x": 1, "y": None}, {"x": 2, "y": 3}, {"x": 4, "y": None}]
    assert [row["n"] for row in rows.values()] == [1.0, 0.5, None]
    known = pa.schema([("a", pa.struct([("x", pa.int64())]))])
    rows, odd = json_rows([b'{"a":{"x":1,"y":2}}', b'{"a":{"x":1,"y":null}}'], known)
    assert odd == {0: "schema-conflict"} and rows == {1: {"a": {"x": 1}}}


def test_declared_times_are_read_from_text_that_says_them() -> None:
    day = datetime.date(2024, 1, 1)
    moment = datetime.datetime(2024, 1, 1)
    for type_, good, odd in (
        (pa.timestamp("us"), {'"2024-01-01T00:00:00"': moment}, ['"2024-01-01T00:00:00Z"', '"x"', "5"]),
        (
            pa.timestamp("us", "UTC"),
            {'"2024-01-01T02:00:00+02:00"': moment.replace(tzinfo=datetime.UTC)},
            ['"2024-01-01T00:00:00"', '"2024-01-01T00:00:00.1234567Z"', "5"],
        ),
        (pa.date32(), {'"2024-01-01"': day}, ["5", '"2024-01-01T05:00:00"']),
    ):
        values = [b'{"x":%b}' % each.encode() for each in (*good, *odd)]
        rows, found = json_rows(values, NO_COLUMNS, pa.schema([("x", type_)]))
        assert [row["x"] for row in rows.values()] == list(good.values())
        assert sorted(found) == list(range(len(good), len(values)))


def test_columns_say_what_json_is_read_as() -> None:
    codec = JsonCodec(pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.float64())]))
    rows = decoded_rows(codec, given(b'{"at":"2024-01-01T00:00:00Z","n":1}'))
    assert rows == [{"at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "n": 1.0}]


@pytest.mark.parametrize("name", ["_topic", "_Sequence", "_KAFKA", "_m4cast_x", "_M4cast", "_\u017fequence"])
def test_a_reserved_column_is_a_problem_of_its_own(name: str) -> None:
    odd = json.dumps({name: 1, "a": 2}).encode()
    rows, found = json_rows([b'{"a":1}', odd, b'{"a":3}', json.dumps({name: None}).encode()], NO_COLUMNS)
    assert found == {1: "reserved-column"} and list(rows.values()) == [{"a": 1}, {"a": 3}, {"a": None}]


def deep(depth: int, begin: bytes = b'{"a":', end: bytes = b"}") -> bytes:
    """A JSON object with columns that are nested so deep."""
    return b'{"a":' + begin * depth + b"1" + end * depth + b"}"


def test_json_may_be_as_deep_as_the_door_allows_and_no_deeper() -> None:
    """Arrow's reader ends the process at the last of these."""
    assert payload.DEPTH_MAX == DEPTH_MAX
    codec = JsonCodec(NO_COLUMNS)
    for begin, end in ((b'{"a":', b"}"), (b"[", b"]"), (b'{"a":[', b"]}")):
        step = 2 if b"[" in begin and b"{" in begin else 1
        allowed, more, many = (deep(count // step, begin, end) for count in (DEPTH_MAX, DEPTH_MAX + step, 20_000))
        decoded = codec.decode(given(b'{"b":1}', more, allowed, many, b'{"b":2}'))
        assert problems(decoded) == {1: "not-json", 3: "not-json"} and "deeper than 32" in decoded.problems[3].detail
        good, rows = fit(decoded, NO_COLUMNS)
        assert (good, rows["b"].to_pylist()) == ([0, 2, 4], [1, None, 2])
        payload.canonical_schema(rows.schema)


def test_brackets_beside_each_other_and_in_text_are_not_deep() -> None:
    objects: list[dict[str, Any]] = [
        {"list": [{"a": [at]} for at in range(50)]},
        {"text": '[{"' * 50 + "\\"},
        {"text": "}]" * 50, "list": [{"a": [1]}]},
    ]
    codec = JsonCodec(NO_COLUMNS)
    assert not codec.decode(given(*(json.dumps(each).encode() for each in objects))).problems
    # Text that closes brackets does not make up for those that are open.
    assert problems(codec.decode(given(b'{"b":"' + b"}" * 50 + b'",' + deep(DEPTH_MAX + 1)[1:]))) == {0: "not-json"}


# ---- Avro


def test_avro_values_of_a_registry_come_back_equal(registry: SmallRegistry) -> None:
    number = registry.add(ORDER)
    records = given(*(written(ORDER, order, with_registry(number)) for order in (AN_ORDER, NULL_ORDER)))
    codec = AvroCodec(Registry(registry.url), [])
    back = round_trip(codec, records)
    schema = fastavro.parse_schema(json.loads(registry.schemas[-1]))
    read = [fastavro.schemaless_reader(io.BytesIO((each.value or b"")[5:]), schema, None) for each in back]
    assert read == [AN_ORDER, NULL_ORDER]


def test_avro_values_come_back_byte_for_byte_under_a_given_schema(registry: SmallRegistry) -> None:
    number = registry.add(ORDER)
    value = written(ORDER, AN_ORDER, with_registry(number))
    assert round_trip(AvroCodec(Registry(registry.url), [ORDER]), given(value)) == [Given(value)]
    single = written(ORDER, AN_ORDER, b"\xc3\x01" + fingerprint_of(ORDER))
    assert round_trip(AvroCodec(None, [ORDER]), given(single)) == [Given(single)]


def test_the_fingerprint_is_that_of_the_avro_specification() -> None:
    # Of the schema "int": 0x7275d51a3f395c8f in Apache Avro's own table of test vectors, little-endian here.
    assert fingerprint_of("int").hex() == "8f5c393f1ad57572"


def test_evolution_in_both_directions(registry: SmallRegistry) -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "c", "type": "double", "default": 0.0}],
    }
    one, two = registry.add(old), registry.add(new)
    values = [
        written(old, {"a": 1, "b": "x"}, with_registry(one)),
        written(new, {"a": 2, "c": 2.5}, with_registry(two)),
        written(old, {"a": 3, "b": "y"}, with_registry(one)),
        written(new, {"a": 1 << 40, "c": 4.5}, with_registry(two)),
    ]
    codec = AvroCodec(Registry(registry.url), [])
    decoded = codec.decode(given(*values))
    good, rows = fit(decoded, NO_COLUMNS)
    assert rows.to_pylist() == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": None, "c": 2.5},
        {"a": 3, "b": "y", "c": None},
    ]
    assert good == [0, 1, 2] and problems(decoded) == {3: "schema-conflict"}, "a long that is too large for its column"
    decoded = codec.decode(given(*reversed(values)))
    assert fit(decoded, NO_COLUMNS)[1]["a"].to_pylist() == [1 << 40, 3, 2, 1]
    assert not decoded.problems


def test_a_member_that_is_null_everywhere_takes_nothing_with_it() -> None:
    """It has no type yet; what is beside it has."""
    codec = JsonCodec(pa.schema([]))
    decoded = codec.decode(given(b'{"a": {"x": 1, "y": null}, "l": [{"q": 1, "r": []}], "e": {}}', b'{"a": {"x": 2}}'))
    _, rows = fit(decoded, NO_COLUMNS)
    assert rows.to_pylist() == [{"a": {"x": 1}, "l": [{"q": 1}]}, {"a": {"x": 2}, "l": None}]
    again, more = codec.decode(given(b'{"a": {"x": 3, "y": null}}')), codec.decode(given(b'{"a": {"x": 4, "y": 5}}'))
    assert fit(again, rows.schema)[1]["a"].to_pylist() == [{"x": 3}]
    assert fit(more, rows.schema)[0] == [] and problems(more) == {0: "schema-conflict"}, "nothing is dropped silently"


def test_poison_and_unknown_schemas_are_problems_of_their_own(registry: SmallRegistry) -> None:
    number = registry.add(ORDER)
    union = registry.add({"type": "record", "name": "U", "fields": [{"name": "u", "type": ["int", "string"]}]})
    good = written(ORDER, AN_ORDER, with_registry(number))
    values = [good, good[:-3], b"", b"{}", with_registry(99) + b"x", with_registry(union) + b"\x00\x02", None, good]
    decoded = AvroCodec(Registry(registry.url), []).decode(given(*values))
    kept, rows = fit(decoded, NO_COLUMNS)
    assert kept == [0, 6, 7] and rows["id"].to_pylist() == [AN_ORDER["id"], None, AN_ORDER["id"]]
    assert problems(decoded) == {1: "not-avro", 2: "not-avro", 3: "not-avro", 4: "unknown-schema", 5: "unknown-schema"}


TIME_AND_PRICE = {
    "type": "record",
    "name": "T",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
    ],
}
PLAIN = {**TIME_AND_PRICE, "fields": [{"name": "at", "type": "long"}, {"name": "price", "type": "bytes"}]}


def test_avro_numbers_that_their_columns_cannot_hold_are_problems_of_their_own() -> None:
    prefix = b"\xc3\x01" + fingerprint_of(TIME_AND_PRICE)
    values = [
        written(PLAIN, {"at": at, "price": price.to_bytes(16, "big", signed=True)}, prefix)
        for at, price in ((1, 950), ((1 << 63) - 1, 950), (2, 123_456), (3, -950))
    ]
    decoded = AvroCodec(None, [TIME_AND_PRICE]).decode(given(*values, None))
    good, rows = fit(decoded, NO_COLUMNS)
    assert problems(decoded) == {1: "not-avro", 2: "not-avro"} and good == [0, 3, 4]
    assert rows["price"].to_pylist() == [decimal.Decimal("9.50"), decimal.Decimal("-9.50"), None]


def test_odd_numbers_before_another_schema_are_not_that_ones_problem(registry: SmallRegistry) -> None:
    first, second = registry.add(TIME_AND_PRICE), registry.add({"type": "record", "name": "E", "fields": []})
    odd = written(PLAIN, {"at": (1 << 63) - 1, "price": b"\x01"}, with_registry(first))
    good = written(PLAIN, {"at": 1, "price": b"\x01"}, with_registry(first))
    decoded = AvroCodec(Registry(registry.url), []).decode(given(odd, good, with_registry(second)))
    assert problems(decoded) == {0: "not-avro"} and [list(each.records) for each in decoded.pieces] == [[1], [2]]


def test_a_schema_that_is_none_is_a_problem(registry: SmallRegistry) -> None:
    twice = {"type": "record", "name": "R", "fields": []}
    fields = [{"name": "a", "type": twice}, {"name": "b", "type": twice}]
    number = registry.add({"type": "record", "name": "Outer", "fields": fields})
    decoded = AvroCodec(Registry(registry.url), []).decode(given(with_registry(number)))
    assert problems(decoded) == {0: "unknown-schema"}


def test_a_registry_that_is_down_is_nobodys_fault(registry: SmallRegistry) -> None:
    number = registry.add(ORDER)
    codec = AvroCodec(Registry(registry.url), [])
    registry.is_up = False
    with pytest.raises(RegistryError, match="503"):
        codec.decode(given(written(ORDER, AN_ORDER, with_registry(number))))


def test_types_without_columns_are_refused() -> None:
    node: dict[str, Any] = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(UnsupportedError, match="recursive record"):
        arrow_schema(node)
    with pytest.raises(UnsupportedError, match="'a b' has a name"):
        avro_schema(pa.schema([("a b", pa.int64())]), "t")


# ---- CloudEvents

EVENT_HEADERS = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"a-1"),
    ("ce_source", b"/shop"),
    ("ce_type", b"shop.order"),
    ("ce_time", b"2024-05-06T07:08:09.123456Z"),
    ("ce_subject", b"order 1"),
    ("ce_sequence", b"0007"),
    ("ce_traceparent", b"00-aa-bb-01"),
    ("content-type", b"application/json"),
)
STRUCTURED = {
    "specversion": "1.0",
    "id": "a-2",
    "source": "/shop",
    "type": "shop.order",
    "time": "2024-05-06T07:08:09Z",
    "datacontenttype": "application/json",
    "sequence": "0008",
    "data": {"id": 1, "list": [1, None]},
}


def test_events_come_back_equal_in_both_modes() -> None:
    binary = Given(b'{"id":1}', EVENT_HEADERS)
    back = round_trip(CloudEventsCodec("binary"), [binary])[0]
    assert back.value == binary.value and sorted(back.headers) == sorted(binary.headers)
    content_type = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    data = {**STRUCTURED, "datacontenttype": "application/octet-stream", "data_base64": "AP8="}
    del data["data"]
    text = {**STRUCTURED, "datacontenttype": "text/plain", "data": "hello"}
    for event in (STRUCTURED, data, text):
        structured = Given(json.dumps(event).encode(), content_type)
        back = round_trip(CloudEventsCodec("structured"), [structured])[0]
        assert json.loads(back.value or b"") == event and list(back.headers) == content_type


def test_one_mode_becomes_the_other() -> None:
    structured = Given(json.dumps(STRUCTURED).encode(), [("content-type", b"application/cloudevents+json")])
    back = round_trip(CloudEventsCodec("binary"), [structured])[0]
    assert json.loads(back.value or b"") == STRUCTURED["data"]
    assert dict(back.headers)["ce_id"] == b"a-2" and dict(back.headers)["content-type"] == b"application/json"


def test_an_event_without_a_sequence_gets_that_of_its_row_and_a_row_becomes_an_event() -> None:
    codec = CloudEventsCodec("binary")
    headers = [header for header in EVENT_HEADERS if header[0] != "ce_sequence"]
    assert dict(round_trip(codec, [Given(b"x", headers)])[0].headers)["ce_sequence"] == b"00000000000000000001"
    rows = pa.record_batch({"price": pa.array([9.5])})
    values, made = codec.encode(rows, source(1), "out")
    assert made is not None and json.loads(values[0]) == {"price": 9.5}  # type: ignore[arg-type]  # bytes
    attributes = dict(made[0])
    assert attributes["ce_id"] == f"{'ab' * 16}/orders/1".encode()
    assert (attributes["ce_type"], attributes["ce_source"]) == (b"m4cast.row", b"m4cast:orders")


@pytest.mark.parametrize(
    "record",
    [
        Given(b"x"),
        Given(b"x", [("ce_id", b"1")]),
        Given(b"x", [*EVENT_HEADERS, ("ce_time", b"yesterday")]),
        Given(b"x", [*EVENT_HEADERS, ("ce_specversion", b"0.3")]),
        Given(b"x", [*EVENT_HEADERS, ("ce_Bad-Name", b"1")]),
        Given(b"x", [("ce_id", b"\xff")]),
        Given(b"[]", [("content-type", b"application/cloudevents+json")]),
        Given(b"{", [("content-type", b"application/cloudevents+json")]),
        Given(b"[]", [("content-type", b"application/cloudevents-batch+json")]),
        Given(None, [("content-type", b"application/cloudevents+json")]),
        Given(b"x", [*EVENT_HEADERS, ("ce_time", b"0001-01-01T00:00:00+01:00")]),
        Given(b"x", [*EVENT_HEADERS, ("ce_time", b"9999-12-31T23:59:59-05:00")]),
        *(
            Given(json.dumps({**STRUCTURED, **odd}).encode(), [("content-type", b"application/cloudevents+json")])
            for odd in ({"id": "\ud800"}, {"datacontenttype": 5, "data": "x"}, {"data": "\ud800"})
        ),
    ],
)
def test_what_is_no_event_is_a_problem(record: Given) -> None:
    decoded = CloudEventsCodec("binary").decode([record, Given(b"y", EVENT_HEADERS)])
    assert problems(decoded) == {0: "not-an-event"} and decoded.pieces[0].records == [1]


# ---- odd rows

MILLIS = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

FAR = pa.array([0, 300_000_000_000_000_000, 1], pa.timestamp("us", "UTC"))
"""The second is in the year 11476, which Arrow and Spark have and Python has not."""
KEY_TWICE = pa.MapArray.from_arrays([0, 1, 3, 3], pa.array(["a", "b", "b"]), pa.array([1, 2, 3]))


@pytest.mark.parametrize("column", [FAR, KEY_TWICE], ids=["after 9999", "a key twice"])
@pytest.mark.parametrize(
    "codec",
    [
        JsonCodec(NO_COLUMNS),
        AvroCodec(None, [{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}]),
        CloudEventsCodec("binary"),
        CloudEventsCodec("structured"),
    ],
    ids=["json", "avro", "cloudevents", "cloudevents-structured"],
)
def test_a_row_that_cannot_be_written_is_a_problem_of_its_own(codec: Codec, column: pa.Array) -> None:
    rows = pa.record_batch({"id": pa.array([1, 2, 3]), "x": column})
    values, headers = codec.encode(rows, source(3), "out")
    odd = values[1]
    assert isinstance(odd, Problem) and odd.reason == "not-encodable" and "column 'x'" in odd.detail
    alone = [codec.encode(rows.slice(at, 1), source(3).slice(at, 1), "out") for at in (0, 2)]
    assert [values[0], values[2]] == [each.values[0] for each in alone]
    assert headers is None or [headers[0], headers[2]] == [each.headers[0] for each in alone if each.headers]
    assert json.loads(row_as_json(rows.slice(1, 1))) == {"id": 2}, "what can be written of it"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_got_are_problems_of_their_own(odd: float) -> None:
    for column in (pa.array([1.5, odd, None]), pa.array([[1.5], [odd], []]), pa.array([{"y": 1.5}, {"y": odd}, None])):
        rows = pa.record_batch({"id": pa.array([1, 2, 3]), "x": column})
        for codec in (JsonCodec(NO_COLUMNS), CloudEventsCodec("binary"), CloudEventsCodec("structured")):
            values, _ = codec.encode(rows, source(3), "out")
            assert [isinstance(value, Problem) for value in values] == [False, True, False]
            assert "column 'x'" in values[1].detail  # type: ignore[union-attr]  # it is one
        assert json.loads(row_as_json(rows.slice(1, 1))) == {"id": 2}, "what can be written of it"


@pytest.mark.parametrize(
    ("type_", "good", "odd"),
    [
        ("int", 1.0, 1.5),
        ("float", 0.5, 0.1),
        ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS, MILLIS.replace(microsecond=1)),
        ({"type": "array", "items": "float"}, [0.5], [0.5, 0.1]),
        ("double", math.nan, 2**53 + 1),
    ],
    ids=range(5),
)
def test_a_row_that_a_given_schema_would_change_is_a_problem_of_its_own(type_: Any, good: Any, odd: Any) -> None:
    codec = AvroCodec(None, [{"type": "record", "name": "R", "fields": [{"name": "x", "type": type_}]}])
    for values in ([odd], [good]):
        encoded, _ = codec.encode(pa.record_batch({"x": pa.array(values)}), source(1), "out")
        assert isinstance(encoded[0], Problem) == (values == [odd])
        assert values != [odd] or "'x'" in encoded[0].detail  # type: ignore[union-attr]  # it is one


def test_an_event_with_columns_of_other_types_is_a_problem() -> None:
    event = {"id": ["1"], "source": ["/s"], "type": ["t"]}
    for odd in ({"time": ["yesterday"]}, {"extensions": ["x"]}):
        values, _ = CloudEventsCodec("binary").encode(pa.record_batch({**event, **odd}), source(1), "out")
        assert isinstance(values[0], Problem) and values[0].reason == "not-encodable"


# ---- the schemas


@pytest.mark.parametrize(
    ("definition", "columns"),
    [
        pytest.param(standalone("Event", read_types(("event",))), EVENT, id="event"),
        pytest.param(avro_definition(records.DEAD_LETTER), DEAD_LETTER, id="dead letter"),
    ],
)
def test_the_avro_and_arrow_definitions_agree(definition: Definition, columns: pa.Schema) -> None:
    assert arrow_schema(definition) == columns
    fastavro.parse_schema(definition)


def test_an_old_and_a_new_event_are_read_by_each_other() -> None:
    new = standalone("Event", read_types(("event",)))
    old = {**new, "fields": [field for field in new["fields"] if field["name"] not in ("sequence", "extensions")]}
    event = {"id": "1", "source": "/s", "specversion": "1.0", "type": "t", "data": b"x", "sequence": "7"}
    empty = dict.fromkeys(("subject", "time", "datacontenttype", "dataschema"))
    for writer, reader, expected in (
        (old, new, {**event, **empty, "sequence": None, "extensions": None}),
        (new, old, {**{k: v for k, v in event.items() if k != "sequence"}, **empty}),
    ):
        body = io.BytesIO(written(writer, event, b""))
        assert (
            fastavro.schemaless_reader(body, fastavro.parse_schema(writer), fastavro.parse_schema(reader)) == expected
        )
