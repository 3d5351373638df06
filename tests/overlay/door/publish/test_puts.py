"""Publishes at a real door that used to go wrong: rows lost silently, silent clients, few bytes that are many rows."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.publish import puts
from m4cast.overlay.door.publish.acks import AckStream, AckThreads
from m4cast.overlay.door.rows import payload
from tests.overlay.door.plain import CALL, act, code_of, command, connect, get, path, put
from tests.overlay.door.publish.test_coalescing import Putting, until, waiting_for_acks
from tests.overlay.door.served import Served, serving

ROWS = pa.table({"n": [1]})
LARGE = pa.table({"b": [os.urandom(100_000)]})


def collecting(served: Served) -> Any:
    return served.doors[0].services.publishing._collecting


# ---- nothing is lost silently


def test_an_unacknowledged_publish_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, 1) as served, monkeypatch.context() as patch:
        here = connect(served, 0)
        patch.setattr(AckStream, "add", lambda *_: None)
        for descriptor in (path("t"), command(topic="t", stage="s")):
            for rows in (ROWS, pa.table({"n": list(range(20_000))})):
                with pytest.raises(flight.FlightInternalError, match=f"0 of {rows.num_rows} rows are safe") as error:
                    put(here, descriptor, rows)
                assert code_of(error) == "internal"


def test_a_publish_for_which_there_is_no_memory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise pa.ArrowMemoryError("none left")

    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        put(here, path("t"), ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(payload, "encode", broken)
            for rows in (ROWS, pa.table({"n": list(range(20_000))})):
                with pytest.raises(flight.FlightInternalError, match="see the node's log"):
                    put(here, path("t"), rows)
        assert put(here, path("t"), ROWS)[-1]["rows"] == 1
        until(lambda: not served.doors[0].services.publishing._quota._taken)


def test_a_publish_needs_no_thread_to_be_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the call's own sends what there is to say, when the client has written everything."""

    def broken(*_: object) -> Any:
        raise RuntimeError("can't start new thread")

    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        monkeypatch.setattr(AckThreads, "run", broken)
        for rows in (ROWS, pa.table({"n": list(range(20_000))})):
            assert put(here, path("t"), rows)[-1]["rows"] == rows.num_rows


def test_a_client_that_writes_on_is_acknowledged_meanwhile(tmp_path: Path) -> None:
    """It is also told in time that an answer will not come, though it has not said that it is done."""
    with serving(tmp_path, 1, one_is_away=True) as served:
        writer, acks = connect(served, 0).do_put(path("t"), ROWS.schema, CALL)
        for count in (1, 2):
            writer.write_table(ROWS)
            assert json.loads(acks.read().to_pybytes())["rows"] == count
        writer.close()
        hopeless = command(topic="t", acks=1, timeout_ms=700)
        writer, acks = connect(served, 0).do_put(hopeless, ROWS.schema, CALL)
        writer.write_table(ROWS)
        assert json.loads(acks.read().to_pybytes())["error"]["code"] == "timeout"
        with pytest.raises(flight.FlightError):
            writer.close()


def test_a_keyed_publish_hears_that_the_node_stops(tmp_path: Path) -> None:
    with serving(tmp_path, 1, one_is_away=True) as served:
        move = command(topic="t", key="k", next="1", rows=1, acks=1)
        writer, _ = connect(served, 0).do_put(move, ROWS.schema, CALL)
        writer.write_table(ROWS)
        writer.done_writing()
        until(lambda: waiting_for_acks(served) == 1)
        served.run(served.nodes[0].driver.stop())
        with pytest.raises(flight.FlightUnavailableError) as error:
            writer.close()
        assert code_of(error) == "stopping"


# ---- keyed calls hold what they have until it is all there


def test_a_silent_keyed_call_does_not_block_others(tmp_path: Path) -> None:
    limits = DoorLimits(queue_bytes_max=300_000, commit_bytes_max=1_000_000)
    with serving(tmp_path, 1, limits) as served:
        here = connect(served, 0)
        silent, _ = here.do_put(command(topic="t", key="silent", next="1", rows=9), LARGE.schema, CALL)
        for _ in range(8):
            silent.write_table(LARGE)
        until(lambda: sum(call.size for call in collecting(served)._late_at) > 800_000)
        assert put(here, path("t"), LARGE)[-1]["rows"] == 1
        assert put(here, command(topic="t", key="other", next="1", rows=1), LARGE)[-1]["rows"] == 1
        silent.write_table(LARGE)
        silent.close()
        assert act(here, "position", key="silent")["position"] == "1", "nobody needed its room"
        assert not collecting(served)._late_at


def test_a_keyed_call_that_keeps_others_waiting_is_refused_when_it_goes_on(tmp_path: Path) -> None:
    limits = DoorLimits(queue_bytes_max=300_000, commit_bytes_max=1_000_000)
    with serving(tmp_path, 1, limits) as served:
        collecting(served)._hold_s = 0
        here = connect(served, 0)
        fields = {"topic": "t", "next": "1"}
        silent, _ = here.do_put(command(**fields, key="silent", rows=4), LARGE.schema, CALL)
        for _ in range(3):
            silent.write_table(LARGE)
        until(lambda: sum(call.size for call in collecting(served)._late_at) > 300_000)
        other = pa.concat_tables([LARGE] * 3)
        assert put(here, command(**fields, key="other", rows=3), other)[-1]["rows"] == 3
        silent.write_table(LARGE)
        with pytest.raises(flight.FlightUnavailableError, match="while others waited for them") as error:
            silent.close()
        assert code_of(error) == "busy"
        assert act(here, "position", key="silent")["position"] is None


def test_large_keyed_publishes_at_a_time_all_succeed(tmp_path: Path) -> None:
    limits = DoorLimits(queue_bytes_max=600_000, commit_bytes_max=1_000_000)
    with serving(tmp_path, 1, limits) as served:
        all_hold = threading.Barrier(8)

        def publish(number: int) -> None:
            move = command(topic="t", key=f"k{number}", next="1", rows=9)
            writer, _ = connect(served, 0).do_put(move, LARGE.schema, CALL)
            with writer:
                writer.write_table(LARGE)
                all_hold.wait(30)
                for _ in range(8):
                    writer.write_table(LARGE)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        here = connect(served, 0)
        assert [act(here, "position", key=f"k{number}")["position"] for number in range(8)] == ["1"] * 8
        assert not collecting(served)._taken


# ---- few bytes, many rows


def test_a_record_batch_of_very_many_rows_becomes_batches_of_no_more_than_are_allowed(tmp_path: Path) -> None:
    count = 2 * payload.BATCH_ROWS_MAX + 1
    rows = pa.record_batch({"n": pa.nulls(count)})
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        assert put(here, path("unkeyed"), rows)[-1]["rows"] == count
        assert put(here, command(topic="keyed", key="k", next="1", rows=count), rows)[-1]["rows"] == count
        ids = put(here, command(topic="staged", stage="s"), rows)[-1]["stage_ids"]
        assert ids == ["s/0", "s/1", "s/2"]
        act(here, "commit", stage_ids=ids)
        for topic in ("unkeyed", "keyed", "staged"):
            batches = get(here, topic=topic, end="latest", read="raw")
            firsts, lasts = batches["first_sequence"].to_pylist(), batches["last_sequence"].to_pylist()
            assert [last - first + 1 for first, last in zip(firsts, lasts, strict=True)] == [
                payload.BATCH_ROWS_MAX,
                payload.BATCH_ROWS_MAX,
                1,
            ]
            read = get(here, topic=topic, end="latest", metadata="batches")
            assert read.num_rows == count
            assert max(map(len, read["n"].chunks)) == payload.PIECE_ROWS_MAX


def test_a_record_batch_of_more_rows_than_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = payload.BATCH_ROWS_MAX + 1
    monkeypatch.setattr(puts, "PUT_ROWS_MAX", most)
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        assert put(here, path("t"), pa.record_batch({"n": pa.nulls(most)}))[-1]["rows"] == most
        with pytest.raises(flight.FlightServerError, match="send at most") as error:
            put(here, path("t"), pa.record_batch({"n": pa.nulls(most + 1)}))
        assert code_of(error) == "too-large"


def test_rows_without_bytes_are_not_put_together_without_end(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        rows = pa.Table.from_batches([pa.record_batch({"n": pa.nulls(50_000)})] * 50)
        assert put(here, path("t"), rows)[-1]["rows"] == 2_500_000
        batches = get(here, topic="t", end="latest", read="raw")
        firsts, lasts = batches["first_sequence"].to_pylist(), batches["last_sequence"].to_pylist()
        assert max(last - first + 1 for first, last in zip(firsts, lasts, strict=True)) <= payload.BATCH_ROWS_MAX


def test_dictionaries_are_weighed_by_what_they_stand_for(tmp_path: Path) -> None:
    def coded(count: int) -> pa.Table:
        indices = pa.array([0] * count, pa.int8())
        return pa.table({"s": pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000]))})

    with serving(tmp_path, 1, DoorLimits(batch_bytes_max=1_000_000)) as served:
        here = connect(served, 0)
        for fields in ({}, {"key": "k", "next": "1", "rows": 1_100}, {"stage": "s"}):
            with pytest.raises(
                flight.FlightServerError, match="a record batch of 1100 rows has 1104400 bytes"
            ) as error:
                put(here, command(topic="t", **fields), coded(1_100))
            assert code_of(error) == "too-large"
        others = [Putting(served, coded(900), topic="t") for _ in range(4)]
        others += [Putting(served, pa.table({"s": ["small"]}), topic="t") for _ in range(4)]
        for call in others:
            call.done()
            assert call.error is None
        assert get(here, topic="t", end="latest").num_rows == 4 * 901
