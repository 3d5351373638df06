"""Rows of tables: each stands for its owner and name until another of a greater version replaces or removes it.

A topic is a table if its rows have the columns `_owner`, `_name` and `_version`: nobody has to declare it, and all
nodes agree. `StandingRows` finds the rows that stand, whatever order they come in and whichever streams they are in: of
those with one owner and name the one with the greatest version, by session, then counter. A removal is a row, too, with
`_removed` true. Of rows with equal versions (a repeated publish) the last one of the last stream stands.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from m4cast.overlay.door.refusals import Refusal

OWNER, NAME, VERSION, REMOVED = "_owner", "_name", "_version", "_removed"
KEYS = (OWNER, NAME, VERSION)
TYPES = {
    OWNER: pa.string(),
    NAME: pa.string(),
    VERSION: pa.struct([pa.field("session", pa.int64()), pa.field("counter", pa.int64())]),
    REMOVED: pa.bool_(),
}
NAME_BYTES_MAX = 1_024
"""Of an owner, and of a name. Guess."""
STANDING_MAX = 4_000_000
"""Keys of a table that is read, removed ones included: about 150 bytes of memory each while it is read. Guess."""
REMOVAL_MS = 7 * 24 * 3_600_000
"""How long a removal is kept. A node that was away for longer may show what was removed meanwhile. Decided."""
PENDING_MIN = 262_144
"""Rows that are added before those that do not stand are dropped, unless more stand already. Guess."""

Numbers = npt.NDArray[np.int64]


def is_table(schema: pa.Schema) -> bool:
    return all(name in schema.names for name in KEYS)


def refuse_partial(schema: pa.Schema) -> None:
    """Refuse a schema with some of the columns of a table, and not all."""
    names = set(schema.names)
    if names & TYPES.keys() and not names.issuperset(KEYS):
        missing = ", ".join(name for name in KEYS if name not in names)
        detail = (
            f"the rows have {', '.join(sorted(names & TYPES.keys()))}, which rows of a table have, but lack {missing}: "
            "add these columns, or rename the others"
        )
        raise Refusal("bad-schema", detail)


def refuse_unversioned(rows: pa.RecordBatch) -> None:
    """Refuse rows of a table without an owner, a name or a version."""
    for name in (OWNER, NAME):
        column = rows[name]
        if column.null_count:
            raise Refusal("bad-rows", f"column {name!r} is null in a row: rows of a table need an owner and a name")
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > NAME_BYTES_MAX:
            detail = f"column {name!r} has a value of {longest} bytes: at most {NAME_BYTES_MAX} are allowed"
            raise Refusal("bad-rows", detail)
    for part in rows[VERSION].flatten():
        least = pc.min(part).as_py()
        if part.null_count or (least is not None and least < 0):
            detail = f"column {VERSION!r} lacks its session or counter in a row, or one is negative: give both, from 0"
            raise Refusal("bad-rows", detail)


class StandingRows:
    """The rows of a table that stand, of all that were added, in any order."""

    def __init__(self) -> None:
        self._rows = _NONE
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, rows: pa.RecordBatch, sequences: Numbers, stream: int, published_at_ms: int) -> None:
        """Rows of one batch, with the columns of tables at least; `stream`: a number that the caller gave it."""
        count = rows.num_rows
        session, counter = rows[VERSION].flatten()
        removed = rows[REMOVED] if REMOVED in rows.schema.names else pa.nulls(count, pa.bool_())
        columns = [
            rows[OWNER],
            rows[NAME],
            session,
            counter,
            pa.repeat(pa.scalar(stream, pa.int32()), count),
            pa.array(sequences),
            pc.fill_null(removed, False),
            pa.repeat(pa.scalar(published_at_ms, pa.int64()), count),
            pa.repeat(pa.scalar(1, pa.int64()), count),
        ]
        self._pending.append(pa.table(columns, schema=_SCHEMA))
        self._pending_rows += count
        if self._pending_rows > max(PENDING_MIN, len(self._rows)):
            self.settle()

    def settle(self) -> pa.Table:
        """The rows that stand, removals included: owner, name, version, stream, sequence. Refuses too many."""
        if self._pending:
            together = pa.concat_tables([self._rows, *self._pending]).combine_chunks()
            self._pending, self._pending_rows = [], 0
            self._rows = last_versions(together)
        if len(self._rows) > STANDING_MAX:
            detail = f"the table has more than {STANDING_MAX} names, removed ones included: read its topic instead"
            raise Refusal("too-large", detail)
        return self._rows

    def sequences(self, *, with_removals: bool) -> Mapping[int, Numbers]:
        """By stream, the sequences of the rows that stand, in ascending order."""
        rows = self.settle()
        if not with_removals:
            rows = rows.filter(pc.invert(rows["removed"]))
        streams, sequences = rows["stream"].to_numpy(), rows["sequence"].to_numpy()
        return {int(stream): np.sort(sequences[streams == stream]) for stream in np.unique(streams)}

    def needed_from(self, now_ms: int) -> Mapping[int, int]:
        """By stream, the first sequence that is still needed: of a row that stands, or of a removal that is not older
        than `REMOVAL_MS`, or of which older rows are left: without it, these would stand again."""
        rows = self.settle()
        is_old = pc.less(rows["published_at_ms"], now_ms - REMOVAL_MS)
        is_over = pc.and_(pc.and_(rows["removed"], is_old), pc.equal(rows["versions"], 1))
        rows = rows.filter(pc.invert(is_over))
        least = rows.group_by("stream").aggregate([("sequence", "min")])
        return dict(zip(least["stream"].to_pylist(), least["sequence_min"].to_pylist(), strict=True))


_SCHEMA = pa.schema(
    [
        ("owner", pa.string()),
        ("name", pa.string()),
        ("session", pa.int64()),
        ("counter", pa.int64()),
        ("stream", pa.int32()),
        ("sequence", pa.int64()),
        ("removed", pa.bool_()),
        ("published_at_ms", pa.int64()),
        ("versions", pa.int64()),
    ]
)
_NONE = _SCHEMA.empty_table()


def last_versions(rows: pa.Table) -> pa.Table:
    """Of each owner and name, the row with the greatest version; `versions` counts all of them."""
    if not len(rows):
        return rows
    keys = key_numbers(rows)
    order = np.lexsort([keys if name is None else rows[name].to_numpy() for name in _BY])
    begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
    versions = np.add.reduceat(rows["versions"].to_numpy()[order], begins)
    last = order[[*(begins[1:] - 1), len(order) - 1]]
    found = rows.take(pa.array(last)).combine_chunks()
    return found.set_column(found.schema.get_field_index("versions"), "versions", pa.array(versions))


_BY = ("sequence", "stream", "counter", "session", None)
"""From the least significant to the most, which is the owner and name."""


def key_numbers(rows: pa.Table) -> Numbers:
    """Of each row a number that rows of the same owner and name have in common."""
    owner, name = (_codes(rows[column]) for column in ("owner", "name"))
    numbers: Numbers = owner * (int(name.max()) + 1) + name
    return numbers


def _codes(column: pa.ChunkedArray) -> Numbers:
    codes: Numbers = column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes
