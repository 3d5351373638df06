"""Sizes and times as people read them."""

import pytest

from m4cast.console.quantities import age_of, size_of


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (1_536, "1.5 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1 MB"),
        (52_428_800, "52.4 MB"),
        (1_500_000_000, "1.5 GB"),
        (2**50, "1125.9 TB"),
    ],
)
def test_a_size_has_one_digit_and_a_unit(count: int, said: str) -> None:
    assert size_of(count) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (59_999, "1 min"),
        (180_000, "3 min"),
        (5_400_000, "1.5 h"),
        (604_800_000, "7 d"),
        (-5_000, "-5 s"),
    ],
)
def test_an_age_has_one_digit_and_a_unit(ms: int, said: str) -> None:
    assert age_of(ms) == said
