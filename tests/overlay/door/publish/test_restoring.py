"""Rows that are put back at a real door: the same batch as before, or nothing."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.door.publish.restoring import FIELDS, HOLD_MS
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.plain import act, code_of, command, connect, get, put
from tests.overlay.door.served import Served, serving

ROWS = pa.table(
    {
        "id": pa.array([1, None, 3], pa.int32()),
        "text": ["tea", None, "Grüße"],
        "at": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
        "flag": [True, False, None],
        "in": [{"x": 1, "y": ["a", None]}, None, {"x": None, "y": []}],
        "none": pa.nulls(3),
    }
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("restoring"), 1) as served:
        yield served


def facts_of(record: dict[str, Any]) -> dict[str, Any]:
    """The request that a client makes from a delivery record."""
    since_1970 = record["published_at"] - datetime(1970, 1, 1, tzinfo=UTC)
    given = {**record, "published_at_ms": round(since_1970.total_seconds() * 1000)}
    given["extensions"] = base64.b64encode(record["extensions"]).decode()
    return {name: given[name] for name in FIELDS}


def lost(served: Served, topic: str, *tables: pa.Table) -> tuple[Channel, list[dict[str, Any]], pa.Table]:
    """Batches that were published and then removed: the channel, what their records say, and how they were read."""
    channel = Channel(served.addresses)
    for number, table in enumerate(tables):
        channel.publish(topic, table, key=f"{topic} key", expect=None if number == 0 else number - 1, next=number)
    read = channel.read(topic)
    records = get(connect(served, 0), read="deliveries", start="earliest", end="latest").to_pylist()
    channel.delete_topic(topic)
    assert channel.read(topic).num_rows == 0
    return channel, [facts_of(record) for record in records if record["topic"] == topic], read


def test_rows_are_put_back_from_the_newest_on_as_they_were_and_held_for_a_day(door: Served) -> None:
    channel, batches, read = lost(door, "back", ROWS, ROWS.slice(1).drop_columns("text"), ROWS)
    assert [batch["publisher"] for batch in batches] == ["back key"] * 3
    with pytest.raises(RefusedError, match=r"rows from 9 on are kept: restore those that end there first"):
        channel.restore("back", ROWS, batches[0])
    assert channel.restore("back", ROWS, batches[2])
    # As a table of Delta has them: other integers, more columns, none that is null in every row.
    wide = ROWS.set_column(0, "id", ROWS["id"].cast(pa.int64())).drop_columns("none")
    assert channel.restore("back", wide.slice(1), batches[1])
    assert channel.restore("back", wide, batches[0])
    assert not channel.restore("back", ROWS, batches[2]), "it is there already"
    assert channel.read("back").equals(read)
    raw = get(connect(door, 0), read="raw", topic="back", start="earliest", end="latest")
    assert raw["checksum"].to_pylist() == [batch["checksum"] for batch in batches]
    (reader,) = (each for each in act(connect(door, 0), "readers") if each["reader"] == "_restored")
    assert reader["frontier"]["back"] == {batches[0]["origin"]: 1}
    now_ms = door.nodes[0].driver.clock.wall_ms()
    assert HOLD_MS - 60_000 < reader["expires_at_ms"] - now_ms <= HOLD_MS
    act(connect(door, 0), "topic-retention", topic="back", max_bytes=0)
    door.nodes[0].store.trim(now_ms).result(30)
    assert channel.read("back").num_rows == read.num_rows, "held, whatever the limit"
    channel.publish("back", ROWS)
    assert channel.read("back").num_rows == read.num_rows + 3, "and new rows follow"


def test_rows_that_are_not_those_that_were_published_change_nothing(door: Served) -> None:
    channel, (first, second), _ = lost(door, "other", ROWS, ROWS)
    other = ROWS.set_column(1, "text", pa.array(["tea", None, "coffee"]))
    for rows, facts, problem in (
        (other, second, "its checksum is"),
        (ROWS.slice(1), second, "its checksum is"),
        (ROWS, {**second, "publisher": "other"}, "its checksum is"),
        (ROWS, {**second, "previous_checksum": "0" * 16}, "its checksum is"),
        (ROWS.drop_columns("text"), second, "its checksum is"),
        (ROWS.set_column(0, "id", pa.array(["x", "y", "z"])), second, "cannot be given the types that they had"),
        (ROWS, {**second, "schema_id": "0" * 15 + "1"}, "does not know schema 0000000000000001"),
        (ROWS, first, "rows from 7 on are kept"),
    ):
        with pytest.raises(RefusedError, match=problem) as refused:
            channel.restore("other", rows, facts)
        assert refused.value.code == "not-restored"
    assert channel.read("other").num_rows == 0
    assert channel.restore("other", ROWS, second)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"restore": []}, "restore must be an object"),
        ({"restore": {}}, "origin is missing"),
        ({"more": 1}, "unknown field 'more'"),
        ({"checksum": "12"}, "checksum must be 16 hex digits"),
        ({"checksum": 12}, "checksum must be text"),
        ({"schema_id": None}, "schema_id is missing"),
        ({"extensions": "%"}, "extensions must be base64"),
        ({"parts": 0}, "parts must be a whole number from 1"),
        ({"part": None}, "part is missing"),
        ({"first_sequence": 0}, "first_sequence must be a whole number from 1"),
        ({"position": 3}, "position must be text"),
        ({"position": "x" * 1_001}, "position has 1001 bytes"),
    ],
)
def test_malformed_requests_are_refused_by_name(door: Served, changed: dict[str, Any], problem: str) -> None:
    facts = {
        **dict.fromkeys(("checksum", "schema_id", "previous_checksum"), "0" * 16),
        **dict.fromkeys(("first_sequence", "origin_batch", "published_at_ms", "origin_incarnation", "parts"), 1),
        "origin": "0" * 32,
        "part": 0,
    }
    if "position" in changed:  # found when the batch is made
        facts = {**lost(door, f"long {len(str(changed))}", ROWS)[1][0], **changed}
    given = changed.get("restore", {**facts, **changed})
    with pytest.raises(flight.FlightServerError, match=problem) as refused:
        put(connect(door, 0), command(topic="bad", restore=given, rows=3), ROWS)
    assert code_of(refused) == "bad-request"


def test_a_call_that_broke_off_restores_nothing(door: Served) -> None:
    channel, (facts,), _ = lost(door, "cut", ROWS)
    for words, problem in (({"rows": 4}, "cut-off"), ({}, "bad-request"), ({"rows": 3, "stage": "x"}, "bad-request")):
        with pytest.raises(flight.FlightServerError) as refused:
            put(connect(door, 0), command(topic="cut", restore=facts, **words), ROWS)
        assert code_of(refused) == problem
    assert channel.read("cut").num_rows == 0


def test_columns_of_rows_that_are_put_back_are_found_by_a_node_that_never_read_them(door: Served) -> None:
    channel, (first, second), _ = lost(door, "columns", ROWS, ROWS.drop_columns("text"))
    door.doors[0].services._catalogue._runs.clear()  # as after a restart
    channel.publish("columns", ROWS.drop_columns("text"))
    assert "text" not in channel.read("columns").column_names
    assert channel.restore("columns", ROWS, second)
    assert channel.restore("columns", ROWS, first)
    assert channel.read("columns")["text"].to_pylist() == [*ROWS["text"].to_pylist(), *[None] * 6]
