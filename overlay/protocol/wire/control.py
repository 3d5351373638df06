"""Control messages to and from Avro bytes, strictly.

The records in `schemas/avro/control_*.avsc` say which fields a message has, and within which limits. From each of them
this module makes, once, a `Form`: how a value is checked and changed on its way out and in. fastavro does the bytes.

fastavro is lenient by itself: it takes numbers with needless bytes, arrays cut into blocks, any byte for true, values
of any size, and bytes after the end. Therefore what was read is written again and must give the same bytes, so that
every message has one encoding; then every value is held against its limits.

A hostile length costs nothing, since fastavro reads no more than the bytes at hand; but it makes an object per array
item before anyone can count them. A message longer than its record can be is therefore refused before it is read.
Worst cases: 3.1 MB of tiny roster entries cost 75 MB and 1 s until they are refused, 0.2 MB of acks 14 MB and 0.2 s.

Guarantees
8. `from_avro` returns a message within its limits or raises `RemoteProtocolError`, whatever the bytes are.

Cost: about 10 us to write a small message, 15 us to read one; 5 us more per entry of a list, either way.
"""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple, get_args

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.wire.interest import InterestItem, InterestKey, InterestVersion
from m4cast.overlay.protocol.wire.messages import (
    AckEntry,
    AnnounceStmt,
    FrontierEntry,
    HeldEntry,
    Hello,
    HoldingEntry,
    Message,
    PullCall,
    RosterEntry,
    Setting,
)
from m4cast.overlay.protocol.wire.selective import (
    Confirmation,
    CoverEntry,
    CoverStmt,
    KeptEntry,
    ProfileText,
    RoutedMessage,
    SelectAckEntry,
    SelectPullCall,
    SelectPullResp,
    SentBatch,
)
from m4cast.schemas.avro_types import CONTROL_FILES, ROUTED_FILES, Definition, read_types, standalone

ENTRIES_MAX = 1_024
"""Entries in one roster, holdings, frontier, ack or summary. All at their largest fit: a sender need only count."""
NEIGHBOURS_MAX = 128
"""Neighbours in one message: twice the largest degree, for a node that gains some before it drops others."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

MESSAGE_CLASSES: dict[str, type[Any]] = {message.__name__: message for message in get_args(Message)}
ROUTED_CLASSES: dict[str, type[Any]] = {message.__name__: message for message in get_args(RoutedMessage)}
"""Messages that travel in routed frames, and in no other."""
ROUTED_VALUES: dict[str, type[Any]] = {
    value.__name__: value for value in (ProfileText, CoverEntry, SelectAckEntry, SentBatch, KeptEntry, Confirmation)
}
VALUE_CLASSES: dict[str, type[Any]] = {
    value.__name__: value
    for value in (
        Contact,
        Setting,
        RosterEntry,
        HoldingEntry,
        FrontierEntry,
        AckEntry,
        HeldEntry,
        InterestItem,
        InterestKey,
        InterestVersion,
    )
}

_CLASSES: dict[str, Callable[..., Any]] = {**VALUE_CLASSES, **MESSAGE_CLASSES, **ROUTED_VALUES, **ROUTED_CLASSES}

# What the fields of one message must be to each other. The limits of single fields are in the schemas.
_RULES: dict[Callable[..., Any], tuple[Callable[[Any], bool], str]] = {
    Hello: (lambda hello: hello.version_min <= hello.version_max, "version_min is above version_max"),
    AnnounceStmt: (lambda range_: range_.first_sequence < range_.next_sequence, "the range is empty"),
    PullCall: (lambda range_: range_.first_sequence < range_.next_sequence, "the range is empty"),
    CoverStmt: (
        lambda cover: all(entry.first <= entry.next for entry in cover.entries),
        "a range ends before it begins",
    ),
    SelectPullCall: (lambda range_: range_.first_sequence <= range_.next_sequence, "the range ends before it begins"),
    SelectPullResp: (
        lambda resp: resp.first_sequence <= resp.covered_next and all(sent.first < sent.next for sent in resp.batches),
        "a range ends before it begins",
    ),
}


# ---- forms


class Form(NamedTuple):
    """The encoding and decoding of values of one Avro type (`ValueError` if out of limits), and their length."""

    outward: Callable[[Any], Any]
    inward: Callable[[Any], Any]
    bytes_max: int
    bytes_usual: int


def _form(schema: Any, types: dict[str, Definition], where: str) -> Form:
    """The form of an Avro type; `where` names the field in errors."""
    if isinstance(schema, list):  # null, or the other
        return _optional(_form(schema[1], types, where))
    if isinstance(schema, str):
        schema = types.get(schema, {"type": schema})
    match schema["type"]:
        case "boolean":
            return Form(_flag, _unchanged, bytes_max=1, bytes_usual=1)
        case "int" | "long" as size:
            return _number(
                schema.get("minimum", 0), schema.get("maximum", INT_MAX if size == "int" else LONG_MAX), where
            )
        case "string":
            return _text(schema.get("minBytes", 0), schema["maxBytes"], where)
        case "bytes":
            return _bytes(schema["maxBytes"], where)
        case "fixed" if schema["name"] == "Digest64":
            return Form(lambda digest: digest.to_bytes(8, "little"), _digest_inward, bytes_max=8, bytes_usual=8)
        case "fixed":
            return Form(_unchanged, _unchanged, schema["size"], schema["size"])
        case "array":
            return _list(_form(schema["items"], types, where), schema["maxItems"], where)
        case "record":
            return _record(schema, types)
    raise AssertionError(f"{where}: no form for {schema}")


def _unchanged(value: Any) -> Any:
    return value


def _flag(value: bool) -> bool:
    if value is not True and value is not False:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _digest_inward(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _number(minimum: int, maximum: int, where: str) -> Form:
    def check(value: int) -> int:
        if not minimum <= value <= maximum:
            raise ValueError(f"{where} is {value}, not {minimum} to {maximum}")
        return value

    return Form(check, check, bytes_max=_varint_bytes(maximum), bytes_usual=min(3, _varint_bytes(maximum)))


def _text(bytes_min: int, bytes_max: int, where: str) -> Form:
    def check(value: str) -> str:
        size = len(value) if value.isascii() else len(value.encode())
        if not bytes_min <= size <= bytes_max:
            raise ValueError(f"{where} has {size} bytes, not {bytes_min} to {bytes_max}")
        return value

    return Form(check, check, bytes_max=_varint_bytes(bytes_max) + bytes_max, bytes_usual=1 + min(10, bytes_max))


def _bytes(bytes_max: int, where: str) -> Form:
    def check(value: bytes) -> bytes:
        if len(value) > bytes_max:
            raise ValueError(f"{where} has {len(value)} bytes, at most {bytes_max} are allowed")
        return value

    return Form(check, check, bytes_max=_varint_bytes(bytes_max) + bytes_max, bytes_usual=1 + min(10, bytes_max))


def _optional(form: Form) -> Form:
    return Form(
        lambda value: None if value is None else form.outward(value),
        lambda value: None if value is None else form.inward(value),
        1 + form.bytes_max,
        1 + form.bytes_usual,
    )


def _list(item: Form, items_max: int, where: str) -> Form:
    def check(values: Any) -> Any:
        if len(values) > items_max:
            raise ValueError(f"{where} has {len(values)} items, at most {items_max} are allowed")
        return values

    def outward(values: tuple[Any, ...]) -> list[Any]:
        return [item.outward(value) for value in check(values)]

    def inward(values: list[Any]) -> tuple[Any, ...]:
        return tuple([item.inward(value) for value in check(values)])

    # One block with its count, and the zero that ends an array. As a part of something else it usually has 4 items.
    return Form(outward, inward, _varint_bytes(items_max) + items_max * item.bytes_max + 1, 2 + 4 * item.bytes_usual)


def _record(schema: Definition, types: dict[str, Definition]) -> Form:
    name = schema["name"]
    record_class = _CLASSES[name]
    fields = [
        (field["name"], _form(field["type"], types, where=f"{name}.{field['name']}")) for field in schema["fields"]
    ]
    writers = [(field, form.outward) for field, form in fields]
    readers = [(field, form.inward) for field, form in fields]

    def outward(value: Any) -> dict[str, Any]:
        return {field: write(getattr(value, field)) for field, write in writers}

    def inward(values: dict[str, Any]) -> Any:
        return record_class(*[read(values[field]) for field, read in readers])

    return Form(outward, inward, sum(form.bytes_max for _, form in fields), sum(form.bytes_usual for _, form in fields))


def _varint_bytes(largest: int) -> int:
    """Bytes of Avro's zig-zag encoding of a number that is not negative."""
    return max(1, ((largest << 1).bit_length() + 6) // 7)


# ---- messages


class MessageKind(NamedTuple):
    """All there is to know about one class of messages."""

    name: str
    number: int
    schema: Any
    form: Form
    broken_rule: Callable[[Any], str | None]
    lists: tuple[tuple[str, int], ...]
    """Its list fields, each with the usual bytes of an item."""
    bytes_usual: int
    """Usual bytes of all the other fields."""


def _kind(definition: Definition, types: dict[str, Definition]) -> MessageKind:
    name = definition["name"]
    lists: list[tuple[str, int]] = []
    bytes_usual = 0
    for field in definition["fields"]:
        items = field["type"].get("items") if isinstance(field["type"], dict) else None
        usual = _form(items or field["type"], types, where=name).bytes_usual
        if items is None:
            bytes_usual += usual
        else:
            lists.append((field["name"], usual))
    holds, complaint = _RULES.get(_CLASSES[name], (lambda _: True, ""))
    return MessageKind(
        name=name,
        number=definition["number"],
        schema=parse_schema(standalone(name, types)),
        form=_record(definition, types),
        broken_rule=lambda message: None if holds(message) else complaint,
        lists=tuple(lists),
        bytes_usual=bytes_usual + 2 * len(lists),
    )


def _kinds(files: tuple[str, ...], classes: Mapping[str, Callable[..., Any]]) -> dict[int, MessageKind]:
    """The messages of these files, by number."""
    types = read_types(files)
    differing = classes.keys() ^ {name for name, definition in types.items() if "number" in definition}
    assert not differing, f"messages.py and schemas/avro/control_*.avsc do not both have {sorted(differing)}"
    kinds = [_kind(definition, types) for definition in types.values() if "number" in definition]
    return {kind.number: kind for kind in kinds}


_KIND_BY_NUMBER = _kinds(CONTROL_FILES, MESSAGE_CLASSES)
_ROUTED_BY_NUMBER = _kinds(ROUTED_FILES, ROUTED_CLASSES)
_KIND_BY_CLASS: dict[Callable[..., Any], MessageKind] = {
    _CLASSES[kind.name]: kind for kind in (*_KIND_BY_NUMBER.values(), *_ROUTED_BY_NUMBER.values())
}
ROUTED_AVRO_BYTES_MAX = max(kind.form.bytes_max for kind in _ROUTED_BY_NUMBER.values())
"""No message in a routed frame is longer than this."""
AVRO_BYTES_MAX = max(kind.form.bytes_max for kind in _KIND_BY_NUMBER.values())
"""No control message is longer than this."""


def more_kinds(
    files: tuple[str, ...], messages: dict[str, Callable[..., Any]], values: dict[str, Callable[..., Any]]
) -> dict[int, MessageKind]:
    """The messages of a protocol of another room, by number. Each name stands for what makes its value from fields."""
    _CLASSES.update(values)
    _CLASSES.update(messages)
    kinds = _kinds(files, messages)
    _KIND_BY_CLASS.update({messages[kind.name]: kind for kind in kinds.values()})
    return kinds


def to_avro(message: Any) -> tuple[int, bytes]:
    """The message's number and its Avro bytes; `LocalProtocolError` if it exceeds a limit."""
    kind = _KIND_BY_CLASS[type(message)]
    try:
        data = _write(kind, kind.form.outward(message))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise LocalProtocolError(f"{kind.name} cannot be sent: {error}") from error
    if complaint := kind.broken_rule(message):
        raise LocalProtocolError(f"{kind.name} cannot be sent: {complaint}")
    return kind.number, data


def from_avro(number: int, data: bytes, kinds: dict[int, MessageKind] = _KIND_BY_NUMBER) -> Message:
    """The message; `RemoteProtocolError` if these bytes are not exactly one that is allowed."""
    kind = kinds.get(number)
    if kind is None:
        raise RemoteProtocolError(f"there is no control message number {number}")
    if len(data) > kind.form.bytes_max:
        raise RemoteProtocolError(f"{kind.name} has {len(data)} bytes, at most {kind.form.bytes_max} are allowed")
    try:
        values: Any = schemaless_reader(BytesIO(data), kind.schema, None)
        canonical = _write(kind, values) == data
    except Exception as error:  # Which errors fastavro raises on malformed bytes is not documented.
        raise RemoteProtocolError(f"{kind.name} is malformed: {error!r}") from error
    if not canonical:
        raise RemoteProtocolError(f"{kind.name} is malformed: not in its one encoding")
    try:
        message: Message = kind.form.inward(values)
    except ValueError as error:
        raise RemoteProtocolError(f"{kind.name} exceeds a limit: {error}") from error
    if complaint := kind.broken_rule(message):
        raise RemoteProtocolError(f"{kind.name} is not allowed: {complaint}")
    return message


def routed_from_avro(number: int, data: bytes) -> RoutedMessage:
    """The same for a message in a routed frame."""
    message: Any = from_avro(number, data, _ROUTED_BY_NUMBER)
    routed: RoutedMessage = message
    return routed


def avro_bytes_max(message_class: type[Message]) -> int:
    """The most Avro bytes that a message of this class can have."""
    return _KIND_BY_CLASS[message_class].form.bytes_max


def usual_bytes(message: Message | RoutedMessage) -> int:
    """About how many Avro bytes the message has, from the lengths of its lists alone."""
    kind = _KIND_BY_CLASS[type(message)]
    size = kind.bytes_usual
    for field, usual in kind.lists:
        size += len(getattr(message, field)) * usual
    return size


def _write(kind: MessageKind, values: dict[str, Any]) -> bytes:
    out = BytesIO()
    schemaless_writer(out, kind.schema, values)
    return out.getvalue()
