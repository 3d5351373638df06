"""The kinds of values that options have: each function parses the text that Spark passes.

A parser raises ValueError, KeyError or TypeError for a text that is not allowed; the option's `allowed` says what is.
`NotAllowed` adds a reason.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

from m4cast.spark_connector.offsets import Frontier, parse_frontier

Edge = Frontier | Literal["earliest", "latest"]
TOPICS_MAX = 1_000
TOPIC_BYTES_MAX = 200
KEEPERS_MAX = 8
INT_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
CHANNEL_COLUMNS = (
    "_channel",
    "_topic",
    "_origin",
    "_sequence",
    "_published_at",
    "_key",
    "_headers",
    "_delivered_at",
    "_hops",
    "_node",
)


class NotAllowed(ValueError):
    """A value that is not allowed; the text says why, in an error beside what is allowed."""


def name(value: str) -> str:
    """A name, unchanged: names that differ by a space are different names."""
    if not value.strip():
        raise ValueError
    return value


def text(value: str) -> str:
    return name(value).strip()


def topic(value: str) -> str:
    """The rule of the nodes: printable text. Spaces at either end and separators are allowed."""
    if not value.isprintable() or not 1 <= len(value.encode(errors="replace")) <= TOPIC_BYTES_MAX:
        raise ValueError
    return value


def keepers(value: str) -> int:
    number = int(value)
    if not 0 <= number <= KEEPERS_MAX:
        raise ValueError
    return number


def topics(value: str) -> tuple[str, ...]:
    if not value.lstrip().startswith("["):
        return tuple(map(topic, comma_list(value)))
    names = json.loads(value)
    if not 0 < len(names) <= TOPICS_MAX or not all(isinstance(name, str) for name in names):
        raise ValueError
    return tuple(dict.fromkeys(map(topic, names)))


def comma_list(value: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(parts) or len(parts) > TOPICS_MAX:
        raise ValueError
    return parts


def nodes(value: str) -> tuple[str, ...]:
    nodes = comma_list(value)
    for node in nodes:
        host, _, port = node.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError
    return nodes


def integer(low: int, high: int = INT_MAX) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def boolean(value: str) -> bool:
    return {"true": True, "false": False}[value.strip().lower()]


def choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        return {word: word for word in words}[value.strip().lower()]

    return parse


def time_ms(value: str) -> int:
    """A time in milliseconds since 1970. Fractions are rounded up, which selects the same rows."""
    text = value.strip()
    if re.fullmatch(r"\d{1,19}", text):
        return integer(0)(text)
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise NotAllowed("it has no time zone: add Z, or an offset such as +01:00")
    return integer(0)(str(-((EPOCH - at) // MILLISECOND)))


def edge(value: str) -> Edge:
    word = value.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    return parse_frontier(json.loads(value))


def pattern(value: str) -> str:
    re.compile(value)
    return name(value)


def place(value: str) -> str:
    place = text(value)
    if not place.startswith("/") and "://" not in place:
        raise ValueError
    return place


def duration_ms(value: str) -> int:
    """A duration in milliseconds."""
    found = re.fullmatch(r"\s*(\d{1,12})\s*(ms|s|m|h)\s*", value.lower())
    if found is None:
        raise ValueError
    return int(found[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[found[2]]


def metadata(value: str) -> tuple[str, ...]:
    names = comma_list(value)
    if not set(names) <= set(CHANNEL_COLUMNS):
        raise ValueError
    return names
