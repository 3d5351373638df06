"""Every Arrow type, in and out: it travels as `docs/PROTOCOL.md` says, or is refused before it is published."""

import re
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.protocol.effects import Publish, Published, Staged
from tests.overlay.door.plain import CALL, act, code_of, connect, get, path, put
from tests.overlay.door.served import Served, serving

PROTOCOL = Path(__file__).parents[4] / "docs" / "PROTOCOL.md"
ELEMENT = pa.list_(pa.field("element", pa.int64()))
UNIQUE = uuid.UUID(int=7)


def foreign(count: int, **types: str) -> pa.RecordBatch:
    """Columns of types that only other languages' writers make: Python has no arrays of them, but Arrow's bytes have.

    The type of a column is told in its schema message alone, so that of a look-alike is patched there.
    """
    alike = {"month": pa.int32(), "day_time": pa.int64()}
    schema = pa.schema([(name, foreign_type(of)) for name, of in types.items()])
    rows = pa.record_batch([pa.array(range(count), alike[of]) for of in types.values()], names=list(types))
    stream = schema.serialize().to_pybytes() + rows.serialize().to_pybytes()
    return pa.ipc.open_stream(stream).read_next_batch()


def foreign_type(of: str) -> pa.DataType:
    """The unit of a `month_day_nano_interval` in Arrow's schema message: one of three numbers."""
    written = bytearray(pa.schema([("c", pa.month_day_nano_interval())]).serialize().to_pybytes())
    units = [at for at in range(len(written) - 1) if written[at : at + 2] == b"\x02\x00"]
    for at in units:
        patched = bytes(written[:at]) + bytes([{"month": 0, "day_time": 1}[of]]) + bytes(written[at + 1 :])
        try:
            type_ = pa.ipc.read_schema(pa.py_buffer(patched)).field(0).type
        except (pa.ArrowException, OSError):
            continue
        if str(type_) == f"{of}_interval":
            return type_
    raise AssertionError(f"Arrow writes {of} intervals otherwise")


def nested(inner: pa.Array, around: str) -> pa.Array:
    """Two rows, or one more, around the values."""
    half = len(inner) // 2
    match around:
        case "list":
            return pa.ListArray.from_arrays([0, half, len(inner)], inner)
        case "large_list":
            return pa.LargeListArray.from_arrays([0, half, len(inner)], inner)
        case "struct":
            return pa.StructArray.from_arrays([inner], ["member"])
        case "map":
            return pa.MapArray.from_arrays([0, half, len(inner)], pa.array(map(str, range(len(inner)))), inner)
        case "fixed_size_list":
            return pa.FixedSizeListArray.from_arrays(inner, 1)
        case "list_view":
            return pa.ListViewArray.from_arrays(
                pa.array([1, 0, 0], pa.int32()), pa.array([1, len(inner), 1], pa.int32()), inner
            )
        case "large_list_view":
            return pa.LargeListViewArray.from_arrays(
                pa.array([1, 0, 0], pa.int64()), pa.array([1, len(inner), 1], pa.int64()), inner
            )
        case "dictionary":
            return pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.uint8()), inner)
    assert around == "run_end_encoded"
    return pa.RunEndEncodedArray.from_arrays(pa.array([2 * at for at in range(1, len(inner) + 1)], pa.int16()), inner)


NUMBERS = pa.array([1, None, 3], pa.int64())
AROUND = ["list", "large_list", "struct", "map", "fixed_size_list", "list_view", "large_list_view", "dictionary"]
AROUND += ["run_end_encoded"]


def simple(type_: pa.DataType, *values: object) -> pa.Array:
    return pa.array([*values, None], type_)


KEPT = [
    simple(pa.null(), None),
    simple(pa.bool_(), True),
    *(simple(type_, 1) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *(simple(type_, 1) for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *(simple(type_, 1.5) for type_ in (pa.float16(), pa.float32(), pa.float64())),
    *(simple(make(5, 2), Decimal("1.25")) for make in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)),
    simple(pa.decimal256(76, 0), Decimal(10) ** 75),
    simple(pa.date32(), 1),
    simple(pa.date64(), 86_400_000),
    *(simple(pa.time32(unit), 1) for unit in ("s", "ms")),
    *(simple(pa.time64(unit), 1) for unit in ("us", "ns")),
    simple(pa.timestamp("us"), 1),
    simple(pa.timestamp("us", "UTC"), 1),
    simple(pa.duration("us"), 1),
    simple(pa.month_day_nano_interval(), (1, 2, 3)),
    simple(pa.string(), "a"),
    simple(pa.binary(), b"\xff"),
    simple(pa.binary(2), b"ab"),
    simple(pa.binary(0), b""),
    simple(ELEMENT, [1, None], []),
    simple(pa.list_(pa.field("element", pa.int64()), 2), [1, None]),
    simple(pa.list_(pa.field("element", pa.int64()), 0), []),
    simple(pa.struct([("a", pa.int64()), ("b", pa.null())]), {"a": 1, "b": None}),
    simple(pa.struct([]), {}),
    simple(pa.map_(pa.string(), pa.int64()), [("k", 1)]),
]
CHANGED = {
    "large_string": (simple(pa.large_string(), "a"), pa.string()),
    "string_view": (simple(pa.string_view(), "a" * 100), pa.string()),
    "large_binary": (simple(pa.large_binary(), b"a"), pa.binary()),
    "binary_view": (simple(pa.binary_view(), b"a" * 100), pa.binary()),
    "seconds": (simple(pa.timestamp("s"), 1), pa.timestamp("us")),
    "milliseconds": (simple(pa.timestamp("ms", "Europe/Warsaw"), 1), pa.timestamp("us", "UTC")),
    "nanoseconds": (simple(pa.timestamp("ns", "+02:00"), 1_000), pa.timestamp("us", "UTC")),
    "duration": (simple(pa.duration("ns"), 1_000), pa.duration("us")),
    "list of item": (simple(pa.list_(pa.int64()), [1, None]), ELEMENT),
    "strict member": (
        pa.StructArray.from_arrays([pa.array([1])], fields=[pa.field("a", pa.int64(), nullable=False)]),
        pa.struct([("a", pa.int64())]),
    ),
    "sorted map": (
        simple(pa.map_(pa.string(), pa.int64(), keys_sorted=True), [("k", 1)]),
        pa.map_(pa.string(), pa.int64()),
    ),
    "map of other names": (
        simple(pa.map_(pa.field("keys", pa.string(), nullable=False), pa.field("values", pa.int64())), [("k", 1)]),
        pa.map_(pa.string(), pa.int64()),
    ),
    "map of dictionaries": (
        pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode(), nested(NUMBERS, "dictionary")[:2]),
        pa.map_(pa.string(), pa.int64()),
    ),
    "dictionary of views": (nested(pa.array(["a" * 20, "b"], pa.string_view()), "dictionary"), pa.string()),
    "dictionary of nulls": (pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int64()), pa.nulls(1)), pa.null()),
    "dictionary of nanoseconds": (nested(simple(pa.timestamp("ns"), 1_000), "dictionary"), pa.timestamp("us")),
    "list of empty structs": (
        simple(pa.list_(pa.struct([])), [{}]),
        pa.list_(pa.field("element", pa.struct([]))),
    ),
    **{f"{around} of numbers": (nested(NUMBERS, around), None) for around in AROUND},
    **{
        f"{outer} of {inner}": (nested(nested(NUMBERS, inner), outer), None)
        for outer in AROUND
        for inner in ("run_end_encoded", "list_view", "dictionary", "struct", "list")
        # (pyarrow's to_pylist cannot show what it made of these)
        if (outer, inner) not in {("run_end_encoded", "dictionary"), ("dictionary", "dictionary")}
    },
}
EXTENSIONS = {
    "uuid": (pa.array([UNIQUE.bytes, None], pa.uuid()), pa.binary(16), [UNIQUE.bytes, None]),
    "json": (pa.array(["{}", None], pa.json_(pa.large_string())), pa.string(), ["{}", None]),
    "bool8": (pa.array([1, None], pa.bool8()), pa.int8(), [1, None]),
    "tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int64(), (2,)), pa.array([[1, 2]], pa.list_(pa.int64(), 2))
        ),
        pa.list_(pa.field("element", pa.int64()), 2),
        [[1, 2]],
    ),
    "in a list": (
        pa.ListArray.from_arrays([0, 1], pa.array([UNIQUE.bytes], pa.uuid())),
        pa.list_(pa.field("element", pa.binary(16))),
        [[UNIQUE.bytes]],
    ),
    "in a struct": (
        pa.StructArray.from_arrays([pa.array([UNIQUE.bytes], pa.uuid())], ["a"]),
        pa.struct([("a", pa.binary(16))]),
        [{"a": UNIQUE.bytes}],
    ),
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("types"), 1) as served:
        yield served


def carried(door: Served, topic: str, column: pa.Array) -> pa.ChunkedArray:
    """The rows that a reader gets of those that a publisher wrote."""
    here = connect(door, 0)
    put(here, path(topic), pa.record_batch([column], names=["c"]))
    return get(here, topic=topic, end="latest")["c"]


@pytest.mark.parametrize("column", KEPT, ids=lambda column: str(column.type))
def test_a_plain_type_travels_as_it_is(door: Served, column: pa.Array) -> None:
    read = carried(door, f"kept {column.type}", column)
    assert read.type == column.type
    assert read.to_pylist() == column.to_pylist()


@pytest.mark.parametrize("name", CHANGED)
def test_another_type_becomes_its_canonical_one_with_the_same_values(door: Served, name: str) -> None:
    column, type_ = CHANGED[name]
    read = carried(door, f"changed {name}", column)
    assert read.type == (type_ or payload.canonical_schema(pa.schema([("c", column.type)])).field(0).type)
    assert not payload.expands(pa.schema([("c", read.type)]))
    assert read.to_pylist() == column.to_pylist()
    rows = pa.record_batch([column], names=["c"])
    for part in (rows.slice(1), rows.slice(0, len(column) - 1), rows.slice(1, 1)):
        canonical = payload.canonical_rows(part, payload.canonical_schema(rows.schema))
        canonical.validate(full=True)
        assert canonical.to_pylist() == part.to_pylist()


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_becomes_its_storage(door: Served, name: str) -> None:
    column, type_, values = EXTENSIONS[name]
    read = carried(door, f"extension {name}", column)
    assert (read.type, read.to_pylist()) == (type_, values)


def wrapped(type_: pa.DataType) -> Iterator[pa.DataType]:
    """The type itself, and inside each other one."""
    yield type_
    yield pa.list_(type_)
    yield pa.large_list(type_)
    yield pa.list_(type_, 2)
    yield pa.list_view(type_)
    yield pa.large_list_view(type_)
    yield pa.struct([("a", pa.int64()), ("b", type_)])
    yield pa.map_(pa.string(), type_)
    yield pa.dictionary(pa.int8(), type_)
    yield pa.run_end_encoded(pa.int32(), type_)


UNREADABLE = [
    foreign_type("month"),
    foreign_type("day_time"),
    pa.sparse_union([pa.field("a", pa.int64())]),
    pa.dense_union([pa.field("a", pa.int64())]),
]


@pytest.mark.parametrize("type_", UNREADABLE, ids=str)
def test_what_cannot_be_read_back_has_no_canonical_type(type_: pa.DataType) -> None:
    for each in wrapped(type_):
        for name in ("c", "_key", "_headers"):
            with pytest.raises(Refusal, match=f"column '{name}' has type .*, which cannot be published") as refused:
                payload.canonical_schema(pa.schema([(name, each)]))
            assert refused.value.code == "bad-schema"


@pytest.mark.parametrize("of", ["month", "day_time"])
def test_intervals_that_cannot_be_read_back_are_refused_and_bind_nothing(door: Served, of: str) -> None:
    here = connect(door, 0)
    with pytest.raises(flight.FlightServerError, match=r"has type .*_interval, which cannot be published") as error:
        put(here, path(f"interval {of}"), foreign(3, c=of))
    assert code_of(error) == "bad-schema"
    put(here, path(f"interval {of}"), pa.table({"c": [1]}))
    assert get(here, topic=f"interval {of}", end="latest")["c"].to_pylist() == [1]


def test_members_of_one_name_are_refused() -> None:
    twins = pa.struct([("a", pa.int64()), ("a", pa.int64())])
    with pytest.raises(Refusal, match="column 'c' has two members called 'a'"):
        payload.canonical_schema(pa.schema([("c", pa.list_(twins))]))


def test_a_null_in_the_keys_of_a_map_is_refused() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    rows = pa.record_batch([pa.MapArray.from_arrays([0, 2], keys, pa.array([1, 2]))], names=["c"])
    with pytest.raises(Refusal, match="null") as refused:
        payload.canonical_rows(rows, payload.canonical_schema(rows.schema))
    assert refused.value.code == "bad-rows"


# ---- types inside types inside types


def any_column(random: Random, depth: int) -> tuple[pa.Array, list[Any]]:
    """Some column of random types and nulls, with the values that a reader should get."""
    kind = random.choice(["numbers", "texts", "views", *(AROUND if depth else ())])
    if kind in ("numbers", "texts", "views"):
        values: list[Any] = [random.choice([None, 1, 2, 300]) for _ in range(random.randint(1, 6))]
        if kind != "numbers":
            values = [value and f"text {value}" * 5 for value in values]
        type_ = {"numbers": pa.int64(), "texts": pa.large_string(), "views": pa.string_view()}[kind]
        return pa.array(values, type_), values
    column, values = any_column(random, depth - 1)
    if random.random() < 0.3:
        first = random.randrange(len(column))
        column, values = column.slice(first), values[first:]
    return around(kind, random, column, values)


def around(kind: str, random: Random, column: pa.Array, values: list[Any]) -> tuple[pa.Array, list[Any]]:
    count = len(values)
    is_null = [random.random() < 0.3 for _ in range(count)]
    mask = pa.array(is_null)

    def or_null(rows: list[Any]) -> list[Any]:
        return [None if null else row for null, row in zip(is_null, rows, strict=True)]

    if kind == "struct":
        return pa.StructArray.from_arrays([column], ["m"], mask=mask), or_null([{"m": value} for value in values])
    if kind == "fixed_size_list":
        return pa.FixedSizeListArray.from_arrays(column, 1, mask=mask), or_null([[value] for value in values])
    if kind == "dictionary":
        return pa.DictionaryArray.from_arrays(pa.array(or_null([*range(count)]), pa.int16()), column), or_null(values)
    if kind == "run_end_encoded":
        ends = sorted(random.sample(range(1, 10), count))
        rows = [values[sum(end <= row for end in ends)] for row in range(ends[-1])]
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), column), rows
    if kind in ("list_view", "large_list_view"):
        firsts = [random.randrange(count) for _ in range(count)]
        sizes = [random.randint(0, count - first) for first in firsts]
        number, make = (pa.int32(), pa.ListViewArray) if kind == "list_view" else (pa.int64(), pa.LargeListViewArray)
        views = make.from_arrays(pa.array(firsts, number), pa.array(sizes, number), column, mask=mask)
        return views, or_null([values[first : first + size] for first, size in zip(firsts, sizes, strict=True)])
    offsets = [0, *sorted(random.randint(0, count) for _ in range(count - 1)), count]
    spans = list(pairwise(offsets))
    if kind == "map":
        keys = [f"key {number % 3}" for number in range(count)]
        column = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys).dictionary_encode(), column)
        return column, [list(zip(keys[first:end], values[first:end], strict=True)) for first, end in spans]
    number, make = (pa.int32(), pa.ListArray) if kind == "list" else (pa.int64(), pa.LargeListArray)
    return make.from_arrays(pa.array(offsets, number), column, mask=mask), or_null(
        [values[first:end] for first, end in spans]
    )


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(10, 200))])
def test_columns_of_any_shape_keep_their_values(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        column, values = any_column(random, 4)
        first = random.randrange(len(values))
        rows = pa.record_batch([column], names=["c"]).slice(first)
        schema = payload.canonical_schema(rows.schema)
        encoded = payload.encode(payload.schema_bytes(schema), payload.canonical_rows(rows, schema, 1 << 20))
        read = pa.ipc.open_stream(pa.py_buffer(encoded)).read_next_batch()
        read.validate(full=True)
        assert read["c"].to_pylist() == values[first:], str(column.type)


def damaged(random: Random, column: pa.Array) -> bytes:
    """The column as a stream of one record batch, with some bytes changed after the schema."""
    rows = pa.record_batch([column], names=["c"])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_batch(rows)
    written = bytearray(stream.getvalue().to_pybytes())
    for _ in range(random.randint(1, 3)):
        written[random.randrange(len(rows.schema.serialize()), len(written))] = random.choice([0, 1, 127, 128, 255])
    return bytes(written)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 100))])
def test_damaged_columns_are_refused_or_can_be_read_back(seed: int) -> None:
    """Nothing that a client sends ends the process: offsets, indices, views and lengths may be anything."""
    random = Random(seed)
    for _ in range(200):
        try:
            came = pa.ipc.open_stream(damaged(random, any_column(random, 3)[0])).read_next_batch()
            schema = payload.canonical_schema(came.schema)
            rows = payload.canonical_rows(came, schema, 1 << 20)
        except (pa.ArrowException, OSError, StopIteration, Refusal):  # of the stream; of the rows
            continue
        encoded = payload.encode(payload.schema_bytes(schema), rows)
        pa.ipc.open_stream(pa.py_buffer(encoded)).read_next_batch().validate(full=True)


# ---- limits


def deep(depth: int) -> pa.DataType:
    type_ = pa.int64()
    for _ in range(depth):
        type_ = pa.struct([("a", type_)])
    return type_


WIDE: dict[str, tuple[Callable[[], pa.Schema], str]] = {
    "no columns": (lambda: pa.schema([]), "has 0 columns: publish 1 to 2000"),
    "columns": (lambda: pa.schema([(f"c{at}", pa.int8()) for at in range(2_001)]), "has 2001 columns: publish 1 to"),
    "very many columns": (
        lambda: pa.schema([(f"c{at}", pa.int8()) for at in range(100_000)]),
        "has 100000 columns: publish 1 to 2000",
    ),
    "members": (
        lambda: pa.schema([("c", pa.struct([(f"m{at}", pa.int8()) for at in range(payload.FIELDS_MAX)]))]),
        "has 10001 columns and members of nested columns: at most 10000",
    ),
    "depth": (lambda: pa.schema([("c", deep(payload.DEPTH_MAX + 1))]), "column 'c' is nested deeper than 32"),
}


@pytest.mark.parametrize("name", WIDE)
def test_too_many_or_too_deep_columns_are_refused_by_name(door: Served, name: str) -> None:
    make, says = WIDE[name]
    schema = make()
    writer, _ = connect(door, 0).do_put(path("wide"), schema, CALL)
    with pytest.raises(flight.FlightServerError, match=says) as error:
        writer.close()
    assert code_of(error) == "bad-schema"


def test_columns_at_the_limits_travel(door: Served) -> None:
    wide = pa.struct([(f"m{at}", pa.int8()) for at in range(payload.FIELDS_MAX - 1)])
    for name, type_ in (("deep", deep(payload.DEPTH_MAX)), ("wide", wide)):
        assert carried(door, name, pa.nulls(1, type_)).to_pylist() == [None]


def test_columns_deeper_than_flight_reads_are_refused_by_flight(door: Served) -> None:
    here = connect(door, 0)
    writer, _ = here.do_put(path("deeper"), pa.schema([("c", deep(5_000))]), CALL)
    with pytest.raises(flight.FlightServerError, match="Invalid flatbuffers message"):
        writer.close()
    assert "deeper" not in act(here, "topics")


@pytest.mark.parametrize("around", ["run_end_encoded", "list_view", "list"])
def test_runs_and_views_that_stand_for_too_much_are_refused_before_they_are_made(around: str) -> None:
    text = pa.array(["x" * 1_000])
    if around == "list_view":
        count = pa.array([1] * 10_000, pa.int32())
        column = pa.ListViewArray.from_arrays(pa.array([0] * 10_000, pa.int32()), count, text)
    else:
        column = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 40], pa.int64()), text)
        column = pa.LargeListArray.from_arrays([0, 1 << 40], column) if around == "list" else column.slice(5, 10_000)
    rows = pa.record_batch([column], names=["c"])
    allocated = pa.total_allocated_bytes()
    with pytest.raises(Refusal, match="send fewer rows in each") as refused:
        payload.canonical_rows(rows, payload.canonical_schema(rows.schema), 9_000_000)
    assert refused.value.code == "too-large"
    assert pa.total_allocated_bytes() == allocated


# ---- a topic that has such rows already, of an older node


def poisoned(door: Served, topic: str) -> str:
    """A topic with one good row and one batch that cannot be read; the origin of both."""
    here = connect(door, 0)
    (ack,) = put(here, path(topic), pa.table({"n": [1]}))
    rows = foreign(1, c="month")
    written = payload.schema_bytes(rows.schema)
    encoded = written + rows.serialize().to_pybytes()
    staged = Staged(topic, rows.num_rows, payload.fingerprint(written), encoded)

    async def publish() -> None:
        answer = await door.nodes[0].driver.request(lambda request: Publish(request, (staged,)))
        assert isinstance(answer, Published), answer

    door.run(publish())
    origin: str = ack["ranges"][0]["origin"]
    return origin


def test_rows_that_cannot_be_read_end_a_read_with_a_named_error(door: Served) -> None:
    topic = "unreadable"
    origin, here = poisoned(door, topic), connect(door, 0)
    put(here, path(topic), pa.table({"n": [3]}))
    for ticket in ({"end": "latest"}, {"idle_ms": 10_000}, {"metadata": "batches", "end": "latest"}):
        with pytest.raises(flight.FlightServerError) as error:
            get(here, topic=topic, **ticket)
        assert code_of(error) == "not-arrow"
        assert f"origin {origin}, batch at 2" in str(error.value) and "month_interval" in str(error.value)
    channel = Channel([door.addresses[0]])
    tail = channel.tail(topic, start="earliest")
    assert next(tail).to_pydict()["n"] == [1]
    with pytest.raises(RefusedError, match="not-arrow"):
        next(tail)
    after = {topic: {origin: 3}}
    assert get(here, topic=topic, start=after, end="latest")["n"].to_pylist() == [3]
    assert next(channel.tail(topic, start=after)).to_pydict()["n"] == [3]
    assert here.get_flight_info(path(topic), CALL).schema.names[0] == "n"


def test_a_deleted_topic_is_as_good_as_new(door: Served) -> None:
    topic, here = "cured", connect(door, 0)
    poisoned(door, topic)
    with pytest.raises(flight.FlightServerError):
        get(here, topic=topic, end="latest")
    act(here, "topic-delete", topic=topic)
    put(here, path(topic), pa.table({"n": [3], "c": ["text"]}))
    assert get(here, topic=topic, end="latest").select(["n", "c"]).to_pylist() == [{"n": 3, "c": "text"}]
    tail = here.do_get(flight.Ticket(f'{{"topic": "{topic}"}}'.encode()), CALL)
    assert tail.read_chunk().data.to_pydict()["c"] == ["text"]
    tail.cancel()
    assert [column["name"] for column in act(here, "topic", topic=topic)["columns"]] == ["n", "c"]


# ---- the document


def documented() -> dict[str, str]:
    """The result for each type, by PROTOCOL.md's table."""
    text = PROTOCOL.read_text(encoding="utf-8")
    table = text.partition("| Arrow type | becomes |\n")[2].partition("\n\n")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines()[1:]]
    return {name: becomes.strip() for names, becomes in rows for name in re.findall(r"`([a-z0-9_]+)`", names)}


def test_the_document_has_every_type_and_what_becomes_of_it() -> None:
    becomes = documented()
    ids = {
        name.removeprefix("Type_").lower(): value for name, value in vars(pa.lib).items() if name.startswith("Type_")
    }
    ids["null"] = ids.pop("na")
    assert becomes.keys() - {"extension"} == ids.keys() - {"extension"}
    by_id: dict[int, list[tuple[pa.DataType, Any]]] = {}
    for type_ in UNREADABLE:
        by_id.setdefault(type_.id, []).append((type_, "refused"))
    for column in [*KEPT, *(column for column, _ in CHANGED.values())]:
        canonical = payload.canonical_schema(pa.schema([("c", column.type)])).field(0).type
        by_id.setdefault(column.type.id, []).append((column.type, canonical))
    for name, number in ids.items():
        for type_, canonical in by_id[number]:
            match re.split("[,;(]", becomes[name])[0].strip("` "):
                case "refused":
                    assert canonical == "refused", name
                case "itself":
                    assert canonical == type_, name
                case "its values":
                    assert canonical == payload.canonical_schema(pa.schema([("c", type_.value_type)])).field(0).type
                case other:
                    assert ids[other] == canonical.id, name
