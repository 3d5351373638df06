"""Control messages as Avro: both ways, each limit from both sides, and what fastavro alone would let pass."""

import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from io import BytesIO
from typing import Any, cast, get_type_hints

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.wire.control import (
    AVRO_BYTES_MAX,
    ENTRIES_MAX,
    MESSAGE_CLASSES,
    VALUE_CLASSES,
    avro_bytes_max,
    from_avro,
    to_avro,
    usual_bytes,
)
from m4cast.overlay.protocol.wire.messages import (
    AckEntry,
    AckStmt,
    AnnounceStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    EdgeProposalResp,
    Heartbeat,
    Hello,
    HoldingEntry,
    HoldingsStmt,
    MergeResp,
    Message,
    NeighboursStmt,
    PullCall,
    RosterEntry,
)
from m4cast.schemas.avro_types import CONTROL_FILES, read_types, standalone
from tests.overlay.protocol.frame_parts import ORIGIN, text, varint
from tests.vectors import read_vectors

TYPES = read_types(CONTROL_FILES)
EXAMPLES: dict[str, Any] = {
    type(vector.message).__name__: vector.message
    for vector in read_vectors()
    if vector.name == f"control/{type(vector.message).__name__}"
}


def number_of(name: str) -> int:
    number: int = TYPES[name]["number"]
    return number


# ---- one record for each class


def test_every_message_class_has_a_record_and_every_record_a_class() -> None:
    records = {name for name, definition in TYPES.items() if definition["type"] == "record"}
    assert {name for name in records if "number" in TYPES[name]} == set(MESSAGE_CLASSES)
    assert {name for name in records if "number" not in TYPES[name]} == set(VALUE_CLASSES)


@pytest.mark.parametrize("name", [*MESSAGE_CLASSES, *VALUE_CLASSES])
def test_a_record_has_the_fields_of_its_class(name: str) -> None:
    hints = get_type_hints((MESSAGE_CLASSES | VALUE_CLASSES)[name])
    if name == "Heartbeat":
        del hints["clock_ms"]  # an extension of its frame
    if name == "BeaconStmt":
        del hints["version"]  # the same
    assert [field["name"] for field in TYPES[name]["fields"]] == list(hints)
    for field in TYPES[name]["fields"]:
        assert _python_type(field["type"]) == hints[field["name"]]


def _python_type(schema: Any) -> Any:
    if isinstance(schema, str):
        named = {"boolean": bool, "int": int, "long": int, "NodeId": NodeId, "Digest64": int}
        return named.get(schema) or VALUE_CLASSES[schema]
    if schema["type"] == "array":
        return tuple.__class_getitem__((_python_type(schema["items"]), ...))
    return {"string": str, "int": int, "long": int}[schema["type"]]


# ---- round trip


def _strategy(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        schema = TYPES.get(schema, {"type": schema})
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "int":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**31 - 1))
        case "long":
            return st.integers(schema.get("minimum", 0), 2**63 - 1)
        case "string":
            return st.text(st.characters(codec="utf-8"), min_size=schema.get("minBytes", 0), max_size=16)
        case "fixed" if schema["name"] == "Digest64":
            return st.integers(0, 2**64 - 1)
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(_strategy(schema["items"]), max_size=min(5, schema["maxItems"])).map(tuple)
    record_class = (MESSAGE_CLASSES | VALUE_CLASSES)[schema["name"]]
    return st.builds(record_class, *[_strategy(field["type"]) for field in schema["fields"]])


@pytest.mark.parametrize("name", MESSAGE_CLASSES)
@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_a_message_comes_back_as_it_went(name: str, data: st.DataObject) -> None:
    message = _in_order(data.draw(_strategy(name)))
    number, avro = to_avro(message)
    assert number == number_of(name)
    back = from_avro(number, avro)
    assert back == message
    assert type(back) is type(message)
    assert len(avro) <= avro_bytes_max(type(message))


def _in_order(message: Any) -> Any:
    if isinstance(message, Hello):
        return replace(message, version_max=max(message.version_min, message.version_max))
    if isinstance(message, AnnounceStmt | PullCall):
        first = min(message.first_sequence, 2**63 - 2)
        return replace(message, first_sequence=first, next_sequence=max(message.next_sequence, first + 1))
    return message


def test_avro_bytes_are_as_in_the_specification() -> None:
    settings_ = varint(2) + text("a") + text("ż") + text("b") + text("") + varint(0)
    avro = varint(1) + varint(2) + ORIGIN + varint(2**40) + text("host:1") + settings_
    hello = from_avro(number_of("Hello"), avro)
    assert isinstance(hello, Hello)
    assert (hello.version_min, hello.version_max, hello.incarnation) == (1, 2, 2**40)
    assert [tuple(setting) for setting in hello.settings] == [("a", "ż"), ("b", "")]
    assert to_avro(hello) == (number_of("Hello"), avro)


def test_a_digest_is_eight_bytes_little_endian() -> None:
    assert to_avro(Heartbeat(2**64 - 2)) == (number_of("Heartbeat"), b"\xfe" + 7 * b"\xff")


# ---- limits


def _at_and_over(schema: Any, example: Any) -> list[tuple[Any, Any]]:
    """Values at a limit, each with one just beyond it."""
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "int" | "long":
            limits = {} if isinstance(schema, str) else schema
            low = limits.get("minimum", 0)
            high = limits.get("maximum", 2**31 - 1 if kind == "int" else 2**63 - 1)
            return [(low, low - 1), (high, high + 1)]
        case "string":
            low, high = schema.get("minBytes", 0), schema["maxBytes"]
            # The last pair has the most characters that fit when each of them takes two bytes.
            pairs = [("x" * high, "x" * (high + 1)), ("ż" * (high // 2), "ż" * (high // 2 + 1))]
            return pairs + ([("x" * low, "x" * (low - 1))] if low else [])
        case "array":
            most = schema["maxItems"]
            return [((example[0],) * most, (example[0],) * (most + 1)), ((), (example[0],) * (most + 1))]
        case "Digest64":
            return [(0, -1), (2**64 - 1, 2**64)]
        case "NodeId":
            return [(bytes(16), bytes(15)), (bytes(16), bytes(17))]
    return []


def _with(value: Any, field: str, new: Any) -> Any:
    return value._replace(**{field: new}) if hasattr(value, "_replace") else replace(value, **{field: new})


def _limit_cases() -> list[Any]:
    """(message at a limit, message beyond it), for every field of every message, and of the values in them."""
    holders: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "Contact": (Contact(ORIGIN, "h:1"), lambda value: replace(EXAMPLES["EdgeProposalCall"], neighbour=value)),
        "Setting": (EXAMPLES["Hello"].settings[0], lambda value: replace(EXAMPLES["Hello"], settings=(value,))),
        "RosterEntry": (EXAMPLES["BeaconStmt"].entry, lambda value: replace(EXAMPLES["BeaconStmt"], entry=value)),
        "HoldingEntry": (
            EXAMPLES["HoldingsStmt"].entries[0],
            lambda value: replace(EXAMPLES["HoldingsStmt"], entries=(value,)),
        ),
        "FrontierEntry": (
            EXAMPLES["FrontierStmt"].entries[0],
            lambda value: replace(EXAMPLES["FrontierStmt"], entries=(value,)),
        ),
        "AckEntry": (EXAMPLES["AckStmt"].entries[0], lambda value: replace(EXAMPLES["AckStmt"], entries=(value,))),
        "HeldEntry": (EXAMPLES["HeldResp"].entries[0], lambda value: replace(EXAMPLES["HeldResp"], entries=(value,))),
        "InterestItem": (
            EXAMPLES["InterestNewsStmt"].joined[0],
            lambda value: replace(EXAMPLES["InterestNewsStmt"], joined=(value,)),
        ),
        "InterestKey": (
            EXAMPLES["InterestNewsStmt"].left[0],
            lambda value: replace(EXAMPLES["InterestNewsStmt"], left=(value,)),
        ),
        "InterestVersion": (
            EXAMPLES["InterestVersionsStmt"].entries[0],
            lambda value: replace(EXAMPLES["InterestVersionsStmt"], entries=(value,)),
        ),
    }
    cases = []
    for name in (*MESSAGE_CLASSES, *VALUE_CLASSES):
        example, put = holders.get(name) or (EXAMPLES[name], _in_order)
        for field in TYPES[name]["fields"]:
            limits = _at_and_over(field["type"], getattr(example, field["name"]))
            for count, (inside, outside) in enumerate(limits):
                at_limit = put(_with(example, field["name"], inside))
                beyond = _with(example, field["name"], outside)
                if put is not _in_order:
                    beyond = put(beyond)
                cases.append(pytest.param(at_limit, beyond, id=f"{name}.{field['name']}-{count}"))
    return cases


@pytest.mark.parametrize(("at_limit", "beyond"), _limit_cases())
def test_each_limit_at_max_and_beyond(at_limit: Message, beyond: Message) -> None:
    assert from_avro(*to_avro(at_limit)) == at_limit
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        to_avro(beyond)
    # A peer can still send whatever Avro itself can say.
    name = type(beyond).__name__
    try:
        hostile = _lenient_bytes(name, beyond)
    except (OverflowError, ValueError, TypeError):
        return
    with pytest.raises(RemoteProtocolError):
        from_avro(number_of(name), hostile)


def _lenient_bytes(name: str, message: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(standalone(name, TYPES)), _plain(message))
    return out.getvalue()


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def test_full_lists_of_the_largest_entries_fit() -> None:
    top = 2**63 - 1
    roster = RosterEntry(ORIGIN, top, top, "a" * 259, "d" * 259, "n" * 200, "s" * 200, top, True, top, (ORIGIN,) * 128)
    full = ConnectionRequestResp(255, 255, True, (roster,) * ENTRIES_MAX)
    assert from_avro(*to_avro(full)) == full
    assert len(to_avro(full)[1]) == avro_bytes_max(ConnectionRequestResp) == AVRO_BYTES_MAX
    holdings = HoldingsStmt((HoldingEntry(ORIGIN, "t" * 200, top, top),) * ENTRIES_MAX, top, top, True)
    assert len(to_avro(holdings)[1]) == avro_bytes_max(HoldingsStmt)


@pytest.mark.parametrize(
    "message",
    [
        replace(EXAMPLES["Hello"], version_min=2, version_max=1),
        AnnounceStmt(ORIGIN, "t", 5, 5, 1),
        PullCall(ORIGIN, "t", 5, 4, 1),
    ],
)
def test_fields_that_contradict_each_other_are_refused(message: Message) -> None:
    with pytest.raises(LocalProtocolError, match=r"version_min|empty"):
        to_avro(message)
    name = type(message).__name__
    with pytest.raises(RemoteProtocolError, match=r"version_min|empty"):
        from_avro(number_of(name), _lenient_bytes(name, message))


# ---- malformed


@pytest.mark.parametrize(
    ("name", "avro"),
    [
        ("ConnectionRequestCall", b"\x88\x00"),  # 4 with a needless byte
        ("ConnectionRequestCall", b"\x88" + b"\x80" * 20 + b"\x00"),
        ("ConnectionRequestCall", b"\x08\x00"),  # a byte too many
        ("ConnectionRequestCall", b"\x07"),  # -4
        ("ConnectionRequestCall", b"\x88"),  # a number that does not end
        ("ConnectionRequestCall", b""),
        ("DropStmt", b"\x00"),
        ("EdgeProposalResp", b"\x01\x02"),  # neither true nor false
        ("EdgeProposalResp", b"\x01"),
        ("Heartbeat", b"1234567"),
        ("NeighboursStmt", varint(1) + ORIGIN + varint(1) + ORIGIN + varint(0)),  # two blocks
        ("NeighboursStmt", varint(-1) + varint(16) + ORIGIN + varint(0)),  # a block with its size
        ("NeighboursStmt", b"\xff" * 9 + b"\x01" + b"\x00\x00"),  # -2**63 items
        ("NeighboursStmt", varint(1) + ORIGIN),  # an array without an end
        ("RefusedStmt", varint(-1) + b"abc"),
        ("RefusedStmt", varint(1) + b"\xff" + text("")),  # not UTF-8
        ("RefusedStmt", varint(3) + b"\xed\xa0\x80" + text("")),  # half a surrogate pair
    ],
)
def test_what_is_not_the_one_encoding_is_refused(name: str, avro: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        from_avro(number_of(name), avro)


def test_an_unknown_message_number_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no control message number 999"):
        from_avro(999, b"")


@pytest.mark.parametrize(
    "message", [AckStmt((AckEntry("\ud800", 1, 1),)), MergeResp(cast(bool, 2)), MergeResp(cast(bool, None))]
)
def test_what_is_no_value_of_its_type_cannot_be_sent(message: Message) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        to_avro(message)


@pytest.mark.parametrize(
    ("name", "avro"),
    [
        ("NeighboursStmt", varint(2**62)),
        ("AckStmt", varint(2**62) + text("t") + varint(1)),
        ("AckStmt", varint(1) + varint(2**62)),
        ("RefusedStmt", varint(2**40) + b"short"),
        ("SummaryStmt", varint(2**31) + bytes(64)),
    ],
)
def test_a_hostile_length_costs_nothing(name: str, avro: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        from_avro(number_of(name), avro)  # once before, so that nothing is loaded for the first time
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        from_avro(number_of(name), avro)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_the_worst_list_costs_a_bounded_multiple_of_its_bytes() -> None:
    entry = text("t") + varint(1) + varint(1)
    count = (avro_bytes_max(AckStmt) - 10) // len(entry)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match=f"{count} items"):
        from_avro(number_of("AckStmt"), varint(count) + entry * count + varint(0))
    with pytest.raises(RemoteProtocolError, match="at most"):
        from_avro(number_of("AckStmt"), varint(10**6) + entry * 10**6 + varint(0))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100 * avro_bytes_max(AckStmt)


# ---- size estimate


@pytest.mark.parametrize("name", MESSAGE_CLASSES)
def test_the_usual_size_is_about_right(name: str) -> None:
    size = len(to_avro(EXAMPLES[name])[1])
    assert size / 3 - 8 <= usual_bytes(EXAMPLES[name]) <= size * 2 + 8


def test_the_usual_size_grows_with_lists() -> None:
    assert usual_bytes(NeighboursStmt((ORIGIN,) * 100)) == usual_bytes(NeighboursStmt(())) + 1_600
    assert usual_bytes(ConnectionRequestCall(1)) == 2
    assert usual_bytes(EdgeProposalResp(True, True)) == 2
