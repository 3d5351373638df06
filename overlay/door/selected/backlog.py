"""Counts the rows of a selective stream that are at this node: not all between its ends are."""

from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.store import Store

BATCHES_MAX = 10_000
"""Batches that are looked at for one answer; more rows than these have are not counted. Guess."""


def rows_here(store: Store, stream: StreamId, first: int, until: int) -> int:
    """Rows of `first .. until - 1` that are in the log."""
    heads = store.summaries(stream, first, until, BATCHES_MAX)
    return sum(min(head.next_sequence, until) - max(head.first_sequence, first) for head in heads)
