"""The costs and savings of each registration of this node on selective topics.

Counted when somebody asks, over what is in the log since the last time: the batches that came for a registration (its
summary could not rule them out), how many of their rows match, what came in vain, and how many rows of the streams did
not have to come. So nobody pays who does not ask. Counts are kept in memory, for registrations that exist; they begin
again with what is in the log after a restart.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.read.matching import Slice, examined, row_test
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader, ruled_out_by
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import EVERYTHING, FilterError, Profile, read
from m4cast.overlay.protocol.effects import Registration
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import SummarisedBatch

ROWS_AT_ONCE = 1_000_000
"""Rows of the log that one answer looks at; the next one goes on. Guess."""
SLICE_ROWS = 65_536


@dataclass(slots=True)
class FilterCost:
    """The cost of one registration, in the part of the log that was counted."""

    epoch: int
    at: dict[StreamId, int] = field(default_factory=dict)
    """The position up to which each stream has been counted."""
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    matched_rows: int = 0
    batches_in_vain: int = 0
    """The number of batches that, by their summary, might have had a matching row, and had none."""
    rows_in_vain: int = 0
    """Rows that do not match, in batches that have a row which does."""
    spared_rows: int = 0
    """Rows of the streams that did not come, or only for another registration."""

    def shown(self, *, is_whole: bool) -> dict[str, object]:
        spared = self.spared_rows * self.bytes // self.rows if self.rows else None
        names = ("batches", "rows", "bytes", "matched_rows", "batches_in_vain", "rows_in_vain", "spared_rows")
        return {**{name: getattr(self, name) for name in names}, "spared_bytes": spared, "is_whole": is_whole}


@dataclass(frozen=True, slots=True)
class _Reach:
    """A registration, and the streams that it is covered in."""

    row: Registration
    spans: dict[StreamId, tuple[int, int]]


class FilterCosts:
    """Any thread may use it."""

    def __init__(
        self, node: NodeHandle, portions: PortionReader, catalogue: Catalogue, pacing: Pacing, timeout_s: float
    ) -> None:
        self._node = node
        self._portions = portions
        self._catalogue = catalogue
        self._pacing = pacing
        self._timeout_s = timeout_s
        self._costs: dict[str, FilterCost] = {}
        self._counting = threading.Lock()

    def of(self, ids: Iterable[str], caller: Caller) -> dict[str, dict[str, object]]:
        """Return the costs of these registrations so far, counted at the expense of the caller; none for broadcast
        topics."""
        wanted = list(ids)
        reached = self._node.look(lambda node: _reached(node, wanted), self._timeout_s)
        exist = self._node.look(lambda node: set(node.interest.registrations.rows), self._timeout_s)
        shown: dict[str, dict[str, object]] = {}
        left = ROWS_AT_ONCE
        with self._counting:
            self._costs = {each: cost for each, cost in self._costs.items() if each in exist}
            for each, reach in reached.items():
                cost = self._costs.get(each)
                if cost is None or cost.epoch != reach.row.epoch:
                    cost = self._costs[each] = FilterCost(reach.row.epoch)
                left = self._count(cost, reach, left, caller)
                is_whole = all(cost.at.get(stream, 0) >= until for stream, (_, until) in reach.spans.items())
                shown[each] = cost.shown(is_whole=is_whole)
        return shown

    def _count(self, cost: FilterCost, reach: _Reach, left: int, caller: Caller) -> int:
        """Go on counting, over at most so many rows; how many are left."""
        profile = _profile(reach.row)
        for stream, (begin, until) in reach.spans.items():
            first = max(cost.at.get(stream, begin), begin)
            if left <= 0 or first >= until:
                continue
            came = cost.rows
            at = self._count_span(cost, StreamSpan(stream, first, until), profile, left, caller)
            left -= cost.rows - came
            cost.spared_rows += at - first - (cost.rows - came)
            cost.at[stream] = at
        return left

    def _count_span(self, cost: FilterCost, span: StreamSpan, profile: Profile, rows_max: int, caller: Caller) -> int:
        """Returns up to where it is counted."""
        test, rows_out = row_test(profile), ruled_out_by(profile.condition)
        sizes: dict[int, int] = {}

        def rules_out(head: SummarisedBatch) -> bool:
            is_out = rows_out(head)
            if not is_out:
                sizes[head.first_sequence] = head.payload_bytes
            return is_out

        def count(tested: Slice) -> None:
            found = test(tested)
            sequences = [] if found is None else found.sequences.tolist()
            for portion in tested.portions:
                rows = portion.until - portion.first
                matched = bisect_left(sequences, portion.until) - bisect_left(sequences, portion.first)
                cost.batches += 1
                cost.rows += rows
                cost.bytes += sizes.pop(portion.kept.batch.first_sequence, 0)
                cost.matched_rows += matched
                cost.batches_in_vain += not matched
                cost.rows_in_vain += rows - matched if matched else 0

        at, before = span.first, cost.rows
        began_s = time.thread_time()
        for stretch in self._portions.read(span, skip_missing=True, rules_out=rules_out):
            for _ in examined(stretch.portions, self._catalogue, count, SLICE_ROWS):
                pass
            at = stretch.until
            spent_s, began_s = time.thread_time() - began_s, time.thread_time()
            self._pacing.pay(caller, spent_s)
            if cost.rows - before >= rows_max:
                break
        return at


def _reached(node: Node, ids: list[str]) -> dict[str, _Reach]:
    """Runs on the loop: those of these registrations that are of selective topics."""
    found: dict[str, _Reach] = {}
    for each in ids:
        row = node.interest.registrations.rows.get(each)
        if row is None or row.topic not in node.selection.descriptors:
            continue
        begins, ends = node.selection.begins(each), node.selection.coverage(each)
        found[each] = _Reach(row, {stream: (begins[stream], ends[stream]) for stream in begins if stream in ends})
    return found


def _profile(row: Registration) -> Profile:
    if not row.canonical:
        return EVERYTHING
    try:
        return read(row.canonical)
    except FilterError:  # another program registered it: it stands for every row
        return EVERYTHING
