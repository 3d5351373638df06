"""The description of the web door as OpenAPI 3.1, made of the table of routes and the table of refusals."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from m4cast.overlay.door.web.routes import (
    ARROW,
    CSV,
    EVENT_JSON,
    EVENTS_JSON,
    JSON,
    JSON_LINES,
    PARQUET,
    ROUTES,
    SERVER_SENT_EVENTS,
    Parameter,
    WebRoute,
)
from m4cast.overlay.door.web.schemas import ANSWERS, FROM_CLIENT, ROW, TEXT, TO_CLIENT
from m4cast.overlay.refusals import REFUSALS

REFUSED = {"$ref": "#/components/responses/Refused"}
STATUS_TEXTS = {101: "the connection is a WebSocket from now on", 200: "done"}
BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
EVENT = {
    "type": "object",
    "description": "a CloudEvent, structured",
    "required": ["specversion", "id", "source", "type"],
    "properties": {"specversion": {"const": "1.0"}, "id": TEXT, "source": TEXT, "type": TEXT},
}
BODY_SCHEMAS: dict[str, dict[str, Any]] = {
    JSON: {"oneOf": [ROW, {"type": "array", "items": ROW}]},
    JSON_LINES: {**TEXT, "description": "a JSON object for each row, on a line of its own"},
    CSV: {**TEXT, "description": "a line with the names of the columns, then one for each row"},
    ARROW: {**BINARY, "description": "an Arrow IPC stream"},
    PARQUET: {**BINARY, "description": "a Parquet file"},
    EVENT_JSON: EVENT,
    EVENTS_JSON: {"type": "array", "items": EVENT},
}


def description() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES.values():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "m4cast, a node's web door",
            "version": _version(),
            "description": "Publish, read and follow the rows of a channel. docs/HTTP.md explains it.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Refused": _refused()},
            "schemas": {"FromClient": {"oneOf": [*FROM_CLIENT.values()]}, "ToClient": {"oneOf": [*TO_CLIENT.values()]}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(route: WebRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.about,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": {
            str(route.status): _answer(route),
            "default": REFUSED,
        },
    }
    if route.handler == "live":
        operation["x-messages"] = {way: {"$ref": f"#/components/schemas/{way}"} for way in ("FromClient", "ToClient")}
    if route.is_public:
        operation["security"] = []
    if route.bodies:
        schemas = BODY_SCHEMAS if route.handler == "post" else {JSON: {"type": "object"}}
        operation["requestBody"] = {"content": {kind: {"schema": schemas[kind]} for kind in route.bodies}}
    return operation


def _answer(route: WebRoute) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": STATUS_TEXTS[route.status]}
    if route.answers:
        answer["content"] = {kind: {"schema": _answer_schema(route, kind)} for kind in route.answers}
    return answer


def _answer_schema(route: WebRoute, kind: str) -> dict[str, Any]:
    if kind == JSON:
        return ANSWERS.get(route.handler, {"type": "object"})
    if kind == SERVER_SENT_EVENTS:
        return {**TEXT, "description": "events: `id` is a position, `data` a row as JSON"}
    return BODY_SCHEMAS.get(kind, TEXT)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.allowed:
        schema["enum"] = list(parameter.allowed)
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.about,
        "schema": schema,
    }


def _refused() -> dict[str, Any]:
    codes = {code: kind for code, kind in REFUSALS.items() if kind.flight is not None}
    listed = "; ".join(f"{kind.http} {code}: {kind.meaning}" for code, kind in codes.items())
    schema = {
        "type": "object",
        "required": ["code", "detail"],
        "properties": {
            "code": {"type": "string", "enum": list(codes)},
            "detail": {"type": "string", "description": "the thing, and the fix"},
        },
    }
    return {"description": listed, "content": {JSON: {"schema": schema}}}


def _version() -> str:
    try:
        return version("m4cast")
    except PackageNotFoundError:  # a copy of the source that was never installed
        return "unknown"
