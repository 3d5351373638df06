"""Begin and end of reads over nodes that keep different parts of a stream."""

from m4cast.spark_connector.offsets import StreamName
from m4cast.spark_connector.source.edges import Holding, at_time, earliest, latest

A, B = StreamName("t", "a" * 32), StreamName("t", "b" * 32)


def test_earliest_is_what_any_node_keeps() -> None:
    holdings = [Holding({A: (271, 301)}), Holding({A: (1, 301), B: (5, 5)}), Holding({})]
    assert earliest(holdings) == {"t": {A.origin: 1, B.origin: 5}}
    assert earliest([]) == {}


def test_latest_is_what_any_node_has() -> None:
    assert latest([Holding({A: (1, 10)}), Holding({A: (3, 12), B: (1, 2)})]) == {"t": {A.origin: 12, B.origin: 2}}


def test_a_time_is_the_first_row_that_any_node_keeps_from_then_on() -> None:
    trimmed, whole = Holding({A: (271, 301)}, {50: {A: 271}}), Holding({A: (1, 301)}, {50: {A: 90}})
    assert at_time([trimmed, whole], 50) == at_time([whole, trimmed], 50) == {"t": {A.origin: 90}}


def test_a_node_without_such_rows_says_nothing_about_those_that_others_have() -> None:
    behind, ahead = Holding({A: (1, 101)}, {50: {A: 101}}), Holding({A: (1, 301)}, {50: {A: 150}})
    assert at_time([behind, ahead], 50) == {"t": {A.origin: 150}}
    assert at_time([behind, Holding({A: (1, 90)}, {50: {A: 90}})], 50) == {"t": {A.origin: 101}}, "none is that late"


def test_after_a_clock_was_set_back_no_node_hides_the_rows_of_another() -> None:
    """Rows 5 and 280 were published at 50 or later, those between before: the clock went back."""
    trimmed, whole = Holding({A: (271, 301)}, {50: {A: 280}}), Holding({A: (1, 301)}, {50: {A: 5}})
    assert at_time([trimmed, whole], 50) == {"t": {A.origin: 5}}


def test_an_origin_that_publishes_between_two_questions_is_of_the_next_read() -> None:
    assert at_time([Holding({A: (1, 3)}, {50: {A: 2, B: 1}})], 50) == {"t": {A.origin: 2}}
    assert at_time([Holding({A: (1, 3), B: (1, 2)}, {50: {A: 5}})], 50) == {"t": {A.origin: 5, B.origin: 2}}
