"""Answers to publishes on selective topics: each waits until enough of the batches' destinations have them on disk.

Of `acks = k`, min(k, keepers) must be keepers' (PROTOCOL.md, 18.5). Rows of broadcast topics in the same commit are
counted at the neighbours, as always. The repeat of a commit has ranges and no batches: these are read from the store,
without their payloads, since a node counts for a batch only if it wants it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Output, Published, Range, ReadSelected, SelectedRead
from m4cast.overlay.protocol.wire.batch import Batch

READ_BYTES = 1_048_576
"""The maximum size of one read of the batches of a repeated commit; guess."""


@dataclass(slots=True)
class _Waiting:
    request: int
    acks: int
    ranges: tuple[Range, ...]
    batches: list[Batch]
    """Without their payloads."""
    flooded: tuple[Range, ...]
    unread: dict[StreamId, Range] = field(default_factory=dict)
    """The rows of a repeated commit whose batches are not known yet."""


class SelectiveAnswers:
    def __init__(
        self,
        is_acked: Callable[[Batch, int], bool],
        neighbours: Callable[[tuple[Range, ...]], int],
        next_token: Callable[[], int],
        out: list[Output],
    ) -> None:
        """`neighbours`: how many neighbours have these ranges on disk."""
        self._is_acked = is_acked
        self._neighbours = neighbours
        self._next_token = next_token
        self._out = out
        self.waiting: list[_Waiting] = []
        self._reads: dict[int, _Waiting] = {}
        self._unreadable: list[_Waiting] = []
        """Those with a batch that is damaged here: whether it is acknowledged is not known before it is repaired."""
        self._acks_taken = 0

    def add(
        self, request: int, acks: int, ranges: tuple[Range, ...], batches: list[Batch], selective: Mapping[str, object]
    ) -> None:
        """Answer when all is acknowledged. `selective`: the topics whose rows do not go to all neighbours."""
        light = [replace(batch, payload=b"") for batch in batches]
        flooded = tuple(rows for rows in ranges if rows.stream.topic not in selective)
        waiting = _Waiting(request, acks, ranges, light, flooded)
        self.waiting.append(waiting)
        if acks and not batches:
            waiting.unread = {rows.stream: rows for rows in ranges if rows.stream.topic in selective}
            self._read_on(waiting)
        self.look()

    def _read_on(self, waiting: _Waiting) -> None:
        rows = next(iter(waiting.unread.values()), None)
        if rows is not None:
            token = self._next_token()
            self._reads[token] = waiting
            self._out.append(ReadSelected(token, rows.stream, rows.first_sequence, rows.next_sequence, READ_BYTES))

    def read(self, read: SelectedRead) -> bool:
        """Take batches of a commit that is repeated; False if nobody here has asked for them."""
        waiting = self._reads.pop(read.token, None)
        if waiting is None:
            return False
        stream, rows = next(iter(waiting.unread.items()))
        waiting.batches += [replace(batch, payload=b"") for batch in read.batches]
        if read.read_next >= rows.next_sequence:
            del waiting.unread[stream]
        elif read.read_next > rows.first_sequence:
            waiting.unread[stream] = Range(stream, read.read_next, rows.next_sequence)
        else:
            self._unreadable.append(waiting)
            return True
        self._read_on(waiting)
        self.look()
        return True

    def read_again(self) -> None:
        """Something was written: a batch that could not be read may have been repaired."""
        unreadable, self._unreadable = self._unreadable, []
        for waiting in unreadable:
            if any(each is waiting for each in self.waiting):
                self._read_on(waiting)

    def look_since(self, acks_taken: int) -> None:
        """The same, unless no acknowledgement was taken since this was asked last."""
        if acks_taken != self._acks_taken:
            self._acks_taken = acks_taken
            self.look()

    def look(self) -> None:
        """Answer those that are acknowledged by now."""
        still = []
        for each in self.waiting:
            if each.acks == 0 or self._is_enough(each):
                self._out.append(Published(each.request, each.ranges))
            else:
                still.append(each)
        self.waiting = still

    def _is_enough(self, waiting: _Waiting) -> bool:
        if waiting.unread or (waiting.flooded and self._neighbours(waiting.flooded) < waiting.acks):
            return False
        return all(self._is_acked(batch, waiting.acks) for batch in waiting.batches)

    def forget(self, request: int) -> bool:
        """Stop waiting for the request; False when it did not wait here."""
        waiting = len(self.waiting)
        self.waiting = [each for each in self.waiting if each.request != request]
        return len(self.waiting) < waiting
