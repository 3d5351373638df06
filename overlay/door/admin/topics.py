"""Topics as their owners administrate them: content, retention, summaries and deletion, all of it at this node
alone."""

import time
from dataclasses import dataclass
from typing import Any

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.admin.compaction import Compaction
from m4cast.overlay.door.fields import NUMBER_MAX, Fields, shown
from m4cast.overlay.door.node_handle import NodeHandle, until_written, waited
from m4cast.overlay.door.read.table_reading import TableReading
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.payload import DEPTH_MAX, is_reserved
from m4cast.overlay.door.rows.summaries import ColumnPath, Summaries
from m4cast.overlay.door.selected.activity import is_quiet
from m4cast.overlay.door.selected.backlog import rows_here
from m4cast.overlay.door.selected.reads import SelectiveReads
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles.summary import COLUMNS_MAX
from m4cast.overlay.protocol.effects import CreateTopic, Disown, Trimmed
from m4cast.overlay.store.store import Keep, Store, StreamRecord

SETTINGS_MAX = 10_000
"""Topics with their own retention, and with their own columns to summarise. The former are read at every trim, the
latter are kept in memory. Guess."""
AUTO, OFF = "auto", "off"
KEEPERS, KEEPERS_MAX = 2, 8
ROUTE_BY_MAX = 4
CREATE_WAIT_S = 0.3
"""Between two attempts to create a topic while nodes have not reported their versions."""


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """A topic's own retention. None: the node's default."""

    topic: str
    bytes_max: int | None
    age_ms_max: int | None


def parse_retention(fields: Fields) -> TopicRetention:
    bytes_max, age_ms_max = (fields.whole(name, 0, NUMBER_MAX) for name in ("max_bytes", "max_age_ms"))
    return TopicRetention(fields.topic(), bytes_max, age_ms_max)


@dataclass(frozen=True, slots=True)
class TopicSummaries:
    """The columns of a topic that are summarised. None: `auto`; none of them: `off`."""

    topic: str
    columns: tuple[ColumnPath, ...] | None


def parse_summaries(fields: Fields) -> TopicSummaries:
    wanted = fields.get("summarise", AUTO)
    if wanted in (AUTO, OFF):
        return TopicSummaries(fields.topic(), None if wanted == AUTO else ())
    if not isinstance(wanted, list) or not 1 <= len(wanted) <= COLUMNS_MAX:
        raise bad_request(
            f'summarise must be "{AUTO}", "{OFF}", or a list of 1 to {COLUMNS_MAX} columns, not {shown(wanted)}'
        )
    columns = tuple(_column_path(column) for column in wanted)
    if len(set(columns)) < len(columns):
        raise bad_request("summarise names a column twice: remove one")
    return TopicSummaries(fields.topic(), columns)


def _column_path(column: object) -> ColumnPath:
    path = (column,) if isinstance(column, str) else column
    if not isinstance(path, list | tuple) or not path or not all(isinstance(name, str) and name for name in path):
        raise bad_request(
            f"summarise names the column {shown(column)}: write its name, or, for a member of a struct, the list of "
            "names on the way to it"
        )
    if len(path) > DEPTH_MAX:
        raise bad_request(f"summarise names a column by {len(path)} names: at most {DEPTH_MAX} are allowed")
    if is_reserved(path[0]):
        raise bad_request(f"summarise names the column {path[0]!r}, which the channel adds to rows: remove it")
    return tuple(path)


@dataclass(frozen=True, slots=True)
class TopicSetup:
    """A selective topic, as it is asked for."""

    topic: str
    keepers: int
    route_by: tuple[str, ...]


def parse_setup(fields: Fields) -> TopicSetup:
    spread = fields.text("spread", "selective")
    if spread != "selective":
        raise bad_request(f"spread is {spread!r}: must be selective; broadcast topics begin with their first row")
    route_by = fields.get("route_by", [])
    if not isinstance(route_by, list) or len(route_by) > ROUTE_BY_MAX or not all(map(_is_column, route_by)):
        raise bad_request(f"route_by must be a list of at most {ROUTE_BY_MAX} columns without commas")
    keepers = fields.whole("keepers", 0, KEEPERS_MAX)
    return TopicSetup(fields.topic(), KEEPERS if keepers is None else keepers, tuple(route_by))


def _is_column(name: object) -> bool:
    return isinstance(name, str) and bool(name) and "," not in name and not is_reserved(name)


class TopicAdmin:
    """Any thread may use it."""

    def __init__(
        self,
        store: Store,
        node: NodeHandle,
        catalogue: Catalogue,
        summaries: Summaries,
        tables: TableReading,
        selective: SelectiveReads,
    ) -> None:
        self.selective = selective
        self._tables = tables
        self._summaries = summaries
        self._store = store
        self._node = node
        self._catalogue = catalogue
        self._timeout_s = selective.timeout_s
        self.compaction = Compaction(self)

    def create(self, wanted: TopicSetup, caller: Caller) -> dict[str, object]:
        """Make a selective topic. Nodes report their versions within a beacon of the first such request, so that it is
        repeated for a while."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            request = self._node.request(
                lambda number: CreateTopic(number, wanted.topic, wanted.keepers, wanted.route_by)
            )
            try:
                waited(request, self._timeout_s, caller.is_cancelled)
                return {"topic": wanted.topic, "keepers": wanted.keepers, "route_by": list(wanted.route_by)}
            except Refusal as refusal:
                if refusal.code != "old-nodes" or time.monotonic() + CREATE_WAIT_S > deadline:
                    raise
            self.selective.pause(CREATE_WAIT_S)

    def describe(self, topic: str, *, is_whole: bool) -> dict[str, object]:
        """Describe what this node has of a topic; sizes and numbers of rows only for those who may read it whole."""
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
                    "batches": held.batches if is_whole else None,
                    "bytes": held.log_bytes if is_whole else None,
                }
                for stream, held in streams.items()
            },
            "rows": sum(self._rows(stream, held) for stream, held in streams.items()) if is_whole else None,
            "bytes": sum(held.log_bytes for held in streams.values()) if is_whole else None,
            "retention": self._retention(topic),
            "summaries": self._summarised(topic),
            "is_quiet": self._node.look(lambda node: is_quiet(node, topic), self._timeout_s),
        }

    def _rows(self, stream: StreamId, held: StreamRecord) -> int:
        if stream.topic in self.selective.topics:
            return rows_here(self._store, stream, held.low, held.next)
        return held.next - held.low

    def retain(self, wanted: TopicRetention) -> dict[str, object]:
        """Set how much of a topic is retained from now on."""
        keeps = self._store.keeps()
        default = self._store.retention.of(wanted.topic)
        keep: Keep | None = None
        if wanted.bytes_max is not None or wanted.age_ms_max is not None:
            if wanted.topic not in keeps and len(keeps) >= SETTINGS_MAX:
                raise _too_many("their own retention")
            keep = Keep(
                default.bytes_max if wanted.bytes_max is None else wanted.bytes_max,
                default.age_ms_max if wanted.age_ms_max is None else wanted.age_ms_max,
                default.hold_bytes_max,
                default.hold_ms_max,
            )
        until_written(self._store.set_keep(wanted.topic, keep), self._timeout_s)
        return self._retention(wanted.topic)

    def summarise(self, wanted: TopicSummaries) -> dict[str, object]:
        """Set which columns of a topic are summarised when it is published here, from now on."""
        chosen = self._summaries.chosen
        if wanted.columns is not None and wanted.topic not in chosen and len(chosen) >= SETTINGS_MAX:
            raise _too_many("their own columns to summarise")
        until_written(self._store.set_summarised(wanted.topic, wanted.columns), self._timeout_s)
        if wanted.columns is None:
            chosen.pop(wanted.topic, None)
        else:
            chosen[wanted.topic] = wanted.columns
        return self._summarised(wanted.topic)

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

    def sizes(self) -> dict[str, int]:
        """The topics of this node, with the rows that each has ever had here."""
        rows: dict[str, int] = {}
        for stream, held in self._store.held().items():
            rows[stream.topic] = rows.get(stream.topic, 0) + held.next
        return dict(sorted(rows.items()))

    def compact(self, topic: str) -> dict[str, Any]:
        """Remove the batches of a table in which nothing stands any more, from the beginning of each stream, as far as
        no reader holds them."""
        before = self._held(topic)
        spans = [StreamSpan(stream, held.low, held.next) for stream, held in before.items()]
        needed = self._tables.needed_from(topic, spans, self._node.clock_ms())
        lows = until_written(self._store.compact(needed, self._node.clock_ms()), self._timeout_s)
        for stream, low in lows:
            self._node.notify(Trimmed(stream, low))
        after = self._held(topic)
        return {
            "topic": topic,
            "batches": sum(before[stream].batches - held.batches for stream, held in after.items() if stream in before),
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

    def _summarised(self, topic: str) -> dict[str, object]:
        """The setting, and the columns that are summarised now."""
        chosen = self._summaries.chosen.get(topic)
        columns = [_shown_path(path) for path in self._summaries.columns(topic)]
        return {"summarise": AUTO if chosen is None else columns or OFF, "columns": columns}


def _shown_path(path: ColumnPath) -> str | list[str]:
    return path[0] if len(path) == 1 else list(path)


def _too_many(what: str) -> Refusal:
    return Refusal("too-many", f"{SETTINGS_MAX} topics have {what}, which is the limit: reset some")
