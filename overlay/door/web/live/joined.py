"""Publishes that follow each other on a connection and can be one batch: they are sent as one, and share its ranges."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from m4cast.overlay.door.web.live.messages import LivePublish, LiveRefused


class HasPublish(Protocol):
    @property
    def publish(self) -> LivePublish | LiveRefused: ...


P = TypeVar("P", bound=HasPublish)


def joined(publishes: Iterable[P]) -> Iterator[list[P]]:
    """The same in their order, those together that can be one batch."""
    together: list[P] = []
    for publish in publishes:
        if together and not _may_join(together[-1].publish, publish.publish):
            yield together
            together = []
        together.append(publish)
    if together:
        yield together


def _may_join(last: LivePublish | LiveRefused, publish: LivePublish | LiveRefused) -> bool:
    return isinstance(last, LivePublish) and isinstance(publish, LivePublish) and last.may_join(publish)


def shares(publishes: Sequence[P], ranges: list[Any]) -> list[list[Any]]:
    """Divide the ranges that these publishes have together among them."""
    if len(publishes) == 1:
        return [ranges]
    found: list[list[Any]] = []
    left = [dict(each) for each in ranges]
    for publish in publishes:
        message = publish.publish
        assert isinstance(message, LivePublish) and message.rows
        wanted = len(message.rows)
        own: list[Any] = []
        while wanted:
            first = left[0]["first"]
            until = min(first + wanted, left[0]["next"])
            own.append({**left[0], "next": until})
            wanted -= until - first
            left[0]["first"] = until
            if until == left[0]["next"]:
                left.pop(0)
        found.append(own)
    return found
