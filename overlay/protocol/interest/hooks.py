"""Hooks: what others do when interest changes. The composer sets them; without it they do nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.protocol.effects import InterestChanged, Write
from m4cast.overlay.protocol.interest.registrations import RowChange


def _nothing(now_ms: int) -> None: ...


def _nothing_more(token: int, version: int, changes: list[RowChange]) -> tuple[Write, ...]:
    return ()


def _unseen(change: InterestChanged, now_ms: int) -> None: ...


@dataclass(slots=True)
class InterestHooks:
    activated: Callable[[int], None] = _nothing
    """Called when somebody wants something for the first time."""
    planned: Callable[[int, int, list[RowChange]], tuple[Write, ...]] = _nothing_more
    """Asked, when the own entry changes, what else is to be written with it (token, version, changed rows)."""
    shown: Callable[[InterestChanged, int], None] = _unseen
    """Called with each change of the view."""
    end_marked: Callable[[int], None] = _nothing
    """Called when a neighbour has told all that it knows."""
