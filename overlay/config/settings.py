"""Settings: their declaration, the conditions on its value, and what is wrong with a config."""

import re
from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any, Literal, NamedTuple, TypeVar, cast

from m4cast.overlay.errors import ConfigError

Source = Literal["seed", "measured", "guess"]
T = TypeVar("T")


class Allowed(NamedTuple):
    """A condition on one value: the sentence that people read, and the test."""

    sentence: str
    accepts: Callable[[Any], bool]


class SettingFacts(NamedTuple):
    """The declaration of a setting, besides its name, type and default."""

    about: str
    allowed: Allowed
    cost: str
    source: Source


def setting(default: T, about: str, *, allowed: Allowed, cost: str, source: Source) -> T:
    """Declare a field of a config. The dataclass sees a field, the type checker its default."""
    facts = SettingFacts(about, allowed, cost, source)
    return field(default=default, metadata={"facts": facts})


def facts_of(config_field: "Field[Any]") -> SettingFacts:
    return cast(SettingFacts, config_field.metadata["facts"])


def whole(low: int, high: int) -> Allowed:
    # A bool is an int to Python, but `acks = true` is a mistake.
    return Allowed(
        f"a whole number from {low:_} to {high:_}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def text(bytes_min: int, bytes_max: int) -> Allowed:
    # Printable, since it appears in log lines and metric labels. (That also rules out what UTF-8 cannot encode.)
    return Allowed(
        f"printable text of {bytes_min} to {bytes_max} bytes",
        lambda value: isinstance(value, str) and value.isprintable() and bytes_min <= len(value.encode()) <= bytes_max,
    )


def matching(pattern: str, sentence: str) -> Allowed:
    return Allowed(sentence, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


FLAG = Allowed("true or false", lambda value: isinstance(value, bool))
PATH = Allowed(
    "a path of at most 1_000 characters, or empty",
    lambda value: isinstance(value, str) and value.isprintable() and len(value) <= 1_000,
)
REFERENCE = matching(
    r"(?:file:[^\x00-\x1f]{1,1000}|env:[A-Za-z_][A-Za-z0-9_]{0,200})?", '"file:PATH", "env:NAME" or empty'
)


def one_of(*choices: str) -> Allowed:
    return Allowed(" or ".join(f'"{choice}"' for choice in choices), lambda value: value in choices)


_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253}):(?P<port>0|[1-9][0-9]{0,4})")


def _is_address(value: object, port_min: int = 1) -> bool:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    return match is not None and port_min <= int(match["port"]) <= 65_535


LISTEN_ADDRESS = Allowed(
    'an address "host:port" or "[ipv6]:port"; port 0 takes any free one', lambda value: _is_address(value, port_min=0)
)
OPTIONAL_ADDRESS = Allowed(
    'an address "host:port" or "[ipv6]:port", or empty', lambda value: value == "" or _is_address(value)
)
OPTIONAL_LISTEN_ADDRESS = Allowed(
    'an address "host:port" or "[ipv6]:port", or empty; port 0 takes any free one',
    lambda value: value == "" or _is_address(value, port_min=0),
)
ADDRESSES_MAX = 64
ADDRESSES = Allowed(
    f'at most {ADDRESSES_MAX} addresses "host:port" or "[ipv6]:port"',
    lambda value: (
        isinstance(value, tuple) and len(value) <= ADDRESSES_MAX and all(_is_address(address) for address in value)
    ),
)
_ORIGIN = re.compile(r"https?://[A-Za-z0-9_.:\[\]-]{1,260}")
ORIGINS = Allowed(
    f'at most {ADDRESSES_MAX} origins "https://host" or "https://host:port", or http',
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= ADDRESSES_MAX
        and all(isinstance(origin, str) and _ORIGIN.fullmatch(origin) is not None for origin in value)
    ),
)
_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253}")
HOSTS = Allowed(
    f'at most {ADDRESSES_MAX} hosts: names, addresses or "[ipv6]", without a port',
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= ADDRESSES_MAX
        and all(isinstance(host, str) and _HOST.fullmatch(host) is not None for host in value)
    ),
)
PORT_RANGES_MAX = 64
_PORT_RANGE = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?")


def port_ranges(value: str) -> list[range]:
    """The ports that a text such as "7400-7409,7500" names, in rising order; `ValueError` if it names none."""
    ranges: list[range] = []
    for part in value.split(","):
        match = _PORT_RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is neither a port nor a range of ports: write 7400, or 7400-7409")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last > 65_535 or (ranges and first < ranges[-1].stop):
            raise ValueError(f"{part!r} must be above the ports before it, and at most 65535")
        ranges.append(range(first, last + 1))
    return ranges


def _is_port_ranges(value: object) -> bool:
    try:
        return isinstance(value, str) and len(port_ranges(value)) <= PORT_RANGES_MAX
    except ValueError:
        return False


PORTS = Allowed(
    f'at most {PORT_RANGES_MAX} ports and ranges of ports in rising order, such as "7400-7409,7500"', _is_port_ranges
)


class TopicFilter(NamedTuple):
    """Rows of a topic: those that satisfy a condition in the language `sql`, or all if that is empty."""

    topic: str
    where: str = ""


TOPIC_FILTERS_MAX = 1_000
TOPIC_FILTERS = Allowed(
    f"at most {TOPIC_FILTERS_MAX} tables with topic (1 to 200 bytes) and where (at most 4_096 bytes)",
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= TOPIC_FILTERS_MAX
        and all(
            isinstance(each, TopicFilter)
            and all(isinstance(text, str) for text in each)
            and 1 <= len(each.topic.encode()) <= 200
            and len(each.where.encode()) <= 4_096
            for each in value
        )
    ),
)


# ---- what is wrong with a config


def field_problems(config: Any) -> list[str]:
    return [
        f"{config_field.name} = {shown(value)}: must be {facts_of(config_field).allowed.sentence}"
        for config_field in fields(config)
        if not facts_of(config_field).allowed.accepts(value := getattr(config, config_field.name))
    ]


def refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigError("; ".join(problems))


def shown(value: object) -> str:
    """A value in a message: as written, but never so long that it hides the message."""
    written = repr(value)
    return written if len(written) <= 220 else f"{written[:200]}... ({len(written)} characters)"
