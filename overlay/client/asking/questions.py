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

        >>> channel.table("offers", "price < 50").num_rows
        2
        """
        ticket: dict[str, object] = {"read": "table", "topic": topic, "end": end, "removed": removed}
        ticket |= {"compression": self._doors.compression, **filter_fields(filter_of(where, language))}

        def read(client: Any, limit_s: float) -> pa.Table:
            self._doors.greet(client, limit_s)
            timeout_ms = max(int(limit_s * 1000), 1)
            return self._doors.read(client, self._doors.timeout_s + PATIENCE_S, {**ticket, "timeout_ms": timeout_ms})

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
        the nodes that did not answer, with the reason. Nothing is kept at the nodes; a query that is closed, or no
        longer used, ends there. Of a table, the answer has rows that stand, and `where` chooses among these.

        >>> query = channel.query("orders", "price > 100", scope="channel")
        >>> sum(batch.num_rows for batch in query), query.unanswered
        (3, {})
        """
        return TopicQuery(self._channel(), topic, filter_of(where, language), scope)
