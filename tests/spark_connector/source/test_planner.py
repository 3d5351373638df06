"""Contents of a micro-batch, and how ranges are split."""

from random import Random

import pytest

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import SEQUENCE_MAX, Frontier, StreamName
from m4cast.spark_connector.source.planner import PARTITIONS_MAX, SequenceSpan, fair_share, rows_of_bytes, spans

A, B, C = (StreamName("t", letter * 32) for letter in "abc")


def test_a_limit_that_is_not_reached_takes_everything() -> None:
    assert fair_share({A: 3, B: 4}, 7) == {A: 3, B: 4}


def test_a_long_backlog_does_not_crowd_out_a_short_one() -> None:
    assert fair_share({A: 1_000_000, B: 10, C: 1_000}, 100) == {A: 45, B: 10, C: 45}


def test_fewer_rows_than_streams_go_to_the_longest_backlogs() -> None:
    assert fair_share({A: 5, B: 9, C: 7}, 2) == {B: 1, C: 1}


def test_shares_add_up_to_the_limit_and_none_is_more_than_wanted() -> None:
    random = Random(5)
    for _ in range(300):
        wanted = {StreamName("t", f"{at:032x}"): random.randint(1, 50) for at in range(random.randint(1, 9))}
        limit = random.randint(1, 200)
        shares = fair_share(wanted, limit)
        assert sum(shares.values()) == min(limit, sum(wanted.values()))
        assert all(0 < share <= wanted[stream] for stream, share in shares.items())


def test_bytes_are_shared_by_the_size_of_rows() -> None:
    assert rows_of_bytes({A: 1_000, B: 1_000}, {A: 100.0, B: 10.0}, 2_000) == {A: 10, B: 100}


def test_a_row_that_is_larger_than_the_limit_is_taken_alone() -> None:
    assert rows_of_bytes({A: 4, B: 9}, {A: 1e6, B: 1e6}, 10) == {B: 1}


def test_a_range_is_split_by_stream_and_size() -> None:
    start: Frontier = {"t": {A.origin: 11}}
    end: Frontier = {"t": {A.origin: 21, B.origin: 3}}
    assert spans(start, end, max_rows=4) == [
        SequenceSpan("t", A.origin, 11, 14),
        SequenceSpan("t", A.origin, 14, 17),
        SequenceSpan("t", A.origin, 17, 21),
        SequenceSpan("t", B.origin, 1, 3),
    ]


def test_nothing_between_is_no_partition() -> None:
    assert spans({"t": {A.origin: 5}}, {"t": {A.origin: 5}}, max_rows=1) == []


def test_an_end_that_is_out_of_reach_is_refused_and_not_planned() -> None:
    with pytest.raises(ConnectorError, match=rf"M4CAST_TOO_MANY_PARTITIONS.*'t', origin {A.origin}: correct ending"):
        spans({}, {"t": {A.origin: SEQUENCE_MAX, B.origin: 5}}, max_rows=4_000_000)
    most: Frontier = {"t": {A.origin: 2 * PARTITIONS_MAX + 1}}
    assert len(spans({}, most, max_rows=2)) == PARTITIONS_MAX
    with pytest.raises(ConnectorError, match="100001 partitions"):
        spans({}, {"t": {A.origin: 2 * PARTITIONS_MAX + 2}}, max_rows=2)


@pytest.mark.parametrize(("min_partitions", "planned"), [(1, 2), (3, 3), (7, 7), (12, 12), (100, 12)])
def test_there_are_as_many_partitions_as_asked_for_if_there_are_rows(min_partitions: int, planned: int) -> None:
    end: Frontier = {"t": {A.origin: 11, B.origin: 3}}
    assert len(spans({}, end, min_partitions=min_partitions, max_rows=1_000)) == planned


def test_partitions_cover_every_row_once_in_order() -> None:
    random = Random(6)
    for _ in range(300):
        start: Frontier = {"t": {f"{at:032x}": random.randint(1, 30) for at in range(3)}}
        end: Frontier = {"t": {f"{at:032x}": random.randint(1, 60) for at in range(4)}}
        planned = spans(start, end, min_partitions=random.randint(1, 20), max_rows=random.randint(1, 40))
        rows = [(span.origin, row) for span in planned for row in range(span.first, span.next)]
        wanted = [(origin, row) for origin in end["t"] for row in range(start["t"].get(origin, 1), end["t"][origin])]
        assert rows == wanted
        assert all(span.rows for span in planned)
