"""Rows as JSON: the quick way by columns gives what Arrow's own conversion by rows gives."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from m4cast.overlay.door.web.texts import dicts_of
from m4cast.schemas.json_text import json_of

NOON = datetime(2026, 3, 29, 12, 0, 0, 123_456, tzinfo=UTC)
COLUMNS: dict[pa.DataType, list[object]] = {
    pa.int64(): [1, None, -(2**63)],
    pa.float64(): [1.5, float("nan"), None],
    pa.bool_(): [True, None, False],
    pa.string(): ["a", None, "ż"],
    pa.binary(): [b"\xff", None, b""],
    pa.date32(): [date(2026, 1, 1), None, date(1969, 12, 31)],
    pa.time64("us"): [time(1, 2, 3, 4), None, time(0)],
    pa.duration("us"): [timedelta(seconds=-1), None, timedelta(0)],
    pa.decimal128(10, 2): [Decimal("1.50"), None, Decimal("-0.01")],
    pa.timestamp("s"): [datetime(2026, 1, 1), None, datetime(1969, 12, 31)],
    pa.timestamp("us", "UTC"): [NOON, None, NOON],
    pa.timestamp("us", "Europe/Warsaw"): [NOON, NOON - timedelta(days=90), None],
    pa.list_(pa.timestamp("us", "UTC")): [[NOON, None], None, []],
    pa.struct([("a", pa.int64()), ("b", pa.string())]): [{"a": 1, "b": None}, None, {"a": None, "b": "x"}],
    pa.map_(pa.string(), pa.int64()): [[("a", 1), ("b", None)], None, []],
}


@pytest.mark.parametrize("type_", COLUMNS, ids=str)
def test_a_column_is_written_as_arrow_gives_it(type_: pa.DataType) -> None:
    rows = pa.record_batch([pa.array(COLUMNS[type_], type_)], names=["v"])
    for some in (rows, rows.slice(1, 1), rows.slice(0, 0)):
        expected = some.to_pylist(maps_as_pydicts="strict")
        assert json_of(dicts_of(some)) == json_of(expected)


def test_rows_without_columns_are_rows() -> None:
    rows = pa.record_batch([pa.array([1, 2])], names=["v"]).select([])
    assert len(dicts_of(rows)) == rows.num_rows
