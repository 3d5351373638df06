"""Marks against a plain list of versions, position by position."""

from hypothesis import given, settings
from hypothesis import strategies as st

from m4cast.overlay.protocol.selective.marks import ENDLESS, HELD, MARKS_MAX, Marks

LAST = 40
RAISES = st.lists(
    st.tuples(st.integers(1, LAST), st.integers(0, 12), st.one_of(st.integers(1, 6), st.just(HELD))), max_size=20
)


def _both(raises: list[tuple[int, int, int]]) -> tuple[Marks, list[int]]:
    marks, plain = Marks(), [0] * (LAST + 20)
    for first, size, version in raises:
        before = list(plain)
        for position in range(first, first + size):
            plain[position] = max(plain[position], version)
        assert marks.raise_to(first, first + size, version) is (plain != before)
    return marks, plain


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(RAISES)
def test_marks_are_the_greatest_version_that_each_position_was_raised_to(raises: list[tuple[int, int, int]]) -> None:
    marks, plain = _both(raises)
    assert [marks.at(position) for position in range(1, len(plain))] == plain[1:]
    assert marks.end == max((position + 1 for position in range(1, len(plain)) if plain[position]), default=1)
    assert Marks(marks.runs()) == marks.copy() == marks


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(RAISES, st.integers(1, LAST), st.integers(1, 6))
def test_the_first_unsettled_and_the_first_settled_position(
    raises: list[tuple[int, int, int]], position: int, version: int
) -> None:
    marks, plain = _both(raises)
    below = next(each for each in range(position, len(plain)) if plain[each] < version)
    settled = next((each for each in range(position, len(plain)) if plain[each] >= version), ENDLESS)
    assert marks.first_below(position, version) == below
    assert marks.settled_from(position, version) == settled


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(RAISES, st.sets(st.integers(1, 6)))
def test_rounding_changes_coverage_of_no_registration(raises: list[tuple[int, int, int]], joins: set[int]) -> None:
    marks, _ = _both(raises)
    rounded = marks.copy()
    rounded.settle(joins)
    assert len(rounded) <= len(marks)
    for join in joins:
        assert [rounded.first_below(each, join) for each in range(1, LAST)] == [
            marks.first_below(each, join) for each in range(1, LAST)
        ]


def test_filtered_batches_without_end_cost_one_mark() -> None:
    """H26."""
    marks = Marks()
    for first in range(1, 200_001, 2):
        marks.raise_to(first, first + 1, 3)
        marks.raise_to(first + 1, first + 2, HELD)
        marks.settle((1, 2))
    assert marks.runs() == ((1, 2), (200_001, 0))


def test_holes_beyond_the_limit_are_forgotten_from_the_far_end() -> None:
    marks = Marks()
    for first in range(1, 4 * MARKS_MAX, 2):
        marks.raise_to(first, first + 1, 1)
    marks.settle((1,))
    assert len(marks) <= MARKS_MAX
    assert marks.at(1) == 1
    assert marks.end < 2 * MARKS_MAX
