"""Bodies: what a client posts, as record batches. Received on the loop, in bounded memory; parsed on a thread.

The format is that of the header `Content-Type`. Text has the types of the topic's columns where it has them: a number
without a fraction is then a double in a column of doubles (`row_files`). Arrow and Parquet bring their own types.
"""

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from aiohttp import web

from m4cast.overlay.door.fields import shown
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.rows import folded, payload
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.quick_json import rows_of_text
from m4cast.overlay.door.web.routes import BODIES, EVENTS_JSON, JSON, JSON_LINES, PARQUET
from m4cast.overlay.errors import M4castError
from m4cast.row_files.column_types import ColumnTypes
from m4cast.row_files.csv_records import CsvRecords
from m4cast.row_files.json_lines import JsonLines, json_blocks
from m4cast.row_files.lines import line_blocks
from m4cast.schemas.arrow_types import EVENT
from m4cast.schemas.cloud_events import STRUCTURED, STRUCTURED_JSON, event_of, event_of_json, event_of_members
from m4cast.schemas.json_types import is_doubtful

BATCHED_EVENTS = "application/cloudevents-batch"
EVENT_HEADER = "ce-"
SYNONYMS = {
    "application/jsonl": JSON_LINES,
    "application/json-lines": JSON_LINES,
    "application/ndjson": JSON_LINES,
    "application/x-parquet": PARQUET,
}
INLINE_BYTES = 32 << 10
"""JSON of up to this size is parsed on the loop: that takes less time than a thread, and 0.5 ms at most. Measured."""
BATCH_BYTES = 1 << 20
"""Posted rows become batches of about this size."""
PARQUET_ROWS = 8_192
"""Rows of a Parquet file that are decoded at a time: some bytes of it can be many values."""
CELLS_MAX = 16 << 20
"""Values of a text, nulls included: each takes 8 bytes or more when it is read. Guess."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, RecursionError)
"""The errors of parsers of text, Arrow and Parquet."""
T = TypeVar("T")
SCAN_BYTES = 256 << 10
_MEMBER = re.compile(rb'"([^"\\]{1,200})"[ \t\r\n]*:')


class BodyQuota:
    """Limits what all clients have sent and was not dealt with yet; one client gets half. Used on the loop."""

    def __init__(self, limits: WebLimits) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()

    @staticmethod
    def at_hand(request: web.Request) -> bytes | None:
        """A small body that has arrived as a whole, and does not count: whoever takes it deals with it now, or hands it
        to `received`. None: it has not, or is another one."""
        content = request.content
        if not content.is_eof() or not 0 < (request.content_length or 0) <= INLINE_BYTES:
            return None
        return None if "Content-Encoding" in request.headers else content.read_nowait()

    @asynccontextmanager
    async def received(
        self, request: web.Request, call: WebCall, bytes_max: int | None = None, *, at_hand: bytes | None = None
    ) -> AsyncIterator[list[bytes]]:
        """The whole body, of at most `body_bytes_max`, or `bytes_max`, in the pieces in which it arrived: a thread
        puts them together. It counts until the context ends. `at_hand`: it was taken already. If it is refused, that is
        counted as the end of the call."""
        limits = self._limits
        bytes_max = bytes_max or limits.body_bytes_max
        client = call.caller.name
        pieces: list[bytes] = []
        size = 0
        is_whole = False
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            encoding = request.headers.get("Content-Encoding", "identity").lower()
            if encoding != "identity":
                raise bad_request(f"Content-Encoding is {shown(encoding)}: send the body as it is")
            if (request.content_length or 0) > bytes_max:
                raise _too_large(bytes_max)
            if at_hand is not None:
                size = self._add(client, pieces, at_hand, size, bytes_max)
            while at_hand is None:
                if request.content.is_eof():  # all of it is here
                    read = request.content.read_nowait()
                    if not read:
                        break
                    size = self._add(client, pieces, read, size, bytes_max)
                    continue
                patience_s = limits.body_idle_ms / 1000 + size / limits.body_bytes_per_s
                try:
                    async with asyncio.timeout_at(begun_s + patience_s):
                        read = await request.content.readany()
                except TimeoutError:
                    raise Refusal(
                        "timeout", f"the body did not arrive within {patience_s:g} s: send it faster"
                    ) from None
                if not read:
                    break
                size = self._add(client, pieces, read, size, bytes_max)
            is_whole = True
            yield pieces
        except Refusal as refusal:
            if not is_whole:
                call.ended(refusal.code)
            raise
        finally:
            self.give_back(client, size)

    def _add(self, client: str, pieces: list[bytes], read: bytes, size: int, bytes_max: int) -> int:
        """The size of the body with this piece."""
        if size + len(read) > bytes_max:
            raise _too_large(bytes_max)
        self.take(client, len(read))
        pieces.append(read)
        return size + len(read)

    def take(self, client: str, size: int) -> None:
        """Refused if there is no room for it. Whoever takes some gives it back."""
        most = self._limits.bodies_bytes_max
        if self._taken.total() + size > most or self._taken[client] + size > most // 2:
            raise Refusal("busy", "bodies that are being received take all of their memory: repeat it later")
        self._taken[client] += size

    def give_back(self, client: str, size: int) -> None:
        self._taken[client] -= size
        if self._taken[client] <= 0:
            del self._taken[client]


def _too_large(bytes_max: int) -> Refusal:
    return Refusal("too-large", f"the body has more than {bytes_max} bytes: post it in parts")


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The rows of a body. Arrow and Parquet are decoded when they are taken: they may be much larger then."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@lru_cache(maxsize=64)
def media_type_of(content_type: str) -> str:
    name = content_type.partition(";")[0].strip().lower()
    return SYNONYMS.get(name, name)


def rows_of(body: bytes, headers: Mapping[str, str], known: Callable[[], pa.Schema]) -> RowsRead:
    """The rows of a body. `known`: the columns of the topic so far."""
    content_type = headers.get("Content-Type", "")
    try:
        match media_type_of(content_type):
            case kind if kind.startswith(BATCHED_EVENTS):
                return _events(_batched(body, kind))
            case kind if kind.startswith(STRUCTURED):
                return _events(iter([_structured(body, kind)]))
            case kind if any(name.lower() == "ce-specversion" for name in headers):
                return _events(iter([_binary(body, headers)]))
            case "application/json":
                return _json_rows(body if body.lstrip()[:1] == b"[" else b"[%b]" % body, "JSON", known)
            case "application/x-ndjson":
                return _json_rows(body, "JSON lines", known)
            case "text/csv":
                return _csv_rows(body, known)
            case "application/vnd.apache.arrow.stream":
                return _taken(_arrow(body), content_type)
            case "application/vnd.apache.parquet":
                return _taken(_parquet(body), content_type)
    except M4castError as error:
        raise bad_request(str(error)) from None
    except UNREADABLE as error:
        raise _unreadable(content_type, error) from None
    what = f"Content-Type is {shown(content_type)}" if content_type else "Content-Type is missing"
    raise bad_request(f"{what}: must be one of {', '.join(BODIES)}, or that of a CloudEvent with ce- headers")


def _unreadable(content_type: str, error: Exception) -> Refusal:
    return bad_request(f"the body cannot be read as {content_type[:100]}: {error}")


def _taken(read: RowsRead, content_type: str) -> RowsRead:
    """The same, whose rows are refused when they are taken and cannot be decoded."""

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from read.batches
        except MemoryError:  # Arrow's is a ValueError, too
            raise
        except UNREADABLE as error:
            raise _unreadable(content_type, error) from None

    return RowsRead(read.schema, batches())


def plain_rows(body: bytes, headers: Mapping[str, str], *, has_doubles: bool) -> list[dict[str, Any]] | None:
    """The rows of a small body of JSON, parsed by Python; None if it is something else, or is to be looked at closely:
    `rows_of` then says what it is. `headers` do not distinguish capital letters."""
    kind = media_type_of(headers.get("Content-Type", ""))
    if kind not in (JSON, JSON_LINES) or "ce-specversion" in headers or (has_doubles and is_doubtful(body)):
        return None
    rows = rows_of_text(body) if kind == JSON else None
    if rows is not None:
        return rows
    try:
        text = body.decode()
        read = [_DECODER.decode(line) for line in text.splitlines()] if kind == JSON_LINES else _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    rows = read if isinstance(read, list) else [read]
    return rows if {dict}.issuperset(map(type, rows)) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise ValueError(f"the name {twice!r} occurs twice in an object: remove one")
    return members


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _types(known: Callable[[], pa.Schema]) -> ColumnTypes:
    types = ColumnTypes()
    types.learn(known())
    return types


def _of_text(blocks: Iterator[Any]) -> RowsRead:
    """All of it is read before any of it is published: a mistake at its end refuses the whole body. Blocks of one text
    have the same columns, except those that only later ones have."""
    tables = [block.table() for block in blocks]
    if not tables:
        return RowsRead(pa.schema([]), iter(()))
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
    return RowsRead(table.schema, split(iter(table.to_batches())))


def _refuse_wide(body: bytes, rows: int, columns: int) -> None:
    """Few bytes of text can be many values: each row has each column, even where it has no value."""
    if rows * columns > CELLS_MAX:
        detail = f"the body has about {rows} rows and {columns} columns, more than {CELLS_MAX} values: post it in parts"
        raise Refusal("too-large", detail)


def _json_rows(body: bytes, what: str, known: Callable[[], pa.Schema]) -> RowsRead:
    names: set[bytes] = set()
    for at in range(0, len(body), SCAN_BYTES):  # in steps: a scan holds the interpreter
        names.update(_MEMBER.findall(body, at, at + SCAN_BYTES))
    _refuse_wide(body, body.count(b"{"), len(names))
    return _of_text(json_blocks(JsonLines(_types(known)), io.BytesIO(body), f"the body is not {what}"))


def _csv_rows(body: bytes, known: Callable[[], pa.Schema]) -> RowsRead:
    _refuse_wide(body, body.count(b",") + body.count(b"\n"), 1)
    return _of_text(line_blocks(CsvRecords(_types(known)), io.BytesIO(body), "the body is not CSV"))


def _arrow(body: bytes) -> RowsRead:
    stream = pa.ipc.open_stream(pa.py_buffer(body))
    return RowsRead(stream.schema, split(map(payload.checked, stream)))


def _parquet(body: bytes) -> RowsRead:
    import pyarrow.parquet  # slow to import, and unused by most nodes

    source = pa.py_buffer(body)
    plain = pyarrow.parquet.read_schema(pa.BufferReader(source))
    # Text that repeats is one value in the file. Read as a dictionary, it is measured before it is written out.
    texts = [field.name for field in plain if field.type in (pa.string(), pa.binary())]
    file = pyarrow.parquet.ParquetFile(pa.BufferReader(source), read_dictionary=texts)
    read = file.iter_batches(PARQUET_ROWS, use_threads=False)
    return RowsRead(plain, split(some for rows in read for some in _written_out(rows, plain)))


def _written_out(rows: pa.RecordBatch, plain: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same without dictionaries, some rows at a time. A dictionary has the values of many more rows than these:
    nobody should look at it for each of them."""
    size = sum(map(folded.plain_bytes, rows.columns))
    if size <= 2 * BATCH_BYTES or rows.num_rows <= 1:
        yield rows.cast(plain)
        return
    some = max(rows.num_rows * BATCH_BYTES // size, 1)
    for at in range(0, rows.num_rows, some):
        yield from _written_out(rows.slice(at, some), plain)


def split(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in record batches of about `BATCH_BYTES`, unless a single row is larger."""
    for rows in batches:
        size = _size(rows)
        if size <= 2 * BATCH_BYTES or rows.num_rows <= 1:
            if rows.num_rows:
                yield rows
            continue
        half = rows.num_rows // 2 if size < 4 * BATCH_BYTES else max(rows.num_rows * BATCH_BYTES // size, 1)
        yield from split(rows.slice(at, half) for at in range(0, rows.num_rows, half))


def _size(rows: pa.RecordBatch) -> int:
    """About how many bytes the rows take. A dictionary is not theirs alone, whatever they use of it."""
    size: int = rows.nbytes
    if size > 2 * BATCH_BYTES and payload.expands(rows.schema):
        rows.validate(full=True)  # before its offsets are used
        size = sum(map(folded.plain_bytes, rows.columns))
    return size


# ---- CloudEvents, HTTP binding


def _events(events: Iterator[dict[str, Any]]) -> RowsRead:
    table = pa.Table.from_pylist(list(events), schema=EVENT)
    return RowsRead(EVENT, split(table.to_batches()))


def _structured(body: bytes, kind: str) -> dict[str, Any]:
    if kind != STRUCTURED_JSON:
        raise bad_request(f"Content-Type is {shown(kind)}: a structured event must be {STRUCTURED_JSON}")
    return _read("the event", lambda: event_of_json(body))


def _batched(body: bytes, kind: str) -> Iterator[dict[str, Any]]:
    if kind != EVENTS_JSON:
        raise bad_request(f"Content-Type is {shown(kind)}: a batch of events must be {EVENTS_JSON}")
    listed = _read("the batch", lambda: json.loads(body))
    if not isinstance(listed, list):
        raise bad_request(f"a batch of events must be a JSON array, not {shown(listed)}")
    for at, members in enumerate(listed, 1):
        yield _read(f"event {at}", lambda members=members: event_of_members(members))  # type: ignore[misc]


def _binary(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"datacontenttype": headers.get("Content-Type")}
    for name, value in headers.items():
        if name.lower().startswith(EVENT_HEADER):
            attributes[name[len(EVENT_HEADER) :].lower()] = _header_text(value)
    return _read("the event", lambda: event_of(attributes, body or None))


def _header_text(value: str) -> str:
    """A header's value as CloudEvents writes it: in quotes or not, with `%` before the bytes of other characters."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        inner = iter(value[1:-1])
        value = "".join(next(inner, "") if character == "\\" else character for character in inner)
    return unquote(value, errors="replace")


def _read(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(f"{what} is not a CloudEvent: {error}") from None
