"""Tables: topics whose rows stand for their owner and name until a greater version replaces or removes them.

`TableWriter` writes the rows of one owner; `TableTail` gives a table as it stands, then what changes, each version
once. Versions decide, not the order of arrival: an owner may move to another node, and its older rows may come later.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.tail import Tail
from m4cast.overlay.errors import LocalProtocolError, RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

OWNER, NAME, VERSION, REMOVED = "_owner", "_name", "_version", "_removed"
_VERSION = pa.struct([pa.field("session", pa.int64()), pa.field("counter", pa.int64())])
Key = tuple[str, str]
Version = tuple[int, int]


class TableWriter:
    """Rows of one owner in a table; made by `Channel.table_writer`. Not for several threads at once.

    A publish that is repeated has the same version, so at least once is enough: nothing stands twice. Of two writers of
    one owner, the one with the greater session prevails.
    """

    def __init__(self, channel: "Channel", topic: str, owner: str, session: int) -> None:
        self.channel = channel
        self._topic = topic
        self.owner = owner
        self.session = session
        self.counter = 0
        """The counter of the last row that was written in this session."""

    def put(self, rows: Mapping[str, Mapping[str, Any]], *, acks: int | None = None) -> list[RowRange]:
        """Publish rows by their names, in place of what stood there.

        >>> writer.put({"lamp": {"price": 20}, "chair": {"price": 75}})
        """
        table = pa.Table.from_pylist([dict(columns) for columns in rows.values()])
        taken = [name for name in (OWNER, NAME, VERSION, REMOVED) if name in table.column_names]
        if taken:
            raise LocalProtocolError(f"a row has {taken[0]}, which the writer adds: leave it out")
        return self.put_rows(list(rows), table, acks=acks)

    def put_rows(self, names: Sequence[str], rows: pa.Table, *, acks: int | None = None) -> list[RowRange]:
        """The same with the names in one list, and the rows, in that order, as a table."""
        return self._publish(rows, list(names), is_removed=False, acks=acks)

    def remove(self, names: Sequence[str], *, acks: int | None = None) -> list[RowRange]:
        """Remove rows by their names, whether they stand or not.

        >>> writer.remove(["lamp"])
        """
        if isinstance(names, str):
            raise LocalProtocolError(f"names is {names!r}: give a list of names")
        return self._publish(None, list(names), is_removed=True, acks=acks)

    def _publish(
        self, rows: pa.Table | None, names: list[str], *, is_removed: bool, acks: int | None
    ) -> list[RowRange]:
        count = len(names)
        counters = range(self.counter + 1, self.counter + 1 + count)
        self.counter += count
        versions = [{"session": self.session, "counter": counter} for counter in counters]
        columns = {
            OWNER: pa.array([self.owner] * count, pa.string()),
            NAME: pa.array(names, pa.string()),
            VERSION: pa.array(versions, _VERSION),
            REMOVED: pa.array([is_removed] * count, pa.bool_()),
        }
        own = {} if rows is None else {name: rows[name] for name in rows.column_names}
        return self.channel.publish(self._topic, pa.table({**columns, **own}), acks=acks)


@dataclass(frozen=True, slots=True)
class TableChange:
    """Rows that changed a table: new versions, and removals (`_removed` is true)."""

    rows: pa.RecordBatch
    is_reset: bool
    """The table begins anew with these rows: forget what was there. True of the first one, and again when rows in
    between are no longer retained, since removals may have been among them."""


class TableTail(Iterator[TableChange]):
    """A table as it stands, then what changes; made by `Channel.follow_table`. It keeps the version of every name, and
    ends after `idle_s` without a new row."""

    def __init__(self, channel: "Channel", topic: str, idle_s: float | None) -> None:
        self._channel = channel
        self._topic = topic
        self._idle_s = idle_s
        self._versions: dict[Key, Version] = {}
        self._tail: Tail | None = None

    def __next__(self) -> TableChange:
        if self._tail is None:
            return self._begin()
        while True:
            try:
                rows = next(self._tail)
            except RefusedError as error:
                if error.code != "missing":
                    raise
                return self._begin()
            news = self._news(rows)
            if news.num_rows:
                return TableChange(news, is_reset=False)

    def close(self) -> None:
        """End it: whoever waits for the next change gets StopIteration."""
        if self._tail is not None:
            self._tail.close()

    def _begin(self) -> TableChange:
        standing, position = self._channel._table_and_position(self._topic)
        self._tail = self._channel.tail(self._topic, position, idle_s=self._idle_s)
        self._versions = {}
        rows = standing.combine_chunks().to_batches()
        news = self._news(rows[0]) if rows else pa.RecordBatch.from_pylist([], schema=standing.schema)
        removed = news[REMOVED].fill_null(False).to_pylist() if REMOVED in news.schema.names else [False] * len(news)
        return TableChange(news.filter(pa.array([not each for each in removed], pa.bool_())), is_reset=True)

    def _news(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are newer than what is known, in their order."""
        chosen = []
        columns = (rows[name].to_pylist() for name in (OWNER, NAME, VERSION))
        for number, (owner, name, version) in enumerate(zip(*columns, strict=True)):
            ordered = version["session"], version["counter"]
            if ordered > self._versions.get((owner, name), (-1, -1)):
                self._versions[owner, name] = ordered
                chosen.append(number)
        return rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen, pa.int64()))
