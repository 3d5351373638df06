"""Splitting of publishes by the columns that a selective topic is routed by.

A batch goes wherever one of its rows is wanted. So rows of a topic with `route_by` columns are split, per record batch
of a call, into batches of equal values of these columns: each goes where its value is wanted, and nowhere else. At most
`PARTS_MAX` batches; the rows of further values are together in the last. The order of rows is kept for each value.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PARTS_MAX = 64


def split_rows(rows: pa.RecordBatch, route_by: tuple[str, ...]) -> list[pa.RecordBatch]:
    """The rows in batches of equal values, in the order in which values come first. Columns that are missing, or whose
    values cannot be compared, do not split."""
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in route_by:
        found = rows.schema.get_all_field_indices(name)
        if len(found) != 1:
            continue
        try:
            values = pc.dictionary_encode(rows.column(found[0]), null_encoding="encode")
        except pa.ArrowException:  # lists and the like
            continue
        _, codes = np.unique(codes * len(values.dictionary) + values.indices.to_numpy(), return_inverse=True)
    _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    if len(firsts) <= 1:
        return [rows]
    ranks = np.empty(len(firsts), dtype=np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    parts = np.minimum(ranks[codes], PARTS_MAX - 1)
    order = np.argsort(parts, kind="stable")
    edges = np.flatnonzero(np.diff(parts[order])) + 1
    return [rows.take(pa.array(places)) for places in np.split(order, edges)]
