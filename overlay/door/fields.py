"""The JSON of requests and answers: one object from outside, read field by field, each field checked.

JSON must be UTF-8 that every parser reads in the same way: no byte order mark, no duplicate name in an object, no NaN
or infinity, no lone surrogate. An unknown field is refused, so that a misspelt `acks` is not a weaker promise than its
publisher expects. `null` is the same as absent.

A frontier is written `{topic: {origin: next}}`, with origins as 32 hex digits. It is valid on every node.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, overload

from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.ids import NODE_ID_BYTES, TOPIC_BYTES_MAX, NodeId, StreamId
from m4cast.overlay.protocol.effects import KeyMove, Range

Frontier = dict[StreamId, int]

JSON_BYTES_MAX = 4 << 20
TOPICS_MAX = 1_000
TIMEOUT_MS_MAX = 3_600_000
NUMBER_MAX = 2**62
"""The largest sequence, time in milliseconds, or size in bytes that a request may name."""


class Fields:
    """A JSON object from outside. `what` names it in refusals; `known` are the fields that it may have."""

    def __init__(self, written: bytes, what: str, known: tuple[str, ...]) -> None:
        self._fields = object_of(written, what)
        self.refuse_unknown(what, known)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Fields":
        """An object that was read already (`object_of`). Its reader says which fields it may have."""
        made = cls.__new__(cls)
        made._fields = fields
        return made

    def refuse_unknown(self, what: str, known: tuple[str, ...]) -> None:
        if not all(map(known.__contains__, self._fields)):
            unknown = next(name for name in self._fields if name not in known)
            allowed = f"it may have {', '.join(known)}" if known else "it takes no fields"
            raise bad_request(f"{what} has an unknown field {shown(unknown)}: {allowed}")

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
            raise bad_request(f"{name} must be text, not {shown(value)}")
        return value

    def required_text(self, name: str, meaning: str) -> str:
        value = self.text(name, None)
        if not value:
            raise bad_request(f"{name} is missing: set it to {meaning}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise bad_request(f"{name} must be a list of texts, not {shown(value)}")
        return tuple(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false, not {shown(value)}")
        return value

    def seconds(self, name: str) -> float | None:
        """A time-out, which requests give in milliseconds."""
        value = self.whole(name, 1, TIMEOUT_MS_MAX)
        return None if value is None else value / 1000

    def node_id(self, name: str) -> NodeId | None:
        written = self.text(name, None)
        return None if written is None else _node_id(written, name)

    def topic(self, default: str | None = None) -> str:
        topic = self.text("topic", default)
        if topic is None:
            raise bad_request("topic is missing: set it to the name of a topic")
        return checked_topic(topic)

    def names_topics(self) -> bool:
        return self.has("topic") or self.has("topics")

    def topics(self) -> tuple[str, ...]:
        """Those in `topic` or `topics`, sorted, each once."""
        topics = self.texts("topics") if self.has("topics") else (self.text("topic", None),)
        if self.has("topics") and self.has("topic"):
            raise bad_request("topic and topics are both set: set one of them")
        named = tuple(checked_topic(topic) for topic in topics if topic is not None)
        if not 1 <= len(named) <= TOPICS_MAX:
            raise bad_request(f"{len(named)} topics are named: set topic, or topics to a list of 1 to {TOPICS_MAX}")
        return tuple(sorted(set(named)))

    def frontier(self, name: str) -> Frontier | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be {{topic: {{origin: next}}}}, not {shown(value)}")
        return checked_frontier(value, name)

    def frontier_topics(self, name: str) -> tuple[str, ...]:
        """The topics of a frontier, also those without a stream."""
        value = self.get(name, {})
        return tuple(sorted(map(checked_topic, value))) if isinstance(value, dict) else ()

    def moves(self) -> tuple[KeyMove, ...]:
        """One move by `key`, `expect` and `next`, or several by `moves`."""
        key, expect, next_ = self.text("key", None), self.text("expect", None), self.text("next", None)
        several = self.get("moves", [])
        if not isinstance(several, list):
            raise bad_request(f"moves must be a list of {{key, expect, next}}, not {shown(several)}")
        if key is not None and several:
            raise bad_request("key and moves are both set: set one of them")
        if key is None:
            if expect is not None or next_ is not None:
                raise bad_request("expect and next are positions of a key: set key, too")
            return tuple(_move(move) for move in several)
        if next_ is None:
            raise bad_request(f"key {key!r} needs next: set it to the position that this publish moves the key to")
        return (KeyMove(key, expect, next_),)


def object_of(written: bytes | str, what: str) -> dict[str, Any]:
    """The object that this text is; `what` names it in refusals."""
    if len(written) > JSON_BYTES_MAX:
        raise bad_request(f"{what} has {len(written)} bytes: at most {JSON_BYTES_MAX} are allowed")
    fields = _json(written, what)
    if not isinstance(fields, dict):
        raise bad_request(f"{what} must be a JSON object, not {shown(fields)}")
    return fields


def _json(written: bytes | str, what: str) -> object:
    """Cost: 32 us for a hundred rows of two columns, of which 27 are `json.loads`; a hook for each object would take
    half as much again."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise bad_request(f"{what} has the field {shown(twice)} twice: remove one")
        return fields

    try:
        text = written if isinstance(written, str) else written.decode()
        if text.startswith(_BYTE_ORDER_MARK):
            raise bad_request(f"{what} begins with a byte order mark: send UTF-8 without it")
        value = _DECODER.decode(text)
        if not names_are_unique(value, text):
            value = json.loads(text, object_pairs_hook=unique, parse_constant=_no_number)
    except _NoNumber as name:
        raise bad_request(f"{what} has {name}, which is not JSON: remove it") from None
    except UnicodeDecodeError as error:
        raise bad_request(f"{what} must be UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{what} must be JSON: {error}") from error
    # Only so can a lone surrogate be written; whole characters may be written so, too.
    if "\\" in text and "\\u" in text and "\\ud" in text.lower():  # one character is found far sooner than two
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request(
                f"{what} has text with a lone surrogate (\\ud800 to \\udfff): send whole characters"
            ) from (None)
    return value


_BYTE_ORDER_MARK = "\ufeff"


class _NoNumber(ValueError):
    """NaN or an infinity, by its name."""


def _no_number(name: str) -> object:
    raise _NoNumber(name)


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def names_are_unique(value: object, text: str) -> bool:
    """True if an object, and the lists of objects that it has, have all names that the text has: none was written
    twice, which the decoder does not tell. False if that cannot be seen from their number alone."""
    if not isinstance(value, dict):
        return False
    names = len(value)
    for each in value.values():
        if type(each) is list:
            if not {dict}.issuperset(map(type, each)):
                return False
            names += sum(map(len, each))
    if names == text.count(":"):  # every name is written with one, and so may be a text: then there are more
        return True
    if any(space in text and f'"{space}' in text for space in " \t\n\r"):
        return False  # there may be names with space before their colon
    return names == text.count('":')  # the same for these, of which texts have few


# ---- values


def _move(move: object) -> KeyMove:
    if not isinstance(move, dict) or not {"key", "next"} <= move.keys() <= {"key", "expect", "next"}:
        raise bad_request(f"each of moves must be {{key, expect, next}}, not {shown(move)}")
    key, expect, next_ = move["key"], move.get("expect"), move["next"]
    if not isinstance(key, str) or not isinstance(next_, str) or not isinstance(expect, str | None):
        raise bad_request(f"key, expect and next of each of moves must be text, not {shown(move)}")
    return KeyMove(key, expect, next_)


def checked_frontier(value: dict[str, Any], name: str) -> Frontier:
    frontier: Frontier = {}
    for topic, origins in value.items():
        if not isinstance(origins, dict):
            raise bad_request(f"{name}: topic {shown(topic)} must have {{origin: next}}, not {shown(origins)}")
        for origin, next_sequence in origins.items():
            is_whole = isinstance(next_sequence, int) and not isinstance(next_sequence, bool)
            if not is_whole or not 1 <= next_sequence < NUMBER_MAX:
                raise bad_request(f"{name}: next must be a whole number from 1 on, not {shown(next_sequence)}")
            frontier[StreamId(_node_id(origin, "an origin"), checked_topic(topic))] = next_sequence
    return frontier


def _node_id(text: str, name: str) -> NodeId:
    try:
        written = bytes.fromhex(text)
    except ValueError:
        written = b""
    if len(written) != NODE_ID_BYTES:
        raise bad_request(f"{name} must be {2 * NODE_ID_BYTES} hex digits, not {shown(text)}")
    return NodeId(written)


def checked_topic(topic: str) -> str:
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= TOPIC_BYTES_MAX or not topic.isprintable():
        raise Refusal("bad-topic", f"topic {shown(topic)}: must be printable text of 1 to {TOPIC_BYTES_MAX} bytes")
    return topic


def shown(value: object) -> str:
    """A value in a refusal, cut if it is long."""
    written = repr(value)
    return written if len(written) <= 120 else f"{written[:100]}... ({len(written)} characters)"


# ---- answers


def frontier_json(positions: Mapping[StreamId, int]) -> dict[str, dict[str, int]]:
    written: dict[str, dict[str, int]] = {}
    for stream, next_sequence in sorted(positions.items(), key=lambda item: (item[0].topic, item[0].origin)):
        written.setdefault(stream.topic, {})[stream.origin.hex()] = next_sequence
    return written


def range_text(rows: Range) -> str:
    """The range of small publishes, as JSON: the same text as `ranges_json` has, without its values."""
    return f'{_range_head(rows.stream)}, "first": {rows.first_sequence}, "next": {rows.next_sequence}}}'


@lru_cache(maxsize=256)
def _range_head(stream: StreamId) -> str:
    return json.dumps({"topic": stream.topic, "origin": stream.origin.hex()})[:-1]


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
