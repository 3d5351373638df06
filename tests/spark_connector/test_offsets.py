"""Arithmetic of frontiers."""

import json
from typing import Any

import pytest

from m4cast.spark_connector import offsets
from m4cast.spark_connector.offsets import Frontier, StreamName

A, B = "a" * 32, "b" * 32


def test_a_frontier_from_outside_is_taken_sorted() -> None:
    said = json.loads(json.dumps({"t": {B: 2, A: 1}, "s": {A: 9}}))
    assert json.dumps(offsets.parse_frontier(said)) == json.dumps({"s": {A: 9}, "t": {A: 1, B: 2}})
    assert offsets.parse_frontier({}) == {}


@pytest.mark.parametrize(
    "said",
    [[], "latest", 5, {"t": 1}, {"": {A: 1}}, {"t": {"x": 1}}, {"t": {A: 0}}, {"t": {A: True}}, {"t": {A: 2**62}}],
)
def test_what_is_no_frontier_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        offsets.parse_frontier(said)


def test_a_stream_that_is_not_named_stands_at_its_first_row() -> None:
    assert offsets.position({"t": {A: 7}}, StreamName("t", A)) == 7
    assert offsets.position({"t": {A: 7}}, StreamName("t", B)) == 1
    assert offsets.position({}, StreamName("t", A)) == 1


def test_maximum_is_by_stream() -> None:
    one: Frontier = {"t": {A: 7, B: 2}}
    other: Frontier = {"t": {A: 3}, "u": {A: 5}}
    assert offsets.maximum(one, other) == {"t": {A: 7, B: 2}, "u": {A: 5}}


def test_rows_between_counts_only_what_lies_ahead() -> None:
    start: Frontier = {"t": {A: 5, B: 9}}
    end: Frontier = {"t": {A: 8, B: 7}, "u": {A: 4}}
    assert offsets.rows_between(start, end) == {StreamName("t", A): 3, StreamName("u", A): 3}


def test_advancing_by_the_rows_between_arrives_at_the_end() -> None:
    start: Frontier = {"t": {A: 5}}
    end: Frontier = {"t": {A: 8, B: 3}, "u": {A: 4}}
    assert offsets.advanced(start, offsets.rows_between(start, end)) == end


def test_topics_that_are_not_read_are_left_out() -> None:
    assert offsets.of_topics({"t": {A: 1}, "u": {A: 2}}, ("u",)) == {"u": {A: 2}}


def test_a_topic_of_any_name_is_no_skip() -> None:
    frontier: Frontier = {"_skips": {A: 4}, "skips": {B: 2}}
    assert offsets.without_skips(offsets.with_skips(frontier, {StreamName("_skips", A): (1, 3)})) == frontier
    assert offsets.skips_of(dict(frontier)) == {}


def test_what_was_passed_over_is_beside_the_frontier() -> None:
    start: Frontier = {"t": {A: 4, B: 2}}
    skips = {StreamName("t", A): (4, 11), StreamName("u", B): (1, 3)}
    offset = json.loads(json.dumps(offsets.with_skips({"t": {A: 12}}, skips)))
    assert offset == {"t": {A: 12}, "": {"t": {A: [4, 11]}, "u": {B: [1, 3]}}}
    assert offsets.without_skips(offset) == {"t": {A: 12}}
    assert offsets.skips_of(offset) == skips
    assert offsets.after_skips(start, skips) == {"t": {A: 11, B: 2}, "u": {B: 3}}
    assert offsets.with_skips(start, {}) == start and offsets.skips_of(start) == {}
