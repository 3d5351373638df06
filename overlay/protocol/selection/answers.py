"""Answers to publishes on selective topics: each waits until enough of the batches' destinations have them on disk.

Of `acks = k`, min(k, keepers) must be keepers' (PROTOCOL.md, 18.5). Rows of broadcast topics in the same commit are
counted at the neighbours, as always. The repeat of a commit has ranges and no batches: whoever acknowledged up to their
ends counts, whether or not it wanted all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from m4cast.overlay.protocol.effects import Output, Published, Range
from m4cast.overlay.protocol.wire.batch import Batch


@dataclass(slots=True)
class _Waiting:
    request: int
    acks: int
    ranges: tuple[Range, ...]
    selected: tuple[Batch | Range, ...]
    """Batches without their payload."""
    flooded: tuple[Range, ...]


class SelectiveAnswers:
    def __init__(
        self,
        is_acked: Callable[[Batch | Range, int], bool],
        neighbours: Callable[[tuple[Range, ...]], int],
        out: list[Output],
    ) -> None:
        """`neighbours`: how many neighbours have these ranges on disk."""
        self._is_acked = is_acked
        self._neighbours = neighbours
        self._out = out
        self.waiting: list[_Waiting] = []

    def add(
        self, request: int, acks: int, ranges: tuple[Range, ...], batches: list[Batch], selective: Mapping[str, object]
    ) -> None:
        """Answer when all is acknowledged. `selective`: the topics whose rows do not go to all neighbours."""
        light = tuple(replace(batch, payload=b"") for batch in batches)
        of_topics = tuple(rows for rows in ranges if rows.stream.topic in selective)
        flooded = tuple(rows for rows in ranges if rows.stream.topic not in selective)
        self.waiting.append(_Waiting(request, acks, ranges, light or of_topics, flooded))
        self.look()

    def look(self) -> None:
        """Answer those that are acknowledged by now."""
        still = []
        for each in self.waiting:
            is_flooded = not each.flooded or self._neighbours(each.flooded) >= each.acks
            if each.acks == 0 or (is_flooded and all(self._is_acked(rows, each.acks) for rows in each.selected)):
                self._out.append(Published(each.request, each.ranges))
            else:
                still.append(each)
        self.waiting = still

    def forget(self, request: int) -> bool:
        """Stop waiting for the request; False when it did not wait here."""
        waiting = len(self.waiting)
        self.waiting = [each for each in self.waiting if each.request != request]
        return len(self.waiting) < waiting
