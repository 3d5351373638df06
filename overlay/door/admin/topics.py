"""Topics as their owners administrate them: content, retention and deletion, all of it at this node alone."""

from dataclasses import dataclass

from m4cast.overlay.door.fields import NUMBER_MAX, Fields
from m4cast.overlay.door.node_handle import NodeHandle, until_written
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Disown, Trimmed
from m4cast.overlay.store.store import Keep, Store, StreamRecord

SETTINGS_MAX = 10_000
"""Topics with their own retention. All are read at every trim. Guess."""


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """A topic's own retention. None: the node's default."""

    topic: str
    bytes_max: int | None
    age_ms_max: int | None


def parse_retention(fields: Fields) -> TopicRetention:
    bytes_max, age_ms_max = (fields.whole(name, 0, NUMBER_MAX) for name in ("max_bytes", "max_age_ms"))
    return TopicRetention(fields.topic(), bytes_max, age_ms_max)


class TopicAdmin:
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, catalogue: Catalogue, timeout_s: float) -> None:
        self._store = store
        self._node = node
        self._catalogue = catalogue
        self._timeout_s = timeout_s

    def describe(self, topic: str) -> dict[str, object]:
        streams = self._held(topic)
        described: dict[str, object] = {"topic": topic, "columns": None}
        try:
            spans = [StreamSpan(stream, held.low, held.next) for stream, held in streams.items()]
            schema = self._catalogue.merged(spans, passes_unreadable=False)
            described["columns"] = [{"name": field.name, "type": str(field.type)} for field in schema]
        except Refusal as refusal:
            described["conflict"] = refusal.detail
        return {
            **described,
            "streams": {
                stream.origin.hex(): {
                    "low": held.low,
                    "next": held.next,
                    "batches": held.batches,
                    "bytes": held.log_bytes,
                }
                for stream, held in streams.items()
            },
            "rows": sum(held.next - held.low for held in streams.values()),
            "bytes": sum(held.log_bytes for held in streams.values()),
            "retention": self._retention(topic),
        }

    def retain(self, wanted: TopicRetention) -> dict[str, object]:
        """Set how much of a topic is retained from now on."""
        keeps = self._store.keeps()
        default = self._store.retention.of(wanted.topic)
        keep: Keep | None = None
        if wanted.bytes_max is not None or wanted.age_ms_max is not None:
            if wanted.topic not in keeps and len(keeps) >= SETTINGS_MAX:
                raise Refusal(
                    "too-many", f"{SETTINGS_MAX} topics have their own retention, which is the limit: reset some"
                )
            keep = Keep(
                default.bytes_max if wanted.bytes_max is None else wanted.bytes_max,
                default.age_ms_max if wanted.age_ms_max is None else wanted.age_ms_max,
                default.hold_bytes_max,
                default.hold_ms_max,
            )
        until_written(self._store.set_keep(wanted.topic, keep), self._timeout_s)
        return self._retention(wanted.topic)

    def delete(self, topic: str) -> dict[str, object]:
        """Delete the batches of a topic; the node is notified before the answer is sent. The topic no longer counts
        towards the share of the client that created it. Its numbering continues, so it still counts at the node."""
        before = self._held(topic)
        lows = until_written(self._store.empty(topic, self._node.clock_ms()), self._timeout_s)
        for stream, low in lows:
            self._node.notify(Trimmed(stream, low))
        self._node.notify(Disown(topic))
        after = self._held(topic)
        return {
            "topic": topic,
            "bytes": sum(held.log_bytes for held in before.values()),
            "streams": {stream.origin.hex(): [held.low, held.next] for stream, held in after.items()},
        }

    def _held(self, topic: str) -> dict[StreamId, StreamRecord]:
        streams = {stream: held for stream, held in self._store.held().items() if stream.topic == topic}
        if not streams:
            detail = f"nothing was published under topic {topic!r}, as far as this node knows: check the name"
            raise Refusal("unknown-topic", detail)
        return dict(sorted(streams.items(), key=lambda item: item[0].origin))

    def _retention(self, topic: str) -> dict[str, object]:
        own = self._store.keeps().get(topic)
        keep = own or self._store.retention.of(topic)
        return {"max_bytes": keep.bytes_max, "max_age_ms": keep.age_ms_max, "is_default": own is None}
