"""Folded columns: Arrow stores a value once and refers to it from any number of rows. Here each row gets its own value.

Dictionaries, views, run-ends and list views are small whatever they represent, so the size of every step's result is
computed before it is made, and refused if it is too large (`LargerError`). Arrow's own cast handles the simple kinds,
for which only the size is computed (`plain_bytes`). The others (`is_folded`) are unfolded here, from the innermost type
outwards.

Arrays must have been validated in full: their offsets and indices are trusted.
"""

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

PLAIN = frozenset(
    getattr(pa.lib, f"Type_{name}")
    for name in (
        *("NA", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("HALF_FLOAT", "FLOAT", "DOUBLE", "DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"),
        *("DATE32", "DATE64", "TIME32", "TIME64", "STRING", "BINARY", "FIXED_SIZE_BINARY"),
        "INTERVAL_MONTH_DAY_NANO",  # pyarrow can make no arrays of the other kinds of intervals
    )
)
"""Types that are canonical."""
_VIEWS = frozenset({pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW})
_VIEW_BYTES = 16


class LargerError(Exception):
    """The values of a column would exceed the limit."""

    def __init__(self, size: int) -> None:
        self.size = size


def expands(type_: pa.DataType) -> bool:
    """True if plain values of this type may take any number of times the bytes, or have to be assembled anew."""
    if type_.id in PLAIN:
        return False
    if types.is_dictionary(type_) or is_folded(type_):
        return True
    return any(expands(type_.field(at).type) for at in range(type_.num_fields))


def is_folded(type_: pa.DataType) -> bool:
    """True if Arrow's own cast cannot make canonical values of it, or may crash on it."""
    if type_.id in _VIEWS or types.is_run_end_encoded(type_) or is_list_view(type_):
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return True
    if types.is_dictionary(type_):
        return bool(types.is_nested(type_.value_type)) or expands(type_.value_type)
    if types.is_map(type_) and expands(type_.key_type):  # a null among these keys makes Arrow's cast end the process
        return True
    return any(is_folded(type_.field(at).type) for at in range(type_.num_fields))


def is_list_view(type_: pa.DataType) -> bool:
    return bool(types.is_list_view(type_) or types.is_large_list_view(type_))


# ---- unfolding


def unfolded_rows(rows: pa.RecordBatch, plain: pa.Schema, bytes_max: int) -> pa.RecordBatch:
    """The same with plain columns for the folded ones, at most `bytes_max` in size, which is checked before each
    step."""
    columns, left = rows.columns, bytes_max
    for at, column in enumerate(columns):
        if is_folded(column.type):
            columns[at] = _unfolded(column, plain.field(at).type, left)
            left = max(left - columns[at].nbytes, 0)
    return pa.record_batch(columns, names=rows.schema.names)


def _unfolded(column: pa.Array, type_: pa.DataType, bytes_max: int) -> pa.Array:
    """The values of a column under their canonical type."""
    before = column.type
    if not is_folded(before):
        if expands(before) and (size := plain_bytes(column)) > bytes_max:
            raise LargerError(size)
        return column.cast(type_)
    if before.id in _VIEWS:
        if (size := plain_bytes(column)) > bytes_max:
            raise LargerError(size)
        return _defined(column).cast(type_)
    if isinstance(before, pa.BaseExtensionType):
        return _unfolded(column.storage, type_, bytes_max)
    if types.is_dictionary(before):
        return _taken(_unfolded(column.dictionary, type_, bytes_max), column.indices, bytes_max)
    if types.is_run_end_encoded(before):
        return _repeated_runs(column, _unfolded(column.values, type_, bytes_max), bytes_max)
    if types.is_struct(before):
        members = [_unfolded(column.field(at), field.type, bytes_max) for at, field in enumerate(type_)]
        return pa.StructArray.from_arrays(members, fields=list(type_), mask=column.is_null())
    if is_list_view(before):
        return _listed(column, type_, bytes_max)
    if types.is_map(before):
        keys = _unfolded(column.keys, type_.key_type, bytes_max)
        if keys.null_count:
            raise pa.ArrowInvalid("a map has null keys")
        items = _unfolded(column.items, type_.item_type, bytes_max)
        entries = pa.StructArray.from_arrays([keys, items], fields=[type_.key_field, type_.item_field])
        return _with_values(column, type_, entries)
    values = _unfolded(column.values, type_.value_type, bytes_max)
    if types.is_large_list(before):
        return _with_values(column, pa.large_list(type_.value_field), values).cast(type_)
    return _with_values(column, type_, values)


def _defined(views: pa.Array) -> pa.Array:
    """The same with empty views where values are null. Those may point anywhere, and Arrow's cast follows them."""
    if not views.null_count:
        return views
    _, written, *texts = views.buffers()
    valid = views.is_valid()
    each = pa.Array.from_buffers(pa.binary(_VIEW_BYTES), len(views), [None, written], offset=views.offset)
    empty = pc.if_else(valid, each, pa.scalar(bytes(_VIEW_BYTES), each.type))
    return pa.Array.from_buffers(views.type, len(views), [valid.buffers()[1], empty.buffers()[1], *texts])


def _with_values(column: pa.Array, type_: pa.DataType, values: pa.Array) -> pa.Array:
    """The same nulls and offsets around other values."""
    own = 1 if types.is_fixed_size_list(type_) else 2
    return pa.Array.from_buffers(type_, len(column), column.buffers()[:own], offset=column.offset, children=[values])


def _taken(values: pa.Array, indices: pa.Array, bytes_max: int) -> pa.Array:
    size = pc.sum(_lengths(values).take(indices)).as_py() or 0
    if size > bytes_max:
        raise LargerError(size)
    return values.take(indices)


def _repeated_runs(column: pa.Array, values: pa.Array, bytes_max: int) -> pa.Array:
    """A value for each row. A run of any number of rows has the same few bytes, so the rows are counted first."""
    first, count = column.offset, len(column)
    inside = pc.min_element_wise(pc.max_element_wise(column.run_ends.cast(pa.int64()), first), first + count)
    run_rows = pc.subtract(inside, pa.concat_arrays([pa.array([first], pa.int64()), inside[:-1]]))
    size = pc.sum(pc.multiply(run_rows.cast(pa.float64()), _lengths(values))).as_py() or 0
    if size > bytes_max:
        raise LargerError(int(size))
    runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, pa.arange(0, len(values)).cast(pa.int32()))
    return values.take(pc.run_end_decode(runs.slice(first, count)))


def _listed(column: pa.Array, type_: pa.DataType, bytes_max: int) -> pa.Array:
    """Lists made of list views, which may refer to the same values any number of times. (Arrow's own cast turns views
    that are not in order into arrays that are not valid.)"""
    values = _unfolded(column.values, type_.value_type, bytes_max)
    valid = column.is_valid()
    firsts = pc.if_else(valid, column.offsets, 0).cast(pa.int64())
    counts = pc.if_else(valid, column.sizes, 0).cast(pa.int64())
    size = pc.sum(_spans(_lengths(values), firsts, pc.add(firsts, counts))).as_py() or 0
    if size > bytes_max:
        raise LargerError(size)
    ends = _sums(counts)
    flat = pa.arange(0, ends[-1].as_py())
    rows = pc.list_parent_indices(pa.LargeListArray.from_arrays(ends, flat))
    indices = pc.add(flat, pc.subtract(firsts, ends[:-1]).take(rows))
    return pa.ListArray.from_arrays(ends.cast(pa.int32()), values.take(indices), type=type_, mask=pc.invert(valid))


# ---- sizes


def plain_bytes(column: pa.Array) -> int:
    """About how many bytes the values of a column take without dictionaries and views."""
    size: int = pc.sum(_lengths(column)).as_py() or 0 if expands(column.type) else column.nbytes
    return size


def _lengths(values: pa.Array) -> pa.Array:
    """About how many bytes each value takes, without its validity bit."""
    type_ = values.type
    if not len(values):
        return pa.array([], pa.int64())
    if types.is_dictionary(type_):
        return pc.fill_null(_lengths(values.dictionary).take(values.indices), 4)
    if type_.id in _VIEWS:
        # A view is four numbers of four bytes. The first is the length, which no function of Arrow returns yet.
        validity, views, *_ = values.buffers()
        numbers = pa.Array.from_buffers(pa.int32(), views.size // 4, [None, views])
        each = pa.list_(pa.int32(), 4)
        return _text_lengths(
            pc.list_element(
                pa.Array.from_buffers(each, len(values), [validity], offset=values.offset, children=[numbers]), 0
            )
        )
    if types.is_binary(type_) or types.is_string(type_) or types.is_large_binary(type_) or types.is_large_string(type_):
        return _text_lengths(pc.binary_length(values))
    if types.is_struct(type_) and type_.num_fields:
        return reduce(pc.add, (_lengths(values.field(at)) for at in range(type_.num_fields)))
    if types.is_map(type_):
        entries = pc.add(_lengths(values.keys), _lengths(values.items))
        return pc.add(_spans(entries, values.offsets[:-1], values.offsets[1:]), 4)
    if types.is_list(type_) or types.is_large_list(type_):
        return pc.add(_spans(_lengths(values.values), values.offsets[:-1], values.offsets[1:]), 4)
    if types.is_fixed_size_list(type_) and type_.list_size:
        firsts = pc.multiply(pa.arange(values.offset, values.offset + len(values)), type_.list_size)
        return _spans(_lengths(values.values), firsts, pc.add(firsts, type_.list_size))
    return pa.repeat(pa.scalar(row_bytes(type_), pa.int64()), len(values))


def _text_lengths(lengths: pa.Array) -> pa.Array:
    return pc.add(pc.fill_null(lengths, 0).cast(pa.int64()), 4)


def _spans(lengths: pa.Array, firsts: pa.Array, ends: pa.Array) -> pa.Array:
    """The sum of the lengths from each first to its end."""
    sums = _sums(lengths)
    return pc.subtract(sums.take(ends), sums.take(firsts))


def _sums(numbers: pa.Array) -> pa.Array:
    """0, and the sum up to each."""
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(numbers)])


def row_bytes(type_: pa.DataType) -> int:
    """The least size of a value, null or not, rounded up."""
    if types.is_fixed_size_list(type_):
        return int(type_.list_size) * row_bytes(type_.value_type) + 1
    if types.is_struct(type_):
        return sum(row_bytes(field.type) for field in type_) + 1
    try:
        return int(type_.bit_width) // 8 + 1
    except ValueError:  # text, lists: an offset
        return 5
