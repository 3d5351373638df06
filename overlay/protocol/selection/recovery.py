"""What is recovered from the store: the part of selective topics, and that of all others."""

from dataclasses import replace

from m4cast.overlay.ids import StreamId
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
from m4cast.overlay.protocol.wire.selective import ProfileText


def want_of(name: str, row: Registration) -> Want:
    origin = kept_origin(row.text) if row.topic == KEEPS_TOPIC else None
    profile = ProfileText(row.language, row.version, row.text) if row.text and origin is None else None
    return Want(name, row.topic, profile, row.since_ms, row.earliest, origin)


def selective_part(recovered: Recovered, version: int) -> SelectiveRecovered:
    return SelectiveRecovered(
        incarnation=recovered.incarnation,
        version=version,
        wants={each: stored for each, stored in recovered.of(WantRecord).items() if stored.join},
        begins=dict(recovered.of(BeginRecord)),
        marks=dict(recovered.of(MarksRecord)),
        own={
            topic: (stored.next, stored.last_checksum)
            for topic in recovered.of(SpreadRecord)
            if (stored := recovered.streams.get(StreamId(recovered.node_id, topic))) is not None
        },
    )


def broadcast_part(recovered: Recovered) -> Recovered:
    """What the machines of broadcast topics recover: everything but selective streams."""
    own = {StreamId(recovered.node_id, topic) for topic in recovered.of(SpreadRecord)}
    selective = own | set(recovered.of(MarksRecord))
    for former in recovered.former_ids:
        selective |= {StreamId(former, topic) for topic in recovered.of(SpreadRecord)}
    if not selective:
        return recovered
    return replace(recovered, streams={key: kept for key, kept in recovered.streams.items() if key not in selective})
