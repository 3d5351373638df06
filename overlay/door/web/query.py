"""The parameters of a URL: each is known, given once, and checked; refusals name the parameter and what it may be."""

from datetime import datetime

from aiohttp import web

from m4cast.overlay.door.fields import NUMBER_MAX, Frontier, checked_topic, shown
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import Edge
from m4cast.overlay.door.web.positions import parse_position
from m4cast.overlay.door.web.routes import ROUTES


class Query:
    def __init__(self, request: web.Request, route: str) -> None:
        """`route` is a handler's name in the table, which has the parameters."""
        self._values: dict[str, str] = {}
        if not request.query_string:
            return
        known = ROUTES[route].query
        for name, value in request.query.items():
            if name not in known:
                allowed = f"it may have {', '.join(known)}" if known else "it takes none"
                raise bad_request(f"the URL has an unknown parameter {shown(name)}: {allowed}")
            if name in self._values:
                raise bad_request(f"the URL has the parameter {name} twice: remove one")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        is_number = value.isascii() and value.isdecimal() and len(value) <= 19
        if not is_number or not low <= int(value) <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")
        return int(value)

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words; the first if it is absent."""
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            raise bad_request(f"{name} is {shown(value)}: must be {' or '.join(allowed)}")
        return value

    def start(self, name: str, topic: str, default: Edge) -> Frontier | Edge | int:
        return start_of(self._values.get(name, default), name, topic)


def start_of(value: str, name: str, topic: str) -> Frontier | Edge | int:
    """Parse the position to begin at: an edge, a position, or a time."""
    match value:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    if value.isascii() and value.isdecimal() and len(value) <= 19 and int(value) < NUMBER_MAX:
        return int(value)
    if "T" in value:
        return _millis(name, value)
    return parse_position(value, topic, name)


def _millis(name: str, value: str) -> int:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time.timestamp() < 0:
        raise bad_request(f"{name} is {shown(value)}: must be a time such as 2026-01-31T12:00:00Z, with its zone")
    return int(time.timestamp() * 1000)


def topic_of(request: web.Request) -> str:
    return checked_topic(request.match_info["topic"])
