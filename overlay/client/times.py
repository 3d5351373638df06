"""Times: what users give, converted to the milliseconds since 1970 UTC that nodes use.

    as_millis(datetime(2026, 1, 31, 12, tzinfo=UTC))
    as_millis("2026-01-31T12:00:00Z")
    as_millis(1769860800000)

A time without a zone is refused: read as UTC or as local time, it would mean another instant to half of its users.
"""

from datetime import UTC, datetime, timedelta

from m4cast.overlay.errors import LocalProtocolError

MILLIS_MAX = 2**62
"""The largest time that a node accepts."""
DIGITS_MAX = 30
"""The longest number in text: more digits than `MILLIS_MAX` has, and few enough for Python to read."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def as_millis(value: int | str | datetime) -> int:
    """Milliseconds since 1970 UTC, from an int or its digits as text, from ISO 8601 text with a zone
    (`2026-01-31T12:00:00Z`, `2026-01-31T13:00+01:00`), or from a datetime with a zone. Fractions of a millisecond are
    rounded up: rows published then or later are the same rows. `LocalProtocolError` for anything else."""
    match value:
        case bool():
            raise _no_time(value)
        case datetime():
            return _in_range(value, _of_datetime(value, value))
        case int():
            return _in_range(value, value)
        case str():
            return _in_range(value, _of_text(value))
    raise _no_time(value)


def _of_text(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text[:DIGITS_MAX])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _no_time(text) from None
    return _of_datetime(moment, text)


def _of_datetime(moment: datetime, given: object) -> int:
    if moment.utcoffset() is None:
        raise LocalProtocolError(f"time {_shown(given)} has no time zone: add one, as in {moment.isoformat()}Z for UTC")
    return -((_EPOCH - moment) // _MILLISECOND)


def _in_range(given: object, millis: int) -> int:
    if not 0 <= millis <= MILLIS_MAX:
        raise LocalProtocolError(f"time {_shown(given)} is out of range: give one from 1970 on")
    return millis


def _no_time(value: object) -> LocalProtocolError:
    return LocalProtocolError(
        f"{_shown(value)} is not a time: give ISO 8601 with a zone, as in 2026-01-31T12:00:00Z, "
        "a datetime with a zone, or milliseconds since 1970 UTC"
    )


def _shown(value: object) -> str:
    shown = str(value) if isinstance(value, datetime) else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
