"""The estimated diameter of the graph: how long a random walk has to be.

The first copy of anything flooded shows a distance; a larger one raises the estimate and is sent to all neighbours. The
estimate is 1 in a complete graph, and never more than the number of nodes allows: it falls when they become fewer, at
each node by its own roster (the patents flood a reset).
"""

from math import ceil, log

DIAMETER_MAX = 64


class Diameter:
    def __init__(self, degree: int) -> None:
        self.estimate = 1
        self.population = 1
        """The number of nodes that the roster knows."""
        self._degree = degree

    def cap(self) -> int:
        """Late first copies over slow links overstate the diameter (measured: 14 for 6 at N = 100)."""
        reach = ceil(log(max(self.population, 2)) / log(self._degree - 1))
        return min(DIAMETER_MAX, 2 * reach + 2)

    def resize(self, population: int) -> None:
        """The roster knows this many nodes now. If there are fewer than before, the estimate may fall."""
        shrinks, self.population = population < self.population, population
        if shrinks:
            self.estimate = min(self.estimate, self.cap())

    def rises_to(self, hops: int) -> bool:
        """Take a distance into account; True when the estimate grew."""
        if not self.estimate < hops <= self.cap():
            return False
        self.estimate = hops
        return True

    def take_over(self, estimate: int) -> None:
        self.estimate = max(1, min(estimate, DIAMETER_MAX))
