"""A histogram: each value is in the bucket of the first bound that it does not exceed."""

from m4cast.overlay.histogram import Histogram


def test_a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram((1, 2.5, 10))
    for value in (0, 1, 1.1, 2.5, 10, 10.1, 1e9):
        histogram.add(value)
    assert histogram.counts() == [2, 2, 1, 2]
    assert histogram.sum == 0 + 1 + 1.1 + 2.5 + 10 + 10.1 + 1e9


def test_counts_that_were_read_do_not_change() -> None:
    histogram = Histogram((1,))
    before = histogram.counts()
    histogram.add(0)
    assert (before, histogram.counts()) == ([0, 0], [1, 0])
