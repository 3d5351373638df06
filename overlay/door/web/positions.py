"""Positions in a topic as text: `origin:next,origin:next`, the sequence to continue from in each of its streams.

They are what a frontier is for one topic, in a form that fits into a URL and into the `Last-Event-ID` of a browser. A
stream that is not named begins at its first row; `-` names none.
"""

import re
from collections.abc import Mapping

from m4cast.overlay.door.fields import Frontier, checked_frontier, shown
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.ids import StreamId

STREAMS_MAX = 10_000
_PART = re.compile("[0-9a-fA-F]{32}:[0-9]{1,19}")
NOWHERE = "-"


def position_text(positions: Mapping[StreamId, int], topic: str) -> str:
    written = ",".join(
        f"{stream.origin.hex()}:{next_sequence}"
        for stream, next_sequence in sorted(positions.items(), key=lambda item: item[0].origin)
        if stream.topic == topic
    )
    return written or NOWHERE


def position_around(positions: Mapping[StreamId, int], stream: StreamId) -> tuple[str, str]:
    """The position as text, before and after the sequence of one stream: for many positions that differ in it alone."""
    text = position_text({**positions, stream: 0}, stream.topic)
    before, origin, after = text.partition(f"{stream.origin.hex()}:")
    return before + origin, after.removeprefix("0")


def parse_position(text: str, topic: str, name: str) -> Frontier:
    """`name` is the parameter or header in refusals."""
    parts = [] if text == NOWHERE else text.split(",")
    if len(parts) > STREAMS_MAX:
        raise bad_request(f"{name} has {len(parts)} streams: at most {STREAMS_MAX} are allowed")
    origins: dict[str, int] = {}
    for part in parts:
        origin, _, number = part.partition(":")
        if not _PART.fullmatch(part):
            raise bad_request(f"{name} has {shown(part)}: must be origin:next, 32 hex digits and a number")
        if origin in origins:
            raise bad_request(f"{name} has origin {shown(origin)} twice: remove one")
        origins[origin] = int(number)
    return checked_frontier({topic: origins}, name)
