"""Dates and times as text, read and written without a calendar library's surprises.

A moment is the number of microseconds since 1970-01-01 00:00 UTC; a date is its midnight in UTC, a timestamp without
a zone is taken as UTC. A clock is the number of microseconds since midnight. Only the forms below are read, all in
full and with four-digit years, so that a text means one moment or none:

    2026-01-31    2026-01-31 12:30    2026-01-31T12:30:05.000001Z    2026-01-31 12:30:05+02:00    12:30:05.5
"""

import re
from datetime import date

DAY_US = 86_400_000_000
ZONE_MINUTES_MAX = 18 * 60
"""As in Spark."""
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CLOCK = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
_ZONE = r"(Z|UTC|[+-][0-9]{2}:[0-9]{2})?"
# Fixed patterns without nested repetition: linear, whatever the text is.
_MOMENT_FORM = re.compile(rf"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})(?:[ T]{_CLOCK} ?{_ZONE})?")
_CLOCK_FORM = re.compile(_CLOCK)


def moment_of(text: str) -> int | None:
    """The moment that a text names, None if it names none."""
    found = _MOMENT_FORM.fullmatch(text)
    if found is None:
        return None
    year, month, day = (int(found[at]) for at in (1, 2, 3))
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    clock = 0 if found[4] is None else _clock_us(found[4], found[5], found[6], found[7])
    shift = _zone_us(found[8])
    if clock is None or shift is None:
        return None
    moment = days * DAY_US + clock - shift
    return moment if is_in_reach(moment) else None


def clock_of(text: str) -> int | None:
    """The time of day that a text names, None if it names none."""
    found = _CLOCK_FORM.fullmatch(text)
    return None if found is None else _clock_us(found[1], found[2], found[3], found[4])


def moment_text(moment: int) -> str:
    """A moment as it is read back; those that no four-digit year has are out of reach of every literal."""
    days, clock = divmod(moment, DAY_US)
    return f"{date.fromordinal(days + _EPOCH_DAY).isoformat()} {clock_text(clock)}Z"


def clock_text(clock: int) -> str:
    seconds, micros = divmod(clock, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


def is_in_reach(moment: int) -> bool:
    """True if a literal can name this moment."""
    return 1 - _EPOCH_DAY <= moment // DAY_US <= date.max.toordinal() - _EPOCH_DAY


def _clock_us(hour: str, minute: str, second: str | None, fraction: str | None) -> int | None:
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        return None
    whole = (int(hour) * 60 + int(minute)) * 60 + int(second or 0)
    return whole * 1_000_000 + int((fraction or "0").ljust(6, "0"))


def _zone_us(zone: str | None) -> int | None:
    """The offset of a zone from UTC."""
    if zone in (None, "Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if minutes > 59 or hours * 60 + minutes > ZONE_MINUTES_MAX:
        return None
    return (hours * 60 + minutes) * 60_000_000 * (-1 if zone[0] == "-" else 1)
