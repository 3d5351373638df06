"""Rows of tables: each stands for its owner and name until another of a greater version replaces or removes it.

A topic is a table if its rows have the columns `_owner`, `_name` and `_version`: nobody has to declare it, and all
nodes agree. `StandingRows` finds the rows that stand, whatever order they come in and whichever streams they are in: of
those with one owner and name the one with the greatest version, by session, then counter. A removal is a row, too, with
`_removed` true. Of rows with equal versions (a repeated publish) the last one of the last stream stands.
"""

from collections.abc import Mapping
from typing import Any

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
"""The maximum size of an owner, and of a name. Guess."""
STANDING_MAX = 4_000_000
"""Keys of a table that is read, removed ones included: about 150 bytes of memory each while it is read. Guess."""
REMOVAL_MS = 7 * 24 * 3_600_000
"""The time for which a removal is kept. A node that was away for longer may show what was removed meanwhile.
Decided."""
FEW = 20
"""Rows are looked up one by one if this many times as many stand already. More: a large part of a table that changes at
once is sorted whole. Guess."""
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
    """The rows of a table that stand, of all that were added, in any order.

    Many rows at once are sorted together. A few rows that are added to many are looked up by name one by one, in an
    index that is made the first time: a table that is read again and again costs what is new in it.
    """

    def __init__(self) -> None:
        self._rows = _NONE
        self._changed: dict[str, Any] = {}
        """The columns without owner and name as arrays that can be written, once there is an index."""
        self._index: dict[str, int] = {}
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._sequences: dict[bool, Mapping[int, Numbers]] = {}

    def __len__(self) -> int:
        return len(self._changed["sequence"]) if self._changed else len(self._rows)

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
        if self._pending_rows > max(PENDING_MIN, len(self)):
            self.settle()

    def settle(self) -> None:
        """Take what was added. Refuses too many."""
        if self._pending:
            pending = pa.concat_tables(self._pending)
            self._pending, self._pending_rows, self._sequences = [], 0, {}
            if len(pending) * FEW < len(self):
                self._take_few(last_versions(pending))
            else:
                self._rows = last_versions(pa.concat_tables([self.rows(), pending]).combine_chunks())
                self._changed, self._index = {}, {}
        if len(self) > STANDING_MAX:
            detail = f"the table has more than {STANDING_MAX} names, removed ones included: read its topic instead"
            raise Refusal("too-large", detail)

    def rows(self) -> pa.Table:
        """One for each owner and name, removals included."""
        if self._changed:
            columns = [pa.array(self._changed[name], _SCHEMA.field(name).type) for name in _NUMBERS]
            self._rows = pa.table([self._rows["owner"], self._rows["name"], *columns], schema=_SCHEMA)
            self._changed = {}
        return self._rows

    def _take_few(self, new: pa.Table) -> None:
        if not self._changed:
            self._changed = {name: self._rows[name].to_numpy().copy() for name in _NUMBERS}
        if not self._index:
            self._index = {key: at for at, key in enumerate(_keys(self._rows))}
        changed, added = self._changed, []
        columns = {name: new[name].to_numpy() for name in _NUMBERS}
        for at, key in enumerate(_keys(new)):
            known = self._index.setdefault(key, len(self._index))
            if known >= len(changed["sequence"]):
                added.append(at)
                continue
            versions = changed["versions"][known] + columns["versions"][at]
            if tuple(columns[name][at] for name in _ORDER) > tuple(changed[name][known] for name in _ORDER):
                for name in _NUMBERS:
                    changed[name][known] = columns[name][at]
            changed["versions"][known] = versions
        if added:
            self._changed = {name: np.concatenate([changed[name], columns[name][added]]) for name in _NUMBERS}
            names = pa.concat_tables([self._rows.select(["owner", "name"]), new.select(["owner", "name"]).take(added)])
            rest = pa.nulls(len(names), pa.int64())  # the arrays have them
            self._rows = pa.table([names["owner"], names["name"], *([rest] * len(_NUMBERS))], names=_SCHEMA.names)

    def sequences(self, *, with_removals: bool) -> Mapping[int, Numbers]:
        """Return the sequences of the rows that stand, by stream, in ascending order."""
        self.settle()
        if with_removals not in self._sequences:
            found = self._numbers("stream", "sequence", "removed")
            streams, sequences, removed = found
            if not with_removals:
                streams, sequences = streams[~removed], sequences[~removed]
            by_stream = {int(each): np.sort(sequences[streams == each]) for each in np.unique(streams)}
            self._sequences[with_removals] = by_stream
        return self._sequences[with_removals]

    def needed_from(self, now_ms: int) -> Mapping[int, int]:
        """Return the first sequence that is still needed, by stream: of a row that stands, of a removal that is not
        older than `REMOVAL_MS`, or of a removal of which older rows are left: without it, these would stand again."""
        self.settle()
        streams, sequences, removed, published, versions = self._numbers(
            "stream", "sequence", "removed", "published_at_ms", "versions"
        )
        is_over = removed & (published < now_ms - REMOVAL_MS) & (versions == 1)
        streams, sequences = streams[~is_over], sequences[~is_over]
        return {int(each): int(sequences[streams == each].min()) for each in np.unique(streams)}

    def _numbers(self, *names: str) -> list[Any]:
        return [self._changed[name] if self._changed else self._rows[name].to_numpy() for name in names]


def _keys(rows: pa.Table) -> list[str]:
    """Owner and name as one text, which no other two have."""
    owner = rows["owner"]
    length = pc.binary_length(owner).cast(pa.string())
    keys: list[str] = pc.binary_join_element_wise(length, owner, rows["name"], "\0").to_pylist()
    return keys


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
_NONE = pa.Table.from_batches([], _SCHEMA)  # `empty_table` would import pandas
_NUMBERS = tuple(name for name in _SCHEMA.names if name not in ("owner", "name"))


def last_versions(rows: pa.Table) -> pa.Table:
    """Return, for each owner and name, the row with the greatest version; `versions` counts all of them."""
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
"""The keys of the order, from the least significant to the most, which is the owner and name."""
_ORDER = ("session", "counter", "stream", "sequence")
"""The order of the rows of one owner and name: the greatest stands."""


def key_numbers(rows: pa.Table) -> Numbers:
    """Return a number for each row that rows of the same owner and name have in common."""
    owner, name = (_codes(rows[column]) for column in ("owner", "name"))
    numbers: Numbers = owner * (int(name.max()) + 1) + name
    return numbers


def _codes(column: pa.ChunkedArray) -> Numbers:
    codes: Numbers = column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes
