"""A histogram with fixed bounds: plain numbers that one thread adds to and any other may read.

`add` is for hot paths: a search among a dozen bounds and two additions. A concurrent reader may find the sum one value
short of the counts; neither ever decreases.
"""

from bisect import bisect_left


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: the highest value of each bucket, ascending; one more bucket takes what is above them all."""
        self.bounds = bounds
        self.sum: float = 0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def counts(self) -> list[int]:
        """Values in each bucket, as many as there are bounds and one more."""
        return list(self._counts)
