"""Batches of a span, as filtered reads take them from the store: those that may match, and where there is nothing.

Batches whose summary says that no row matches are passed over; their payload is not read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from m4cast.overlay.door.quotas import ChunkQuota
from m4cast.overlay.door.read.matching import Portion
from m4cast.overlay.door.read.reading import missing_rows
from m4cast.overlay.door.rows.catalogue import StreamSpan
from m4cast.overlay.door.rows.summaries import known_summary
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Condition, may_match
from m4cast.overlay.store.store import Store, SummarisedBatch
from m4cast.overlay.value import value

HEADS_AT_ONCE = 256
"""Batches whose summaries are read in one transaction. More: a cancelled call is noticed later. Guess."""
IN_VAIN_MAX = 8
"""Summaries in a row that rule nothing out, after which only some are looked at. Guess."""
ONE_IN = 16
"""Then one of so many is looked at: as many batches, less one, are tested in vain when matches end. Guess."""
RulesOut = Callable[[SummarisedBatch], bool]


@value
class Stretch:
    """Rows of a span up to `until`: batches to be tested, rows that were passed over, or rows that are missing."""

    until: int
    portions: tuple[Portion, ...] = ()
    passed_rows: int = 0
    """The number of rows that summaries have decided, with no match."""


def ruled_out_by(condition: Condition) -> RulesOut:
    """A test that is true of batches whose summary proves that no row satisfies the condition. Any doubt is a no."""

    def rules_out(head: SummarisedBatch) -> bool:
        if head.summary is None:
            return False
        summary = known_summary(head.summary, head.next_sequence - head.first_sequence)
        return summary is not None and not may_match(condition, summary)

    return rules_out


def spared(rules_out: RulesOut) -> RulesOut:
    """The same test, which decides nothing about most batches while it does not help: where everything matches,
    summaries would cost as much as testing rows. A batch that it rules out makes it look at every batch again."""
    looked = in_vain = 0

    def rules_some_out(head: SummarisedBatch) -> bool:
        nonlocal looked, in_vain
        looked += 1
        if in_vain >= IN_VAIN_MAX and looked % ONE_IN:
            return False
        is_out = rules_out(head)
        in_vain = 0 if is_out else in_vain + 1
        return is_out

    return rules_some_out


class PortionReader:
    """Any thread may use it."""

    def __init__(self, store: Store, chunks: ChunkQuota) -> None:
        self._store = store
        self._chunks = chunks

    def read(self, span: StreamSpan, *, skip_missing: bool, rules_out: RulesOut) -> Iterator[Stretch]:
        """A span, stretch by stretch, at most a chunk of payload at a time. Missing rows are refused, or skipped."""
        first = span.first
        with self._chunks.reading():
            while first < span.next:
                heads = self._store.summaries(span.stream, first, span.next, HEADS_AT_ONCE)
                begins = min(heads[0].first_sequence, span.next) if heads else span.next
                if begins > first:
                    if not skip_missing:
                        raise missing_rows(span.stream, first, begins)
                    first = begins
                    yield Stretch(first)
                    continue
                for stretch in self._stretches(span, first, heads, rules_out):
                    yield stretch
                    first = stretch.until

    def stands_from(self, stream: StreamId) -> int:
        """The sequence from which on rows of a table may stand: those that precede a range which had expired elsewhere
        do not (see PROTOCOL.md, tables)."""
        return self._store.expired_until(stream)

    def lows(self, streams: Iterable[StreamId]) -> Mapping[StreamId, int]:
        """The first rows that are retained of these streams."""
        return self._store.lows(streams)

    def _stretches(
        self, span: StreamSpan, first: int, heads: list[SummarisedBatch], rules_out: RulesOut
    ) -> Iterator[Stretch]:
        """The batches of these heads, as far as they follow one another."""
        are_out = [rules_out(head) for head in heads]
        at = 0
        while at < len(heads):
            begin, is_out = at, are_out[at]
            at += 1
            while at < len(heads) and heads[at].first_sequence == heads[at - 1].next_sequence and are_out[at] == is_out:
                at += 1
            until = min(heads[at - 1].next_sequence, span.next)
            if is_out:
                yield Stretch(until, passed_rows=until - first)
                first = until
            else:
                for stretch in self._chunks_of(span, first, heads[begin].first_sequence, until):
                    yield stretch
                    first = stretch.until
                if first < until:
                    return  # rows were removed meanwhile
            if at < len(heads) and heads[at].first_sequence > first:
                return

    def _chunks_of(self, span: StreamSpan, first: int, begins: int, until: int) -> Iterator[Stretch]:
        while first < until:
            batches = self._store.read_kept(span.stream, begins, until, self._chunks.bytes_now)
            if not batches:
                return
            portions = []
            for kept in batches:
                begins = kept.batch.next_sequence
                portions.append(Portion(kept, first, min(begins, until)))
                first = min(begins, until)
            yield Stretch(first, portions=tuple(portions))
