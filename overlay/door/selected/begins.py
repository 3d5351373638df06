"""The beginning of a registration: with the earliest rows, the latest, those since a time, or at a position."""

from collections.abc import Mapping

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import Edge
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile
from m4cast.overlay.protocol.effects import Registration, Want, Wish

Start = Frontier | Edge | int
"""A position, an edge, or a time in milliseconds since 1970."""
POSITIONS_MAX = 1_024
"""Streams that the position of one registration names."""


def wish_of(name: str, topic: str, profile: Profile | None, start: Start) -> Wish:
    """A wish that begins there. A position that names first rows alone begins with the earliest."""
    if isinstance(start, dict):
        positions = {stream.origin: first for stream, first in start.items() if stream.topic == topic and first > 1}
        if len(positions) > POSITIONS_MAX:
            raise bad_request(f"start names {len(positions):,} streams, at most {POSITIONS_MAX:,}: begin at a time")
        if positions:
            return Wish(name, topic, profile, positions=positions)
    if isinstance(start, int):
        return Wish(name, topic, profile, from_ms=start)
    return Wish(name, topic, profile, earliest=start != "latest")


def start_shown(row: Registration) -> str | int | dict[str, int]:
    """The value of `start` in a request, except that a position does not name its topic."""
    if row.positions is not None:
        return {origin.hex(): first for origin, first in row.positions.items()}
    return row.from_ms if row.from_ms is not None else "earliest" if row.earliest else "latest"


def position_in(start: Frontier, stream: StreamId) -> int:
    """The position at which a reader begins in a stream: its first row, unless its frontier names it."""
    return start.get(stream, 1)


def fits(want: Want, begins: Mapping[StreamId, int], ends: Mapping[StreamId, int], start: Start) -> bool:
    """True if a registration begins where a reader starts, or before. `begins`: of the streams of its topic for which
    that is known; `ends`: how far these streams are known here."""
    if want.earliest:
        return True
    if isinstance(start, dict):
        named = {StreamId(origin, want.topic): first for origin, first in (want.positions or {}).items()}
        return all(begin <= position_in(start, stream) for stream, begin in (named | dict(begins)).items())
    if start == "latest":
        late = want.positions or {}
        return all(first <= ends.get(StreamId(origin, want.topic), 1) for origin, first in late.items())
    return isinstance(start, int) and want.from_ms is not None and want.from_ms <= start
