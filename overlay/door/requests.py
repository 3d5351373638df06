"""What clients may say: the JSON of DoPut commands, DoGet tickets and action bodies, checked and turned into values.

A field that is not known is refused, so that a misspelt `acks` is not a weaker promise than its publisher thinks.

A frontier is written `{topic: {origin: next}}`, origins as 32 hex digits. It is valid on every node.
"""

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.ids import NODE_ID_BYTES, TOPIC_BYTES_MAX, NodeId, StreamId
from m4cast.overlay.protocol.effects import KeyMove, Range

Frontier = dict[StreamId, int]
Edge = Literal["earliest", "latest"]
Compression = Literal["lz4", "zstd"]
Form = Literal["rows", "batches", "raw"]
"""What a read gives: rows that each say where they are from, rows of which only each record batch says it, or batches
as they were published."""

JSON_BYTES_MAX = 4 << 20
TOPICS_MAX = 1_000
TIMEOUT_MS_MAX = 3_600_000
WAIT_MS_MAX = 10_000
LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 24 * 3_600_000
READER_BYTES_MAX = 200
KEY_BYTES_MAX = 200
KEYS_MAX = 1_000
"""Publisher keys on one page."""
COPIES_MAX = 64
DEFAULT_TOPIC = "default"


@dataclass(frozen=True, slots=True)
class Put:
    """Publish what follows: with moves all of it in one commit, else batch by batch. `stage`: only keep it."""

    topic: str
    moves: tuple[KeyMove, ...] = ()
    acks: int | None = None
    """None: as many as the node asks for."""
    stage: str | None = None
    timeout_s: float | None = None
    rows: int | None = None
    """Of a commit: how many follow."""


@dataclass(frozen=True, slots=True)
class Get:
    """Rows of these topics from `start` to `end`; no end: and then those that come."""

    topics: tuple[str, ...]
    start: Frontier | Edge | int
    """A frontier, an edge of what is kept here, or a time in milliseconds: rows published then or later."""
    end: Frontier | Literal["latest"] | None
    skip_missing: bool = False
    timeout_s: float | None = None
    idle_s: float | None = None
    """A tail ends after this long without news; None: it does not."""
    form: Form = "rows"
    compression: Compression | None = None
    """Of the answer on its way."""


@dataclass(frozen=True, slots=True)
class GetDeliveries:
    """Delivery records from `start` to `end`; no end: and then those that come."""

    start: int | Edge
    end: int | Literal["latest"] | None
    skip_missing: bool = False
    timeout_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class GetRoster:
    pass


@dataclass(frozen=True, slots=True)
class StagedCommit:
    stage_ids: tuple[str, ...]
    moves: tuple[KeyMove, ...]
    acks: int | None = None
    """None: as many as the node asks for."""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    topics: tuple[str, ...] | None
    """None: all."""
    at_ms: int | None = None
    seen: Frontier | None = None
    """What is asked for is only what is past this; None: everything."""
    wait_s: float = 0
    """How long there may be nothing before that is the answer."""


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """A page of publisher keys: those that begin with `prefix`, from the first one after `after` on."""

    prefix: str
    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class Lease:
    reader: str
    frontier: Frontier
    topics: tuple[str, ...]
    ttl_ms: int

    def all_topics(self) -> tuple[str, ...]:
        return tuple({*self.topics, *(stream.topic for stream in self.frontier)})


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """None: the node's default."""

    topic: str
    bytes_max: int | None
    age_ms_max: int | None


@dataclass(frozen=True, slots=True)
class DrainRequest:
    copies: int | None
    """None: as many as there are neighbours."""
    timeout_s: float | None = None


# ---- parsing


def parse_put(path: list[bytes] | None, command: bytes | None) -> Put:
    """From a descriptor: a path of one topic, or a command."""
    if path:
        return Put(_path_topic(path))
    names = ("topic", "key", "expect", "next", "moves", "rows", "acks", "stage", "timeout_ms")
    fields = _Fields(command or b"", "a command", names)
    put = Put(
        _topic(fields.text("topic", DEFAULT_TOPIC)),
        _moves(fields),
        fields.whole("acks", 0, 2**31 - 1),
        fields.text("stage", None),
        fields.seconds("timeout_ms"),
        fields.whole("rows", 0, 2**63 - 1),
    )
    if bool(put.moves) != (put.rows is not None):
        detail = (
            "rows is required with key or moves, and only allowed with them: set it to the number of rows that follow"
        )
        raise bad_request(detail)
    if put.stage is not None and (put.moves or put.acks):
        raise bad_request("stage goes without key, moves and acks: they belong to the commit")
    return put


def _path_topic(path: list[bytes]) -> str:
    if len(path) != 1:
        raise bad_request(f"a path of {len(path)} parts: give a path of one topic, or a command")
    return _topic(_text_of(path[0]))


def parse_flight(path: list[bytes] | None, command: bytes | None) -> str:
    """From a descriptor of GetFlightInfo or GetSchema: the topic."""
    if path:
        return _path_topic(path)
    return _topic(_Fields(command or b"", "a command", ("topic",)).text("topic", DEFAULT_TOPIC))


def parse_nothing(body: bytes, action: str) -> None:
    _Fields(body or b"{}", f"the action {action}", ())


_GET_FIELDS = ("read", "start", "end", "on_missing", "timeout_ms", "idle_ms")


def parse_get(ticket: bytes) -> Get | GetDeliveries | GetRoster:
    fields = _Fields(ticket, "a ticket", (*_GET_FIELDS, "topic", "topics", "metadata", "compression"))
    match fields.text("read", "rows"):
        case "rows":
            return _get_rows(fields, _metadata(fields))
        case "raw":
            known = (*_GET_FIELDS, "topic", "topics", "compression")
            return _get_rows(_Fields(ticket, "a ticket for raw batches", known), "raw")
        case "deliveries":
            return _get_deliveries(_Fields(ticket, "a ticket for deliveries", _GET_FIELDS))
        case "roster":
            _Fields(ticket, "a ticket for the roster", ("read",))
            return GetRoster()
        case other:
            raise bad_request(f"read is {_shown(other)}: must be rows, raw, deliveries or roster")


def _metadata(fields: "_Fields") -> Form:
    match fields.text("metadata", "rows"):
        case "rows":
            return "rows"
        case "batches":
            return "batches"
        case other:
            raise bad_request(f"metadata is {_shown(other)}: must be rows or batches")


def _skips_missing(fields: "_Fields") -> bool:
    on_missing = fields.text("on_missing", "fail")
    if on_missing not in ("fail", "skip"):
        raise bad_request(f"on_missing is {on_missing!r}: must be fail or skip")
    return on_missing == "skip"


def _get_deliveries(fields: "_Fields") -> GetDeliveries:
    start, end = fields.get("start", "earliest"), fields.get("end")
    number = fields.whole("start", 1, 2**62) if start not in ("earliest", "latest") else None
    until = fields.whole("end", 1, 2**62) if end not in ("latest", None) else None
    return GetDeliveries(
        number if number is not None else "latest" if start == "latest" else "earliest",
        until if until is not None else "latest" if end == "latest" else None,
        _skips_missing(fields),
        fields.seconds("timeout_ms"),
        fields.seconds("idle_ms"),
    )


def _get_rows(fields: "_Fields", form: Form) -> Get:
    end = fields.get("end")
    if end == "earliest" or (isinstance(end, int) and not isinstance(end, bool)):
        raise bad_request("end must be a frontier, latest or null")
    parsed_end = None if end is None else _edge(end, "end")
    assert not isinstance(parsed_end, int) and parsed_end != "earliest"
    return Get(
        parse_topics(fields),
        _edge(fields.get("start", "earliest"), "start"),
        parsed_end,
        _skips_missing(fields),
        fields.seconds("timeout_ms"),
        fields.seconds("idle_ms"),
        form,
        _compression(fields),
    )


def _compression(fields: "_Fields") -> Compression | None:
    match fields.text("compression", None):
        case None:
            return None
        case "lz4":
            return "lz4"
        case "zstd":
            return "zstd"
        case other:
            raise bad_request(f"compression is {_shown(other)}: must be lz4 or zstd")


def parse_commit(body: bytes) -> StagedCommit:
    fields = _Fields(body, "a commit", ("stage_ids", "key", "expect", "next", "moves", "acks", "timeout_ms"))
    return StagedCommit(
        fields.texts("stage_ids"),
        _moves(fields),
        fields.whole("acks", 0, 2**31 - 1),
        fields.seconds("timeout_ms"),
    )


def parse_abort(body: bytes) -> tuple[str, ...]:
    return _Fields(body, "an abort", ("stage_ids",)).texts("stage_ids")


def parse_position(body: bytes) -> str:
    key = _Fields(body, "a question for a position", ("key",)).text("key", None)
    if not key:
        raise bad_request("key is missing: the publisher key whose position is wanted")
    return key


def parse_publishers(body: bytes) -> KeyQuestion:
    fields = _Fields(body or b"{}", "a question for publisher keys", ("prefix", "after", "limit"))
    prefix, after = (_part_of_key(fields, name) for name in ("prefix", "after"))
    return KeyQuestion(prefix, after, fields.whole("limit", 1, KEYS_MAX) or KEYS_MAX)


def _part_of_key(fields: "_Fields", name: str) -> str:
    part = fields.text(name, "")
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        size = KEY_BYTES_MAX + 1
    if size > KEY_BYTES_MAX:
        raise bad_request(f"{name} must be at most {KEY_BYTES_MAX} bytes of UTF-8, as keys are, not {_shown(part)}")
    return part


def parse_publisher_remove(body: bytes) -> str:
    key = _Fields(body, "a removal of a publisher key", ("key",)).text("key", None)
    if not key:
        raise bad_request("key is missing: name the publisher key that is to be removed")
    return key


def parse_drain(body: bytes) -> DrainRequest:
    fields = _Fields(body or b"{}", "a drain", ("copies", "timeout_ms"))
    return DrainRequest(fields.whole("copies", 1, COPIES_MAX), fields.seconds("timeout_ms"))


def parse_channel(body: bytes) -> str:
    channel = _Fields(body, "a shutdown of the channel", ("channel",)).text("channel", None)
    if not channel:
        raise bad_request('channel is missing: the name of the channel that is to be shut down, "type/instance"')
    return channel


def parse_question(body: bytes) -> Question:
    fields = _Fields(body or b"{}", "a question", ("topic", "topics", "at_ms", "seen", "wait_ms"))
    named = fields.has("topic") or fields.has("topics")
    seen = fields.get("seen")
    if seen is not None and not isinstance(seen, dict):
        raise bad_request(f"seen must be {{topic: {{origin: next}}}}, not {_shown(seen)}")
    if seen is None and fields.has("wait_ms"):
        raise bad_request("wait_ms needs seen, the frontier past which something is waited for")
    if seen is not None and fields.has("at_ms"):
        raise bad_request("seen and at_ms: give one of them")
    return Question(
        parse_topics(fields) if named else None,
        fields.whole("at_ms", 0, 2**62),
        None if seen is None else _frontier(seen, "seen"),
        (fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0) / 1000,
    )


def parse_topic(body: bytes) -> str:
    return _named_topic(_Fields(body, "a topic", ("topic",)))


def parse_retention(body: bytes) -> TopicRetention:
    fields = _Fields(body, "a retention", ("topic", "max_bytes", "max_age_ms"))
    return TopicRetention(
        _named_topic(fields), fields.whole("max_bytes", 0, 2**62), fields.whole("max_age_ms", 0, 2**62)
    )


def _named_topic(fields: "_Fields") -> str:
    topic = fields.text("topic", None)
    if topic is None:
        raise bad_request("topic is not given: say which one")
    return _topic(topic)


def parse_lease(body: bytes) -> Lease:
    fields = _Fields(body, "a lease", ("reader", "frontier", "topic", "topics", "ttl_ms"))
    wanted = fields.get("frontier", {})
    if not isinstance(wanted, dict):
        raise bad_request(f"frontier must be {{topic: {{origin: next}}}}, not {_shown(wanted)}")
    named = fields.has("topic") or fields.has("topics")
    topics = parse_topics(fields) if named else tuple(sorted(_topic(topic) for topic in wanted))
    if not topics:
        raise bad_request("a lease names topics, or streams in its frontier: else it would hold nothing")
    ttl_ms = fields.whole("ttl_ms", LEASE_MS_MIN, LEASE_MS_MAX)
    if ttl_ms is None:
        raise bad_request("a lease needs ttl_ms: how long it lasts unless it is renewed")
    return Lease(_reader(fields), _frontier(wanted, "frontier"), topics, ttl_ms)


def parse_release(body: bytes) -> str:
    return _reader(_Fields(body, "a release", ("reader",)))


def _reader(fields: "_Fields") -> str:
    name = fields.text("reader", "")
    if not 1 <= len(name.encode(errors="replace")) <= READER_BYTES_MAX or not name.isprintable():
        raise bad_request(f"reader must be printable text of 1 to {READER_BYTES_MAX} bytes, not {_shown(name)}")
    return name


def parse_topics(fields: "_Fields") -> tuple[str, ...]:
    topics = fields.texts("topics") if fields.has("topics") else (fields.text("topic", None),)
    if fields.has("topics") and fields.has("topic"):
        raise bad_request("topic and topics: give one of them")
    named = tuple(_topic(topic) for topic in topics if topic is not None)
    if not 1 <= len(named) <= TOPICS_MAX:
        raise bad_request(f"topic or topics: name 1 to {TOPICS_MAX}")
    return tuple(sorted(set(named)))


def _json(written: bytes, what: str) -> object:
    """JSON in UTF-8 that every parser reads in the same way: no byte order mark, no name twice in an object, only
    numbers that JSON has, no text that UTF-8 cannot hold."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise bad_request(f"{what} has the field {_shown(twice)} twice: leave one out")
        return fields

    def no_number(name: str) -> object:
        raise bad_request(f"{what} has {name}, which is no JSON: leave it out")

    if written.startswith(codecs.BOM_UTF8):
        raise bad_request(f"{what} begins with a byte order mark: send UTF-8 without it")
    try:
        value = json.loads(written.decode(), object_pairs_hook=unique, parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise bad_request(f"{what} must be UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{what} must be JSON: {error}") from error
    if b"\\ud" in written.lower():  # the only way to write half a character; whole ones are written so, too
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request(f"{what} has half a character (a lone surrogate, \\ud800 to \\udfff) in a text") from None
    return value


class _Fields:
    """A JSON object from outside, one field at a time."""

    def __init__(self, written: bytes, what: str, known: tuple[str, ...]) -> None:
        self._what = what
        if len(written) > JSON_BYTES_MAX:
            raise bad_request(f"{what} of {len(written)} bytes: at most {JSON_BYTES_MAX}")
        fields = _json(written, what)
        if not isinstance(fields, dict):
            raise bad_request(f"{what} must be a JSON object, not {_shown(fields)}")
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise bad_request(f"{what} has no field {_shown(unknown[0])}: it may have {', '.join(known) or 'none'}")
        self._fields: dict[str, Any] = fields

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def get(self, name: str, default: object = None) -> object:
        value = self._fields.get(name)
        return default if value is None else value

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None) -> str | None: ...
    def text(self, name: str, default: str | None) -> str | None:
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} must be text, not {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise bad_request(f"{name} must be a list of texts, not {_shown(value)}")
        return tuple(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}, not {_shown(value)}")
        return value

    def seconds(self, name: str) -> float | None:
        value = self.whole(name, 1, TIMEOUT_MS_MAX)
        return None if value is None else value / 1000


def _moves(fields: _Fields) -> tuple[KeyMove, ...]:
    """One move by `key`, `expect` and `next`, or several in `moves`."""
    key, expect, next_ = fields.text("key", None), fields.text("expect", None), fields.text("next", None)
    several = fields.get("moves", [])
    if not isinstance(several, list):
        raise bad_request(f"moves must be a list of {{key, expect, next}}, not {_shown(several)}")
    if key is not None and several:
        raise bad_request("key and moves: give one of them")
    if key is None:
        if expect is not None or next_ is not None:
            raise bad_request("expect and next need a key: they are positions of it")
        return tuple(_move(move) for move in several)
    if next_ is None:
        raise bad_request(f"key {key!r} needs next, the position that this publish brings it to")
    return (KeyMove(key, expect, next_),)


def _move(move: object) -> KeyMove:
    if not isinstance(move, dict) or not {"key", "next"} <= move.keys() <= {"key", "expect", "next"}:
        raise bad_request(f"a move is {{key, expect, next}}, not {_shown(move)}")
    key, expect, next_ = move["key"], move.get("expect"), move["next"]
    if not isinstance(key, str) or not isinstance(next_, str) or not isinstance(expect, str | None):
        raise bad_request(f"key, expect and next of a move are text, not {_shown(move)}")
    return KeyMove(key, expect, next_)


def _edge(value: object, name: str) -> Frontier | Edge | int:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
        return value
    if isinstance(value, dict):
        return _frontier(value, name)
    raise bad_request(
        f"{name} must be earliest, latest, a time in ms or {{topic: {{origin: next}}}}, not {_shown(value)}"
    )


def _frontier(value: dict[str, Any], name: str) -> Frontier:
    frontier: Frontier = {}
    for topic, origins in value.items():
        if not isinstance(origins, dict):
            raise bad_request(f"{name}: topic {_shown(topic)} must have {{origin: next}}, not {_shown(origins)}")
        for origin, next_sequence in origins.items():
            if not isinstance(next_sequence, int) or isinstance(next_sequence, bool) or not 1 <= next_sequence < 2**62:
                raise bad_request(f"{name}: next must be a whole number from 1 on, not {_shown(next_sequence)}")
            frontier[StreamId(_origin(origin), _topic(topic))] = next_sequence
    return frontier


def _origin(text: str) -> NodeId:
    try:
        origin = bytes.fromhex(text)
    except ValueError:
        origin = b""
    if len(origin) != NODE_ID_BYTES:
        raise bad_request(f"an origin is {2 * NODE_ID_BYTES} hex digits, not {_shown(text)}")
    return NodeId(origin)


def _topic(topic: str) -> str:
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= TOPIC_BYTES_MAX or not topic.isprintable():
        raise Refusal("bad-topic", f"topic {_shown(topic)}: must be printable text of 1 to {TOPIC_BYTES_MAX} bytes")
    return topic


def _text_of(written: bytes) -> str:
    try:
        return written.decode()
    except UnicodeDecodeError as error:
        raise Refusal("bad-topic", f"topic {_shown(written)}: must be UTF-8") from error


def _shown(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 120 else f"{written[:100]}... ({len(written)} characters)"


# ---- answers


def frontier_json(positions: Mapping[StreamId, int]) -> dict[str, dict[str, int]]:
    written: dict[str, dict[str, int]] = {}
    for stream, next_sequence in sorted(positions.items(), key=lambda item: (item[0].topic, item[0].origin)):
        written.setdefault(stream.topic, {})[stream.origin.hex()] = next_sequence
    return written


def ranges_json(ranges: Iterable[Range]) -> list[dict[str, object]]:
    return [
        {
            "topic": rows.stream.topic,
            "origin": rows.stream.origin.hex(),
            "first": rows.first_sequence,
            "next": rows.next_sequence,
        }
        for rows in ranges
    ]
