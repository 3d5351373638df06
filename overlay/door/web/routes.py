"""The routes of the web door: one table of its paths, with everything that they accept and answer.

A row has the method and path, the handler (a method of `WebDoor`), the parameters that its URL and head may have, and
the media types of its body and its answer. What is not in the table is refused. `openapi` makes the description of the
door of it, and `docs/HTTP.md` is compared with it by `tests/overlay/door/web/test_openapi.py`.

To add a path, add a row here and a method to `WebDoor`.
"""

from dataclasses import dataclass
from typing import Literal

JSON = "application/json"
JSON_LINES = "application/x-ndjson"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
EVENT_JSON = "application/cloudevents+json"
EVENTS_JSON = "application/cloudevents-batch+json"
SERVER_SENT_EVENTS = "text/event-stream"
HTML, SCRIPT, STYLE, SVG, TEXT = "text/html", "text/javascript", "text/css", "image/svg+xml", "text/plain"
BODIES = (JSON, JSON_LINES, CSV, ARROW, PARQUET, EVENT_JSON, EVENTS_JSON)
"""The media types that can be posted, besides a CloudEvent in binary mode, whose media type is that of its data."""
ROW_TEXTS = (JSON_LINES, CSV, ARROW)
"""The media types in which rows can be read. The first is the default."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    about: str
    kind: Literal["string", "integer"] = "string"
    where: Literal["query", "header", "path"] = "query"
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRoute:
    method: Literal["GET", "POST"]
    path: str
    handler: str
    about: str
    parameters: tuple[Parameter, ...] = ()
    bodies: tuple[str, ...] = ()
    answers: tuple[str, ...] = (JSON,)
    is_public: bool = False
    """Answered without a token: it has nothing of the channel."""
    status: Literal[101, 200] = 200
    """The status of its answer, unless it is refused."""

    @property
    def query(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters if parameter.where == "query")


TOPIC = Parameter("topic", "the name of a topic, percent-encoded", where="path")
ON_MISSING = Parameter(
    "on_missing", "whether rows that this node does not retain are refused or skipped", allowed=("fail", "skip")
)
TIMEOUT = Parameter("timeout_ms", "how long to wait, 1 to 3600000; 30000 if absent", "integer")
WHERE = Parameter("where", "only rows for which this filter is true (docs/FILTERS.md)")
LANGUAGE = Parameter("language", "the language of where; sql if absent")
EARLY = Parameter(
    "early",
    "whether rows are given before this node has them on disk: they are on that of their origin",
    allowed=("false", "true"),
)
START = "earliest, latest, a position, a time in ms since 1970, or a time such as 2026-01-31T12:00:00Z"

_ROWS = (
    WebRoute(
        method="GET",
        path="/topics",
        handler="topics",
        about="The topics that the token may read: [topic]",
    ),
    WebRoute(
        method="GET",
        path="/topics/{topic}",
        handler="topic",
        about="What this node has of a topic: columns, streams, rows, bytes, retention",
        parameters=(TOPIC,),
    ),
    WebRoute(
        method="POST",
        path="/topics/{topic}",
        handler="post",
        about="Publish the rows of the body: {rows, ranges}. Not all or nothing if they are many and have no key",
        parameters=(
            TOPIC,
            Parameter("acks", "nodes besides this one that have the rows on disk before the answer", "integer"),
            Parameter("expect", "with a key: the position that it is at; absent: the key is new"),
            Parameter("next", "with a key: the position that this publish moves it to; 1 if absent"),
            TIMEOUT,
            Parameter("Idempotency-Key", "a publisher key: a repeated request publishes nothing", where="header"),
        ),
        bodies=BODIES,
    ),
    WebRoute(
        method="GET",
        path="/topics/{topic}/rows",
        handler="rows",
        about="A range of rows, by origin and sequence. The header M4cast-Next has the position after them",
        parameters=(
            TOPIC,
            Parameter("from", f"where to begin: {START}; earliest if absent"),
            Parameter("to", "where to end: latest (if absent), or a position"),
            Parameter("limit", "the most rows", "integer"),
            Parameter("read", "all rows of the range, or those of a table that stand", allowed=("rows", "table")),
            WHERE,
            LANGUAGE,
            ON_MISSING,
            TIMEOUT,
        ),
        answers=ROW_TEXTS,
    ),
    WebRoute(
        method="GET",
        path="/topics/{topic}/tail",
        handler="tail",
        about="Rows as they arrive, one event each. The id of an event is the position after its row",
        parameters=(
            TOPIC,
            Parameter("from", f"where to begin: {START}; latest if absent"),
            WHERE,
            LANGUAGE,
            ON_MISSING,
            EARLY,
            Parameter("Last-Event-ID", "the id of the last event that was received: continue after it", where="header"),
        ),
        answers=(SERVER_SENT_EVENTS,),
    ),
    WebRoute(
        method="GET",
        path="/live",
        handler="live",
        about="A WebSocket: publish and subscribe on one connection (docs/HTTP.md)",
        answers=(),
        status=101,
    ),
    WebRoute(
        method="GET",
        path="/topics/{topic}/frontier",
        handler="frontier",
        about="How far each stream of a topic reaches: {topic: {origin: [low, next]}}",
        parameters=(
            TOPIC,
            Parameter("at_ms", "next is the first sequence published then or later, in ms since 1970", "integer"),
            WHERE,
            LANGUAGE,
        ),
    ),
    WebRoute(
        method="GET",
        path="/topics/{topic}/explain",
        handler="explain",
        about="What a filter means, how much of the topic passes it here, and what it costs",
        parameters=(
            TOPIC,
            WHERE,
            LANGUAGE,
        ),
    ),
    WebRoute(
        method="GET",
        path="/topology",
        handler="topology",
        about="The graph as this node knows it",
        parameters=(Parameter("root", "a node id: the answer has its tree of shortest paths, too"),),
    ),
    WebRoute(method="GET", path="/status", handler="status", about="This node, and what it knows of the channel"),
    WebRoute(method="GET", path="/subscriptions", handler="subscriptions", about="Who wants what, at which node"),
    WebRoute(method="GET", path="/readers", handler="readers", about="The readers that rows are retained for"),
    WebRoute(
        method="GET",
        path="/clients",
        handler="clients",
        about="Where clients are attached, and how many rows wait for those of this node: 100 at most, by key",
        parameters=(Parameter("after", "a key: the answer begins behind it"),),
    ),
    WebRoute(
        method="GET",
        path="/units",
        handler="units",
        about="Units, gateways and links as this gatekeeper knows them; other nodes answer that they are none",
    ),
    WebRoute(
        method="GET",
        path="/metrics.json",
        handler="metrics",
        about="This node's metrics (docs/METRICS.md): {name: [[labels, value]]}. Takes read on all topics, unfiltered",
    ),
    WebRoute(
        method="POST",
        path="/actions/{action}",
        handler="action",
        about="Any action of the client door by its name, with its JSON body, if it has one",
        parameters=(Parameter("action", "the name of an action (docs/CLIENT.md)", where="path"),),
        bodies=(JSON,),
    ),
    WebRoute(method="GET", path="/openapi.json", handler="openapi", about="This description, as OpenAPI 3.1"),
    WebRoute(
        method="GET",
        path="/",
        handler="console",
        about="The console, a page for browsers",
        answers=(HTML,),
        is_public=True,
    ),
    WebRoute(
        method="GET",
        path="/console/{file}",
        handler="file",
        about="A file of the console",
        parameters=(Parameter("file", "its path", where="path"),),
        answers=(SCRIPT, STYLE, SVG, TEXT),
        is_public=True,
    ),
)
ROUTES: dict[str, WebRoute] = {route.handler: route for route in _ROWS}
assert len(ROUTES) == len(_ROWS), "two routes have one handler"
