"""Times as users give them."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest

from m4cast.overlay.client.times import MILLIS_MAX, as_millis
from m4cast.overlay.errors import LocalProtocolError

NOON_MS = 1_769_860_800_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        (0, 0),
        (MILLIS_MAX, MILLIS_MAX),
        (NOON_MS, NOON_MS),
        (f"0{NOON_MS}", NOON_MS),
        (NOON, NOON_MS),
        (NOON.astimezone(timezone(timedelta(hours=5, minutes=30))), NOON_MS),
        (NOON + timedelta(microseconds=1_999), NOON_MS + 2),
        (pd.Timestamp(NOON), NOON_MS),
        ("2026-01-31T12:00:00Z", NOON_MS),
        ("2026-01-31 12:00:00.001999Z", NOON_MS + 2),
        ("2026-01-31T13:00+01:00", NOON_MS),
        ("20260131T120000Z", NOON_MS),
    ],
)
def test_a_time_is_its_milliseconds(value: Any, millis: int) -> None:
    assert as_millis(value) == millis
    assert type(as_millis(value)) is int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2026-01-31T12:00:00", "'2026-01-31T12:00:00' has no time zone: add one, as in 2026-01-31T12:00:00Z for UTC"),
        ("2026-01-31", "'2026-01-31' has no time zone: add one, as in 2026-01-31T00:00:00Z for UTC"),
        (datetime(2026, 1, 31, 12), "2026-01-31 12:00:00 has no time zone: add one, as in 2026-01-31T12:00:00Z"),
        ("yesterday", "'yesterday' is not a time: give ISO 8601 with a zone, as in 2026-01-31T12:00:00Z"),
        ("", "'' is not a time"),
        ("2026-02-30T12:00:00Z", "is not a time"),
        (True, "True is not a time"),
        (1.5, "1.5 is not a time"),
        (None, "None is not a time"),
        (date(2026, 1, 31), "datetime.date(2026, 1, 31) is not a time"),
        (-1, "-1 is out of range: give one from 1970 on"),
        ("1969-12-31T23:59:59Z", "is out of range"),
        (MILLIS_MAX + 1, "is out of range"),
        ("9" * 5_000, "is out of range"),
    ],
)
def test_what_is_no_time_is_refused_with_what_to_give(value: Any, said: str) -> None:
    with pytest.raises(LocalProtocolError) as refused:
        as_millis(value)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300
