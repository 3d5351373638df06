"""The description of the web door as OpenAPI 3.1, made of the table of routes and the table of refusals."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from m4cast.overlay.door.web.routes import JSON, ROUTES, Parameter, WebRoute
from m4cast.overlay.refusals import REFUSALS

REFUSED = {"$ref": "#/components/responses/Refused"}


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
        },
        "security": [{"token": []}, {}],
    }


def _operation(route: WebRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.about,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": {
            "200": {"description": "done", "content": {kind: {} for kind in route.answers}},
            "default": REFUSED,
        },
    }
    if route.is_public:
        operation["security"] = []
    if route.bodies:
        operation["requestBody"] = {"content": {kind: {} for kind in route.bodies}}
    return operation


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
