"""Posts: `POST /topics/{topic}` publishes the rows of its body and answers with their ranges.

Few rows without a key are gathered on the loop, if they are JSON with the plain columns that the topic has
(`gathering`): most posts of a busy door are that, so they take a short way. Else a thread parses them, and they are
coalesced with those of other publishes, of either door. No thread waits for them. A key (`Idempotency-Key`), or many
rows, are what a DoPut of the Flight door is, on one of the door's threads.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from aiohttp import web

from m4cast.overlay.door.fields import TIMEOUT_MS_MAX, checked_topic, range_text, ranges_json
from m4cast.overlay.door.node_handle import timed_out
from m4cast.overlay.door.publish.gathering import GatheredRows
from m4cast.overlay.door.publish.posted import PostedRows
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import ACKS_MAX, Put
from m4cast.overlay.door.web.bodies import INLINE_BYTES, BodyQuota, RowsRead, plain_rows, rows_of
from m4cast.overlay.door.web.calls import WebCall, json_answer, json_of_answer, refused
from m4cast.overlay.door.web.query import Query, topic_of
from m4cast.overlay.protocol.effects import KeyMove, Range

KEYED_BYTES_MAX = 128 << 20
FIRST_POSITION = "1"
"""The position of a key after its only publish, if the client names no position."""


async def post(request: web.Request, call: WebCall, bodies: BodyQuota, timeout_s: float) -> web.StreamResponse:
    put = _plain_put(request, call) or call.check(lambda: _allowed_put(request, call))
    services = call.services
    headers = request.headers

    def work(pieces: list[bytes]) -> Sent | FewRows:
        body = b"".join(pieces)
        pieces.clear()
        return send(call, put, rows_of(body, headers, lambda: services.publishing.known_columns(put.topic)))

    services.open_calls.begin(call.caller.name)
    try:
        at_hand = bodies.at_hand(request)
        if at_hand is not None and (gathered := _gathered(call, put, headers, at_hand)) is not None:
            return await _ranged(call, gathered)
        async with bodies.received(request, call, at_hand=at_hand) as pieces:
            if at_hand is None and len(pieces) == 1:
                gathered = _gathered(call, put, headers, pieces[0])
                if gathered is not None:
                    return await _ranged(call, gathered)
            sent = await call.run(partial(work, pieces))
        if isinstance(sent, FewRows):
            ranges = await answered(call, sent.posted, put.timeout_s or timeout_s)
            gather_from_now_on(call, put, sent)
            sent = Sent(sent.rows, ranges_json(ranges))
    except PartialRefusal as error:
        return refused(error, {"rows": error.sent.rows, "ranges": error.sent.ranges})
    finally:
        services.open_calls.end(call.caller.name)
    call.ended()
    return json_answer(json_of_answer({"rows": sent.rows, "ranges": sent.ranges}))


def _plain_put(request: web.Request, call: WebCall) -> Put | None:
    """The put of a post without parameters and key, if it is allowed."""
    topic = request.match_info["topic"]
    is_plain = not request.query_string and "Idempotency-Key" not in request.headers
    return _put_of(topic) if is_plain and call.caller.rights.may("publish", topic) else None


@lru_cache(maxsize=256)
def _put_of(topic: str) -> Put | None:
    try:
        return Put(topic=checked_topic(topic))
    except Refusal:
        return None


def _allowed_put(request: web.Request, call: WebCall) -> Put:
    query = Query(request, "post")
    timeout_ms = query.whole("timeout_ms", 1, TIMEOUT_MS_MAX)
    put = Put(
        topic=topic_of(request),
        moves=_moves(request, query),
        acks=query.whole("acks", 0, ACKS_MAX),
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
    )
    call.caller.rights.require_topics("publish", (put.topic,))
    return put


def _moves(request: web.Request, query: Query) -> tuple[KeyMove, ...]:
    expect, next_ = query.text("expect"), query.text("next")
    keys = request.headers.getall("Idempotency-Key", [])
    if not keys:
        if expect is not None or next_ is not None:
            raise bad_request("expect and next are positions of a key: set the header Idempotency-Key, too")
        return ()
    key = keys[0][1:-1] if len(keys[0]) > 2 and keys[0][0] == keys[0][-1] == '"' else keys[0]
    if len(keys) > 1 or not key:
        raise bad_request("Idempotency-Key must be one key: set it once, and not empty")
    if expect is not None and next_ is None:
        raise bad_request("expect needs next: set it to the position that this publish moves the key to")
    return (KeyMove(key, expect, FIRST_POSITION if next_ is None else next_),)


class PartialRefusal(Refusal):
    """A refusal after some of the rows were published."""

    def __init__(self, refusal: Refusal, sent: "Sent") -> None:
        super().__init__(refusal.code, refusal.detail)
        self.sent = sent


@dataclass(slots=True)
class Sent:
    """Rows that are published, and where they are. It takes the place of a client that is sent acknowledgements."""

    rows: int = 0
    ranges: list[Any] = field(default_factory=list)

    def write(self, message: bytes) -> None:
        answer = json.loads(message)
        if "ranges" in answer:
            self.rows = answer["rows"]
            self.ranges.extend(answer["ranges"])


@dataclass(frozen=True, slots=True)
class FewRows:
    """Rows that are on their way."""

    rows: int
    posted: PostedRows
    schema: pa.Schema


def send(call: WebCall, put: Put, read: RowsRead, after: PostedRows | None = None) -> Sent | FewRows:
    """Publish these rows, on a thread of the door. Few rows are not waited for. `after`: rows that these must not
    overtake."""
    publishing, caller = call.services.publishing, call.caller
    batches = read.batches
    if put.moves:
        collected = list(_bounded(batches))
        put = replace(put, rows=sum(batch.num_rows for batch in collected))
        batches = iter(collected)
    else:
        first = list(islice(batches, 2))
        if not first:
            return Sent()
        if len(first) == 1:
            posted = publishing.put_small(put, first[0], caller, after)
            if posted is not None:
                return FewRows(first[0].num_rows, posted, first[0].schema)
        batches = chain(first, batches)
    sent = Sent()
    if after is not None:
        after.hurry()
    try:
        publishing.put(put, BatchSource(read.schema, batches), sent, caller)
    except Refusal as refusal:
        if not sent.rows:
            raise
        raise PartialRefusal(refusal, sent) from None
    return sent


def _gathered(call: WebCall, put: Put, headers: Mapping[str, str], body: bytes) -> "asyncio.Future[Range] | None":
    """The range of these rows, as it will be, if they can be gathered on the loop."""
    gatherer = call.services.publishing.gatherer(put)
    if gatherer is None or len(body) > INLINE_BYTES:
        return None
    rows = plain_rows(body, headers, has_doubles=gatherer.columns.has_doubles)
    columns = gatherer.columns.fit(rows) if rows else None
    if not rows or columns is None:
        return None
    answer: asyncio.Future[Range] = asyncio.get_running_loop().create_future()

    def tell(outcome: Range | Refusal) -> None:
        if answer.done():  # the client has disconnected
            return
        if isinstance(outcome, Refusal):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    is_added = gatherer.add(GatheredRows(columns, len(rows), len(body), call.caller.name, tell))
    return answer if is_added else None


async def _ranged(call: WebCall, gathered: "asyncio.Future[Range]") -> web.Response:
    try:
        found = await gathered
    except Refusal as refusal:
        call.ended(refusal.code)
        raise
    call.ended()
    rows = found.next_sequence - found.first_sequence
    return json_answer(f'{{"rows": {rows}, "ranges": [{range_text(found)}]}}\n'.encode())


def gather_from_now_on(call: WebCall, put: Put, sent: FewRows) -> None:
    """Few rows were published by a thread. The next ones like these are gathered on the loop."""
    publishing = call.services.publishing
    if put.timeout_s is None and publishing.gatherer(put) is None:
        call.workers.later(lambda: publishing.gather(put, sent.schema))


def _bounded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, refused when they are far more than one commit can have: they are counted before they are sent."""
    size = 0
    for rows in batches:
        size += rows.nbytes
        if size > KEYED_BYTES_MAX:
            detail = f"a keyed publish has more than {KEYED_BYTES_MAX} bytes of rows: split it into several positions"
            raise Refusal("too-large", detail)
        yield rows


async def answered(call: WebCall, posted: PostedRows, timeout_s: float) -> tuple[Range, ...]:
    """The ranges of posted rows. Refusals are counted."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(asyncio.wrap_future(posted.answer))
    except TimeoutError:
        call.ended("timeout")
        raise timed_out(timeout_s) from None
    except Refusal as refusal:
        call.ended(refusal.code)
        raise
    finally:
        if posted.answer.done():
            posted.close()
        else:
            call.workers.later(posted.close)


class BatchSource:
    """Rows that are at hand, as the stream of a client."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.data: pa.RecordBatch | None = None
        self._batches = batches

    def read_chunk(self) -> "BatchSource":
        self.data = next(self._batches)
        return self
