"""Divides what is recovered from the store into the part of selective topics and that of all others."""

from dataclasses import replace

from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, canonical_text
from m4cast.overlay.protocol.effects import (
    BeginRecord,
    MarksRecord,
    Recovered,
    Registration,
    SpreadRecord,
    Want,
    WantRecord,
)
from m4cast.overlay.protocol.selective.contract import KEEPS_TOPIC, SelectiveRecovered, kept_origin
from m4cast.overlay.protocol.selective.marks import HELD
from m4cast.overlay.protocol.wire.batch import SkipReason
from m4cast.overlay.protocol.wire.selective import ProfileText


def want_of(name: str, row: Registration) -> Want:
    origin = kept_origin(row.canonical) if row.topic == KEEPS_TOPIC else None
    text = canonical_text(row.canonical)
    profile = ProfileText(SQL, SQL_VERSION, text) if text and origin is None else None
    return Want(
        name, row.topic, profile, row.since_ms, row.earliest, origin, from_ms=row.from_ms, positions=row.positions
    )


def selective_part(recovered: Recovered, version: int) -> SelectiveRecovered:
    return SelectiveRecovered(
        incarnation=recovered.incarnation,
        version=version,
        wants={each: stored for each, stored in recovered.of(WantRecord).items() if stored.join},
        begins=dict(recovered.of(BeginRecord)),
        marks={**_former_marks(recovered), **recovered.of(MarksRecord)},
        own={
            topic: (stored.next, stored.last_checksum)
            for topic in recovered.of(SpreadRecord)
            if (stored := recovered.streams.get(StreamId(recovered.node_id, topic))) is not None
        },
        lost={
            stream: skip.last_sequence + 1
            for stream in recovered.of(MarksRecord)
            if stream in recovered.streams
            for skip in recovered.streams[stream].skips
            if skip.reason is SkipReason.LOST
        },
    )


def _former_marks(recovered: Recovered) -> dict[StreamId, tuple[tuple[int, int], ...]]:
    """Return marks for the rows that this node numbered on selective topics before it was rolled back: they are here
    without a hole."""
    streams = (StreamId(former, topic) for former in recovered.former_ids for topic in recovered.of(SpreadRecord))
    return {
        stream: ((1, HELD), (stored.next, 0))
        for stream in streams
        if (stored := recovered.streams.get(stream)) is not None and stored.next > 1
    }


def broadcast_part(recovered: Recovered) -> Recovered:
    """Return the part that the machines of broadcast topics recover: everything but selective streams."""
    own = {StreamId(recovered.node_id, topic) for topic in recovered.of(SpreadRecord)}
    selective = own | set(recovered.of(MarksRecord))
    for former in recovered.former_ids:
        selective |= {StreamId(former, topic) for topic in recovered.of(SpreadRecord)}
    if not selective:
        return recovered
    return replace(recovered, streams={key: kept for key, kept in recovered.streams.items() if key not in selective})
