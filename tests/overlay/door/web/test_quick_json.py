"""Quick JSON reads what Python's library reads, or leaves it to that; and writes the same values."""

import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.door.publish.gathering import PlainColumns
from m4cast.overlay.door.web.bodies import plain_rows
from m4cast.overlay.door.web.live.messages import LivePublish, message_of
from m4cast.overlay.door.web.quick_json import json_of, members_of, rows_of_text
from m4cast.schemas.json_text import json_of as plain_json_of
from tests.overlay.door.test_fields import SCALARS, random_object, strict

ODD = ("1.0", "-0", "-0.0", "1e400", "1E5", "01", "1.", '"\\ud83d"', '"\\ud83d\\ude00"', '"ż"', '"\x01"', "\ufeff1")
"""Besides those of requests: numbers and texts that parsers disagree about."""
HUGE = ("18446744073709551616", "18446744073709551617", "-9223372036854775809", "1" + 30 * "0")
"""Integers beyond 64 bits."""
JSON = {"Content-Type": "application/json"}


def texts(count: int) -> list[str]:
    draw = random.Random(22)
    return [random_object(draw, 3, (*SCALARS, *ODD)) for _ in range(count)]


def test_an_object_is_read_as_by_a_strict_reader_or_left_to_it() -> None:
    read = 0
    for text in texts(20_000):
        found = members_of(text)
        if found is not None:
            assert repr(found) == repr(strict(text)), text
            read += 1
    assert read > 1_000


def test_posted_rows_are_read_as_by_a_strict_reader_or_left_to_it() -> None:
    read = 0
    for text in texts(20_000):
        for body in (text, f"[{text},{text}]"):
            try:
                written = body.encode()
            except UnicodeEncodeError:
                continue
            found = rows_of_text(written)
            if found is not None:
                expected = strict(body)
                assert repr(found) == repr(expected if isinstance(expected, list) else [expected]), body
                read += 1
    assert read > 1_000


def test_damaged_rows_are_read_as_by_a_strict_reader_or_left_to_it() -> None:
    draw = random.Random(4)
    good = json.dumps([{"id": 1, "v": "ż\n\U0001f600"}, {"id": -2.5e3, "v": None}], ensure_ascii=False).encode()
    read = 0
    for _ in range(20_000):
        body = bytearray(good)
        for _ in range(draw.randrange(3)):
            at = draw.randrange(len(body))
            body[at : at + draw.randrange(3)] = draw.choice((b"", b"1", b'"', b"}", b"\\", draw.randbytes(1)))
        found = rows_of_text(bytes(body))
        if found is not None:
            assert repr(found) == repr(strict(body.decode())), body
            read += 1
    assert 1_000 < read < 19_000


@pytest.mark.parametrize("number", HUGE)
def test_integers_beyond_64_bits_stay_what_they_are(number: str) -> None:
    """No plain column takes what a quick reader makes of them, and threads get them as they are written."""
    frame = f'{{"type":"publish","id":1,"topic":"t","rows":[{{"v":0}},{{"v":{number}}}]}}'
    assert members_of(f'{{"id":{number}}}') is None
    publish = message_of(frame)
    assert isinstance(publish, LivePublish) and publish.rows
    rows = plain_rows(b'{"v":%b}' % number.encode(), JSON, has_doubles=False)
    assert rows
    for type_ in (pa.float64(), pa.int64(), pa.uint64(), pa.string()):
        columns = PlainColumns(pa.schema([("v", type_)]))
        assert columns.fit(publish.rows[1:]) is None and columns.fit(rows) is None
    assert publish.body == f'{{"v": 0}}\n{{"v": {number}}}'.encode()


@pytest.mark.parametrize("number", ["1e18", "9.1e18", "-9.1e18", "9007199254740992", "1.5", "-0.0", "0"])
def test_other_numbers_are_gathered_in_a_column_of_doubles(number: str) -> None:
    publish = message_of(f'{{"type":"publish","id":1,"topic":"t","rows":[{{"v":{number}}}]}}')
    assert isinstance(publish, LivePublish) and publish.rows
    columns = PlainColumns(pa.schema([("v", pa.float64())]))
    values = columns.fit(publish.rows)
    assert values is not None and str(columns.rows([values])["v"][0].as_py()) == str(float(number))


VALUES: tuple[Any, ...] = (
    {"nan": float("nan"), "infinite": [float("inf"), -float("inf")], "whole": 2**63, "least": -(2**63)},
    {"text": 'ż "\n\u2028', "none": None, "flags": [True, False], "nested": {"a": [{"b": 1.5}]}},
    {"times": [datetime(2026, 3, 29, 12, 0, 0, 5, tzinfo=UTC), datetime(1, 1, 1), date(2026, 1, 1), time(1, 2, 3, 4)]},
    {"bytes": b"\xff\x00", "decimal": Decimal("1.50"), "duration": timedelta(days=-1, microseconds=1)},
    {"map": {1: "a", 2: None}, "pairs": [("a", 1), ("b", float("nan"))]},
    {"wide": 2**64},
    [],
    {},
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_the_same_values_are_written(value: Any) -> None:
    assert json.loads(json_of(value)) == json.loads(plain_json_of(value))
