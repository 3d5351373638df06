"""A publish is done when all its rows are acknowledged, and not before, whatever Flight says."""

import pytest

from m4cast.overlay.client import Channel, RowRange
from m4cast.overlay.errors import RefusedError
from tests.overlay.client.forgetful import forgetful

ROWS = [{"n": 1}, {"n": 2}]
FIRST = b'{"rows": 1, "ranges": [{"topic": "t", "origin": "o", "first": 5, "next": 6}]}'
BOTH = b'{"rows": 2, "ranges": [{"topic": "t", "origin": "o", "first": 6, "next": 7}]}'


def test_ranges_are_put_together_when_all_rows_are_acknowledged() -> None:
    with forgetful([FIRST, BOTH]) as node:
        assert Channel([node]).publish("t", ROWS) == [RowRange("t", "o", 5, 7)]


@pytest.mark.parametrize(("acks", "says"), [([], "0 of 2 rows"), ([FIRST], "1 of 2 rows")])
def test_a_call_that_ends_too_early_is_an_error(acks: list[bytes], says: str) -> None:
    with forgetful(acks) as node:
        channel = Channel([node])
        for call in (
            lambda: channel.publish("t", ROWS),
            lambda: channel.publish("t", ROWS, key="k", next=1),
            lambda: channel.stage("t", ROWS),
        ):
            with pytest.raises(RefusedError, match=says) as error:
                call()
            assert error.value.code == "unacknowledged"


def test_a_commit_without_rows_is_acknowledged_too() -> None:
    with forgetful([]) as node, pytest.raises(RefusedError, match="0 of 0 rows"):
        Channel([node]).publish("t", [], key="k", next=1)
    with forgetful([b'{"rows": 0, "ranges": []}']) as node:
        assert Channel([node]).publish("t", [], key="k", next=1) == []
