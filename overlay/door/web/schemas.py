"""JSON schemas of the door's answers and of the messages of `/live`, for its description (`openapi`)."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "minimum": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
ORIGIN: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
ROW: Schema = {"type": "object", "description": "a row: its columns by name"}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, about: str = "") -> Schema:
    """An object with these members and no others."""
    described: Schema = {"description": about} if about else {}
    members = {**required, **(optional or {})}
    return {
        "type": "object",
        **described,
        "required": list(required),
        "properties": members,
        "additionalProperties": False,
    }


def message(kind: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return record({"type": {"const": kind}, **required}, optional)


RANGE = record(
    {"topic": TEXT, "origin": ORIGIN, "first": NUMBER, "next": NUMBER},
    about="rows of one stream: from `first` up to, and without, `next`",
)
PUBLISHED = record({"rows": COUNT, "ranges": list_of(RANGE)})
FRONTIER: Schema = {
    "type": "object",
    "description": "by topic and origin: the first sequence that is retained, and the next one to come",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {**list_of(NUMBER), "minItems": 2, "maxItems": 2},
    },
}
_STREAM = record({"low": NUMBER, "next": NUMBER, "batches": or_null(COUNT), "bytes": or_null(COUNT)})
TOPIC = record(
    {
        "topic": TEXT,
        "columns": or_null(list_of(record({"name": TEXT, "type": TEXT}))),
        "streams": {"type": "object", "description": "by origin", "additionalProperties": _STREAM},
        "rows": or_null(COUNT),
        "bytes": or_null(COUNT),
        "retention": record({"max_bytes": or_null(COUNT), "max_age_ms": or_null(COUNT), "is_default": FLAG}),
        "summaries": {"type": "object", "required": ["summarise", "columns"]},
        "is_quiet": FLAG,
    },
    {"conflict": {**TEXT, "description": "why its origins have no columns together; `columns` is null then"}},
    about="numbers are null for those who may not read the topic whole",
)
CLIENTS = record(
    {
        "clients": list_of(
            record(
                {
                    "key": TEXT,
                    "node_id": ORIGIN,
                    "node": TEXT,
                    "door": TEXT,
                    "session": COUNT,
                    "covered": FLAG,
                    "since_ms": COUNT,
                    "online": or_null(FLAG),
                    "waiting": {
                        "type": ["array", "null"],
                        "items": {"type": "object", "required": ["profile", "waiting_max"]},
                    },
                },
                about="`online` and `waiting` are null for clients of other nodes",
            )
        ),
        "next": {**or_null(TEXT), "description": "the `after` of the next page; null: there is none"},
    }
)
READERS = list_of(
    record(
        {
            "reader": TEXT,
            "expires_at_ms": COUNT,
            "live": FLAG,
            "topics": list_of(TEXT),
            "frontier": {
                "type": "object",
                "additionalProperties": {"type": "object", "additionalProperties": NUMBER},
            },
            "rows_behind": COUNT,
            "cuts": list_of(RANGE),
        }
    )
)
UNITS: Schema = {
    "type": "object",
    "description": "nothing else unless the node is a gatekeeper (docs/CLIENT.md, action `units`)",
    "required": ["is_gatekeeper"],
    "properties": {"is_gatekeeper": FLAG},
}
METRICS: Schema = {
    "type": "object",
    "description": "by name: each sample's labels and value",
    "additionalProperties": list_of(
        {
            "type": "array",
            "prefixItems": [
                {"type": "object", "additionalProperties": TEXT},
                {"type": ["number", "boolean"]},
            ],
            "minItems": 2,
            "maxItems": 2,
        }
    ),
}
ANSWERS: dict[str, Schema] = {
    "post": PUBLISHED,
    "topics": list_of(TEXT),
    "topic": TOPIC,
    "frontier": FRONTIER,
    "clients": CLIENTS,
    "readers": READERS,
    "units": UNITS,
    "metrics": METRICS,
}
"""JSON answers by handler. Those that are not here are objects, which docs/CLIENT.md describes with their actions."""

_NAME: Schema = {"type": "string", "maxLength": 100}
_POSITION: Schema = {**TEXT, "description": "earliest, latest, a position, or a time"}
FROM_CLIENT: dict[str, Schema] = {
    "publish": message(
        "publish",
        {"id": NUMBER, "topic": TEXT},
        {
            "rows": list_of(ROW),
            "acks": COUNT,
            "timeout_ms": NUMBER,
            "key": TEXT,
            "expect": TEXT,
            "next": TEXT,
        },
    ),
    "subscribe": message(
        "subscribe",
        {"id": _NAME, "topic": TEXT},
        {
            "from": _POSITION,
            "credit": COUNT,
            "format": {"enum": ["json", "arrow"]},
            "where": TEXT,
            "language": TEXT,
            "on_missing": {"enum": ["fail", "skip"]},
            "early": FLAG,
        },
    ),
    "credit": message("credit", {"id": _NAME, "frames": NUMBER}),
    "unsubscribe": message("unsubscribe", {"id": _NAME}),
}
TO_CLIENT: dict[str, Schema] = {
    "acked": message("acked", {"id": NUMBER, "publishes": list_of(record({"id": NUMBER, "ranges": list_of(RANGE)}))}),
    "refused": message("refused", {"id": {"type": ["integer", "string", "null"]}, "code": TEXT, "detail": TEXT}),
    "subscribed": message("subscribed", {"id": _NAME, "position": TEXT}),
    "rows": message("rows", {"id": _NAME, "topic": TEXT, "origin": ORIGIN, "next": NUMBER}, {"rows": list_of(ROW)}),
}
"""Messages of `/live`. In binary frames `rows` is not a member: they follow the head as an Arrow stream."""
