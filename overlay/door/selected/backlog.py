"""Backlogs of readers on selective topics: each waits for the rows that its own filter may match, not for all that are
at this node, up to where its own registration is covered."""

from collections.abc import Mapping
from functools import partial

from m4cast.overlay.door.read.portions import ruled_out_by
from m4cast.overlay.door.selected.begins import fits
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import FilterError, Profile, read
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.protocol.effects import Registration
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import Reader, Store

BATCHES_MAX = 10_000
"""Batches that are looked at for one answer; more rows than these have are not counted. Guess."""


def rows_here(
    store: Store,
    stream: StreamId,
    first: int,
    until: int,
    profile: Profile | None = None,
    *,
    batches_max: int = BATCHES_MAX,
) -> int:
    """Rows of `first .. until - 1` that are in the log, in batches that may have a row for the profile."""
    heads = store.summaries(stream, first, until, batches_max)
    if profile is not None:
        rules_out = ruled_out_by(profile.condition)
        heads = [head for head in heads if not rules_out(head)]
    return sum(min(head.next_sequence, until) - max(head.first_sequence, first) for head in heads)


def profile_of(reader: Reader, topic: str) -> Profile | None:
    """The rows that a reader reads of a topic; None: every row, or it is not known."""
    text = reader.profiles.get(topic)
    try:
        return None if text is None else read(text)
    except FilterError:  # of another version of this program
        return None


def covered(topic: str, profile: Profile | None, reader: Reader, node: Node) -> Mapping[StreamId, int]:
    """The coverage's end of a registration that suits the reader, by stream; empty if there is none. On the loop."""
    name = node.selection.covering(topic, profile, partial(fits, start=reader.frontier))
    return {} if name is None else node.selection.coverage(name)


def is_for(row: Registration, reader: Reader) -> bool:
    """True if a registration may be the one that this reader reads by."""
    profile = profile_of(reader, row.topic)
    if row.topic not in reader.topics:
        return False
    if profile is None or not row.canonical:
        return True
    try:
        return covers(read(row.canonical).condition, profile.condition)
    except FilterError:
        return True
