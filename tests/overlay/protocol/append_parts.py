"""Appends by their parts: tests name what is written, and the writes are put in the order in which nodes put them."""

from collections.abc import Iterable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    AppendSkip,
    DropStaged,
    FillSkip,
    FormerPart,
    FormerPartRecord,
    PublisherRecord,
    PublisherState,
    RepairBatch,
    SetOwner,
    Staged,
    StagePayload,
    StartStream,
    UpTimeRecord,
    Write,
)
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, Skip, StoredPayload


def append_of(
    token: int,
    *,
    batches: Iterable[Batch] = (),
    skips: Iterable[Skip] = (),
    deliveries: Iterable[Delivery] = (),
    publishers: Iterable[tuple[str, PublisherState]] = (),
    unstage: Iterable[str] = (),
    stage: Iterable[tuple[str, Staged]] = (),
    starts: Iterable[tuple[StreamId, int]] = (),
    former_parts: Iterable[FormerPart] = (),
    former_done: Iterable[tuple[NodeId, int, int]] = (),
    owners: Iterable[tuple[StreamId, str]] = (),
    drop: Iterable[str] = (),
    up_ms: int = 0,
    fills: Iterable[Batch] = (),
    repairs: Iterable[Batch] = (),
) -> Append:
    """`deliveries` belong to the batches and skips that begin where they do; batches whose payload is in the store take
    the ids of `unstage` in turn, and those that are left are dropped."""
    arrivals = {(each.stream, each.first_sequence): each for each in deliveries}
    stage_ids = list(unstage)
    appended: list[Write] = [StartStream(stream, first) for stream, first in starts]
    rows = [
        AppendBatch(
            batch,
            arrivals.get((batch.stream, batch.first_sequence)),
            stage_ids.pop(0) if isinstance(batch.payload, StoredPayload) and stage_ids else None,
        )
        for batch in batches
    ]
    appended += [DropStaged(stage_id) for stage_id in stage_ids]
    appended += [StagePayload(stage_id, staged) for stage_id, staged in stage]
    appended += rows
    appended += [FillSkip(batch, arrivals[batch.stream, batch.first_sequence]) for batch in fills]
    appended += [RepairBatch(batch) for batch in repairs]
    appended += [AppendSkip(skip, arrivals.get((skip.stream, skip.first_sequence))) for skip in skips]
    appended += [SetOwner(stream, owner) for stream, owner in owners]
    appended += [PublisherRecord(key, None) for key in drop]
    appended += [PublisherRecord(key, state) for key, state in publishers]
    appended += [FormerPartRecord((part.origin, part.first_batch, part.part), part) for part in former_parts]
    appended += [FormerPartRecord(key, None) for key in former_done]
    if up_ms:
        appended.append(UpTimeRecord("", up_ms))
    return Append(token, tuple(appended))


def batches_of(append: Append) -> tuple[Batch, ...]:
    return tuple(write.batch for write in append.of(AppendBatch))


def deliveries_of(append: Append) -> tuple[Delivery, ...]:
    writes = [write for write in append.writes if isinstance(write, AppendBatch | AppendSkip | FillSkip)]
    return tuple(write.delivery for write in writes if write.delivery is not None)


def publishers_of(append: Append) -> tuple[tuple[str, PublisherState], ...]:
    """Keys that it moves; not those that it removes."""
    return tuple((each.key, each.content) for each in append.of(PublisherRecord) if each.content is not None)


def removed_keys_of(append: Append) -> tuple[str, ...]:
    return tuple(each.key for each in append.of(PublisherRecord) if each.content is None)


def starts_of(append: Append) -> tuple[tuple[StreamId, int], ...]:
    return tuple((start.stream, start.first_sequence) for start in append.of(StartStream))


def staged_of(append: Append) -> tuple[tuple[str, Staged], ...]:
    return tuple((write.stage_id, write.staged) for write in append.of(StagePayload))


def unstaged_of(append: Append) -> tuple[str, ...]:
    """Stage ids that it consumes or drops, in order."""
    stage_ids = (write.stage_id for write in append.writes if isinstance(write, AppendBatch | DropStaged))
    return tuple(stage_id for stage_id in stage_ids if stage_id is not None)


def with_writes(append: Append, *, before: Iterable[Write] = (), after: Iterable[Write] = ()) -> Append:
    return Append(append.token, (*before, *append.writes, *after))
