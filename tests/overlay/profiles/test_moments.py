"""Dates and times as text: one form, one moment."""

import pytest

from m4cast.overlay.profiles.moments import clock_of, clock_text, moment_of, moment_text


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01", 0),
        ("1970-01-01 00:00", 0),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01 00:00:00.000001Z", 1),
        ("1970-01-01 00:00:00.5 UTC", 500_000),
        ("1970-01-01 02:00:00+02:00", 0),
        ("1969-12-31 23:00-01:00", 0),
        ("1969-12-31 06:00-18:00", 0),
        ("1969-12-31 23:59:59.999999", -1),
        ("0001-01-01", -62_135_596_800_000_000),
        ("9999-12-31 23:59:59.999999", 253_402_300_799_999_999),
    ],
)
def test_moments_are_read_and_written(text: str, moment: int) -> None:
    assert moment_of(text) == moment
    assert moment_of(moment_text(moment)) == moment


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "2026",
            "2026-1-1",
            "2026-02-30",
            "2026-13-01",
            "0000-01-01",
            "12026-01-01",
            "2026-01-01 24:00",
            "2026-01-01 12",
        ),
        *(
            "2026-01-01 12:60",
            "2026-01-01 12:00:60",
            "2026-01-01 12:00:00.1234567",
            "2026-01-01 12:00 CET",
            " 2026-01-01",
        ),
        *(
            "2026-01-01 12:00+19:00",
            "2026-01-01 12:00-18:01",
            "0001-01-01 00:00+01:00",
            "9999-12-31 23:59-01:00",
            "\u0662\u0660\u0662\u0666-01-01",
            "2026-01-01\n",
        ),
    ],
)
def test_what_is_no_moment(text: str) -> None:
    assert moment_of(text) is None


@pytest.mark.parametrize(
    ("text", "clock"), [("00:00", 0), ("12:30:05.5", 45_005_500_000), ("23:59:59.999999", 86_399_999_999)]
)
def test_clocks(text: str, clock: int) -> None:
    assert clock_of(text) == clock == clock_of(clock_text(clock))


@pytest.mark.parametrize("text", ["", "24:00", "1:00", "12", "12:00Z", "12:00:61"])
def test_what_is_no_clock(text: str) -> None:
    assert clock_of(text) is None
