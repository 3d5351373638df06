"""Questions: tables as they stand, and queries. Every `Channel` has these calls."""

from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from m4cast.overlay.client.asking.query import TopicQuery
from m4cast.overlay.client.asking.tables import OWNER, VERSION, TableTail, TableWriter
from m4cast.overlay.client.doors import PATIENCE_S, Doors
from m4cast.overlay.client.tables import sql_text
from m4cast.overlay.client.tail import Frontier, filter_fields, filter_of
from m4cast.overlay.errors import RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel


class Questions:
    """The part of a `Channel` that asks for what stands, and for rows of all nodes."""

    _doors: Doors

    def _channel(self) -> "Channel":
        return cast("Channel", self)

    def table(
        self,
        topic: str,
        where: str | None = None,
        *,
        language: str | None = None,
        removed: bool = False,
        end: Frontier | Literal["latest"] = "latest",
    ) -> pa.Table:
        """A table as it stands at the answering node, up to `end`: of each owner and name the row with the greatest
        version, unless that is a removal. `where` chooses among the rows that stand. `removed`: with removals, too.
        If batches of the table were removed by compaction, an `end` before the latest rows is refused (`missing`).

        >>> channel.table("offers", "price < 50").num_rows
        2
        """
        ticket = {"end": end, "removed": removed, **filter_fields(filter_of(where, language))}
        return self._doors.anywhere(lambda client, limit_s: self._read_table(client, limit_s, topic, ticket))

    def _read_table(self, client: Any, limit_s: float, topic: str, ticket: dict[str, object]) -> pa.Table:
        self._doors.greet(client, limit_s)
        about = {"read": "table", "topic": topic, "timeout_ms": max(int(limit_s * 1000), 1)}
        about |= {"compression": self._doors.compression}
        return self._doors.read(client, self._doors.timeout_s + PATIENCE_S, {**ticket, **about})

    def _table_and_position(self, topic: str) -> tuple[pa.Table, Frontier]:
        """A table as it stands at a node, with removals, and a position that this includes: rows after the position may
        be in it as well, whose versions tell that they are known."""

        def read(client: Any, limit_s: float) -> tuple[pa.Table, Frontier]:
            found = self._doors.act(client, limit_s, "frontier", {"topics": [topic]})
            position = {name: {each: ends[1] for each, ends in origins.items()} for name, origins in found.items()}
            return self._read_table(client, limit_s, topic, {"end": "latest", "removed": True}), position

        return self._doors.anywhere(read)

    def table_writer(self, topic: str, owner: str, *, session: int | None = None) -> TableWriter:
        """Write the rows of an owner in a table: publish, replace, remove. `session`: greater than those before it;
        None: one more than the greatest that the answering node knows of this owner.

        >>> writer = channel.table_writer("offers", "ann")
        """
        if session is None:
            session = 1 + self._last_session(topic, owner)
        return TableWriter(self._channel(), topic, owner, session)

    def _last_session(self, topic: str, owner: str) -> int:
        try:
            rows = self.table(topic, f"{OWNER} = {sql_text(owner)}", removed=True)
        except RefusedError as error:
            if error.code == "unknown-topic":
                return 0
            raise
        return max((version["session"] for version in rows[VERSION].to_pylist()), default=0)

    def follow_table(self, topic: str, *, idle_s: float | None = None) -> TableTail:
        """A table as it stands, then what changes, each version once: an iterator of `TableChange`. It ends after
        `idle_s` without a new row.

        >>> for change in channel.follow_table("offers", idle_s=1):
        ...     print(change.is_reset, change.rows.num_rows)
        """
        return TableTail(self._channel(), topic, idle_s)

    def query(
        self,
        topic: str,
        where: str | None = None,
        *,
        language: str | None = None,
        scope: Literal["node", "channel"] = "node",
    ) -> TopicQuery:
        """Ask for the rows of a topic that match: an iterator of record batches, which says what it is exact for.

        `scope="node"`: the answering node, which has all rows of a broadcast topic. `scope="channel"`: every stream is
        asked of one node, at that node's own door: of its origin if that answers, else of one that has more of it than
        others. `ranges` has, by stream, the range that the answer is exact for and the node that gave it, `unanswered`
        the nodes that did not answer, with the reason. A query that is closed, or no longer used, ends at the nodes,
        and they keep nothing of it; of a selective topic, a node that is asked for the stream of another one wants the
        rows that match for ten minutes. Of a table, the answer has rows that stand, and `where` chooses among these.

        >>> query = channel.query("orders", "price > 100", scope="channel")
        >>> sum(batch.num_rows for batch in query), query.unanswered
        (3, {})
        """
        return TopicQuery(self._channel(), topic, filter_of(where, language), scope)
