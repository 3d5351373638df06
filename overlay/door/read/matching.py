"""Finds the rows of stored batches that match: batches of one stream and schema are decoded, joined and tested
together.

A test costs 20-80 us however few rows it has, so small batches are joined before they are tested. Only the columns that
a filter reads are joined and validated; a batch without a match is neither copied nor looked into any further.

`tests/bench/filters.py` watches the cost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import LeftOut
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import BatchTerms, Condition, Profile, columns_of
from m4cast.overlay.store.store import Kept
from m4cast.overlay.value import value

Numbers = npt.NDArray[np.int64]
T = TypeVar("T")


class Portion(NamedTuple):
    """Rows `first .. until - 1` of a batch."""

    kept: Kept
    first: int
    until: int


@value
class Found:
    """Rows of one stream that match, in their order, under the schema of their batches."""

    rows: pa.RecordBatch
    sequences: Numbers
    arrivals: Numbers
    """The time of publication and of arrival (in ms) and the number of hops, for each batch."""
    owners: Numbers | None
    """The number of each row's batch in `arrivals`; None: there is one batch."""
    whole: Kept | None = None
    """The batch, if these are all its rows and no others."""

    @property
    def size(self) -> int:
        """Bytes, or nearly; what Arrow counts takes as long as testing a thousand rows."""
        return self.rows.nbytes if self.whole is None else len(self.whole.batch.content)

    def arrived(self, what: int) -> Numbers:
        """This column of the arrivals, row by row; a single number if it is the same for all rows."""
        column: Numbers = self.arrivals[:, what]
        return column if self.owners is None else column[self.owners]

    def some(self, chosen: Numbers, *, in_order: bool = True) -> "Found":
        """These rows of it; `in_order`: in ascending order, each once."""
        if in_order and len(chosen) == len(self.sequences):
            return self
        return Found(
            rows=self.rows.take(pa.array(chosen)),
            sequences=self.sequences[chosen],
            arrivals=self.arrivals,
            owners=None if self.owners is None else self.owners[chosen],
        )

    def part(self, begin: int, end: int) -> "Found":
        """A copy of consecutive rows of it."""
        return Found(
            rows=pa.concat_batches([self.rows.slice(begin, end - begin)]),
            sequences=self.sequences[begin:end],
            arrivals=self.arrivals,
            owners=None if self.owners is None else self.owners[begin:end],
        )


def joined(founds: Sequence[Found]) -> Found:
    """Rows of one schema, in this order."""
    if len(founds) == 1:
        return founds[0]
    begins = np.cumsum([0, *(len(found.arrivals) for found in founds[:-1])])
    owners = [
        np.full(len(found.sequences), begin) if found.owners is None else found.owners + begin
        for found, begin in zip(founds, begins, strict=True)
    ]
    return Found(
        rows=pa.concat_batches([found.rows for found in founds]),
        sequences=np.concatenate([found.sequences for found in founds]),
        arrivals=np.concatenate([found.arrivals for found in founds]),
        owners=np.concatenate(owners),
    )


_ONE_BEGIN: Numbers = np.zeros(1, dtype=np.int64)


class Slice:
    """Consecutive portions of one stream whose batches have one schema, decoded."""

    def __init__(self, portions: Sequence[Portion], catalogue: Catalogue) -> None:
        self.portions = portions
        self.errors = 0
        """Rows that a test could not compare, summed over its terms: Spark would report an error in ANSI mode."""
        self._catalogue = catalogue
        self._rows = [catalogue.decoded(portion.kept.batch, to_cut=False) for portion in portions]
        counts = [rows.num_rows for rows in self._rows]
        self._begins: Numbers = np.cumsum([0, *counts[:-1]], dtype=np.int64) if len(counts) > 1 else _ONE_BEGIN
        self._count: int = sum(counts)
        self._low: int = portions[0].first - portions[0].kept.batch.first_sequence
        self._high: int = self._count - (portions[-1].kept.batch.next_sequence - portions[-1].until)

    @property
    def stream(self) -> StreamId:
        return self.portions[0].kept.batch.stream

    @property
    def until(self) -> int:
        """The first sequence after it."""
        return self.portions[-1].until

    @property
    def row_count(self) -> int:
        return self._high - self._low

    @property
    def schema(self) -> pa.Schema:
        return self._rows[0].schema

    def columns(self, names: Iterable[str]) -> pa.RecordBatch:
        """These columns of all rows, validated, as one record batch. Those that the batches lack are absent."""
        schema = self.schema
        places = [at for name in names if (at := schema.get_field_index(name)) >= 0]
        if not places:
            return pa.record_batch({"": pa.nulls(self._count)})
        parts = [rows.select(places) for rows in self._rows]
        tested = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        self._validate(tested)
        return tested

    def places(self) -> Iterator[tuple[Portion, int]]:
        """The portions, each with the number of the first row of its batch."""
        return zip(self.portions, self._begins.tolist(), strict=True)

    def within(self, matched: Numbers) -> Numbers:
        """Those of the rows that belong to the portions: a batch is tested whole, and may be wanted in part."""
        if self.row_count == self._count:
            return matched
        wanted: Numbers = matched[self.is_within(matched)]
        return wanted

    def is_within(self, matched: Numbers) -> npt.NDArray[np.bool_]:
        return (matched >= self._low) & (matched < self._high)

    def found(self, matched: Numbers, *, is_cut: bool = False) -> Found:
        """The rows of these numbers. Only batches that have one of them are joined. All rows of
        one batch are only validated if they are to be cut further."""
        owners: Numbers | None = None
        hit, within = [0], matched
        if len(self._rows) > 1:
            owners = np.searchsorted(self._begins, matched, side="right") - 1
            is_hit = np.zeros(len(self._rows), dtype=bool)
            is_hit[owners] = True
            hit, within = np.flatnonzero(is_hit).tolist(), matched - self._begins[owners]
            owners = (np.cumsum(is_hit) - 1)[owners] if len(hit) > 1 else None
        heads = [self.portions[at].kept for at in hit]
        firsts = np.array([kept.batch.first_sequence for kept in heads], dtype=np.int64)
        arrivals = [(kept.batch.published_at_ms, kept.received_at_ms, kept.hops) for kept in heads]
        return Found(
            rows=self._taken([self._rows[at] for at in hit], within, owners, is_cut=is_cut),
            sequences=within + (firsts[0] if owners is None else firsts[owners]),
            arrivals=np.array(arrivals, dtype=np.int64),
            owners=owners,
        )

    @property
    def is_one_batch(self) -> bool:
        """True if it has all rows of one batch."""
        return len(self._rows) == 1 and self.row_count == self._count

    def whole(self) -> Found:
        """All its rows, of one batch, as they are."""
        kept = self.portions[0].kept
        return Found(
            rows=self._rows[0],
            sequences=np.arange(kept.batch.first_sequence, kept.batch.next_sequence),
            arrivals=np.array([(kept.batch.published_at_ms, kept.received_at_ms, kept.hops)], dtype=np.int64),
            owners=None,
            whole=kept,
        )

    def _taken(
        self, batches: list[pa.RecordBatch], within: Numbers, owners: Numbers | None, *, is_cut: bool
    ) -> pa.RecordBatch:
        """Rows of these batches, by their numbers within them."""
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        is_whole = len(within) == rows.num_rows
        if is_cut or not is_whole or len(batches) > 1:
            self._validate(rows)
        if is_whole:
            return rows
        if owners is not None:
            begins = np.cumsum([0, *(each.num_rows for each in batches[:-1])])
            within = within + begins[owners]
        return rows.take(pa.array(within))

    def _validate(self, rows: pa.RecordBatch) -> None:
        """Payloads come from other nodes: offsets and text are validated before any row is singled out."""
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid:
            for portion in self.portions:  # refuse the first that cannot be read, by name
                self._catalogue.decoded(portion.kept.batch, to_cut=True)
            raise


@value
class RowTest:
    """A filter, ready to be applied to slices."""

    condition: Condition
    names: tuple[str, ...]
    """The columns that it reads; of nested ones the outermost."""
    left_out: tuple[LeftOut, ...] = ()

    def __call__(self, rows: Slice) -> Found | None:
        """The rows that match; None: there are none."""
        terms = BatchTerms(rows.columns(self.names))
        mask = terms.mask(self.condition)
        rows.errors = terms.errors
        if rows.is_one_batch and not self.left_out and mask.all():
            return rows.whole()
        matched = rows.within(np.flatnonzero(mask))
        if not len(matched):
            return None
        found = rows.found(matched)
        return self._left(terms, rows.stream.origin, matched, found) if self.left_out else found

    def _left(self, terms: BatchTerms, origin: NodeId, matched: Numbers, found: Found) -> Found | None:
        """Return what was found without the rows that are left out, or None if nothing remains."""
        stays = np.ones(len(matched), dtype=bool)
        for each in self.left_out:
            counts = found.sequences >= each.begin.get(origin, 1)
            first, until = each.hole.get(origin, (0, 0))
            counts &= (found.sequences < first) | (found.sequences >= until)
            if each.within is not None:
                first, until = each.within.get(origin, (0, 0))
                counts &= (found.sequences >= first) & (found.sequences < until)
            stays &= ~(counts & terms.mask(each.profile.condition)[matched])
        return found.some(np.flatnonzero(stays)) if stays.any() else None

    def matches(self, rows: Slice) -> bool:
        """True if a row of these batches matches, wanted or not."""
        return bool(self.mask(rows).any())

    def mask(self, rows: Slice) -> npt.NDArray[np.bool_]:
        return BatchTerms(rows.columns(self.names)).mask(self.condition)


def row_test(profile: Profile, left_out: tuple[LeftOut, ...] = ()) -> RowTest:
    names = {*column_names(profile), *(name for each in left_out for name in column_names(each.profile))}
    return RowTest(profile.condition, tuple(sorted(names)), left_out)


def column_names(profile: Profile) -> tuple[str, ...]:
    return tuple(sorted({path[0] for path in columns_of(profile.condition)}))


def examined(
    portions: Sequence[Portion], catalogue: Catalogue, examine: Callable[[Slice], T], rows_max: int
) -> Iterator[tuple[Slice, T]]:
    """Examine the portions slice by slice and iterate over what is found. A slice has one schema and at most `rows_max`
    rows, or one batch. A batch that cannot be read is refused when it is reached: what precedes it is examined before
    that."""
    for group in _groups(portions, rows_max):
        try:
            rows = Slice(group, catalogue)
            found = examine(rows)
        except Refusal:
            if len(group) == 1:
                raise
            for portion in group:
                rows = Slice([portion], catalogue)
                yield rows, examine(rows)
        else:
            yield rows, found


def _groups(portions: Sequence[Portion], rows_max: int) -> Iterator[Sequence[Portion]]:
    begin, rows = 0, 0
    for at, portion in enumerate(portions):
        batch = portion.kept.batch
        is_other = at > begin and batch.schema_id != portions[begin].kept.batch.schema_id
        if is_other or (at > begin and rows + batch.row_count > rows_max):
            yield portions[begin:at]
            begin, rows = at, 0
        rows += batch.row_count
    if portions:
        yield portions[begin:]
