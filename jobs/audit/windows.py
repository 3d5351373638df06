"""The windows of the audit: how long they are, which of them are closed, and periods of several windows.

`WINDOW` alone determines how long a window is, and only this module reads it. After changing it, run `m4cast audit
--full` once: windows that were written before have the old length.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from pyspark.sql import Column
from pyspark.sql import functions as F

WINDOW = timedelta(minutes=1)
"""The length of a window, in whole seconds; windows are aligned to 1970. Longer: fewer rows of `delivery_audit`, later
and coarser verdicts."""
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
PERIODS_MAX = 200
"""The most periods of one query: further ones are joined, with what lies between. Guess; Delta checks each file
against each period."""

Period = tuple[datetime, datetime]
"""Begin and end (exclusive), both of which are starts of windows."""


def window_start(time: str) -> Column:
    """The start of the window that a timestamp column is in."""
    micros = F.unix_micros(F.col(time))
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(WINDOW // timedelta(microseconds=1))))


def window_end(start: str) -> Column:
    """The end of the window that begins at a timestamp column."""
    return F.col(start) + F.expr(f"INTERVAL {WINDOW // timedelta(seconds=1)} SECONDS")


def start_of_window(at: datetime) -> datetime:
    return BEGINNING + (at - BEGINNING) // WINDOW * WINDOW


def window_of(at: datetime) -> Period:
    """The window that a moment is in."""
    start = start_of_window(at)
    return start, start + WINDOW


def closed_until(as_of: datetime, grace: timedelta) -> datetime:
    """Windows that end here or earlier are closed: all that was published in them should have arrived."""
    return start_of_window(as_of - grace)


def merged(periods: Iterable[Period], periods_max: int = PERIODS_MAX) -> list[Period]:
    """The union of the periods, in at most `periods_max` of them: the nearest ones are joined."""
    joined: list[Period] = []
    for begin, end in sorted(each for each in periods if each[0] < each[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    while len(joined) > periods_max:
        distances = [(following[0] - each[1], at) for at, (each, following) in enumerate(pairwise(joined))]
        at = min(distances)[1]
        joined[at : at + 2] = [(joined[at][0], joined[at + 1][1])]
    return joined


def within_periods(time: str, periods: Sequence[Period]) -> str:
    """The periods as a condition in Spark SQL."""

    def moment(at: datetime) -> str:
        return f"TIMESTAMP '{at.astimezone(UTC).isoformat(sep=' ', timespec='seconds')}'"

    each = [f"({time} >= {moment(begin)} AND {time} < {moment(end)})" for begin, end in periods]
    return " OR ".join(each) or "false"
