"""The messages of a WebSocket at `/live`, from a client and to it: text frames of JSON, binary frames with Arrow.

A binary frame is the length of its head (4 bytes, big-endian), the head, which is the JSON of the message without its
rows, and the rows as an Arrow stream. Everything from outside is checked: what is not here is refused.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

import pyarrow as pa

from m4cast.overlay.door.fields import NUMBER_MAX, Fields, Frontier, object_of
from m4cast.overlay.door.refusals import Refusal, as_json, bad_request
from m4cast.overlay.door.requests import ACKS_MAX, Get, Put
from m4cast.overlay.door.web.following.fresh import FollowedRows
from m4cast.overlay.door.web.query import start_of
from m4cast.overlay.door.web.quick_json import json_of, members_of
from m4cast.overlay.door.web.reads import JSON_ROWS
from m4cast.overlay.door.web.routes import ARROW, JSON_LINES
from m4cast.overlay.door.web.texts import ArrowStreamText
from m4cast.overlay.ids import StreamId

HEAD_BYTES_MAX = 64 << 10
CREDIT_MAX = 1 << 20
NAME_MAX = 100
Form = Literal["json", "arrow"]

_PUBLISH = ("type", "id", "topic", "rows", "acks", "key", "expect", "next", "timeout_ms")
_SUBSCRIBE = ("type", "id", "topic", "from", "on_missing", "credit", "format", "where", "language", "early")
_EVERY = tuple(dict.fromkeys((*_PUBLISH, *_SUBSCRIBE, "frames")))


@dataclass(frozen=True, slots=True)
class LivePublish:
    id: int
    put: Put
    rows: list[dict[str, Any]] | None
    """None: they are Arrow."""
    arrow: bytes = b""
    text: str = ""
    """The frame, of which `rows` are a part."""
    size: int = 0
    """About how many bytes the rows have."""

    @property
    def content_type(self) -> str:
        return ARROW if self.rows is None else JSON_LINES

    @property
    def body(self) -> bytes:
        """The rows as they are written: integers of any size are exact."""
        if self.rows is None:
            return self.arrow
        return "\n".join(map(json.dumps, object_of(self.text, "a message")["rows"])).encode()

    def may_join(self, other: "LivePublish") -> bool:
        """True if both can be published as one batch."""
        return bool(self.rows and other.rows and not self.put.moves and self.put == other.put)


@dataclass(frozen=True, slots=True)
class LiveSubscribe:
    name: str
    get: Get
    credit: int
    form: Form
    where: str | None
    language: str | None
    early: bool


@dataclass(frozen=True, slots=True)
class LiveCredit:
    name: str
    frames: int


@dataclass(frozen=True, slots=True)
class LiveUnsubscribe:
    name: str


@dataclass(frozen=True, slots=True)
class LiveRefused:
    """A publish or subscribe that makes no sense, by its id."""

    id: int | str
    refusal: Refusal


LiveMessage = LivePublish | LiveSubscribe | LiveCredit | LiveUnsubscribe | LiveRefused


def message_of(frame: str | bytes) -> LiveMessage:
    """The message of a frame; text, or binary with Arrow."""
    if isinstance(frame, str):
        return _parsed(frame, None)
    size = int.from_bytes(frame[:4], "big")
    if len(frame) < 4 or size > HEAD_BYTES_MAX or len(frame) < 4 + size:
        raise bad_request(f"a binary frame of {len(frame)} bytes: must begin with the length of its head, and the head")
    return _parsed(frame[4 : 4 + size], frame[4 + size :])


def _parsed(written: bytes | str, arrow: bytes | None) -> LiveMessage:
    members = members_of(written) if isinstance(written, str) else None
    if members is None:
        members = object_of(written, "a message")
    fields = Fields.of(members)
    fields.refuse_unknown("a message", _EVERY)
    kind = fields.text("type", None)
    if arrow is not None and kind != "publish":
        raise bad_request("a binary frame must be a publish: send other messages as text")
    match kind:
        case "publish":
            number = fields.whole("id", 1, NUMBER_MAX)
            if number is None:
                raise bad_request("id is missing: number publishes from 1 on")
            try:
                fields.refuse_unknown("a publish", _PUBLISH)
                size = len(written.encode()) if isinstance(written, str) and not written.isascii() else len(written)
                return _publish(number, fields, written, size, arrow)
            except Refusal as refusal:
                return LiveRefused(number, refusal)
        case "subscribe":
            name = _name(fields)
            try:
                fields.refuse_unknown("a subscribe", _SUBSCRIBE)
                return _subscribe(name, fields)
            except Refusal as refusal:
                return LiveRefused(name, refusal)
        case "credit":
            fields.refuse_unknown("a credit", ("type", "id", "frames"))
            frames = fields.whole("frames", 1, CREDIT_MAX)
            if frames is None:
                raise bad_request("frames is missing: set it to how many more may be sent")
            return LiveCredit(_name(fields), frames)
        case "unsubscribe":
            fields.refuse_unknown("an unsubscribe", ("type", "id"))
            return LiveUnsubscribe(_name(fields))
        case other:
            raise bad_request(f"type is {other!r}: must be publish, subscribe, credit or unsubscribe")


def _publish(number: int, fields: Fields, written: bytes | str, size: int, arrow: bytes | None) -> LivePublish:
    put = Put(
        topic=fields.topic(),
        moves=fields.moves(),
        acks=fields.whole("acks", 0, ACKS_MAX),
        timeout_s=fields.seconds("timeout_ms"),
    )
    if arrow is not None:
        if fields.has("rows"):
            raise bad_request("rows are not allowed in the head of a binary frame: they follow it as an Arrow stream")
        return LivePublish(number, put, None, arrow, size=len(arrow))
    rows = fields.get("rows")
    if not isinstance(rows, list) or not {dict}.issuperset(map(type, rows)):
        raise bad_request("rows must be a list of objects")
    assert isinstance(written, str)
    return LivePublish(number, put, rows, text=written, size=size)


def _subscribe(name: str, fields: Fields) -> LiveSubscribe:
    topic = fields.topic()
    on_missing, form = fields.text("on_missing", "fail"), fields.text("format", "json")
    if on_missing not in ("fail", "skip"):
        raise bad_request(f"on_missing is {on_missing!r}: must be fail or skip")
    if form not in ("json", "arrow"):
        raise bad_request(f"format is {form!r}: must be json or arrow")
    get = Get(
        topics=(topic,),
        start=start_of(fields.text("from", "latest"), "from", topic),
        end=None,
        skip_missing=on_missing == "skip",
    )
    credit = fields.whole("credit", 0, CREDIT_MAX)
    return LiveSubscribe(
        name=name,
        get=get,
        credit=0 if credit is None else credit,
        form="arrow" if form == "arrow" else "json",
        where=fields.text("where", None),
        language=fields.text("language", None),
        early=fields.flag("early"),
    )


def _name(fields: Fields) -> str:
    name = fields.required_text("id", "a name for the subscription")
    if len(name) > NAME_MAX:
        raise bad_request(f"id has {len(name)} characters: at most {NAME_MAX} are allowed")
    return name


# ---- to a client


def acked(done: list[tuple[int, str]]) -> str:
    """All publishes up to the last of these are answered; these are published, with these ranges, as JSON."""
    publishes = ", ".join(f'{{"id": {number}, "ranges": {ranges}}}' for number, ranges in done)
    return f'{{"type": "acked", "id": {done[-1][0]}, "publishes": [{publishes}]}}'


def refusal_message(refusal: Refusal, of: int | str | None) -> str:
    return json.dumps({"type": "refused", "id": of, **as_json(refusal)})


def subscribed(name: str, position: str) -> str:
    return json.dumps({"type": "subscribed", "id": name, "position": position})


def row_frames(name: str, form: Form, found: list[FollowedRows], _: Frontier) -> list[str | bytes]:
    """Rows as frames, each of one stream, with the sequence to continue from. Batches that were found together and have
    the same columns share a frame."""
    frames: list[str | bytes] = []
    for few in _together(found):
        frames += _json_frames(name, few) if form == "json" else _arrow_frames(name, few)
    return frames


def _together(found: list[FollowedRows]) -> Iterator[list[FollowedRows]]:
    if len(found) < 2:
        yield from ([each] for each in found)
        return
    for _, group in groupby(found, lambda each: (each.stream, each.rows.columns)):
        yield list(group)


def _json_frames(name: str, few: list[FollowedRows]) -> Iterator[str]:
    head = _json_head(name, few[0].stream)
    if sum(each.rows.count for each in few) <= JSON_ROWS:
        rows = few[0].rows.json if len(few) == 1 else ", ".join(each.rows.json for each in few)
        yield f'{head}{few[-1].next}, "rows": [{rows}]}}'
        return
    objects = [row for each in few for row in each.rows.objects]
    for at in range(0, len(objects), JSON_ROWS):
        some = objects[at : at + JSON_ROWS]
        after = some[-1]["_sequence"] + 1 if at + JSON_ROWS < len(objects) else few[-1].next
        yield f'{head}{after}, "rows": {json_of(some)}}}'


@lru_cache(maxsize=256)
def _json_head(name: str, stream: StreamId) -> str:
    """A frame of rows up to the value of `next`: the same for all of a subscription's frames of a stream."""
    return json.dumps(_head(name, stream))[:-1] + ', "next": '


def _head(name: str, stream: StreamId) -> dict[str, Any]:
    return {"type": "rows", "id": name, "topic": stream.topic, "origin": stream.origin.hex()}


def _arrow_frames(name: str, few: list[FollowedRows]) -> Iterator[bytes]:
    rows = few[0].rows.arrow if len(few) == 1 else pa.concat_batches([each.rows.arrow for each in few])
    for at in range(0, rows.num_rows, JSON_ROWS):
        some = rows.slice(at, JSON_ROWS)
        is_last = at + some.num_rows == rows.num_rows
        after = few[-1].next if is_last else some.column("_sequence")[-1].as_py() + 1
        text = ArrowStreamText(some.schema)
        head = json.dumps({**_head(name, few[0].stream), "next": after}).encode()
        yield len(head).to_bytes(4, "big") + head + text.begin() + text.piece(some) + text.end()
