"""Routes: which topics are carried, and their names on the other side.

    Routes.parse(["orders", "shop-(.+) -> retail.\\1"])

A pattern is a regular expression that must match the whole name; the first match wins. Without a name on the right, the
topic keeps its name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from m4cast.overlay.errors import ConfigError

ARROW = "->"


@dataclass(frozen=True, slots=True)
class Route:
    pattern: re.Pattern[str]
    target: str
    """May contain `\\1` for the first group; empty: the same name."""

    def of(self, topic: str) -> str | None:
        match = self.pattern.fullmatch(topic)
        if match is None:
            return None
        return match.expand(self.target) if self.target else topic


@dataclass(frozen=True, slots=True)
class Routes:
    routes: tuple[Route, ...]

    @classmethod
    def parse(cls, lines: Iterable[str]) -> "Routes":
        return cls(tuple(_route(line) for line in lines))

    def target(self, topic: str) -> str | None:
        """The name of the topic on the other side; None if it is not carried."""
        for route in self.routes:
            target = route.of(topic)
            if target is not None:
                return target
        return None

    @property
    def pattern(self) -> str:
        """One regular expression that matches all of them."""
        return "|".join(f"(?:{route.pattern.pattern})$" for route in self.routes)


def _route(line: str) -> Route:
    pattern, arrow, target = (part.strip() for part in line.partition(ARROW))
    if not pattern or (arrow and not target):
        raise ConfigError(f"{line!r}: write 'PATTERN' or 'PATTERN -> NAME'")
    try:
        route = Route(re.compile(pattern), target)
        re.compile(pattern + "|").fullmatch("").expand(target)  # type: ignore[union-attr]  # it matches
    except (re.error, IndexError) as error:
        raise ConfigError(f"{line!r}: {error}") from error
    return route
