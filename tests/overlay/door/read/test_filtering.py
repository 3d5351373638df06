"""Filtered reads: exactly the rows that match, and a certificate for what lies between them."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m4cast.overlay.door.access.rights import EVERYTHING, Caller
from m4cast.overlay.door.read import filtering, portions, stream_answer
from m4cast.overlay.door.read.portions import spared
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Form, Get
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Condition, parse
from m4cast.overlay.profiles.summary import Summary
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Kept, SummarisedBatch
from tests.overlay.door.read.filtered_parts import FilteredStore, filtered_store, sequences_of, where_of
from tests.overlay.door.read.test_reading import arrow_batch
from tests.overlay.protocol.stream_parts import chain, stream_id

A, B = stream_id("o", "t"), stream_id("p", "t")
FEW = parse("n = 3")
NONE = parse("n = -1")
ALL = parse("TRUE")


def numbers(first: int, count: int = 4) -> pa.RecordBatch:
    return pa.record_batch({"n": [at % 10 for at in range(first, first + count)]})


def between(first: int, until: int, **more: Any) -> Get:
    return Get(**{"topics": ("t",), "start": {A: first}, "end": {A: until}, "profile": FEW, **more})


def tail(**more: Any) -> Get:
    return Get(**{"topics": ("t",), "start": {}, "end": None, "profile": FEW, "idle_s": 0.05, **more})


@pytest.fixture
def certificate_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_answer, "CERTIFY_S", 0)
    monkeypatch.setattr(stream_answer, "EARLY_S", 0)


# ---- exactness

COLUMNS = {
    "n": st.one_of(st.none(), st.integers(-3, 3)),
    "f": st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
    "s": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "load network", "é"])),
    "b": st.one_of(st.none(), st.booleans()),
}
TYPES = {"n": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_()}
FILTERS = [
    "n = 3",
    "n > 0 AND s LIKE 'a%'",
    "n IS NULL OR f > 1",
    "NOT b",
    "words(s, 'network')",
    "absent IS NULL AND n < 2",
    "absent = 1",
    "f = double('NaN') OR s IN ('ab', 'é')",
    "TRUE",
]


@st.composite
def contents(draw: st.DrawFn) -> list[pa.RecordBatch | int]:
    """Batches of changing columns, and rows that were lost."""
    found: list[pa.RecordBatch | int] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            found.append(draw(st.integers(1, 3)))
            continue
        count = draw(st.integers(1, 8))
        names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
        columns = {
            name: pa.array(draw(st.lists(COLUMNS[name], min_size=count, max_size=count)), TYPES[name]) for name in names
        }
        found.append(pa.record_batch(columns))
    return found


@settings(max_examples=40, deadline=None)
@given(contents(), st.sampled_from(FILTERS), st.sampled_from([1, 200, 1 << 20]), st.data())
def test_a_filtered_range_has_exactly_the_rows_that_match(
    written: list[pa.RecordBatch | int], text: str, chunk_bytes: int, data: st.DataObject
) -> None:
    profile = parse(text)
    with filtered_store(chunk_bytes=chunk_bytes) as here:
        for content in written:
            names = data.draw(st.lists(st.sampled_from([*COLUMNS, "absent"]), unique=True))
            here.publish(A, content, summarised=names, damaged=data.draw(st.booleans()))
        end = here.frontiers.positions(("t",))[A]
        first = data.draw(st.integers(1, end))
        until = data.draw(st.integers(first, end))
        schema, found = here.read(between(first, until, profile=profile, skip_missing=True))
        pieces = list(found)
        expected = [at for at in here.matching(A, profile) if first <= at < until]
        assert sequences_of(pieces) == expected
        published = dict(here.rows.get(A, []))
        for row in pa.Table.from_batches([rows for rows, _ in pieces], schema).to_pylist():
            of_payload = {name: value for name, value in row.items() if not name.startswith("_")}
            known = published[row["_sequence"]]
            assert repr(of_payload) == repr({name: known.get(name) for name in of_payload})
        if until > first:
            assert where_of(pieces[-1])["next"] == until, "all of the range is certified"
            assert sum(where_of(piece)["tested"] for piece in pieces) == sum(first <= at < until for at in published)


@settings(max_examples=25, deadline=None)
@given(contents(), contents(), st.sampled_from(FILTERS), st.sampled_from([1, 1 << 20]))
def test_a_filtered_tail_resumed_where_it_ends_has_exactly_the_rows_that_match(
    written: list[pa.RecordBatch | int], more: list[pa.RecordBatch | int], text: str, chunk_bytes: int
) -> None:
    """It ends when a batch with new columns matches, as every tail does."""
    profile = parse(text)
    with filtered_store(chunk_bytes=chunk_bytes) as here:
        here.publish(A, *written)
        here.publish(B, *written)
        at: dict[Any, int] = {}
        found: dict[Any, list[int]] = {A: [], B: []}

        def follow() -> None:
            _, pieces = here.read(tail(start=dict(at), profile=profile, skip_missing=True, idle_s=0.001))
            for piece in pieces:
                where = where_of(piece)
                stream = A if where["origin"] == A.origin.hex() else B
                assert where["next"] > at.get(stream, 1), "it advances with every piece"
                at[stream] = where["next"]
                found[stream] += sequences_of([piece])

        follow()
        here.publish(A, *more)
        while at != here.frontiers.positions(("t",)):
            follow()
        assert found == {A: here.matching(A, profile), B: here.matching(B, profile)}


def test_rows_of_a_range_have_the_columns_of_the_channel(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0), numbers(4), numbers(8, 10))
        schema, pieces = here.read(between(1, 19))
        rows = pa.Table.from_batches([rows for rows, _ in pieces], schema).to_pylist()
        assert [(row["_topic"], row["_origin"], row["_sequence"]) for row in rows] == [
            ("t", A.origin.hex(), 4),
            ("t", A.origin.hex(), 14),
        ]
        assert rows[0]["_published_at"].timestamp() == 0.007


def test_with_metadata_of_batches_rows_have_what_differs_between_them(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0), numbers(4), numbers(8, 10))
        schema, pieces = here.read(between(1, 19, form="batches"))
        assert schema.names == ["n", "_sequence", "_published_at", "_delivered_at", "_hops"]
        (piece,) = pieces
        assert piece[0]["_sequence"].to_pylist() == [4, 14], "of two batches, in one piece"
        assert piece[0]["_hops"].type == pa.int32()
        assert where_of(piece) == {
            "topic": "t",
            "origin": A.origin.hex(),
            "next": 19,
            "profile": FEW.id.hex(),
            "tested": 18,
            "node_id": "here",
            "channel": "m4cast/test",
        }


@pytest.mark.parametrize("end", [{A: 25}, None], ids=["range", "tail"])
def test_raw_batches_that_have_a_match_are_given_whole(tmp_path: Path, end: dict[Any, int] | None) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, *(numbers(first) for first in range(0, 20, 4)))
        here.append(seal(replace(chain(1, stream=A)[0], first_sequence=21, row_count=4, payload=b"not Arrow")))
        here.frontiers.advance({A: 25})
        _, found = here.read(between(1, 25, form="raw", end=end, idle_s=0.01))
        pieces = [piece for piece in found if piece[0].num_rows]
        firsts = [rows["first_sequence"][0].as_py() for rows, _ in pieces]
        assert firsts == [1, 13, 21], "those with a 3, and one that cannot be read: any doubt is a match"
        assert [where_of(piece)["next"] for piece in pieces] == [5, 17, 25]
        assert [where_of(piece)["tested"] for piece in pieces] == [4, 12, 8]


def test_a_column_of_another_type_at_another_origin_is_tested_by_its_own(tmp_path: Path) -> None:
    """Rows of both are in no answer, unless it is raw."""
    profile = parse("n = '3' OR n > 4")
    with filtered_store(tmp_path) as here:
        here.publish(A, pa.record_batch({"n": [3, 10, 4]}), summarised=["n"])
        here.publish(B, pa.record_batch({"n": ["3", "10", "3.0"]}), summarised=["n"])
        for stream, expected in ((A, [1, 2]), (B, [1])):
            pieces = list(here.read(Get(topics=("t",), start={}, end={stream: 4}, profile=profile))[1])
            assert sequences_of(pieces) == expected
        both = Get(topics=("t",), start={}, end={A: 4, B: 4}, profile=profile)
        with pytest.raises(Refusal, match=r"column 'n' is int64 .* and string ") as refused:
            here.read(both)
        assert refused.value.code == "schema-conflict"
        _, raw_pieces = here.read(replace(both, form="raw"))
        assert {where_of(piece)["origin"] for piece in raw_pieces if piece[0].num_rows} == {
            A.origin.hex(),
            B.origin.hex(),
        }


def test_a_batch_that_cannot_be_read_is_refused_after_what_precedes_it(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0), numbers(4))
        wrong = arrow_batch(chain(1, stream=A)[0], numbers(8), 9)
        here.append(seal(replace(wrong, payload=bytes(wrong.content)[:-64])))
        here.frontiers.advance({A: 13})
        _, pieces = here.read(between(1, 13))
        assert sequences_of([next(pieces)]) == [4]
        with pytest.raises(Refusal, match="batch at 9 cannot be read as Arrow"):
            list(pieces)


def test_offsets_that_go_astray_are_refused_before_a_row_is_taken(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 1 << 30, 1, 1], pa.int32())
    text = pa.StringArray.from_buffers(4, offsets.buffers()[1], pa.py_buffer(b"x"))
    for profile in (FEW, parse("s = 'x'")):
        with filtered_store(tmp_path / profile.id.hex()) as here:
            here.publish(A, numbers(0), pa.record_batch({"n": [3, 3, 3, 3], "s": pa.array(list("abcd"))}))
            wrong = arrow_batch(chain(1, stream=A)[0], pa.record_batch({"n": [3, 3, 3, 4], "s": text}), 9)
            here.append(wrong)
            here.frontiers.advance({A: 13})
            with pytest.raises(Refusal, match="batch at 9 cannot be read as Arrow"):
                list(here.read(between(1, 13, profile=profile))[1])


def test_rows_that_are_not_retained_are_refused_or_skipped(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0), 4, numbers(8, 8))
        with pytest.raises(Refusal, match="rows 5 to 8 are not retained"):
            list(here.read(between(1, 17))[1])
        pieces = list(here.read(between(1, 17, skip_missing=True))[1])
        assert sequences_of(pieces) == [4, 14]
        assert sum(where_of(piece)["tested"] for piece in pieces) == 12, "what is not there is not tested"


# ---- summaries


def counted_payloads(here: FilteredStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first sequences of batches whose payload was read."""
    read: list[int] = []
    original = here.store.read_kept

    def read_kept(stream: StreamId, first: int, until: int, bytes_max: int) -> tuple[Kept, ...]:
        found = original(stream, first, until, bytes_max)
        read.extend(kept.batch.first_sequence for kept in found)
        return found

    monkeypatch.setattr(here.store, "read_kept", read_kept)
    return read


@pytest.mark.parametrize("form", ["rows", "batches", "raw"])
@pytest.mark.parametrize("is_tail", [False, True])
def test_batches_that_their_summary_rules_out_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form, is_tail: bool
) -> None:
    with filtered_store(tmp_path) as here:
        for first in range(0, 40, 4):
            batch = pa.record_batch({"n": list(range(first, first + 4)), "m": [0] * 4})
            here.publish(A, batch, summarised=["n"])
        end = None if is_tail else {A: 41}
        get = between(2, 41, profile=parse("n = 13 OR n = 30"), form=form, end=end, idle_s=0.01)
        _, found = here.read(get)
        read = counted_payloads(here, monkeypatch)
        pieces = list(found)
        assert read == [13, 29]
        assert sum(where_of(piece)["tested"] for piece in pieces) == 39, "what a summary decides is tested"
        if form == "raw":
            assert [rows["first_sequence"][0].as_py() for rows, _ in pieces if rows.num_rows] == [13, 29]
        else:
            assert sequences_of(pieces) == [14, 31]


def test_where_summaries_rule_nothing_out_few_are_looked_at_until_one_does() -> None:
    looked: list[int] = []

    def rules_out(head: SummarisedBatch) -> bool:
        looked.append(head.first_sequence)
        return head.first_sequence >= 50

    sparing = spared(rules_out)
    found = [sparing(SummarisedBatch(at, at + 1, 0, None)) for at in range(80)]
    assert looked == [*range(8), 15, 31, 47, *range(63, 80)]
    assert found == [False] * 63 + [True] * 17, "at most fifteen batches are tested in vain when matches end"


def test_a_tail_remembers_from_turn_to_turn_that_summaries_do_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "TURN_S", 0)  # each batch is a turn
    looked = 0

    def matches(condition: Condition, summary: Summary) -> bool:
        nonlocal looked
        looked += 1
        return True

    monkeypatch.setattr(portions, "may_match", matches)
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        for stream in (A, B):
            here.publish(stream, *(numbers(first) for first in range(0, 160, 4)), summarised=["n"])
        assert len(sequences_of(list(here.read(tail())[1]))) == 32
    assert 2 * 8 <= looked < 2 * 80, "of 40 batches; eight anew in each turn would be 652"


@pytest.mark.parametrize("form", ["rows", "batches"])
def test_a_batch_of_which_all_rows_match_is_given_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    whole, part = numbers(0, 5_000), pa.record_batch({"n": [3, None] * 2_500})
    numbered = 0

    def flatnonzero(mask: Any) -> Any:
        nonlocal numbered
        numbered += 1
        return original(mask)

    original = np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", flatnonzero)
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, whole, part, whole)
        pieces = list(here.read(between(1, 15_001, profile=parse("n >= 0"), form=form))[1])
        assert sequences_of(pieces) == [*range(1, 5_001), *range(5_001, 10_001, 2), *range(10_001, 15_001)]
        assert pa.concat_tables(pa.Table.from_batches([rows]) for rows, _ in pieces)["n"].to_pylist() == [
            *whole["n"].to_pylist(),
            *[3] * 2_500,
            *whole["n"].to_pylist(),
        ]
        assert numbered == 1, "rows are singled out in the batch alone that has others"
        numbered = 0
        assert sequences_of(list(here.read(between(2, 5_000, profile=parse("n >= 0")))[1])) == list(range(2, 5_000))
        assert numbered == 1, "nor is a batch whole of which a part is asked for"


def test_a_column_that_is_not_summarised_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0), summarised=["other"])
        here.publish(A, numbers(4), summarised=["n"], damaged=True)
        _, found = here.read(between(1, 9))
        read = counted_payloads(here, monkeypatch)
        assert sequences_of(list(found)) == [4]
        assert read == [1, 5]


def test_publishers_hear_which_columns_are_filtered_by(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0))
        list(here.read(between(1, 5, profile=parse("n = 1 AND a.b IS NULL")))[1])
        assert set(here.columns.of("t")) == {("n",), ("a", "b")}


# ---- certificates


@pytest.mark.usefixtures("certificate_after_every_step")
def test_long_stretches_without_a_match_are_certified_on_the_way(tmp_path: Path) -> None:
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, *(numbers(first) for first in range(0, 12, 4)))
        pieces = list(here.read(between(1, 13, profile=NONE))[1])
        assert [rows.num_rows for rows, _ in pieces] == [0, 0, 0]
        assert [where_of(piece)["next"] for piece in pieces] == [5, 9, 13]
        assert {where_of(piece)["profile"] for piece in pieces} == {NONE.id.hex()}


def test_the_end_of_an_answer_certifies_every_stream(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0))
        here.publish(B, numbers(0, 2))
        for get in (tail(profile=NONE), tail(profile=NONE, end={A: 5, B: 3})):
            pieces = list(here.read(get)[1])
            assert {where_of(piece)["origin"]: where_of(piece)["next"] for piece in pieces} == {
                A.origin.hex(): 5,
                B.origin.hex(): 3,
            }


@pytest.mark.usefixtures("certificate_after_every_step")
@pytest.mark.parametrize("is_tail", [False, True])
def test_a_reader_killed_after_any_piece_continues_with_the_next_match(tmp_path: Path, is_tail: bool) -> None:
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, *(numbers(first, 7) for first in range(0, 70, 7)))
        expected = here.matching(A, FEW)
        get = tail() if is_tail else between(1, 71)
        pieces = list(here.read(get)[1])
        assert sequences_of(pieces) == expected
        for count in range(len(pieces) + 1):
            taken = list(itertools.islice(here.read(get)[1], count))
            begin = where_of(taken[-1])["next"] if taken else 1
            rest = list(here.read(replace(get, start={A: begin}))[1])
            assert sequences_of(taken) + sequences_of(rest) == expected
            tested = sum(where_of(piece)["tested"] for piece in (*taken, *rest))
            assert tested == 70, "nothing is tested twice"


def test_an_answer_of_many_matches_is_split_and_each_part_certified(tmp_path: Path) -> None:
    many = pa.record_batch({"n": pa.array([3] * 150_000, pa.int8()), "s": ["x" * 50] * 150_000})
    with filtered_store(tmp_path) as here:
        here.publish(A, many)
        pieces = list(here.read(between(1, 150_001))[1])
        assert len(pieces) > 1
        assert sequences_of(pieces) == list(range(1, 150_001))
        nexts = [where_of(piece)["next"] for piece in pieces]
        assert nexts == list(itertools.accumulate((rows.num_rows for rows, _ in pieces), initial=1))[1:]


def test_small_matches_of_several_batches_are_joined(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, *(numbers(first, 10) for first in range(0, 1000, 10)))
        pieces = list(here.read(between(1, 1001))[1])
        assert len(sequences_of(pieces)) == 100
        assert len(pieces) <= 2


# ---- sharing the machine


@pytest.mark.usefixtures("certificate_after_every_step")
def test_a_filter_yields_after_so_many_rows_or_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "SLICE_ROWS", 8)
    with filtered_store(tmp_path) as here:
        here.publish(A, *(numbers(0, count) for count in (4, 4, 4, 5, 9, 1)))
        pieces = list(here.read(between(1, 28, profile=NONE))[1])
        assert [where_of(piece)["tested"] for piece in pieces] == [8, 4, 5, 9, 1]


@pytest.mark.parametrize("form", ["rows", "raw"])
def test_a_filter_without_matches_notices_that_its_client_is_gone(tmp_path: Path, form: Form) -> None:
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, *(numbers(first) for first in range(0, 40, 4)))
        looks = iter([False, False, True])
        caller = Caller("someone", EVERYTHING, lambda: next(looks))
        get = between(1, 41, profile=NONE, form=form)
        _, pieces = here.filtered.read(get, {"t": NONE}, caller, {})
        with pytest.raises(Refusal) as refused:
            list(pieces)
        assert refused.value.code == "cancelled"
        assert next(looks, None) is None


def test_a_filter_without_matches_ends_when_the_node_stops(tmp_path: Path) -> None:
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, *(numbers(first) for first in range(0, 40, 4)))
        _, pieces = here.read(between(1, 41, profile=NONE))
        here.frontiers.close()
        with pytest.raises(Refusal) as refused:
            list(pieces)
        assert refused.value.code == "stopping"


def test_the_cpu_time_of_filters_is_counted_by_client(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0))
        list(here.read(between(1, 5))[1])
        assert here.cpu.so_far()["someone"] > 0


def test_a_client_past_its_budget_pauses_and_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filtered_store(tmp_path, chunk_bytes=1) as here:
        here.publish(A, *(numbers(first) for first in range(0, 20, 4)))
        pauses: list[float] = []
        monkeypatch.setattr(here.frontiers, "wait_closed", pauses.append)
        list(here.read(between(1, 21))[1])
        assert not pauses, "without a budget"
        pieces = list(here.read(between(1, 21), replace(EVERYTHING, filter_cpu=1e-6))[1])
        assert sequences_of(pieces) == [4, 14]
        assert pauses


def test_a_filter_on_a_topic_of_several_streams_shares_no_state(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, numbers(0))
        here.publish(B, numbers(3))
        pieces = list(here.read(Get(topics=("t",), start="earliest", end="latest", profile=FEW))[1])
        assert [(where_of(piece)["origin"], sequences_of([piece])) for piece in pieces] == [
            (A.origin.hex(), [4]),
            (B.origin.hex(), [1]),
        ]
