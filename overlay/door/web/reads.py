"""Reads: `GET /topics/{topic}/rows` answers with a range of rows, as JSON lines, CSV or an Arrow stream.

The rows are read a chunk at a time, on a thread, when the client has taken the chunk before: a slow client costs one
chunk of memory and its own lag. A refusal after the first chunk can only end the answer: it ends without the last chunk
of its transfer coding, which every client of HTTP reports as an error.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from aiohttp import web

from m4cast.overlay.door.fields import NUMBER_MAX, TIMEOUT_MS_MAX, Fields, Frontier
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import Get, parse_filter
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.positions import parse_position, position_text
from m4cast.overlay.door.web.query import Query, topic_of
from m4cast.overlay.door.web.texts import RowText, accepted, text_of
from m4cast.overlay.profiles import Profile

NEXT = "M4cast-Next"
"""The position to continue from."""
JSON_ROWS = 2_048
"""Rows that are written as text at a time: Python does that, and holds the interpreter meanwhile."""


async def rows(request: web.Request, call: WebCall, limits: WebLimits) -> web.StreamResponse:
    query = call.check(lambda: Query(request, "rows"))
    get, limit = call.check(lambda: _get_of(request, query))
    accept = request.headers.get("Accept", "")
    call.check(lambda: accepted(accept))  # to refuse it before anything is read
    call.services.open_calls.begin(call.caller.name)
    taken: RangeText | None = None
    try:
        get = await filtered(call, get, query.text("where"), query.text("language"))
        taken = await call.run(lambda: RangeText(call, get, accept, limit, limits.chunk_bytes))
        answer = web.StreamResponse(headers={"Content-Type": taken.text.content_type})
        if limit is None:
            answer.headers[NEXT] = position_text(taken.end, get.topics[0])
        piece = await call.run(taken.next)  # a refusal of the first chunk is still an answer of its own
        await answer.prepare(request)
        while piece is not None:
            await written(answer, piece, limits)
            piece = await call.run(taken.next)
    except Refusal:
        if taken is None or not taken.is_begun:
            raise
        if request.transport is not None:
            request.transport.abort()  # a broken transfer is all that is left to report
        raise ConnectionResetError("refused after its first rows") from None
    finally:
        call.services.open_calls.end(call.caller.name)
        if taken is not None:
            call.workers.later(taken.close)
    call.ended()
    return answer


async def filtered(call: WebCall, get: Get, where: str | None, language: str | None) -> Get:
    """The same with a filter, if there is one. It is parsed on a thread: that may take 20 ms."""
    if where is None and language is None:
        return get
    fields = json.dumps({"where": where, "language": language}).encode()

    def parsed() -> Profile | None:
        return parse_filter(Fields(fields, "a filter", ("where", "language")))

    return replace(get, profile=await call.run(lambda: call.services.parsed(parsed, call.caller)))


async def written(answer: web.StreamResponse, piece: bytes, limits: WebLimits) -> None:
    """Write it once the client has taken what was written before, or cut it off when it does not."""
    try:
        async with asyncio.timeout(limits.taking_ms / 1000):
            await answer.write(piece)
    except TimeoutError:
        raise ConnectionResetError("the client does not take its answer") from None


def _get_of(request: web.Request, query: Query) -> tuple[Get, int | None]:
    topic = topic_of(request)
    timeout_ms = query.whole("timeout_ms", 1, TIMEOUT_MS_MAX)
    to = query.text("to")
    if to == "earliest":
        raise bad_request("to is 'earliest': must be latest, or a position as an answer of this door has it")
    is_table = query.word("read", ("rows", "table")) == "table"
    if is_table and (query.text("from") is not None or query.text("on_missing") is not None):
        raise bad_request("a table is read from its beginning, as it stands: remove from and on_missing")
    get = Get(
        topics=(topic,),
        is_table=is_table,
        start=query.start("from", topic, "earliest"),
        end="latest" if to in (None, "latest") else parse_position(to or "", topic, "to"),
        skip_missing=is_table or query.word("on_missing", ("fail", "skip")) == "skip",
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
    )
    return get, query.whole("limit", 0, NUMBER_MAX)


class RangeText:
    """A range of rows as text, chunk by chunk. Used by one thread at a time."""

    def __init__(self, call: WebCall, get: Get, accept: str, limit: int | None, chunk_bytes: int) -> None:
        services = call.services
        if get.end == "latest":
            services.readable(get.topics, call.caller.rights)
            seen = services.seen_by(get.topics, get.profile, call.caller, get.start)
            now = seen.positions(get.topics)
            get = replace(get, end=now) if now else get  # an unknown topic is refused by the read itself
        assert get.end is not None
        self.end: Frontier = get.end if isinstance(get.end, dict) else {}
        schema, pieces = services.read(get, call.caller)
        self.text: RowText = text_of(accept, schema)
        self.is_begun = False
        self._pieces = _few(pieces, limit)
        self._source = pieces
        self._chunk_bytes = chunk_bytes
        self._is_ended = False

    def next(self) -> bytes | None:
        """The next chunk; None at the end."""
        if self._is_ended:
            return None
        chunk = b"" if self.is_begun else self.text.begin()
        while len(chunk) < self._chunk_bytes:
            piece = next(self._pieces, None)
            if piece is None:
                self._is_ended = True
                chunk += self.text.end()
                break
            chunk += self.text.piece(piece)
        self.is_begun = True
        return chunk

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


def _few(pieces: Iterator[Any], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Record batches of at most `JSON_ROWS` rows, `limit` rows together."""
    left = limit
    if left == 0:
        return
    for rows_, _ in pieces:
        for at in range(0, rows_.num_rows, JSON_ROWS):
            some = rows_.slice(at, JSON_ROWS)
            if left is not None:
                some = some.slice(0, left)
                left -= some.num_rows
            yield some
            if left == 0:
                return
