"""Marks: for each position of a stream, the version of this node's interest entry for which it is settled (rule R3).

A position is settled for a version if every row there that this version of the entry wants is in the log. Marks are
kept as runs of equal versions, from position 1 on; the last run has version 0 and does not end. A statement raises a
range to its version, a stored batch its own range to `HELD`. Nothing but a lack of room lowers one.

Versions only matter in comparison with the joins of registrations, and later joins are greater than all versions that
were ever announced. So `settle` rounds each version down to the greatest join that it reaches, and neighbouring runs
become one: a stream of ten million filtered batches has one mark.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

HELD = 2**63 - 1
"""Settled for every version: the rows themselves are in the log."""
MARKS_MAX = 1_024
"""Runs of one stream; guess. More of them only come from holes, and the farthest are pulled again."""
ENDLESS = 2**63 - 1

Run = tuple[int, int]
"""The start of the run, and its version."""


class Marks:
    __slots__ = ("_starts", "_versions")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        pairs = list(runs) or [(1, 0)]
        self._starts = [start for start, _ in pairs]
        self._versions = [version for _, version in pairs]
        assert self._starts[0] == 1 and self._versions[-1] == 0, "marks begin at 1 and end unsettled"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marks) and self.runs() == other.runs()

    __hash__ = None  # type: ignore[assignment]  # marks change

    def __len__(self) -> int:
        return len(self._starts)

    def runs(self) -> tuple[Run, ...]:
        return tuple(zip(self._starts, self._versions, strict=True))

    def spans(self) -> list[tuple[int, int, int]]:
        """The runs that end: first position, the position behind the last, version."""
        return list(zip(self._starts[:-1], self._starts[1:], self._versions[:-1], strict=True))

    def copy(self) -> "Marks":
        return Marks(self.runs())

    @property
    def end(self) -> int:
        """The position after the last one of which anything is known."""
        return self._starts[-1]

    def at(self, position: int) -> int:
        return self._versions[bisect_right(self._starts, position) - 1]

    def first_below(self, position: int, version: int) -> int:
        """The first position from here on that is not settled for this version. Never past `end`, if `position` is
        not."""
        for run in range(bisect_right(self._starts, position) - 1, len(self._starts)):
            if self._versions[run] < version:
                return max(position, self._starts[run])
        raise AssertionError("the last run has version 0, and versions begin at 1")

    def settled_from(self, position: int, version: int) -> int:
        """The first position from here on that is settled for this version; `ENDLESS` if none is."""
        for run in range(bisect_right(self._starts, position) - 1, len(self._starts)):
            if self._versions[run] >= version:
                return max(position, self._starts[run])
        return ENDLESS

    # ---- changing

    def raise_to(self, first: int, following: int, version: int) -> bool:
        """Settle `first .. following - 1` for this version; False when that changes nothing."""
        if first >= following or self.first_below(first, version) >= following:
            return False
        self._split(first)
        self._split(following)
        for run in range(bisect_left(self._starts, first), bisect_left(self._starts, following)):
            self._versions[run] = max(self._versions[run], version)
        self._merge()
        return True

    def settle(self, joins: Iterable[int]) -> None:
        """Round versions down to these, make neighbouring runs of equal versions one, and keep within the limit."""
        steps = sorted({0, *joins})
        self._versions = [steps[bisect_right(steps, version) - 1] for version in self._versions]
        self._merge()
        if len(self._starts) > MARKS_MAX:
            del self._starts[MARKS_MAX:], self._versions[MARKS_MAX:]
            self._versions[-1] = 0
            self._merge()

    def _split(self, position: int) -> None:
        run = bisect_right(self._starts, position) - 1
        if self._starts[run] != position:
            self._starts.insert(run + 1, position)
            self._versions.insert(run + 1, self._versions[run])

    def _merge(self) -> None:
        kept = [run for run in range(len(self._starts)) if run == 0 or self._versions[run] != self._versions[run - 1]]
        if len(kept) < len(self._starts):
            self._starts = [self._starts[run] for run in kept]
            self._versions = [self._versions[run] for run in kept]
