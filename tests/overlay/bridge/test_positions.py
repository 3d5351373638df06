"""Positions of partitions: where one begins, and what counts as a loss."""

import pytest

from m4cast.overlay.bridge.kafka_in.positions import KEY_BYTES_MAX, Position, beginning, key_of
from m4cast.overlay.errors import M4castError


@pytest.mark.parametrize(
    ("stored", "low", "end", "start", "expected", "loss"),
    [
        (None, 5, 9, "earliest", "5@a/", ""),
        (None, 5, 9, "latest", "9@a/", ""),
        ("7@a/p", 5, 9, "latest", "7@a/p", ""),
        ("5@a/p", 5, 9, "earliest", "5@a/p", ""),
        ("9@a/p", 5, 9, "earliest", "9@a/p", ""),
        ("4@a/p", 5, 9, "earliest", "5@a#1/", "offsets 4 to 4"),
        ("10@a#1/p", 5, 9, "earliest", "9@a#2/", "truncated: offsets 9 to 9"),
        ("7@b/p", 5, 9, "earliest", "5@a#1/", "created again"),
    ],
)
def test_where_it_begins(stored: str | None, low: int, end: int, start: str, expected: str, loss: str) -> None:
    known = None if stored is None else Position.parse(stored)
    begins = beginning(known, "a", low, end, start)  # type: ignore[arg-type]  # one of the two
    assert str(begins.position) == expected
    assert (loss in begins.loss) if loss else begins.loss == ""


@pytest.mark.parametrize("text", ["", "7", "x@a", "7@", "7@a#x"])
def test_a_position_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(M4castError, match="another name"):
        Position.parse(text)


def test_a_key_fits_whatever_the_topic_is_called() -> None:
    assert key_of("b", "orders", 3) == "kafka-in/b/orders/3"
    long = [key_of("b" * 32, name * 249, 2**31 - 1) for name in ("x", "y")]
    assert all(len(key.encode()) <= KEY_BYTES_MAX for key in long) and long[0] != long[1]
