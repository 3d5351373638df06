"""Requests for rows: the JSON of DoPut commands, DoGet tickets and flight descriptors, as checked values.

The bodies of actions are parsed where the actions are performed; `actions` lists them.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from m4cast.overlay.door.fields import NUMBER_MAX, Fields, Frontier, checked_frontier, checked_topic, shown
from m4cast.overlay.door.publish.restoring import LostBatch, parse_restore
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles import EVERYTHING, FilterError, Profile, UnknownLanguageError, narrowed, parse, widened
from m4cast.overlay.protocol.effects import KeyMove
from m4cast.overlay.value import value

Edge = Literal["earliest", "latest"]
Compression = Literal["lz4", "zstd"]
Form = Literal["rows", "batches", "raw"]
"""The form of what a read returns: rows that each have the channel's columns, rows without them whose record batches
carry the same as metadata, or batches as they were published."""

DEFAULT_TOPIC = "default"
ACKS_MAX = 2**31 - 1
ROWS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Publish the rows that follow: with moves as one commit, else batch by batch. With `stage`: only stage them."""

    topic: str
    moves: tuple[KeyMove, ...] = ()
    acks: int | None = None
    """None: the node's setting."""
    stage: str | None = None
    timeout_s: float | None = None
    rows: int | None = None
    """The number of rows that follow, in a commit or in a batch that is restored."""
    restore: LostBatch | None = None
    """Do not publish the rows: put them back in their place."""


Ranges = dict[NodeId, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows that another profile of the client gave: those that match it, in these ranges."""

    profile: Profile
    begin: dict[NodeId, int]
    hole: Ranges
    within: Ranges | None


@value
class ClientReader:
    """The client that a read is for, by its connection to this node."""

    key: str
    connection: int
    version: int = 0
    """The version of the positions that a read by a member of a group begins from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """Rows of these topics from `start` to `end`. Without an end it is a tail, which goes on with new rows."""

    topics: tuple[str, ...]
    start: Frontier | Edge | int
    """A frontier, an edge of what this node retains, or a time in milliseconds: rows published then or later."""
    end: Frontier | Literal["latest"] | None
    skip_missing: bool = False
    timeout_s: float | None = None
    idle_s: float | None = None
    """A tail ends after this long without new rows. None: it does not."""
    form: Form = "rows"
    compression: Compression | None = None
    """The compression of the answer in transit."""
    profile: Profile | None = None
    """The caller's filter. None: all rows."""
    is_table: bool = False
    """Only the rows that stand. Of one topic, from its beginning."""
    with_removals: bool = False
    """True if removals of a table are returned, too."""
    wanted: Mapping[str, Profile] | None = None
    """A filter for each topic, in its place."""
    left_out: tuple[LeftOut, ...] = ()
    """Rows that are not given though they match."""
    attached: ClientReader | None = None
    """The client that reads: the read ends when its connection is over."""
    standing: Frontier | None = None
    """The position below which rows of a table must stand to be returned. None: all are."""
    retained: Frontier | None = None
    """The read is refused if rows from this position on were removed here (with `standing`). None: they may be gone."""
    sparse: tuple[str, ...] = ()
    """Topics in which what lies between batches is passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetDeliveries:
    """Delivery records from `start` to `end`. Without an end it is a tail."""

    start: int | Edge
    end: int | Literal["latest"] | None
    skip_missing: bool = False
    timeout_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class GetRoster:
    """The roster, all of it."""


@dataclass(frozen=True, slots=True)
class GetInterest:
    """The registrations that this node has and had, as far as they changed with this revision or later."""

    start: int = 0


def parse_put(path: list[bytes] | None, command: bytes | None) -> Put:
    """Read a descriptor: a path of one topic, or a command."""
    if path:
        return Put(topic=_path_topic(path))
    names = ("topic", "key", "expect", "next", "moves", "rows", "acks", "stage", "restore", "timeout_ms")
    fields = Fields(command or b"", "a command", names)
    put = Put(
        topic=fields.topic(DEFAULT_TOPIC),
        moves=fields.moves(),
        acks=fields.whole("acks", 0, ACKS_MAX),
        stage=fields.text("stage", None),
        timeout_s=fields.seconds("timeout_ms"),
        rows=fields.whole("rows", 0, ROWS_MAX),
        restore=parse_restore(fields.topic(), fields.get("restore")) if fields.has("restore") else None,
    )
    if put.restore is not None and (put.moves or put.acks or put.stage):
        raise bad_request("restore is not allowed with key, moves, acks or stage: the rows were published already")
    if bool(put.moves or put.restore) != (put.rows is not None):
        detail = (
            "rows is required with key, moves or restore, and only allowed with them: set it to the number of rows in "
            "this call"
        )
        raise bad_request(detail)
    if put.stage is not None and (put.moves or put.acks):
        raise bad_request("stage is not allowed with key, moves or acks: give these to the commit")
    return put


def parse_flight(path: list[bytes] | None, command: bytes | None) -> str:
    """The topic of a descriptor of GetFlightInfo or GetSchema."""
    if path:
        return _path_topic(path)
    return Fields(command or b"", "a command", ("topic",)).topic(DEFAULT_TOPIC)


def parse_criteria(criteria: bytes) -> tuple[str, ...] | None:
    """The topics that ListFlights asks for. None: all."""
    fields = Fields(criteria or b"{}", "criteria", ("topic", "topics"))
    return fields.topics() if fields.names_topics() else None


def _path_topic(path: list[bytes]) -> str:
    if len(path) != 1:
        raise bad_request(f"the path has {len(path)} parts: give a path of one topic, or a command")
    try:
        return checked_topic(path[0].decode())
    except UnicodeDecodeError as error:
        raise Refusal("bad-topic", f"topic {shown(path[0])}: must be UTF-8") from error


_GET_FIELDS = ("read", "start", "end", "on_missing", "timeout_ms", "idle_ms")
_ROW_FIELDS = (*_GET_FIELDS, "topic", "topics", "where", "language", "compression")
_PROFILE_FIELDS = (
    *_GET_FIELDS,
    *("profiles", "left_out", "standing", "retained", "key", "connection", "version", "compression"),
)
CONDITIONS_MAX = 1_000
"""The most conditions in one ticket."""


_TABLE_FIELDS = ("read", "topic", "end", "removed", "where", "language", "timeout_ms", "compression")


def parse_get(ticket: bytes) -> Get | GetDeliveries | GetRoster | GetInterest:
    known = (*_ROW_FIELDS, *_PROFILE_FIELDS, "metadata", "removed")
    match Fields(ticket, "a ticket", known).text("read", "rows"):
        case "rows":
            fields = Fields(ticket, "a ticket for rows", (*_ROW_FIELDS, "metadata"))
            return _get_rows(fields, _metadata(fields))
        case "raw":
            return _get_rows(Fields(ticket, "a ticket for raw batches", _ROW_FIELDS), "raw")
        case "profiles":
            return _get_profiles(Fields(ticket, "a ticket for profiles", _PROFILE_FIELDS))
        case "table":
            return _get_table(Fields(ticket, "a ticket for a table", _TABLE_FIELDS))
        case "deliveries":
            return _get_deliveries(Fields(ticket, "a ticket for deliveries", _GET_FIELDS))
        case "roster":
            Fields(ticket, "a ticket for the roster", ("read",))
            return GetRoster()
        case "interest":
            start = Fields(ticket, "a ticket for interest records", ("read", "start")).whole("start", 0, 2**62)
            return GetInterest(start or 0)
        case other:
            raise bad_request(
                f"read is {shown(other)}: must be rows, raw, profiles, table, deliveries, roster or interest"
            )


def _metadata(fields: Fields) -> Form:
    match fields.text("metadata", "rows"):
        case "rows":
            return "rows"
        case "batches":
            return "batches"
        case other:
            raise bad_request(f"metadata is {shown(other)}: must be rows or batches")


def _skips_missing(fields: Fields) -> bool:
    on_missing = fields.text("on_missing", "fail")
    if on_missing not in ("fail", "skip"):
        raise bad_request(f"on_missing is {on_missing!r}: must be fail or skip")
    return on_missing == "skip"


def _get_deliveries(fields: Fields) -> GetDeliveries:
    start, end = fields.get("start", "earliest"), fields.get("end")
    number = fields.whole("start", 1, NUMBER_MAX) if start not in ("earliest", "latest") else None
    until = fields.whole("end", 1, NUMBER_MAX) if end not in ("latest", None) else None
    return GetDeliveries(
        start=number if number is not None else "latest" if start == "latest" else "earliest",
        end=until if until is not None else "latest" if end == "latest" else None,
        skip_missing=_skips_missing(fields),
        timeout_s=fields.seconds("timeout_ms"),
        idle_s=fields.seconds("idle_ms"),
    )


def _get_rows(fields: Fields, form: Form) -> Get:
    end = fields.get("end")
    if end == "earliest" or (isinstance(end, int) and not isinstance(end, bool)):
        raise bad_request(f"end is {shown(end)}: must be a frontier, latest or null")
    parsed_end = None if end is None else parsed_start(end, "end")
    assert not isinstance(parsed_end, int) and parsed_end != "earliest"
    return Get(
        topics=fields.topics(),
        start=parsed_start(fields.get("start", "earliest"), "start"),
        end=parsed_end,
        skip_missing=_skips_missing(fields),
        timeout_s=fields.seconds("timeout_ms"),
        idle_s=fields.seconds("idle_ms"),
        form=form,
        compression=_compression(fields),
        profile=parse_filter(fields),
    )


def _get_table(fields: Fields) -> Get:
    end = parsed_start(fields.get("end", "latest"), "end")
    if isinstance(end, int) or end == "earliest":
        raise bad_request(f"end is {shown(end)}: must be a frontier or latest")
    return Get(
        topics=(fields.topic(),),
        start="earliest",
        end=end,
        skip_missing=True,
        timeout_s=fields.seconds("timeout_ms"),
        compression=_compression(fields),
        profile=parse_filter(fields),
        is_table=True,
        with_removals=_flag(fields, "removed"),
    )


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"{name} is {shown(value)}: must be true or false")
    return value


def _get_profiles(fields: Fields) -> Get:
    """Rows that one of several profiles wants, each once; see PROTOCOL.md, 21.1."""
    profiles = fields.get("profiles", [])
    if not isinstance(profiles, list) or not 1 <= len(profiles) <= CONDITIONS_MAX:
        raise bad_request(f"profiles must be a list of 1 to {CONDITIONS_MAX} {{topic, where, language}}")
    by_topic: dict[str, list[Profile]] = {}
    for each in profiles:
        if not isinstance(each, dict) or not isinstance(each.get("topic"), str):
            raise bad_request(f"each of profiles must be {{topic, where, language}}, not {shown(each)}")
        by_topic.setdefault(checked_topic(each["topic"]), []).append(
            parse_condition(each.get("where"), each.get("language"))
        )
    end, key = fields.get("end"), fields.text("key", None)
    start = parsed_start(fields.get("start", {}), "start")
    if not isinstance(start, dict) or not isinstance(end, dict | None):
        raise bad_request("start and end must be frontiers: {topic: {origin: next}}")
    standing = fields.get("standing")
    if standing is not None and (len(by_topic) > 1 or not isinstance(standing, dict) or end is None):
        raise bad_request("standing must be {origin: next}, of one topic, with an end")
    retained = fields.get("retained")
    if retained is not None and (standing is None or not isinstance(retained, dict)):
        raise bad_request("retained must be {origin: first}, and needs standing")
    left_out = fields.get("left_out", [])
    if not isinstance(left_out, list) or len(left_out) > CONDITIONS_MAX:
        raise bad_request(f"left_out must be a list of at most {CONDITIONS_MAX}")
    return Get(
        topics=tuple(sorted(by_topic)),
        start=start,
        end=None if end is None else checked_frontier(end, "end"),
        skip_missing=_skips_missing(fields),
        timeout_s=fields.seconds("timeout_ms"),
        idle_s=fields.seconds("idle_ms"),
        compression=_compression(fields),
        wanted={topic: widened(wanted) for topic, wanted in by_topic.items()},
        left_out=tuple(_left_out(each) for each in left_out),
        attached=None if key is None else _reader(key, fields),
        standing=None if standing is None else checked_frontier({next(iter(by_topic)): standing}, "standing"),
        retained=None if retained is None else checked_frontier({next(iter(by_topic)): retained}, "retained"),
    )


def _reader(key: str, fields: Fields) -> ClientReader:
    return ClientReader(
        key, fields.whole("connection", 0, NUMBER_MAX) or 0, fields.whole("version", 0, NUMBER_MAX) or 0
    )


def _left_out(written: object) -> LeftOut:
    if not isinstance(written, dict) or not isinstance(written.get("conditions"), list):
        raise bad_request(f"each of left_out must be {{conditions, begin, hole, within}}, not {shown(written)}")
    conditions = written["conditions"]
    if not all(isinstance(each, list) and len(each) == 2 for each in conditions) or not conditions:
        raise bad_request(f"conditions must be a list of [where, language], not {shown(conditions)}")
    profile = EVERYTHING
    for where, language in conditions:
        profile = narrowed(profile, parse_condition(where, language))
    within = written.get("within")
    begin = checked_frontier({"t": written.get("begin") or {}}, "begin")
    return LeftOut(
        profile=profile,
        begin={stream.origin: first for stream, first in begin.items()},
        hole=_ranges(written.get("hole") or {}),
        within=None if within is None else _ranges(within),
    )


def _ranges(written: object) -> Ranges:
    if not isinstance(written, dict) or not all(isinstance(pair, list) and len(pair) == 2 for pair in written.values()):
        raise bad_request(f"ranges must be {{origin: [first, next]}}, not {shown(written)}")
    firsts = checked_frontier({"t": {origin: first for origin, (first, _) in written.items()}}, "first")
    nexts = checked_frontier({"t": {origin: until for origin, (_, until) in written.items()}}, "next")
    return {stream.origin: (first, nexts[stream]) for stream, first in firsts.items()}


class FilterClock(threading.local):
    """The CPU time that a thread has spent on parsing filters of requests so far, refused ones included."""

    parsing_s = 0.0


filter_clock = FilterClock()


def parse_condition(where: object, language: object) -> Profile:
    """A condition and its language; null: every row, and sql."""
    if not isinstance(where, str | None) or not isinstance(language, str | None):
        raise bad_request(f"where and language must be text or null, not {shown(where)} and {shown(language)}")
    if where is None:
        return EVERYTHING
    began_s = time.thread_time()
    try:
        return parse(where) if language is None else parse(where, language)
    except (FilterError, UnknownLanguageError) as error:
        raise bad_request(f"where: {error}") from error
    finally:
        filter_clock.parsing_s += time.thread_time() - began_s


def parse_filter(fields: Fields) -> Profile | None:
    """The filter in `where` and `language`. Cost: up to 20 ms for the longest one."""
    where, language = fields.text("where", None), fields.text("language", None)
    if where is None:
        if language is not None:
            raise bad_request("language is set without where: set where to a filter, or remove language")
        return None
    return parse_condition(where, language)


def _compression(fields: Fields) -> Compression | None:
    match fields.text("compression", None):
        case None:
            return None
        case "lz4":
            return "lz4"
        case "zstd":
            return "zstd"
        case other:
            raise bad_request(f"compression is {shown(other)}: must be lz4 or zstd")


def parsed_start(value: object, name: str) -> Frontier | Edge | int:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NUMBER_MAX:
        return value
    if isinstance(value, dict):
        return checked_frontier(value, name)
    raise bad_request(
        f"{name} must be earliest, latest, a time in ms or {{topic: {{origin: next}}}}, not {shown(value)}"
    )
