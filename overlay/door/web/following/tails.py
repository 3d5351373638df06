"""Tails: `GET /topics/{topic}/tail` follows a topic as server-sent events, one for each row.

The id of an event is the position after its row. A client that lost its connection sends the last id that it has seen
(`Last-Event-ID`, which browsers do by themselves), and continues with the next row, here or at any other node. The
first event has an id and no data, so that this holds before the first row as well.
"""

import json

from aiohttp import web

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.quotas import CallQuota
from m4cast.overlay.door.refusals import Refusal, as_json
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.door.web.following.follower import Bell, RowFollower
from m4cast.overlay.door.web.following.fresh import FollowedRows
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.positions import parse_position, position_around, position_text
from m4cast.overlay.door.web.query import Query, topic_of
from m4cast.overlay.door.web.quick_json import json_of
from m4cast.overlay.door.web.reads import filtered, written
from m4cast.overlay.door.web.routes import SERVER_SENT_EVENTS
from m4cast.overlay.ids import StreamId

ROWS = "M4cast-Rows"
"""`all`, if each row of the topic is an event: numbers of rows then have no gaps. Else `some`."""
RETRY_MS = 1_000
"""The delay before a browser reconnects after it lost its connection."""
LAST_EVENT_ID = "Last-Event-ID"


async def tail(
    request: web.Request, call: WebCall, bell: Bell, streams: CallQuota, limits: WebLimits
) -> web.StreamResponse:
    query = call.check(lambda: Query(request, "tail"))
    get = call.check(lambda: _get_of(request, query))
    early = call.check(lambda: query.word("early", ("false", "true"))) == "true"
    streams.begin(call.caller.name)
    follower: RowFollower | None = None
    try:
        get = await filtered(call, get, query.text("where"), query.text("language"))
        follower = RowFollower(call, bell, get, limits.chunk_bytes, form="objects", early=early)
        await follower.begin()
        headers = {
            "Content-Type": SERVER_SENT_EVENTS,
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            ROWS: "all" if follower.has_every_row else "some",
        }
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        topic = get.topics[0]
        await written(answer, f"retry: {RETRY_MS}\nid: {position_text(follower.at, topic)}\n\n".encode(), limits)
        try:
            while True:
                is_ready = await follower.ready(limits.ping_ms / 1000)
                events = await follower.take(events_of) if is_ready else b": ping\n\n"
                if events:
                    await written(answer, events, limits)
        except Refusal as refusal:
            if refusal.code != "stopping":  # a client reconnects to this node or another one
                await written(answer, f"event: refused\ndata: {json.dumps(as_json(refusal))}\n\n".encode(), limits)
            return answer
        finally:
            call.ended()
    finally:
        if follower is not None:
            follower.close()
        streams.end(call.caller.name)


def _get_of(request: web.Request, query: Query) -> Get:
    topic = topic_of(request)
    last = request.headers.get(LAST_EVENT_ID)
    start = query.start("from", topic, "latest") if not last else parse_position(last, topic, LAST_EVENT_ID)
    return Get(
        topics=(topic,), start=start, end=None, skip_missing=query.word("on_missing", ("fail", "skip")) == "skip"
    )


def events_of(found: list[FollowedRows], before: Frontier) -> bytes:
    """Each row as an event, whose id is the position after it."""
    at = dict(before)
    events: list[str] = []
    last: StreamId | None = None
    before_it = after_it = ""
    for rows, stream, next_sequence in found:
        if stream != last:
            before_it, after_it = position_around(at, stream)
            last = stream
        for row in rows.objects:
            events.append(f"id: {before_it}{row['_sequence'] + 1}{after_it}\ndata: {json_of(row)}\n\n")
        at[stream] = next_sequence
    return "".join(events).encode()
